"""Sessions: who gets one, what it is worth, when it ends, and that only forms of ours change anything."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from litestar import Litestar

from service import keys
from service.auth import authenticate
from service.console import sessions
from service.console.visits import safe_target
from service.problems import ProblemError
from tenancy import Database
from tests.support import factories
from tests.support.console import SignIn, sign_in_with, token_of
from tests.support.http import MakeKey, connect
from tests.support.looking import Look

COOKIE = "tenantry_console"
FORM_COOKIE = "tenantry_console_form"


async def test_a_key_opens_a_session_in_a_cookie_that_scripts_and_other_sites_cannot_have(
    anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey, look: Look
) -> None:
    made = await make_key(tenant, name="laptop")
    answer = await sign_in_with(anonymous, made["key"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    (cookie,) = [each for each in answer.headers.get_list("set-cookie") if each.startswith(f"{COOKIE}=")]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=lax", "path=/", f"max-age={12 * 3600}"} <= attributes
    value = anonymous.cookies[COOKIE]
    assert value.startswith(f"{tenant.hex}.")
    assert made["key"] not in value
    (row,) = await look("select * from tenantry.console_sessions where tenant_id = %s", tenant)
    session = sessions.read_cookie({COOKIE: value}, secure=False)
    assert session is not None
    assert (row["key_id"], row["token_hash"]) == (made["id"], session.token_hash)
    assert session.token not in row["token_hash"]
    assert row["expires_at"] - row["created_at"] == timedelta(hours=12)
    assert (await anonymous.get("/console")).status_code == 200


async def test_over_tls_the_cookie_is_secure_and_bound_to_the_host(
    app: Litestar, tenant: UUID, make_key: MakeKey
) -> None:
    made = await make_key(tenant)
    async with connect(app) as client:
        client.headers["X-Forwarded-Proto"] = "https"
        client.base_url = httpx.URL("https://console.test")
        answer = await sign_in_with(client, made["key"])
        assert any(
            each.startswith(f"__Host-{COOKIE}=") and "secure" in each.lower()
            for each in answer.headers.get_list("set-cookie")
        )
        assert (await client.get("/console")).status_code == 200
        # What a neighbour could plant without the prefix counts for nothing here.
        planted = client.cookies[f"__Host-{COOKIE}"]
        client.cookies.clear()
        assert (await client.get("/console", headers={"Cookie": f"{COOKIE}={planted}"})).status_code == 303


@pytest.mark.parametrize(
    "given",
    ["", "x", "tny_nonsense", "a" * 200, "00000000000000000000000000000000." + "A" * 43],
)
async def test_what_is_no_session_of_ours_leads_to_the_form(anonymous: httpx.AsyncClient, given: str) -> None:
    answer = await anonymous.get("/console/runs?status=FAILED", headers={"Cookie": f"{COOKIE}={given}"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/console/sign-in?next=%2Fconsole%2Fruns%3Fstatus%3DFAILED"
    assert answer.content == b""


async def test_every_kind_of_wrong_key_is_refused_alike(
    anonymous: httpx.AsyncClient, tenant: UUID, other_tenant: UUID, make_key: MakeKey, look: Look
) -> None:
    good = await make_key(tenant)
    wrong = [
        keys.mint(uuid4(), uuid4()).text,
        keys.mint(tenant, uuid4()).text,
        keys.mint(tenant, good["id"]).text,
        keys.mint(other_tenant, good["id"]).text,
        "tny_",
        "",
    ]
    for key in wrong:
        answer = await sign_in_with(anonymous, key)
        assert answer.status_code == 401
        assert "not accepted" in answer.text
        assert COOKIE not in anonymous.cookies
    assert await look("select from tenantry.console_sessions where tenant_id in (%s, %s)", tenant, other_tenant) == []


async def test_a_session_is_no_key_of_the_api(signed_in: SignIn) -> None:
    client = await signed_in()
    assert (await client.get("/v1/runs")).status_code == 401
    bearer = {"Authorization": f"Bearer {client.cookies[COOKIE]}"}
    assert (await client.get("/v1/runs", headers=bearer)).status_code == 401


async def test_a_key_is_no_session(api: httpx.AsyncClient) -> None:
    assert (await api.get("/console")).status_code == 303


async def test_revoking_the_key_ends_its_sessions_at_once(
    api: httpx.AsyncClient, anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey
) -> None:
    made = await make_key(tenant)
    await sign_in_with(anonymous, made["key"])
    token, held = token_of(await anonymous.get("/console")), {"Cookie": f"{COOKIE}={anonymous.cookies[COOKIE]}"}
    assert (await api.delete(f"/v1/api-keys/{made['id']}")).status_code == 204
    for answer in (
        await anonymous.get("/console", headers=held),
        await anonymous.post(
            "/console/workflows/anything/start", data={"form_token": token, "/input": "{}"}, headers=held
        ),
    ):
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/console/sign-in")
        # The browser is told to forget it.
        assert any("max-age=0" in each.lower() for each in answer.headers.get_list("set-cookie"))


async def test_a_key_that_runs_out_takes_its_sessions_along(
    superuser: psycopg.AsyncConnection, signed_in: SignIn, tenant: UUID
) -> None:
    client = await signed_in()
    await superuser.execute("update tenantry.api_keys set expires_at = now() where tenant_id = %s", (tenant,))
    assert (await client.get("/console")).status_code == 303


async def test_a_session_that_ran_out_is_none(
    superuser: psycopg.AsyncConnection, signed_in: SignIn, tenant: UUID, look: Look
) -> None:
    client = await signed_in()
    await superuser.execute("update tenantry.console_sessions set expires_at = now() where tenant_id = %s", (tenant,))
    assert (await client.get("/console")).status_code == 303
    # The next to sign in clears it away.
    await signed_in()
    assert len(await look("select from tenantry.console_sessions where tenant_id = %s", tenant)) == 1


async def test_a_suspended_tenant_is_told_so_and_a_deleted_one_is_unknown(
    superuser: psycopg.AsyncConnection, signed_in: SignIn, anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey
) -> None:
    client = await signed_in()
    made = await make_key(tenant)
    await factories.set_tenant_status(superuser, tenant, "suspended")
    answer = await client.get("/console")
    assert answer.status_code == 403
    assert "suspended" in answer.text
    refused = await sign_in_with(anonymous, made["key"])
    assert refused.status_code == 403
    assert COOKIE not in anonymous.cookies
    await factories.set_tenant_status(superuser, tenant, "deleting")
    assert (await client.get("/console")).status_code == 303
    await factories.set_tenant_status(superuser, tenant, "active")


async def test_signing_in_never_keeps_a_session_that_was_there(
    anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey, look: Look
) -> None:
    made = await make_key(tenant)
    planted = sessions.Session(tenant, b"p" * 32)
    anonymous.cookies.set(COOKIE, planted.cookie_value, domain="api.test")
    await sign_in_with(anonymous, made["key"])
    first = anonymous.cookies.get(COOKIE, domain="api.test")
    assert first != planted.cookie_value
    await sign_in_with(anonymous, made["key"])
    second = anonymous.cookies.get(COOKIE, domain="api.test")
    assert second != first
    assert len(await look("select from tenantry.console_sessions where tenant_id = %s", tenant)) == 1
    answer = await anonymous.get("/console", headers={"Cookie": f"{COOKIE}={first}"})
    assert answer.status_code == 303


async def test_signing_out_ends_the_session_for_everyone_who_has_it(
    signed_in: SignIn, tenant: UUID, look: Look
) -> None:
    client = await signed_in()
    stolen = client.cookies[COOKIE]
    token = token_of(await client.get("/console"))
    answer = await client.post("/console/sign-out", data={"form_token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in")
    assert COOKIE not in client.cookies
    assert await look("select from tenantry.console_sessions where tenant_id = %s", tenant) == []
    assert (await client.get("/console", headers={"Cookie": f"{COOKIE}={stolen}"})).status_code == 303


FORMS: list[tuple[str, dict[str, Any]]] = [
    ("/console/workflows/anything/start", {"/input": "{}"}),
    ("/console/runs/00000000-0000-7000-8000-000000000000/cancel", {}),
    (
        "/console/runs/00000000-0000-7000-8000-000000000000/signal",
        {"stage_id": "a", "step_id": "b", "payload": "1", "confirmed": "yes"},
    ),
    ("/console/keys", {"name": "k", "scopes": "runs:read"}),
    ("/console/keys/00000000-0000-7000-8000-000000000000/revoke", {}),
    ("/console/sign-out", {}),
]


@pytest.mark.parametrize(("path", "fields"), FORMS)
async def test_a_form_without_the_sessions_own_token_changes_nothing(
    signed_in: SignIn, look: Look, tenant: UUID, path: str, fields: dict[str, Any]
) -> None:
    client, neighbour = await signed_in(), await signed_in()
    foreign = token_of(await neighbour.get("/console"))
    before = await look("select count(*) as n from tenantry.api_keys where tenant_id = %s", tenant)
    for token in ({}, {"form_token": ""}, {"form_token": foreign}, {"form_token": "é"}):
        assert (await client.post(path, data={"a": "b", **fields, **token})).status_code == 403
    own = {**fields, "form_token": token_of(await client.get("/console"))}
    for site in ("cross-site", "same-site"):
        assert (await client.post(path, data=own, headers={"Sec-Fetch-Site": site})).status_code == 403
    assert (await client.post(path, json=own)).status_code == 415
    assert (await client.get("/console")).status_code == 200
    assert await look("select from tenantry.workflow_runs where tenant_id = %s", tenant) == []
    assert await look("select count(*) as n from tenantry.api_keys where tenant_id = %s", tenant) == before


async def test_nobody_is_signed_in_by_a_form_that_is_not_ours(
    anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey
) -> None:
    made = await make_key(tenant)
    page = await anonymous.get("/console/sign-in")
    good = {"form_token": token_of(page), "key": made["key"]}
    cookie = anonymous.cookies[FORM_COOKIE]
    for fields, headers in (
        ({"key": made["key"]}, {}),
        ({**good, "form_token": "A" * 43}, {}),
        (good, {"Sec-Fetch-Site": "cross-site"}),
    ):
        assert (await anonymous.post("/console/sign-in", data=fields, headers=headers)).status_code == 403
    anonymous.cookies.clear()
    assert (await anonymous.post("/console/sign-in", data=good)).status_code == 403
    anonymous.cookies.set(FORM_COOKIE, cookie, domain="api.test")
    assert (await anonymous.post("/console/sign-in", data=good)).status_code == 303


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.test/", "//evil.test", "/\\evil.test", "/console\\..\\x", "/consoleevil", "javascript:alert(1)",
        "/console/\r\nSet-Cookie: a=b", "/v1/runs", "", "/console/é",
    ],
)  # fmt: skip
async def test_signing_in_leads_nowhere_but_into_the_console(
    anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey, target: str
) -> None:
    assert safe_target(target) == "/console"
    answer = await sign_in_with(anonymous, (await make_key(tenant))["key"], target)
    assert answer.headers["location"] == "/console"


async def test_signing_in_leads_on_to_the_page_that_was_asked_for(
    anonymous: httpx.AsyncClient, tenant: UUID, make_key: MakeKey
) -> None:
    target = "/console/runs?status=FAILED&tag=a%20b"
    answer = await sign_in_with(anonymous, (await make_key(tenant))["key"], target)
    assert answer.headers["location"] == target


async def test_sessions_lie_under_the_tenants_own_policy(
    database: Database, tenant: UUID, other_tenant: UUID, make_key: MakeKey, look: Look
) -> None:
    made = await make_key(tenant)
    async with database.transaction(tenant) as tx:
        session = await sessions.open_session(tx, made["id"])
    # The token of one tenant under the name of another is nobody's.
    async with database.transaction(other_tenant) as tx:
        stranger = sessions.Session(other_tenant, session.token)
        with pytest.raises(ProblemError, match="credentials"):
            await authenticate(stranger.credential, tx)
        await sessions.close_session(tx, session)
    async with database.transaction(tenant) as tx:
        caller = await authenticate(session.credential, tx)
    assert (caller.tenant_id, caller.key_id) == (tenant, made["id"])
    assert len(await look("select from tenantry.console_sessions where tenant_id = %s", tenant)) == 1
