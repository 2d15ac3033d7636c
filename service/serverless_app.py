"""The one-shot entry points as an ASGI application, to mount in a product's own: a scheduler or a queue calls it.

Every request carries the token that the application was made with; bodies and answers are JSON, refusals are problems.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import asdict
from typing import Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from kernel import FieldError
from service.auth import is_operator
from service.problems import MEDIA_TYPE, ProblemError, invalid, malformed, not_found, problem_of, unauthorized
from service.serverless import Serverless

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
MAX_BODY_BYTES = 64 * 1024
B = TypeVar("B", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    tenant_id: UUID


class JobBody(_Body):
    """Which job to execute."""

    run_id: UUID
    stage_id: str = Field(min_length=1, max_length=255)


class AvailableBody(_Body):
    """Whose jobs to execute, and how many at most."""

    max_jobs: int = Field(default=10, ge=1, le=1000)


class RunBody(_Body):
    """Which run to bring to its end."""

    run_id: UUID
    max_jobs: int = Field(default=50, ge=1, le=1000)


class MaintenanceBody(_Body):
    """Whom to look after."""


class ServerlessApp:
    """`POST /jobs`, `/available-jobs`, `/runs` and `/maintenance`, relative to where it is mounted."""

    def __init__(self, entry: Serverless, token: str) -> None:
        """`token` is the secret that callers send as a bearer token; an empty one is refused."""
        if not token:
            message = "the application needs a token: whoever calls it executes code for any tenant"
            raise ValueError(message)
        self._entry = entry
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a mounting application's lifespan is its own affair."""
        if scope["type"] != "http":
            return
        told: Mapping[str, str] = {}
        try:
            status, media_type, body = 200, "application/json", await self._answer(scope, receive)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost place: any error is answered as a problem
            request_id = str(uuid.uuid4())
            problem = problem_of(error, request_id)
            status, media_type, body = problem.status, MEDIA_TYPE, problem.body(request_id)
            told = problem.headers
        headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-store")]
        headers += [(name.lower().encode(), value.encode()) for name, value in told.items()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
        if not is_operator(given, self._token):
            raise unauthorized()
        route = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        call = {
            "/jobs": self._job,
            "/available-jobs": self._available,
            "/runs": self._run,
            "/maintenance": self._maintenance,
        }.get(route)
        if call is None:
            raise not_found("There is no such route.")
        if scope["method"] != "POST":
            raise ProblemError("method_not_allowed", "This route takes POST only.", headers={"Allow": "POST"})
        answer: bytes = to_json(await call(await _read(receive)))
        return answer

    async def _job(self, body: bytes) -> dict[str, Any]:
        job = _parse(JobBody, body)
        return asdict(await self._entry.handle_job(job.tenant_id, job.run_id, job.stage_id))

    async def _available(self, body: bytes) -> dict[str, Any]:
        wanted = _parse(AvailableBody, body)
        return asdict(await self._entry.process_available_jobs(wanted.tenant_id, wanted.max_jobs))

    async def _run(self, body: bytes) -> dict[str, Any]:
        run = _parse(RunBody, body)
        return asdict(await self._entry.run_to_completion(run.tenant_id, run.run_id, run.max_jobs))

    async def _maintenance(self, body: bytes) -> dict[str, Any]:
        return asdict(await self._entry.run_maintenance_tick(_parse(MaintenanceBody, body).tenant_id))


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise malformed("The request ended before its body did.")
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise ProblemError("payload_too_large", f"A body has at most {MAX_BODY_BYTES} bytes.")
        if not message.get("more_body", False):
            return body


def _parse(model: type[B], body: bytes) -> B:
    try:
        return model.model_validate_json(body)
    except ValidationError as refused:
        faults = [
            FieldError("".join(f"/{part}" for part in fault["loc"]), fault["type"], fault["msg"])
            for fault in refused.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise (malformed("The body is not JSON.") if faults[0].code == "json_invalid" else invalid(*faults)) from None
