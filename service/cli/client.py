"""The HTTP API as the command line uses it: one key, connection errors retried, problems as errors."""

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import orjson
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from service.environment import SettingsError, read_text

DEFAULT_URL = "http://127.0.0.1:8000"
ATTEMPTS = 5
UNAVAILABLE = 503
_AWAY = frozenset({502, UNAVAILABLE, 504})
UNAUTHORIZED = 401
PAGE = 200
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_FIRST_ERROR = 400
_FIRST_PAUSE = 0.1


class ApiError(Exception):
    """The API refused, or cannot be reached; `status` is None then. `details` holds a line for each fault it names."""

    def __init__(self, message: str, status: int | None = None, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.details = details

    @property
    def may_pass(self) -> bool:
        """Whether the API, its database or a proxy before it is away and may be back soon."""
        return self.status is None or self.status in _AWAY


class _UnavailableError(Exception):
    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


@dataclass(frozen=True, slots=True)
class Event:
    """A run's event as the stream tells it."""

    sequence: int
    type: str
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])


class ApiClient:
    """An async context manager that speaks for one API key. Paths begin with a slash.

    A request whose connection breaks is sent again, up to five times in all, so every request made here must bear it:
    reads do, a cancel and a signal do, a start and a redrive carry an idempotency key.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        # To read the authorities' certificates takes longer than a request; where nothing is encrypted none is trusted.
        verify = True if urlsplit(url).scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.AsyncClient(
            base_url=url, timeout=_TIMEOUT, headers={"Authorization": f"Bearer {key}"}, trust_env=False, verify=verify
        )

    @classmethod
    def from_environment(cls) -> "ApiClient":
        """Return the client that `TENANTRY_API_URL` and `TENANTRY_API_KEY` describe, or the files that hold them.

        Raises:
            SettingsError: the key is missing, or the URL is none.
        """
        url = read_text(os.environ, "api_url") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            message = "api_url: TENANTRY_API_URL must look like http://127.0.0.1:8000"
            raise SettingsError(message)
        key = read_text(os.environ, "api_key")
        if not key or not (key.isascii() and key.isprintable()):
            message = "api_key: set TENANTRY_API_KEY to an API key of the tenant"
            raise SettingsError(message)
        return cls(url, key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON that the path answers.

        Raises:
            ApiError: it answers a problem, or nothing.
        """
        return await self._send("GET", path, params={key: value for key, value in (params or {}).items() if value})

    async def pages(
        self, path: str, limit: int | None, filters: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the first `limit` entries of a list, or all, page by page.

        Raises:
            ApiError: as `get`.
        """
        found: list[dict[str, Any]] = []
        cursor = None
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            page = await self.get(path, {**(filters or {}), "limit": size, "cursor": cursor})
            found += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return found

    async def post(self, path: str, body: object, idempotency_key: str | None = None) -> Any:
        """Send the body and return the JSON of the answer.

        Raises:
            ApiError: as `get`.
        """
        headers = {"Content-Type": "application/json"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        return await self._send("POST", path, content=orjson.dumps(body), headers=headers)

    async def start_run(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> dict[str, Any]:
        """Start a run; without a key of the caller's it gets one, so that a broken connection starts it once only."""
        started: dict[str, Any] = await self.post("/v1/runs", body, idempotency_key or str(uuid4()))
        return started

    async def redrive_run(self, run_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Redrive a run, under a key of its own: a request that is sent again does it once only."""
        redriven: dict[str, Any] = await self.post(f"/v1/runs/{run_id}/redrive", body, str(uuid4()))
        return redriven

    async def get_run(self, run_id: str) -> dict[str, Any]:
        """Return the run with its stages."""
        run: dict[str, Any] = await self.get(f"/v1/runs/{run_id}")
        return run

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Yield the run's events behind the one of this number as they happen, until the API ends the stream.

        It does so after the event that ends the run, and when it is itself about to stop.

        Raises:
            ApiError: the API refuses, cannot be reached, or went away.
        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        try:
            async with self._client.stream("GET", f"/v1/runs/{run_id}/events", headers=headers) as response:
                await _refuse_problem(response)
                async for event in _parse_stream(response.aiter_lines()):
                    yield event
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    async def _send(self, method: str, path: str, **options: Any) -> Any:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type((httpx.TransportError, _UnavailableError)),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random_exponential(multiplier=_FIRST_PAUSE, max=2.0),
            reraise=True,
        )
        try:
            response: httpx.Response = await retrying(self._request, method, path, options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except _UnavailableError as error:
            raise _problem(error.response) from error
        await _refuse_problem(response)
        try:
            return orjson.loads(response.content) if response.content else None
        except orjson.JSONDecodeError as error:
            message = f"{self._url} is no Tenantry API: it answered something that is not JSON."
            raise ApiError(message, response.status_code) from error

    async def _request(self, method: str, path: str, options: Mapping[str, Any]) -> httpx.Response:
        response = await self._client.request(method, path, **options)
        if response.status_code == UNAVAILABLE:
            raise _UnavailableError(response)
        return response

    def _unreachable(self, error: httpx.TransportError) -> ApiError:
        return ApiError(f"The API at {self._url} cannot be reached: {str(error) or type(error).__name__}")


async def _refuse_problem(response: httpx.Response) -> None:
    if response.status_code >= _FIRST_ERROR:
        await response.aread()
        raise _problem(response)


def _problem(response: httpx.Response) -> ApiError:
    try:
        problem = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        problem = None
    if not isinstance(problem, dict):
        return ApiError(f"The API answered {response.status_code} {response.reason_phrase}.", response.status_code)
    title = str(problem.get("detail") or problem.get("title") or response.reason_phrase)
    faults = [fault for fault in problem.get("errors") or [] if isinstance(fault, dict)]
    # The detail of a problem with one fault is that fault.
    untold = [fault for fault in faults if str(fault.get("message")) not in title]
    details = tuple(f"  {fault.get('pointer') or '/'}: {fault.get('message')}" for fault in untold)
    return ApiError(f"{title} ({problem.get('code')}, {response.status_code})", response.status_code, details)


async def _parse_stream(lines: AsyncIterator[str]) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in lines:
        if not line:
            if "data" in fields:
                yield Event(int(fields.get("id", "0")), fields.get("event", ""), orjson.loads(fields["data"]))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and "data" in fields else value
