"""Every refusal as an RFC 9457 problem: one table from our errors to statuses and codes, one renderer for all paths.

No problem carries SQL, a stack trace or another tenant's data: texts are ours, or those of the kernel's own errors.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from litestar.exceptions import HTTPException

from kernel import (
    DefinitionVersionConflictError,
    FieldError,
    IdempotencyKeyReusedError,
    InvalidRequestError,
    KernelError,
    PayloadTooLargeError,
    RateLimitedError,
    RunNotFoundError,
    RunNotTerminalError,
    SignalRefusedError,
    TenantSuspendedError,
)
from service.tenants import (
    ApiKeyNotFoundError,
    InvalidTenantError,
    TenantDeletingError,
    TenantError,
    TenantExistsError,
    TenantNotFoundError,
)
from tenancy import DatabaseUnavailableError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2
MAX_ERRORS: Final = 100
# What Postgres says when the schema is not ours, or older than this build.
_SCHEMA_STATES: Final = frozenset({"3F000", "42P01", "42703", "42883"})
# The server is shutting down, starting, out of connections, or it ended a statement that took too long; a deadlock or a
# serialization failure: all of them are gone when the request is repeated.
_PASSING_STATES: Final = frozenset({"40001", "40P01", "53300", "55P03", "57014", "57P01", "57P02", "57P03"})
_log = logging.getLogger("tenantry.http")

TITLES: Final[Mapping[str, tuple[int, str]]] = {
    "invalid_request": (422, "The request cannot be accepted"),
    "malformed": (400, "The request is malformed"),
    "unauthorized": (401, "Authentication failed"),
    "forbidden": (403, "The key lacks a scope"),
    "tenant_suspended": (403, "The tenant is suspended"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "Method not allowed"),
    "conflict": (409, "Conflict"),
    "payload_too_large": (413, "The payload is too large"),
    "unsupported_media_type": (415, "Unsupported media type"),
    "idempotency_key_reused": (422, "The idempotency key was used for another request"),
    "invalid_input": (422, "The input does not fit the workflow"),
    "invalid_config": (422, "The config does not fit the workflow"),
    "unknown_workflow": (422, "Unknown workflow"),
    "rate_limited": (429, "A limit of the tenant is reached"),
    "internal_error": (500, "Internal error"),
    "unavailable": (503, "Temporarily unavailable"),
}


@dataclass(eq=False)
class ProblemError(Exception):
    """A refusal on its way to the client; raised by routes, or made of another error by `problem_of`."""

    code: str
    detail: str
    status: int = 0
    errors: tuple[FieldError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Take the status from the table unless one is given."""
        super().__init__(self.detail)
        self.status = self.status or TITLES[self.code][0]

    def body(self, request_id: str) -> bytes:
        """Return the problem document."""
        shown = "invalid_request" if self.code == "malformed" else self.code
        # Not orjson: a pointer may hold a lone surrogate that a client sent, which only escapes can carry.
        return json.dumps(
            {
                "type": f"/docs#problem-{self.code.replace('_', '-')}",
                "title": TITLES[self.code][1] if self.code in TITLES else HTTPStatus(self.status).phrase,
                "status": self.status,
                "detail": self.detail,
                "code": shown,
                "request_id": request_id,
                "errors": [
                    {"pointer": fault.pointer, "code": fault.code, "message": fault.message}
                    for fault in self.errors[:MAX_ERRORS]
                ],
            }
        ).encode()


def malformed(detail: str, *errors: FieldError) -> ProblemError:
    """Return a 400: what was sent is not what it claims to be."""
    return ProblemError("malformed", detail, errors=errors)


def invalid(*errors: FieldError) -> ProblemError:
    """Return a 422 that points to what is unacceptable."""
    return ProblemError("invalid_request", _sentence(errors), errors=errors)


def not_found(what: str) -> ProblemError:
    """Return a 404; another tenant's id is answered like one that never was."""
    return ProblemError("not_found", what)


def unauthorized() -> ProblemError:
    """Return the one 401: whatever was wrong with the credentials, the answer is the same."""
    return ProblemError(
        "unauthorized", "The credentials are missing or not accepted.", headers={"WWW-Authenticate": "Bearer"}
    )


def unavailable(detail: str = "The database cannot be reached at the moment.") -> ProblemError:
    """Return a 503 that says when to come back."""
    return ProblemError("unavailable", detail, headers={"Retry-After": str(RETRY_AFTER_S)})


