"""What a route is: a function of a `Call`, declared with its method, path, scope and documentation.

A call reads its request before it opens a transaction and holds one transaction at most; the first statement of that
transaction finds out who is asking. The document at /openapi.json is made from the same declarations.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar
from uuid import UUID

import orjson
from litestar import Request
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from opentelemetry.trace import INVALID_SPAN, Span
from pydantic import BaseModel

from kernel import Kernel, Registry
from kernel.lanes import Pair
from kernel.work import Work, working
from service.auth import Caller, Credential, Scope, authenticate, is_operator, read_credential
from service.http.bodies import ENVELOPE_BYTES, parse_body, read_body
from service.http.metrics import HttpMetrics
from service.http.queries import Query
from service.http.tracing import Acquaintances, inbound, request_span, shown_path
from service.metrics import Exposition
from service.patience import within
from service.probes import NotReadyError, ReadinessGate
from service.problems import not_found, unauthorized, unavailable
from service.settings import Settings
from service.telemetry import Telemetry
from service.tokens import TokenVerifier
from tenancy import Call as DatabaseCall
from tenancy import Database, DatabaseUnavailableError, TenantTransaction

WorkDue: TypeAlias = Callable[[UUID, Pair | None], None]
M = TypeVar("M", bound=BaseModel)
C = TypeVar("C", bound="Call")
# A transaction of a request ends within this, whatever the database does: the client hears of it within 15 s.
TRANSACTION_TIMEOUT_S: Final = 10.0
JSON_OPTIONS: Final = orjson.OPT_UTC_Z


@dataclass(frozen=True, slots=True)
class Api:
    """What all calls of an application share.

    `slots` has as many as the pool has connections: whoever comes first gets one first, which the pool's own queue does
    not promise. `work_due` is called with a tenant, and the workflow and version of the run where it is a
    new one, after work of its has been committed. `stopping` is set when the
    process is told to stop: waits end then.
    """

    settings: Settings
    registry: Registry
    kernel: Kernel
    database: Database
    work_due: WorkDue
    gate: ReadinessGate
    tokens: TokenVerifier | None
    operator_database: Database | None
    slots: asyncio.Semaphore
    stopping: asyncio.Event
    metrics: HttpMetrics
    exposition: Exposition
    telemetry: Telemetry
    document: Mapping[str, Any]
    page: str
    acquaintances: Acquaintances = field(default_factory=Acquaintances)

    def run_due(self, tenant_id: UUID, workflow_id: str, version: str | None) -> None:
        """Tell of a run that was started, once that is committed."""
        self.work_due(tenant_id, (workflow_id, version) if version is not None else None)


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """A route's declaration; `answers` maps statuses to shapes, `refuses` lists problems beyond the usual ones."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    summary: str
    scope: Scope | None = None
    audience: str = "tenant"
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    body: type[BaseModel] | None = None
    is_body_optional: bool = False
    answers: Mapping[int, str | None] = field(default_factory=lambda: {200: None})
    refuses: tuple[int, ...] = ()
    streams: bool = False


