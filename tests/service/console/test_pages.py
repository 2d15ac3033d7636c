"""The pages over HTTP: the policy they come under, what each scope shows, and what their forms do."""

import re
from uuid import UUID

import httpx
import psycopg
import pytest

from service.console.places import PLACES
from service.console.sessions import NAME
from tests.service.console.visiting import NOBODY, send, start
from tests.support.console import HOSTILE, SignIn, token_of
from tests.support.http import MakeKey
from tests.support.looking import Look

SCOPED = [
    ("GET", "/console/runs", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/events", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/logs", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/steps", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/annotations", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/stage?id=a", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/payload?of=input", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/cancel", "runs:write"),
    ("POST", f"/console/runs/{NOBODY}/cancel", "runs:write"),
    ("GET", f"/console/runs/{NOBODY}/signal", "signals:write"),
    ("POST", f"/console/runs/{NOBODY}/signal", "signals:write"),
    ("GET", f"/console/runs/{NOBODY}/trace", "runs:read"),
    ("GET", f"/console/runs/{NOBODY}/redrive", "runs:write"),
    ("POST", f"/console/runs/{NOBODY}/redrive", "runs:write"),
    ("GET", "/console/workflows", "runs:read"),
    ("GET", "/console/workflows/orders", "runs:read"),
    ("GET", "/console/workflows/orders/start", "runs:write"),
    ("POST", "/console/workflows/orders/start", "runs:write"),
    ("GET", "/console/workers", "runs:read"),
    ("GET", "/console/keys", "keys:admin"),
    ("POST", "/console/keys", "keys:admin"),
    ("GET", f"/console/keys/{NOBODY}/revoke", "keys:admin"),
    ("POST", f"/console/keys/{NOBODY}/revoke", "keys:admin"),
]
FIELDS = {"from": "start", "stage_id": "a", "step_id": "b", "payload": "1", "confirmed": "yes"}


class TestPolicy:
    @pytest.mark.parametrize(
        "path", ["/console/sign-in", "/console", "/console/runs", "/console/nothing", "/console/keys"]
    )
    async def test_nothing_inline_and_nothing_from_elsewhere(self, signed_in: SignIn, path: str) -> None:
        answer = await (await signed_in()).get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert re.findall(r"<script(?![^>]* src=)", answer.text) == []
        assert re.findall(r"<style|\sstyle=|\son\w+=", answer.text) == []
        assert re.findall(r"(?:src|href|action)=\"(?:https?:)?//", answer.text) == []

    async def test_files_are_kept_by_their_digest(self, anonymous: httpx.AsyncClient) -> None:
        page = (await anonymous.get("/console/sign-in")).text
        addresses = re.findall(r'(?:href|src)="(/console/assets/[^"]+)"', page)
        assert len(addresses) == 3
        for address in addresses:
            answer = await anonymous.get(address)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            stale = re.sub(r"assets/\w+", "assets/000000000000", address)
            assert (await anonymous.get(stale)).headers["cache-control"] == "no-store"
        assert (await anonymous.get("/console/assets/x/..%2f__init__.py")).status_code == 404
        assert (await anonymous.get("/console/assets/x/nothing.css")).status_code == 404

    async def test_the_pages_are_not_part_of_the_apis_document(self, anonymous: httpx.AsyncClient) -> None:
        paths = (await anonymous.get("/openapi.json")).json()["paths"]
        assert [path for path in paths if path.startswith("/console")] == []


class TestScopes:
    @pytest.mark.parametrize(("method", "path", "scope"), SCOPED)
    async def test_each_page_asks_for_its_scope(self, signed_in: SignIn, method: str, path: str, scope: str) -> None:
        every = ["runs:read", "runs:write", "signals:write", "schedules:write", "webhooks:write", "keys:admin"]
        client = await signed_in(scopes=[each for each in every if each != scope])
        answer = await (send(client, path, **FIELDS) if method == "POST" else client.get(path))
        assert answer.status_code == 403
        assert scope in answer.text
        allowed = await signed_in(scopes=[scope])
        answer = await (send(allowed, path, **FIELDS) if method == "POST" else allowed.get(path))
        assert answer.status_code in {200, 303, 404, 422}

    @pytest.mark.parametrize(
        ("path", "fields"),
        [
            ("/console/workflows/orders/start", {"/input/total": "many"}),
            ("/console/runs/RUN/signal", {"payload": "{nonsense"}),
            ("/console/runs/RUN/redrive", {"from": "nowhere"}),
        ],
    )
    async def test_a_form_that_is_wrong_tells_nothing_to_those_who_may_not_send_it(
        self, signed_in: SignIn, api: httpx.AsyncClient, path: str, fields: dict[str, str]
    ) -> None:
        path = path.replace("RUN", await start(api, run_at="2999-01-01T00:00:00Z"))
        client = await signed_in()
        refused = await send(client, path, **fields)
        assert refused.status_code == 422
        assert 'aria-label="Console"' in refused.text, "one is still signed in"
        assert (await send(await signed_in(scopes=["keys:admin"]), path, **fields)).status_code == 403
        cookie = client.cookies[NAME]
        await client.post("/console/sign-out", data={"form_token": token_of(refused)})
        # Who keeps the cookie of a session that has ended still has its form's token.
        client.cookies.set(NAME, cookie, domain="api.test")
        assert (await send(client, path, **fields)).status_code in {303, 401}

    @pytest.mark.parametrize("scopes", [["runs:read"], ["signals:write"], ["keys:admin"], ["runs:read", "runs:write"]])
    async def test_the_navigation_leads_where_the_key_may_go_and_nowhere_else(
        self, signed_in: SignIn, scopes: list[str]
    ) -> None:
        client = await signed_in(scopes=scopes)
        navigation = (await client.get("/console")).text.partition('aria-label="Console"')[2].partition("</nav>")[0]
        for place in PLACES:
            answer = await client.get(place.address)
            assert (f'href="{place.address}"' in navigation) == (answer.status_code == 200), place.title

    async def test_forms_are_only_shown_to_those_who_may_send_them(
        self, signed_in: SignIn, api: httpx.AsyncClient
    ) -> None:
        run = await start(api, run_at="2999-01-01T00:00:00Z")
        reader = (await (await signed_in(scopes=["runs:read"])).get(f"/console/runs/{run}")).text
        writer = (await (await signed_in()).get(f"/console/runs/{run}")).text
        for link in (f"/console/runs/{run}/cancel", f"/console/runs/{run}/signal", "/start?like="):
            assert link not in reader
            assert link in writer

    async def test_who_may_only_signal_is_welcomed_and_may_signal(
        self, signed_in: SignIn, api: httpx.AsyncClient
    ) -> None:
        run = await start(api, "orders", input={"order_id": "a", "total": 1}, run_at="2999-01-01T00:00:00Z")
        client = await signed_in(scopes=["signals:write"])
        assert "may not read runs" in (await client.get("/console")).text
        fields = {"stage_id": "approve", "step_id": "approval", "payload": "true", "confirmed": "yes"}
        answer = await send(client, f"/console/runs/{run}/signal", **fields)
        assert (answer.status_code, "The signal was taken" in answer.text) == (200, True)
        again = await send(client, f"/console/runs/{run}/signal", **fields)
        assert "signalled before" in again.text


class TestIsolation:
    async def test_another_tenants_run_looks_like_one_that_never_was(
        self, signed_in: SignIn, api: httpx.AsyncClient, other_tenant: UUID
    ) -> None:
        run = await start(api, tags=["mine"])
        client = await signed_in(other_tenant)
        for page in (
            "",
            "/events",
            "/logs",
            "/steps",
            "/annotations",
            "/trace",
            "/redrive",
            "/stage?id=say",
            "/payload?of=input",
            "/cancel",
            "/signal",
        ):
            answers = [await client.get(f"/console/runs/{each}{page}") for each in (run, NOBODY)]
            assert [answer.status_code for answer in answers] == [404, 404], page
            texts = [re.sub(r"Request <code>[^<]*", "", answer.text).replace(run, NOBODY) for answer in answers]
            assert texts[0] == texts[1]
        for path, fields in (
            (f"/console/runs/{run}/cancel", {}),
            (f"/console/runs/{run}/redrive", {"from": "start"}),
            (f"/console/runs/{run}/signal", FIELDS),
        ):
            assert (await send(client, path, **fields)).status_code == 404
        assert (await client.get(f"/console/workflows/anything/start?like={run}")).status_code == 404
        assert run not in (await client.get("/console/runs")).text
        assert run not in (await client.get("/console")).text
        assert (await api.get(f"/v1/runs/{run}")).json()["status"] == "PENDING"

    async def test_another_tenants_key_can_neither_be_seen_nor_revoked(
        self, signed_in: SignIn, tenant: UUID, other_tenant: UUID, make_key: MakeKey, look: Look
    ) -> None:
        made = await make_key(tenant, name="not-yours")
        client = await signed_in(other_tenant)
        assert "not-yours" not in (await client.get("/console/keys")).text
        assert (await client.get(f"/console/keys/{made['id']}/revoke")).status_code == 404
        assert (await send(client, f"/console/keys/{made['id']}/revoke")).status_code == 404
        (row,) = await look("select revoked_at from tenantry.api_keys where key_id = %s", made["id"])
        assert row["revoked_at"] is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/console/nothing", 404), ("/console/runs/not-an-id", 404), ("/console/runs?cursor=x", 400),
            ("/console/runs?status=NONSENSE", 422), ("/console/runs?nothing=1", 422), ("/console?window=x", 404),
            ("/console/runs?created_after=x", 422), (f"/console/runs/{NOBODY}/events?kind=x", 404),
        ],
    )  # fmt: skip
    async def test_a_refusal_is_a_page(self, signed_in: SignIn, path: str, status: int) -> None:
        answer = await (await signed_in()).get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["x-request-id"] in answer.text

    async def test_an_unforeseen_error_shows_nothing_of_the_inside(
        self, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("select secret from somewhere")

        client = await signed_in()
        monkeypatch.setattr("service.console.workers.worker_list", broken)
        answer = await client.get("/console/workers")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text

    async def test_the_api_goes_on_to_refuse_with_problems(self, anonymous: httpx.AsyncClient) -> None:
        answer = await anonymous.get("/consoles")
        assert answer.headers["content-type"] == "application/problem+json"


class TestActions:
    async def test_a_run_is_cancelled_with_its_reason(self, signed_in: SignIn, api: httpx.AsyncClient) -> None:
        run = await start(api, run_at="2999-01-01T00:00:00Z")
        client = await signed_in()
        assert "Cancel this run?" in (await client.get(f"/console/runs/{run}/cancel")).text
        assert (await api.get(f"/v1/runs/{run}")).json()["status"] == "PENDING"
        answer = await send(client, f"/console/runs/{run}/cancel", reason="by mistake")
        assert answer.headers["location"] == f"/console/runs/{run}?done=cancelled"
        assert "The run was cancelled." in (await client.get(answer.headers["location"])).text
        assert (await api.get(f"/v1/runs/{run}")).json()["status"] == "CANCELLED"
        events = (await api.get(f"/v1/runs/{run}/events")).json()["data"]
        assert events[-1]["data"]["reason"] == "by mistake"
        told = (await client.get(f"/console/runs/{run}")).text.partition('id="cancelled-title"')[2]
        assert "by mistake" in told.partition("</section>")[0]
        again = await send(client, f"/console/runs/{run}/cancel")
        assert again.headers["location"].endswith("done=over")

    async def test_a_run_that_is_over_goes_on_once(self, signed_in: SignIn, api: httpx.AsyncClient) -> None:
        run = await start(api, run_at="2999-01-01T00:00:00Z")
        client = await signed_in()
        assert "The run is not over" in (await client.get(f"/console/runs/{run}/redrive")).text
        fields = {"from": "start", "idempotency_key": "once"}
        assert (await send(client, f"/console/runs/{run}/redrive", **fields)).status_code == 409
        await api.post(f"/v1/runs/{run}/cancel")
        assert "Redrive the run" in (await client.get(f"/console/runs/{run}/redrive")).text
        assert (await send(client, f"/console/runs/{run}/redrive", **{"from": "stage:nobody"})).status_code == 422
        assert (await send(client, f"/console/runs/{run}/redrive", **{"from": "x"})).status_code == 422
        for _ in range(2):
            answer = await send(client, f"/console/runs/{run}/redrive", **fields)
            assert answer.headers["location"] == f"/console/runs/{run}?done=redriven"
        shown = (await api.get(f"/v1/runs/{run}")).json()
        assert (shown["status"], shown["redrive_count"]) == ("RUNNING", 1)

    async def test_spans_are_shown_as_a_tree(
        self, signed_in: SignIn, api: httpx.AsyncClient, superuser: psycopg.AsyncConnection, tenant: UUID
    ) -> None:
        run = await start(api)
        client = await signed_in()
        assert "Nothing of this run was traced" in (await client.get(f"/console/runs/{run}/trace")).text
        for name, parent in (("run.create orders", None), (HOSTILE, "run.create orders")):
            await superuser.execute(
                "insert into tenantry.spans (tenant_id, run_id, start_time, span_id, parent_span_id, trace_id, name, kind, end_time)"
                " values (%s, %s, now(), left(md5(%s), 16), left(md5(%s), 16), md5('t'), %s, 'INTERNAL', now())",
                (tenant, run, name, parent, name),
            )
        text = (await client.get(f"/console/runs/{run}/trace")).text
        assert re.findall(r"depth-(\d)", text) == ["0", "1"]
        assert "run.create orders" in text
        assert "<script>" not in text

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"payload": "{nonsense"}, "not JSON"), ({"confirmed": ""}, "Check this"), ({"stage_id": ""}, "is required"),
            ({"stage_id": "nobody"}, "nobody"),
        ],
    )  # fmt: skip
    async def test_a_signal_that_cannot_be_sent_keeps_what_was_written(
        self, signed_in: SignIn, api: httpx.AsyncClient, changes: dict[str, str], says: str
    ) -> None:
        run = await start(api, "orders", input={"order_id": "a", "total": 1}, run_at="2999-01-01T00:00:00Z")
        fields = {"stage_id": "approve", "step_id": "approval", "payload": '{"kept": 1}', "confirmed": "yes", **changes}
        answer = await send(await signed_in(), f"/console/runs/{run}/signal", **fields)
        assert answer.status_code == 422
        assert says in answer.text
        assert "approval" in answer.text
        assert (await api.get(f"/v1/runs/{run}/steps")).json()["data"] == []

    async def test_a_run_is_started_from_the_fields_of_its_schema(
        self, signed_in: SignIn, api: httpx.AsyncClient
    ) -> None:
        client = await signed_in()
        page = (await client.get("/console/workflows/orders/start")).text
        for pointer in (
            "/input/order_id",
            "/input/total",
            "/input/ship_to/street",
            "/input/lines",
            "/config/price/vat",
        ):
            assert f'name="{pointer}"' in page
        fields = {
            "/input/order_id": "A-1", "/input/total": "120", "/input/ship_to/street": "Main St\r\n2",
            "/input/ship_to/country": '"FR"', "/input/lines": '[{"sku": "pen", "count": 2}]', "/input/notes": "one\n\ntwo",
            "/input/due": "2026-12-24", "/input/is_gift": "true", "/config/price/vat": "0.19", "priority": "9",
            "tags": "shop, vip", "run_at": "2999-01-01T10:00", "idempotency_key": "once",
        }  # fmt: skip
        answer = await send(client, "/console/workflows/orders/start", **fields)
        assert answer.status_code == 303, answer.text
        run = (await api.get("/v1/runs/" + answer.headers["location"].split("/")[3].split("?")[0])).json()
        assert run["input"] == {
            "order_id": "A-1", "total": 120, "ship_to": {"street": "Main St\n2", "country": "FR"},
            "lines": [{"sku": "pen", "count": 2}], "notes": ["one", "two"], "due": "2026-12-24", "is_gift": True,
        }  # fmt: skip
        assert run["config"] == {"price": {"vat": 0.19}}
        assert (run["priority"], run["tags"], run["run_at"]) == (9, ["shop", "vip"], "2999-01-01T10:00:00Z")
        # The same form sent twice is one run.
        again = await send(client, "/console/workflows/orders/start", **fields)
        assert again.headers["location"] == f"/console/runs/{run['id']}?done=repeated"
        like = (await client.get(f"/console/workflows/orders/start?like={run['id']}")).text
        assert 'value="A-1"' in like
        assert "Main St\n2</textarea>" in like
        assert '<option value="&#34;FR&#34;" selected>' in like

    async def test_faults_are_shown_at_their_fields(self, signed_in: SignIn, api: httpx.AsyncClient) -> None:
        fields = {"/input/order_id": "A-1", "/input/total": "many", "/input/lines": "[", "priority": "5"}
        answer = await send(await signed_in(), "/console/workflows/orders/start", **fields)
        assert answer.status_code == 422
        assert "must be a whole number" in answer.text
        assert "not JSON" in answer.text
        assert 'value="A-1"' in answer.text
        fields |= {"/input/total": "-1", "/input/lines": '[{"sku": "pen", "count": 0}]'}
        refused = await send(await signed_in(), "/console/workflows/orders/start", **fields)
        assert refused.status_code == 422
        assert refused.text.count('aria-invalid="true"') == 2
        assert (await api.get("/v1/runs")).json()["data"] == []

    async def test_a_run_is_started_from_json(self, signed_in: SignIn, api: httpx.AsyncClient) -> None:
        client = await signed_in()
        fields = {"as": "json", "/input": '{"n": 1.50}'}
        answer = await send(client, "/console/workflows/anything/start", **fields)
        assert answer.status_code == 303
        (run,) = (await api.get("/v1/runs")).json()["data"]
        download = await client.get(f"/console/runs/{run['id']}/payload?of=input")
        assert download.json() == {"n": 1.5}
        assert download.headers["content-disposition"].startswith("attachment")
        refused = await send(client, "/console/workflows/anything/start", **{"as": "json", "/input": "[1]"})
        assert refused.status_code == 422

    async def test_a_key_is_made_shown_once_and_revoked(self, signed_in: SignIn, look: Look) -> None:
        client = await signed_in()
        made = await send(client, "/console/keys", name="robot", scopes=["runs:read"], expires_at="2999-01-01T00:00")
        assert made.status_code == 201
        (secret,) = re.findall(r"tny_[0-9A-Za-z]{20,}", made.text)
        listed = (await client.get("/console/keys")).text
        assert "robot" in listed
        assert secret not in listed
        (row,) = await look("select key_id, scopes from tenantry.api_keys where name = 'robot'")
        assert row["scopes"] == ["runs:read"]
        assert "robot" in (await client.get(f"/console/keys/{row['key_id']}/revoke")).text
        answer = await send(client, f"/console/keys/{row['key_id']}/revoke")
        assert answer.headers["location"] == "/console/keys?done=revoked"
        refused = await send(client, "/console/keys", name="", expires_at="1999-01-01T00:00")
        assert refused.status_code == 422
