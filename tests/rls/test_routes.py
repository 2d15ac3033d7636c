"""Every route of the API with another tenant's ids: the answer, and the statements behind it, are those of ids that never were.

The routes come from the application itself and the ids from the tables that hold them, so a new route is tested unasked; one
whose ids or body cannot be made up here fails until it is told how.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from pydantic import BaseModel

from kernel import Kernel, RunCreate
from service import keys, serverless_app
from service.app import create_app, opened
from service.console import sessions
from service.http.routing import RouteSpec
from service.serverless import Serverless
from service.serverless_app import ServerlessApp
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database, DatabaseSettings
from tenancy.isolation.catalog import Table, TenantColumns, read_catalog
from tenancy.isolation.rows import RowMaker
from tests.rls.bodies import instance
from tests.support import factories
from tests.support.environment import default_version, migrate
from tests.support.http import connect
from tests.support.postgres import Postgres
from tests.support.workflows import REGISTRY

OPERATOR_TOKEN = "operator-token-of-the-routes"
MARK = "what-nobody-else-may-see"
LOG_ALL = {"log_statement": "all", "log_parameter_max_length": "0", "log_parameter_max_length_on_error": "0"}
STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): (.*?)(?=\n\d{4}-\d\d-\d\d |\Z)", re.DOTALL)
PARAMETER = re.compile(r"\{(\w+):str\}")
# Not a tenant's: names that are in the code which every tenant is served by.
NAMES_IN_CODE = {"workflow_id": "chain"}
# Where the smallest body of the right shape would be refused for what it says.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "RunCreateBody": {"workflow": "chain", "input": {"n": 1}},
    "BulkCancelBody": {"filter": {"tag": MARK}},
    "BulkRedriveBody": {"filter": {"tag": MARK}},
}
# The paths of the functions that are given a run, by what they take.
FUNCTIONS = {"JobBody": "/jobs", "RunBody": "/runs"}
# How a client may ask for more than the plain answer: by the parameter or property of the route that allows it.
WAITING = "?wait=1"
STREAMING = {"Accept": "text/event-stream"}


def _specs() -> list[RouteSpec]:
    """Every route that the application has, whatever registered it; one that is not declared has no spec and is an error."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    settings = Settings(database_url=nowhere, operator_database_url=nowhere, operator_token=OPERATOR_TOKEN)
    app = create_app(settings, REGISTRY)
    handlers = [handler for route in app.routes for handler in getattr(route, "route_handlers", [route])]
    specs = [handler.opt["spec"] for handler in handlers if getattr(handler, "http_methods", None) != {"OPTIONS"}]
    # The application's own order differs between processes, and processes that share the tests have to agree.
    return sorted(specs, key=lambda spec: (spec.path, spec.method))


SPECS = _specs()
OF_TENANTS = [spec for spec in SPECS if spec.audience == "tenant"]
PAGES = [spec for spec in SPECS if spec.audience == "session"]
# What a page needs beside its path to find something of its owner's.
QUERIES = {"/console/runs/{run_id:str}/payload": "?of=input", "/console/runs/{run_id:str}/stage": "?id=first"}
# A run that nobody has claimed has no stage yet, for its owner either.
NOT_THERE_YET = {"/console/runs/{run_id:str}/stage"}
FIELDS = {"stage_id": "first", "step_id": "s", "payload": "1", "confirmed": "yes"}


def _ids(spec: RouteSpec) -> list[str]:
    """The parts of a path that name something of a tenant's."""
    return [name for name in PARAMETER.findall(spec.path) if name not in NAMES_IN_CODE]


WITH_IDS = [spec for spec in OF_TENANTS if _ids(spec)]
WITHOUT_IDS = [spec for spec in OF_TENANTS if not _ids(spec)]


def _name(spec: RouteSpec) -> str:
    return f"{spec.method} {spec.path.replace(':str}', '}')}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client learns, with the ids that it sent itself taken out, and what the database was asked for it."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str
    statements: tuple[str, ...]


def _names_a_run(model: object) -> bool:
    return isinstance(model, type) and issubclass(model, BaseModel) and "run_id" in model.model_fields


