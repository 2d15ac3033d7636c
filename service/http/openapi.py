"""The OpenAPI document, made from the declarations of the routes and the shapes, and a page that shows it.

The page is whole in itself: no script, nothing loaded from elsewhere.
"""

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.auth import Scope
from service.http import activity_shapes, report_shapes, requests, shapes
from service.http.routing import RouteSpec
from service.problems import MEDIA_TYPE, TITLES

_PATH_PARAMETER: Final = re.compile(r"\{(\w+):str\}")
_REFERENCE: Final = "#/components/schemas/{model}"
_USUAL_REFUSALS: Final = {"tenant": (401, 403, 503), "operator": (401, 503), "anyone": ()}
_WORD: Final = {"type": "string"}
_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "status": {"type": "array", "items": _WORD},
    "tag": {"type": "array", "items": _WORD},
    "type": {"type": "array", "items": _WORD},
    "limit": {"type": "integer", "minimum": 1, "maximum": 200, "default": 50},
    "wait": {"type": "number", "minimum": 0, "maximum": 60},
    "created_after": {"type": "string", "format": "date-time"},
    "created_before": {"type": "string", "format": "date-time"},
}
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430}"
    "code,pre{font:14px/1.45 ui-monospace,monospace}pre{background:#f3f5f8;padding:.75rem;overflow:auto}"
    "details{border-top:1px solid #d8dee8;padding:.5rem 0}summary{cursor:pointer}.m{font-weight:600;margin-right:.5rem}"
    "@media(prefers-color-scheme:dark){body{background:#12161c;color:#dde3ec}pre{background:#1c222b}}"
)


def build_document(specs: Iterable[RouteSpec]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for spec in specs:
        path = _PATH_PARAMETER.sub(r"{\1}", spec.path)
        paths.setdefault(path, {})[spec.method.lower()] = _operation(spec, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenantry",
            "version": _version(),
            "description": "Durable workflows for many tenants. Refusals are problem documents (RFC 9457).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "tenant": {"type": "http", "scheme": "bearer", "description": "An API key, or a JWT."},
                "operator": {"type": "http", "scheme": "bearer", "description": "The operator's token."},
            },
        },
    }


def render_page(document: Mapping[str, Any]) -> str:
    """Return the document as a page to read, with every problem by its anchor."""
    operations = "".join(
        _section(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    problems = "".join(
        f'<dt id="problem-{code.replace("_", "-")}"><code>{code}</code> ({status})</dt><dd>{escape(title)}</dd>'
        for code, (status, title) in TITLES.items()
    )
    schemas = "".join(
        f'<details id="schema-{name}"><summary><code>{name}</code></summary>'
        f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre></details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tenantry API</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>Tenantry API</h1>"
        '<p>The same as a document for machines: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"<h2>Routes</h2>{operations}<h2>Problems</h2><dl>{problems}</dl><h2>Shapes</h2>{schemas}</body></html>"
    )


def _operation(spec: RouteSpec, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{spec.method.lower()}{re.sub(r'[^a-z0-9]+', '_', path.lower()).rstrip('_')}",
        "summary": spec.summary,
        "parameters": _parameters(spec),
        "responses": {str(status): _response(spec, name) for status, name in spec.answers.items()},
    }
    if spec.audience != "anyone":
        operation["security"] = [{spec.audience: []}]
    if spec.scope is not None:
        operation["x-scope"] = str(spec.scope)
    if spec.body is not None:
        content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=spec.body.__name__)}}}
        operation["requestBody"] = {"required": not spec.is_body_optional, "content": content}
    problem = {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    for status in sorted({*_USUAL_REFUSALS[spec.audience], *spec.refuses}):
        title = next(title for listed, title in TITLES.values() if listed == status)
        operation["responses"][str(status)] = {"description": title, "content": problem}
    return operation


def _parameters(spec: RouteSpec) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}
        for name in _PATH_PARAMETER.findall(spec.path)
    ]
    in_query = [
        {"name": name, "in": "query", "required": False, "schema": _PARAMETERS.get(name, _WORD)} for name in spec.query
    ]
    in_headers = [{"name": name, "in": "header", "required": False, "schema": _WORD} for name in spec.headers]
    return [*in_path, *in_query, *in_headers]


def _path_schema(name: str) -> Mapping[str, Any]:
    return _WORD if name == "workflow_id" else {"type": "string", "format": "uuid"}


def _response(spec: RouteSpec, model: str | None) -> dict[str, Any]:
    response: dict[str, Any] = {"description": spec.summary}
    if model is not None:
        response["content"] = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model)}}}
        if spec.streams:
            response["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return response


def _schemas() -> dict[str, Any]:
    asked = [(kind, "validation") for kind in _models_of(requests)]
    answered = [
        (kind, "serialization") for module in (shapes, activity_shapes, report_shapes) for kind in _models_of(module)
    ]
    _, document = models_json_schema([*asked, *answered], ref_template=_REFERENCE)  # type: ignore[list-item]
    schemas: dict[str, Any] = document["$defs"]
    schemas["Scope"] = {"type": "string", "enum": [str(scope) for scope in Scope]}
    return schemas


def _models_of(module: ModuleType) -> list[type[BaseModel]]:
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == module.__name__
    ]


def _section(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = [f"<p>{escape(operation['summary'])}</p>"]
    if scope := operation.get("x-scope"):
        rows.append(f"<p>Scope: <code>{scope}</code></p>")
    if parameters := operation["parameters"]:
        names = ", ".join(f"<code>{escape(each['name'])}</code> ({each['in']})" for each in parameters)
        rows.append(f"<p>Parameters: {names}</p>")
    if body := operation.get("requestBody"):
        rows.append(f"<p>Body: {_link(body['content']['application/json']['schema']['$ref'])}</p>")
    answers = []
    for status, response in operation["responses"].items():
        shown = [content["schema"] for content in response.get("content", {}).values()]
        link = _link(shown[0]["$ref"]) if shown and "$ref" in shown[0] else ""
        answers.append(f"{status} {link}".strip())
    rows.append(f"<p>Answers: {', '.join(answers)}</p>")
    title = f'<span class="m">{method.upper()}</span><code>{escape(path)}</code>'
    return f"<details><summary>{title}</summary>{''.join(rows)}</details>"


def _link(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return f'<a href="#schema-{name}">{name}</a>'


def _version() -> str:
    try:
        return version("tenantry")
    except PackageNotFoundError:
        return "0"
