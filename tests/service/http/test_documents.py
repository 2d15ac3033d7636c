"""The OpenAPI document, the page and the metrics: what they say is what the API does."""

import json
from typing import Any

import httpx
import jsonschema
import pytest
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

ANYTHING = {"workflow": "anything", "input": {}}


async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/openapi.json")).json()
    return found


async def test_every_route_of_the_api_is_documented(app: Litestar, anonymous: httpx.AsyncClient) -> None:
    paths = (await document(anonymous))["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    routed = {
        (method, handler_path.replace(":str}", "}"))
        for route in app.routes
        for handler_path in [route.path]
        for handler in getattr(route, "route_handlers", [])
        if isinstance(handler, HTTPRouteHandler)
        for method in handler.http_methods
        if method != "OPTIONS" and not handler_path.startswith("/console")
    }
    assert documented == routed


async def test_references_lead_somewhere(anonymous: httpx.AsyncClient) -> None:
    found = await document(anonymous)
    names = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    assert references(found) <= names


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/runs", {**ANYTHING, "tags": ["a"]}), ("GET", "/v1/runs", None), ("GET", "/v1/runs/{run_id}", None),
        ("GET", "/v1/runs/{run_id}/events", None), ("GET", "/v1/runs/{run_id}/logs", None),
        ("GET", "/v1/runs/{run_id}/annotations", None), ("GET", "/v1/runs/{run_id}/progress", None),
        ("GET", "/v1/runs/{run_id}/trace", None),
        ("GET", "/v1/runs/{run_id}/steps", None),
        ("POST", "/v1/runs/{run_id}/signals", {"stage_id": "say", "step_id": "x", "payload": [None]}),
        ("POST", "/v1/runs/{run_id}/signals", {"stage_id": "nobody", "step_id": "x", "payload": None}),
        ("POST", "/v1/runs/{run_id}/cancel", {"reason": "x"}), ("POST", "/v1/runs/cancel", {"filter": {"tag": "none"}}),
        ("POST", "/v1/runs/{run_id}/redrive", None), ("POST", "/v1/runs/redrive", {"filter": {"tag": "none"}}),
        ("GET", "/v1/workflows", None), ("GET", "/v1/workflows/{workflow_id}", None),
        ("GET", "/v1/workflows/{workflow_id}/versions", None), ("GET", "/v1/tenant", None), ("GET", "/v1/queue", None), ("GET", "/v1/activity?window=1h", None), ("GET", "/v1/workers", None),
        ("GET", "/v1/api-keys", None), ("POST", "/v1/api-keys", {"name": "k", "scopes": ["runs:read"]}),
        ("GET", "/healthz", None), ("GET", "/readyz", None), ("GET", "/v1/runs?limit=0", None), ("POST", "/v1/runs", {}),
    ],
)  # fmt: skip
async def test_answers_fit_their_schemas(client: httpx.AsyncClient, method: str, path: str, body: Any) -> None:
    run = (await client.post("/v1/runs", json=ANYTHING)).json()
    answer = await client.request(method, path.format(run_id=run["id"], workflow_id="orders"), json=body)
    found = await document(client)
    responses = found["paths"][path.partition("?")[0]][method.lower()]["responses"]
    media_type = answer.headers["content-type"]
    schema = responses[str(answer.status_code)]["content"][media_type]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": found["components"]})


async def test_the_page_needs_nothing_from_elsewhere(anonymous: httpx.AsyncClient) -> None:
    answer = await anonymous.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in answer.text
    assert "http:" not in answer.text
    assert "https:" not in answer.text
    problem = (await anonymous.get("/nothing")).json()
    assert f'id="{problem["type"].partition("#")[2]}"' in answer.text


async def test_metrics_count_routes_and_not_paths(client: httpx.AsyncClient) -> None:
    run = (await client.post("/v1/runs", json=ANYTHING)).json()
    await client.get(f"/v1/runs/{run['id']}")
    await client.get("/made/up")
    answered = await client.get("/metrics")
    assert answered.headers["content-type"].count("charset=utf-8") == 1
    text = answered.text
    assert 'tenantry_http_requests_total{method="POST",route="/v1/runs",status="201"} 1.0' in text
    assert 'route="/v1/runs/{run_id}"' in text
    assert run["id"] not in text
    assert "/made/up" not in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert all(name.startswith("tenantry_") for name in names)


async def test_the_document_is_json_all_through(anonymous: httpx.AsyncClient) -> None:
    found = await document(anonymous)
    assert json.loads(json.dumps(found)) == found
    assert found["openapi"].startswith("3.1")
