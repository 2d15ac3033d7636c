"""Every route of the API with another tenant's ids: the answer, and the statements behind it, are those of ids that never were.

The routes come from the application itself and the ids from the tables that hold them, so a new route is tested unasked; one
whose ids or body cannot be made up here fails until it is told how.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from pydantic import BaseModel

from service import serverless_app
from service.app import create_app, opened
from service.http.routing import RouteSpec
from service.serverless import Serverless
from service.serverless_app import ServerlessApp
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database, DatabaseSettings
from tests.rls.world import (
    FUNCTIONS,
    LOG_ALL,
    MARK,
    NOT_THERE_YET,
    OF_TENANTS,
    OPERATOR_TOKEN,
    PAGES,
    QUERIES,
    SPECS,
    STATEMENT,
    STREAMING,
    WAITING,
    WITH_IDS,
    WITHOUT_IDS,
    World,
    ids_of,
    name_of,
)
from tests.support.environment import default_version, migrate
from tests.support.http import connect
from tests.support.postgres import Postgres
from tests.support.workflows import REGISTRY


def names_a_run(model: object) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel) and "run_id" in model.model_fields


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    started = Postgres(default_version(), settings=LOG_ALL).start()
    migrate(started.url())
    yield started
    started.close()


@pytest.fixture
async def world(server: Postgres) -> AsyncIterator[World]:
    connection = await psycopg.AsyncConnection.connect(server.url(), autocommit=True)
    async with connection, Database(DatabaseSettings(server.url("tenantry_worker"), pool_size=2)) as database:
        made = World(server, connection, database)
        await made.make_tenants()
        yield made


@pytest.fixture
async def client(server: Postgres, world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Mine."""
    async with _client(server, world.my_key) as connected:
        yield connected


class _client:  # noqa: N801 (used like a function)
    """A client of an application of its own, warm: its key's use is recorded and the schema looked at."""

    def __init__(self, server: Postgres, key: str) -> None:
        settings = Settings(
            database_url=server.url("tenantry_api"),
            operator_database_url=server.url("tenantry_admin"),
            operator_token=OPERATOR_TOKEN,
            pool_size=1,
        )
        self._app = create_app(settings, REGISTRY)
        self._opened = opened(self._app)
        self._client = connect(self._app, key)

    async def __aenter__(self) -> httpx.AsyncClient:
        await self._opened.__aenter__()
        await self._client.__aenter__()
        await self._client.get("/v1/tenant")
        return self._client

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(None, None, None)
        await self._opened.__aexit__(None, None, None)


def test_every_route_is_for_somebody_we_know() -> None:
    assert {spec.audience for spec in SPECS} <= {"tenant", "operator", "anyone", "session"}
    assert len(WITH_IDS) >= 7
    assert len(WITHOUT_IDS) >= 8


@pytest.mark.parametrize("spec", WITH_IDS, ids=name_of)
async def test_anothers_ids_are_answered_like_ids_that_never_were(
    world: World, client: httpx.AsyncClient, server: Postgres, spec: RouteSpec
) -> None:
    names = ids_of(spec)
    theirs = await world.their_ids(names)
    unknown = {name: _unlike(value) for name, value in theirs.items()}
    before = await world.fingerprint()
    ways: list[tuple[str, dict[str, str]]] = [("", {})]
    if "wait" in spec.query:
        ways.append((WAITING, {}))
    if spec.streams:
        ways.append(("", STREAMING))
    for more, headers in ways:
        there = await world.ask(client, spec, theirs, more=more, **headers)
        never = await world.ask(client, spec, unknown, more=more, **headers)
        assert there.status == 404, there
        assert len(there.statements) > 0
        assert there == never
    assert await world.fingerprint() == before
    # They are there, for whom they belong to.
    async with _client(server, world.their_key) as owner:
        assert (await world.ask(owner, spec, theirs)).status != 404