def problem_of(error: BaseException, request_id: str) -> ProblemError:
    """Return the problem that stands for any error; what is not foreseen is logged and answered without details."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, HTTPException):
        return _of_framework(error)
    if isinstance(error, KernelError) and (found := _of_kernel(error)) is not None:
        return found
    if isinstance(error, TenantError) and (found := _of_tenants(error)) is not None:
        return found
    if isinstance(error, DatabaseUnavailableError | TimeoutError | ConnectionError):
        _log.warning("http.database_unavailable", extra={"request_id": request_id, "error": type(error).__name__})
        return unavailable()
    state = sqlstate_of(error)
    if state in _SCHEMA_STATES:
        _log.error("http.schema_mismatch", exc_info=error, extra={"request_id": request_id})
        return unavailable("The database does not have the schema of this build: run `tenantry db migrate`.")
    if state in _PASSING_STATES:
        _log.warning("http.transaction_given_up", extra={"request_id": request_id, "sqlstate": state})
        return unavailable("The database gave the transaction up; nothing was written. Repeat the request.")
    _log.error("http.unexpected_error", exc_info=error, extra={"request_id": request_id})
    return ProblemError("internal_error", "Something went wrong here; the request id leads to the log.")


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, also when a library wrapped it."""
    seen: BaseException | None = error
    for _ in range(5):
        if seen is None:
            return None
        state = getattr(seen, "sqlstate", None)
        if isinstance(state, str):
            return state
        inner = getattr(seen, "orig", None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__
    return None


_KERNEL: Final[tuple[tuple[type[KernelError], str], ...]] = (
    (InvalidRequestError, "invalid_request"),
    (IdempotencyKeyReusedError, "idempotency_key_reused"),
    (PayloadTooLargeError, "payload_too_large"),
    (TenantSuspendedError, "tenant_suspended"),
    (RunNotFoundError, "not_found"),
    (RunNotTerminalError, "conflict"),
    (SignalRefusedError, "conflict"),
    (DefinitionVersionConflictError, "conflict"),
)
_TENANTS: Final[tuple[tuple[type[TenantError], str], ...]] = (
    (TenantNotFoundError, "not_found"),
    (ApiKeyNotFoundError, "not_found"),
    (TenantExistsError, "conflict"),
    (TenantDeletingError, "conflict"),
)


def _of_kernel(error: KernelError) -> ProblemError | None:
    if isinstance(error, RateLimitedError):
        return rate_limited(error, quota=None)
    for kind, code in _KERNEL:
        if isinstance(error, kind):
            errors = getattr(error, "errors", ())
            own = error.code if error.code in TITLES else code
            return ProblemError(own, _sentence(errors) if errors else _capitalised(str(error)), errors=tuple(errors))
    return None


def _of_tenants(error: TenantError) -> ProblemError | None:
    if isinstance(error, InvalidTenantError):
        return invalid(*error.errors)
    return next((ProblemError(code, str(error)) for kind, code in _TENANTS if isinstance(error, kind)), None)


def rate_limited(error: RateLimitedError, quota: int | None) -> ProblemError:
    """Return a 429 with `Retry-After` and, when the quota is known, the RateLimit fields."""
    wait = max(1, -int(-error.retry_after_s // 1))
    headers = {"Retry-After": str(wait)}
    if quota is not None:
        window = ";w=60" if error.limit == "runs_per_minute" else ""
        headers["RateLimit-Policy"] = f'"{error.limit}";q={quota}{window}'
        headers["RateLimit"] = f'"{error.limit}";r=0;t={wait}'
    return ProblemError("rate_limited", f"The tenant's limit {error.limit} is reached.", headers=headers)


def _of_framework(error: HTTPException) -> ProblemError:
    # Litestar's own refusals: routing, mostly. Its texts may repeat the URL, so only the status is taken over.
    by_status = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large", 415: "unsupported_media_type"}
    if error.status_code in by_status:
        code = by_status[error.status_code]
        headers = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
        return ProblemError(code, f"{TITLES[code][1]}.", headers=headers)
    if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return malformed("The request cannot be understood.")
    return ProblemError("internal_error", "Something went wrong here; the request id leads to the log.")


def _sentence(errors: Iterable[FieldError]) -> str:
    faults = [f"{fault.pointer}: {fault.message}" if fault.pointer else fault.message for fault in errors]
    shown = "; ".join(faults[:3])
    return f"{shown}; and {len(faults) - 3} more." if len(faults) > 3 else shown  # noqa: PLR2004 - three are readable


def _capitalised(text: str) -> str:
    sentence = text[:1].upper() + text[1:]
    return sentence if sentence.endswith(".") else f"{sentence}."
