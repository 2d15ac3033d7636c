"""What the test of routes stands on: the application's own routes, and two tenants, one of whom asks for what is the other's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from kernel import Kernel, RunCreate
from service import keys
from service.app import create_app
from service.console import sessions
from service.http.routing import RouteSpec
from service.settings import Settings
from service.tenants import create_key
from tenancy import Database
from tenancy.isolation.catalog import Table, TenantColumns, read_catalog
from tenancy.isolation.rows import RowMaker
from tests.rls.bodies import instance
from tests.support import factories
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


def specs() -> list[RouteSpec]:
    """Every route that the application has, whatever registered it; one that is not declared has no spec and is an error."""
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    settings = Settings(database_url=nowhere, operator_database_url=nowhere, operator_token=OPERATOR_TOKEN)
    app = create_app(settings, REGISTRY)
    handlers = [handler for route in app.routes for handler in getattr(route, "route_handlers", [route])]
    specs = [handler.opt["spec"] for handler in handlers if getattr(handler, "http_methods", None) != {"OPTIONS"}]
    # The application's own order differs between processes, and processes that share the tests have to agree.
    return sorted(specs, key=lambda spec: (spec.path, spec.method))


SPECS = specs()
OF_TENANTS = [spec for spec in SPECS if spec.audience == "tenant"]
PAGES = [spec for spec in SPECS if spec.audience == "session"]
# What a page needs beside its path to find something of its owner's.
QUERIES = {"/console/runs/{run_id:str}/payload": "?of=input", "/console/runs/{run_id:str}/stage": "?id=first"}
# A run that nobody has claimed has no stage yet, for its owner either.
NOT_THERE_YET = {"/console/runs/{run_id:str}/stage"}
FIELDS = {"stage_id": "first", "step_id": "s", "payload": "1", "confirmed": "yes"}


def ids_of(spec: RouteSpec) -> list[str]:
    """The parts of a path that name something of a tenant's."""
    return [name for name in PARAMETER.findall(spec.path) if name not in NAMES_IN_CODE]


WITH_IDS = [spec for spec in OF_TENANTS if ids_of(spec)]
WITHOUT_IDS = [spec for spec in OF_TENANTS if not ids_of(spec)]


def name_of(spec: RouteSpec) -> str:
    return f"{spec.method} {spec.path.replace(':str}', '}')}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client learns, with the ids that it sent itself taken out, and what the database was asked for it."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str
    statements: tuple[str, ...]


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