@pytest.mark.parametrize("spec", [spec for spec in PAGES if ids_of(spec)], ids=name_of)
async def test_pages_of_anothers_ids_are_those_of_ids_that_never_were(
    world: World, client: httpx.AsyncClient, server: Postgres, spec: RouteSpec
) -> None:
    theirs = await world.their_ids(ids_of(spec))
    unknown = {name: _unlike(value) for name, value in theirs.items()}
    more = QUERIES.get(spec.path, "")
    await world.sign_in(client, world.mine, world.my_key)
    before = await world.fingerprint()
    there = await world.ask(client, spec, theirs, more=more)
    never = await world.ask(client, spec, unknown, more=more)
    assert there.status == 404, there
    assert len(there.statements) > 0
    assert there == never
    assert await world.fingerprint() == before
    async with _client(server, world.their_key) as owner:
        await world.sign_in(owner, world.theirs, world.their_key)
        assert (await world.ask(owner, spec, theirs, more=more)).status != 404 or spec.path in NOT_THERE_YET


@pytest.mark.parametrize("spec", WITHOUT_IDS, ids=name_of)
async def test_what_others_have_changes_no_answer_and_shows_nowhere(
    world: World, client: httpx.AsyncClient, spec: RouteSpec
) -> None:
    await world.start(world.mine, tags=("mine",))
    alone = await world.ask(client, spec, {}, **_keyed(spec, "alone"))
    assert alone.status < 400, f"{alone}: teach BODIES a body that is accepted"
    theirs = await world.start(world.theirs, tags=(MARK,), idempotency_key="theirs")
    before = await world.fingerprint()
    beside = await world.ask(client, spec, {}, **_keyed(spec, "theirs"))
    assert (beside.status, beside.statements) == (alone.status, alone.statements)
    if spec.method == "GET":
        assert _ageless(beside.body) == _ageless(alone.body)
    for value in (str(theirs), str(world.theirs), MARK):
        assert value not in beside.body
    assert await world.fingerprint() == before


@pytest.mark.parametrize("spec", [spec for spec in PAGES if not ids_of(spec) and spec.method == "GET"], ids=name_of)
async def test_what_others_have_changes_no_page_and_shows_nowhere(
    world: World, client: httpx.AsyncClient, spec: RouteSpec
) -> None:
    await world.start(world.mine, tags=("mine",))
    await world.sign_in(client, world.mine, world.my_key)
    alone = await world.ask(client, spec, {})
    assert alone.status == 200, alone
    theirs = await world.start(world.theirs, tags=(MARK,))
    before = await world.fingerprint()
    beside = await world.ask(client, spec, {})
    assert beside.statements == alone.statements
    assert _timeless(beside.body) == _timeless(alone.body)
    for value in (str(theirs), str(world.theirs), MARK):
        assert value not in beside.body
    assert await world.fingerprint() == before


@pytest.mark.parametrize("spec", [spec for spec in WITHOUT_IDS if "cursor" in spec.query], ids=name_of)
async def test_anothers_cursor_shows_nothing_of_theirs(
    world: World, client: httpx.AsyncClient, server: Postgres, spec: RouteSpec
) -> None:
    for tenant in (world.mine, world.theirs):
        for _ in range(2):
            await world.start(tenant, tags=(MARK,) if tenant == world.theirs else ())
            async with world.database.transaction(tenant) as tx:
                await create_key(tx, name=MARK if tenant == world.theirs else "mine")
    async with _client(server, world.their_key) as owner:
        page = json.loads((await world.ask(owner, spec, {}, more="?limit=1")).body)
    assert page["next_cursor"], "two of theirs are two pages: teach this test how to make them"
    answer = await world.ask(client, spec, {}, more=f"?cursor={page['next_cursor']}")
    assert answer.status == 200
    assert MARK not in answer.body
    assert page["data"][0]["id"] not in answer.body


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.audience == "operator"], ids=name_of)
async def test_a_tenants_key_opens_no_route_of_the_operator(
    world: World, client: httpx.AsyncClient, spec: RouteSpec
) -> None:
    theirs = {"tenant_id": str(world.theirs)} if ids_of(spec) else {}
    before = await world.fingerprint()
    there = await world.ask(client, spec, theirs)
    never = await world.ask(client, spec, {name: _unlike(value) for name, value in theirs.items()})
    assert there.status == 401
    assert there == never
    assert there.statements == ()
    assert await world.fingerprint() == before