class Call:
    """One request on its way through a route; `caller` is known once a transaction was opened."""

    __slots__ = ("_credential", "_origin", "_request", "api", "caller", "headers", "span", "spec")

    def __init__(self, request: Request[Any, Any, Any], spec: RouteSpec) -> None:
        self._request = request
        self._credential: Credential | None = None
        self._origin: int | None = None
        self.caller: Caller | None = None
        self.span: Span = INVALID_SPAN
        self.spec = spec
        self.api: Api = request.app.state.api
        self.headers: Mapping[str, str] = request.headers

    def query(self) -> Query:
        """Return the query string, checked for what the route knows."""
        return Query(self._request.scope["query_string"], self.spec.query)

    def path_text(self, name: str) -> str:
        """Return a part of the path."""
        return str(self._request.scope["path_params"][name])

    def path_id(self, name: str, what: str) -> UUID:
        """Return an id of the path; 404 when it is no UUID as we write them."""
        text = self.path_text(name)
        try:
            found = UUID(text)
        except ValueError:
            raise not_found(f"There is no such {what}.") from None
        if str(found) != text.lower():
            raise not_found(f"There is no such {what}.")
        return found

    async def body(self, model: type[M]) -> M:
        """Read and check the body; an empty one counts as `{}` where the route says that it may be missing."""
        limit = self.api.settings.max_payload_bytes + ENVELOPE_BYTES
        raw = await read_body(self._request.receive, self.headers, limit)
        if self.spec.is_body_optional and not raw.strip():
            raw = b"{}"
        return parse_body(model, raw)

    async def identify(self) -> None:
        """Read the credentials, before anything else and without the database; 401 when they cannot be right."""
        self._credential = await read_credential(self.headers.get("authorization"), self.api.tokens)

    @contextmanager
    def traced(self) -> Generator[None]:
        """Run the block in the request's span: its root decision is taken from the share of who claims to ask for this.

        A share of its own for each route: a client that looks at its runs all the time has them traced all the same.
        What the client says of its own trace is the parent only where clients are trusted, else a link.
        """
        name = f"{self.spec.method} {shown_path(self.spec.path)}"
        share = self.api.acquaintances.share_of(self._credential, name)
        context, links = inbound(self.headers, share, is_trusted=self.api.settings.trust_traceparent)
        self._origin = links[0].context.trace_id if links else None
        with request_span(name, context, links) as self.span:
            self.span.set_attribute("http.request.method", self.spec.method)
            self.span.set_attribute("http.route", shown_path(self.spec.path))
            yield

    def concerns(self, run_id: UUID, workflow: str | None = None) -> None:
        """Say which run of the caller's the request turned out to be about: its span is part of that run's trace."""
        assert self._credential is not None
        work = Work(self._credential.tenant_id, run_id, workflow, op="http", origin=self._origin)
        self.api.telemetry.own(self.span, work)

    def operator_database(self) -> Database:
        """Return the operator's database; 401 without the operator's token."""
        token, database = self.api.settings.operator_token, self.api.operator_database
        if token is None or database is None or not is_operator(self.headers.get("authorization"), token):
            raise unauthorized()
        return database

    @asynccontextmanager
    async def transaction(self, *foreseen: DatabaseCall) -> AsyncIterator[TenantTransaction]:
        """Open the tenant's transaction; whoever gets it is who they claim to be and has the route's scope.

        A call holds one transaction at a time. It is committed when the block ends and rolled back when it raises.
        Reads that are foreseen travel with the look at the credential.
        """
        credential = self._credential
        if credential is None:
            raise unauthorized()
        try:
            async with within(TRANSACTION_TIMEOUT_S):
                await self.api.gate.pass_through()
                database, tenant_id = self.api.database, credential.tenant_id
                async with self.api.slots, database.transaction(tenant_id, foreseen=foreseen) as tx:
                    self.caller = await authenticate(credential, tx)
                    self.api.acquaintances.meet(credential)
                    self.caller.require(self.spec.scope)
                    work = Work(self.caller.tenant_id, op="http")
                    self.api.telemetry.own(self.span, work)
                    with working(work):
                        yield tx
        except NotReadyError as refusal:
            raise unavailable(str(refusal)) from None
        except TimeoutError as error:
            raise DatabaseUnavailableError from error


Endpoint = Callable[[Call], Awaitable[ASGIResponse]]


def route(spec: RouteSpec) -> Callable[[Endpoint], HTTPRouteHandler]:
    """Declare the decorated function as the route of `spec`. A tenant's route has its credentials read first."""
    return lambda endpoint: register(spec, Call, endpoint)


def register(
    spec: RouteSpec,
    kind: Callable[[Request[Any, Any, Any], RouteSpec], C],
    endpoint: Callable[[C], Awaitable[ASGIResponse]],
) -> HTTPRouteHandler:
    """Return the handler that answers requests of `spec` with `endpoint`, each as a call of this kind."""

    async def handle(request: Request[Any, Any, Any]) -> ASGIResponse:
        request.scope["state"]["started_at"] = time.perf_counter()
        call = kind(request, spec)
        if spec.audience in {"tenant", "session"}:
            await call.identify()
        if spec.audience not in {"tenant", "operator"}:
            return await endpoint(call)
        with call.traced():
            answered = await endpoint(call)
            call.span.set_attribute("http.response.status_code", answered.status_code)
        return answered

    name = f"{endpoint.__module__}.{endpoint.__name__}"
    return HTTPRouteHandler(
        spec.path, http_method=spec.method, status_code=200, name=name, opt={"spec": spec}, include_in_schema=False
    )(handle)


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> ASGIResponse:
    """Return a JSON response; texts that are JSON already go in as `orjson.Fragment`."""
    return ASGIResponse(
        body=orjson.dumps(value, option=JSON_OPTIONS),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/json",
    )


def empty(status: int = 204) -> ASGIResponse:
    """Return a response without a body."""
    return ASGIResponse(status_code=status)


def fragment(text: str | None) -> orjson.Fragment | None:
    """Return JSON text as what goes into a response unread; None stays None."""
    return None if text is None else orjson.Fragment(text)
