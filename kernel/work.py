"""On whose behalf code runs. It is the only source for what a span or a log line is stamped with.

Spans' attributes are anybody's to set, and so is a context variable, so what lies in ours is sealed. No baggage,
because that leaves the process in outbound headers.
"""

import secrets
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import NoneType
from typing import Final
from uuid import UUID

# The names of a stamp: nobody but the engine says these.
STAMP: Final = frozenset(
    {
        "tenant.id", "tenantry.run.id", "tenantry.workflow", "tenantry.stage", "tenantry.step", "tenantry.attempt",
        "tenantry.op",
    }
)  # fmt: skip
_SECRET: Final = secrets.token_bytes(16)


@dataclass(slots=True)
class Life:
    """Whether the execution that somebody works for is still under way."""

    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """On whose behalf code runs, and what it does (`op`: `run.create`, `job.execute`, `step.run` …).

    `origin` is the id of the trace that led to it, the one other trace its tenant may see it linked to. A body may
    leave tasks behind that serve other tenants' bodies later: what begins when the `life` of this work is over is
    not its.
    """

    tenant_id: UUID
    run_id: UUID | None = None
    workflow: str | None = None
    stage: str | None = None
    step: str | None = None
    attempt: int | None = None
    op: str | None = None
    origin: int | None = None
    life: Life | None = field(default=None, compare=False, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether what is begun now is no part of it any more."""
        return self.life is not None and self.life.is_over

    def on_step(self, step: str, op: str) -> "Work":
        """Return the work on one of its steps."""
        return Work(
            self.tenant_id,
            self.run_id,
            self.workflow,
            self.stage,
            step=step,
            attempt=self.attempt,
            op=op,
            origin=self.origin,
            life=self.life,
        )

    def attributes(self) -> dict[str, str | int]:
        """Return what every span of this work is stamped with."""
        stamp: dict[str, str | int] = {"tenant.id": str(self.tenant_id)}
        if self.run_id is not None:
            stamp["tenantry.run.id"] = str(self.run_id)
        if self.workflow is not None:
            stamp["tenantry.workflow"] = self.workflow
        if self.stage is not None:
            stamp["tenantry.stage"] = self.stage
        if self.step is not None:
            stamp["tenantry.step"] = self.step
        if self.attempt is not None:
            stamp["tenantry.attempt"] = self.attempt
        if self.op is not None:
            stamp["tenantry.op"] = self.op
        return stamp


@dataclass(frozen=True, slots=True)
class _Sealed:
    """Work as it lies in the context variable; the seal holds for its tenant and run in this process alone."""

    work: Work
    seal: int


_WORK: ContextVar[_Sealed | None] = ContextVar("tenantry_work", default=None)


def working(work: Work) -> AbstractContextManager[None]:
    """Run the block on behalf of `work`."""
    return _Working(work)


class _Working:
    """A generator would cost each step three times as much."""

    __slots__ = ("_token", "_work")

    def __init__(self, work: Work) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._token = _WORK.set(_sealed(self._work))

    def __exit__(self, *_error: object) -> None:
        _WORK.reset(self._token)


def enter(work: Work) -> None:
    """Make `work` that of the present context, for as long as the context lasts."""
    _WORK.set(_sealed(work))


def current_work() -> Work | None:
    """Return on whose behalf code runs; None outside of work, and where foreign code has put something in its place."""
    held: object = _WORK.get()
    if not isinstance(held, _Sealed):
        return None
    work: object = held.work
    # Exactly UUIDs: a class of somebody's own would hash as it likes.
    is_plain = type(work) is Work and type(work.tenant_id) is UUID and type(work.run_id) in (UUID, NoneType)
    return held.work if is_plain and held.seal == _seal(held.work) else None


def _sealed(work: Work) -> _Sealed:
    return _Sealed(work, _seal(work))


def _seal(work: Work) -> int:
    return hash((_SECRET, work.tenant_id, work.run_id))