async def test_what_the_database_says_of_an_error_never_leaves(world: World, client: httpx.AsyncClient) -> None:
    """Messages, details and hints quote values; here all of them do, whatever the state."""
    raising = (
        "create or replace function pg_temp.tell() returns trigger language plpgsql as"
        f" $$ begin raise exception '{MARK}' using errcode = '%s', detail = '{MARK}', hint = '{MARK}', column = '{MARK}'; end $$"
    )
    create = next(spec for spec in OF_TENANTS if (spec.method, spec.path) == ("POST", "/v1/runs"))
    try:
        for state in ("23505", "23514", "23503", "22P02", "42501", "0A000", "P0001", "40001", "57014", "XX000"):
            await world.superuser.execute((raising % state).encode())
            await world.superuser.execute(
                "create or replace trigger tells before insert on tenantry.workflow_runs"
                " for each row execute function pg_temp.tell()"
            )
            seen = len(world.server.log)
            answer = await world.ask(client, create, {})
            assert answer.status >= 500, (state, answer)
            assert f"ERROR:  {MARK}" in world.server.log[seen:]
            assert MARK not in answer.body, state
            assert MARK not in str(answer.headers), state
    finally:
        await world.superuser.execute("drop trigger if exists tells on tenantry.workflow_runs")
    assert (await world.ask(client, create, {})).status == 201


@pytest.mark.parametrize("body", [model for model in vars(serverless_app).values() if names_a_run(model)])
async def test_functions_answer_anothers_run_like_one_that_never_was(world: World, body: type[BaseModel]) -> None:
    """The one-shot entry points are told the tenant by who calls them: each with a run of somebody else's."""
    theirs, before = await world.start(world.theirs), await world.fingerprint()
    entry = Serverless(REGISTRY, DatabaseSettings(world.server.url("tenantry_worker"), pool_size=1))
    transport = httpx.ASGITransport(app=ServerlessApp(entry, OPERATOR_TOKEN))
    headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
    answers: list[tuple[int, str, list[str]]] = []
    async with httpx.AsyncClient(transport=transport, base_url="http://functions", headers=headers) as client:
        # The first one opens what the others find open.
        for run_id in (uuid4(), theirs, uuid4()):
            given = {"tenant_id": str(world.mine), "run_id": str(run_id), "stage_id": "first"}
            sent = {name: given.get(name, field.default) for name, field in body.model_fields.items()}
            seen = len(world.server.log)
            answer = await client.post(FUNCTIONS[body.__name__], json=sent)
            told = {**answer.json(), "request_id": None}
            statements = STATEMENT.findall(world.server.log[seen:])
            answers.append((answer.status_code, json.dumps(told).replace(str(run_id), "ID"), statements))
    assert answers[1] == answers[2]
    assert answers[1][2]
    assert await world.fingerprint() == before


def _unlike(value: str) -> str:
    """Return an id of the same kind that nobody has."""
    try:
        UUID(value)
    except ValueError:
        return "".join(reversed(value)) + "-nobodys"
    return str(uuid4())


def _keyed(spec: RouteSpec, key: str) -> dict[str, str]:
    return {"Idempotency-Key": key} if "Idempotency-Key" in spec.headers else {}


def _timeless(page: str) -> str:
    """Take out of a page what differs each time that it is asked for: ages, and the key that its form is sent with."""
    return re.sub(r"\b\d+ (?:ms|s)\b|\bconsole-[0-9a-f]{32}\b", "…", page)


def _ageless(body: str) -> str:
    return re.sub(r'("[a-z_]*age[a-z_]*"):[\d.]+', r"\1:0", body)