class World:
    """The API on a server that logs every statement, with two tenants: `mine` asks, `theirs` has what is asked for."""

    def __init__(self, server: Postgres, superuser: psycopg.AsyncConnection, database: Database) -> None:
        self.server = server
        self.superuser = superuser
        self.database = database
        self.mine = self.theirs = UUID(int=0)
        self.my_key = self.their_key = ""

    async def make_tenants(self) -> None:
        self.mine = await factories.create_tenant(self.superuser)
        self.theirs = await factories.create_tenant(self.superuser, f"{MARK}-{uuid4().hex[:8]}")
        for tenant in (self.mine, self.theirs):
            async with self.database.transaction(tenant) as tx:
                key = (await create_key(tx, name=MARK if tenant == self.theirs else "mine"))["key"]
            if tenant == self.mine:
                self.my_key = key
            else:
                self.their_key = key

    async def sign_in(self, client: httpx.AsyncClient, tenant: UUID, key: str) -> None:
        """Give a client a session of the console."""
        parsed = keys.parse(key)
        assert parsed is not None
        async with self.database.transaction(tenant) as tx:
            session = await sessions.open_session(tx, parsed.key_id)
        client.cookies.set(sessions.NAME, session.cookie_value, domain="api.test")

    async def start(self, tenant: UUID, **options: Any) -> UUID:
        async with self.database.transaction(tenant) as tx:
            return (await Kernel(REGISTRY).dispatch(RunCreate("chain", {"n": 7}, **options), tx)).run_id

    async def their_ids(self, names: list[str]) -> dict[str, str]:
        """Make something of theirs that these ids name: a run, or a row of the table that has them for its key."""
        if names == ["run_id"]:
            return {"run_id": str(await self.start(self.theirs, tags=(MARK,)))}
        if names == ["tenant_id"]:
            return {"tenant_id": str(self.theirs)}
        with psycopg.connect(self.server.url()) as connection:
            catalog = read_catalog(connection, ["tenantry"], TenantColumns("tenant_id", {}))
            table = _table_of(names, catalog.under_test())
            row = RowMaker(connection, catalog, {}, {}, {}).row(table, self.theirs)
        return {name: str(row[name]) for name in names}

    async def fingerprint(self) -> list[Any]:
        """Everything that is theirs, as it is stored."""
        names = await self.superuser.execute(
            "select relname from pg_class where relnamespace = 'tenantry'::regnamespace and relkind = 'r'"
            " and relname <> 'alembic_version' order by 1"
        )
        found = []
        for (name,) in await names.fetchall():
            query = f"select md5(string_agg(row::text, '' order by row::text)) from tenantry.{name} as row where tenant_id = %s"
            cursor = await self.superuser.execute(query.encode(), (self.theirs,))
            found.append((name, await cursor.fetchone()))
        return found

    async def ask(
        self, client: httpx.AsyncClient, spec: RouteSpec, ids: Mapping[str, str], *, more: str = "", **headers: str
    ) -> Answer:
        """Send a request and return what came of it; `more` is appended to the path."""
        path = PARAMETER.sub(lambda found: {**NAMES_IN_CODE, **ids}[found[1]], spec.path) + more
        body: dict[str, Any] = {"json": _body(spec, ids)}
        if spec.audience == "session" and spec.method == "POST":
            session = sessions.read_cookie(client.cookies, secure=False)
            assert session is not None
            body = {"data": {"form_token": session.form_token, **FIELDS}}
        seen = len(self.server.log)
        answer = await client.request(spec.method, path, **body, headers={"X-Request-ID": "same", **headers})
        logged = self.server.log[seen:]
        text = answer.text
        for value in ids.values():
            text = text.replace(value, "ID")
        kept = tuple(sorted((name, value) for name, value in answer.headers.items() if name != "location"))
        return Answer(answer.status_code, kept, text, tuple(STATEMENT.findall(logged)))


def _table_of(names: list[str], tables: Any) -> Table:
    fitting = [
        table
        for table in tables
        if table.primary_key
        and set(table.primary_key) - {"tenant_id"} == set(names)
        and table.tenant_column is not None
    ]
    if len(fitting) != 1:
        pytest.fail(f"no one table has the key {names}: teach World.their_ids how to make what these ids name")
    found: Table = fitting[0]
    return found


def _body(spec: RouteSpec, ids: Mapping[str, str]) -> Any:
    if spec.body is None:
        return None
    taught = BODIES.get(spec.body.__name__)
    return taught if taught is not None else instance(spec.body.model_json_schema(), ids)


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


@pytest.mark.parametrize("spec", WITH_IDS, ids=_name)
async def test_anothers_ids_are_answered_like_ids_that_never_were(
    world: World, client: httpx.AsyncClient, server: Postgres, spec: RouteSpec
) -> None:
    names = _ids(spec)
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


@pytest.mark.parametrize("spec", [spec for spec in PAGES if _ids(spec)], ids=_name)
async def test_pages_of_anothers_ids_are_those_of_ids_that_never_were(
    world: World, client: httpx.AsyncClient, server: Postgres, spec: RouteSpec
) -> None:
    theirs = await world.their_ids(_ids(spec))
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


@pytest.mark.parametrize("spec", WITHOUT_IDS, ids=_name)
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


@pytest.mark.parametrize("spec", [spec for spec in PAGES if not _ids(spec) and spec.method == "GET"], ids=_name)
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


@pytest.mark.parametrize("spec", [spec for spec in WITHOUT_IDS if "cursor" in spec.query], ids=_name)
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


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.audience == "operator"], ids=_name)
async def test_a_tenants_key_opens_no_route_of_the_operator(
    world: World, client: httpx.AsyncClient, spec: RouteSpec
) -> None:
    theirs = {"tenant_id": str(world.theirs)} if _ids(spec) else {}
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


@pytest.mark.parametrize("body", [model for model in vars(serverless_app).values() if _names_a_run(model)])
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
