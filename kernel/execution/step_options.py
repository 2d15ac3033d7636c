"""The options of durable steps, checked before anything is recorded, and what follows from them alone."""

import hashlib
import inspect
import json
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, cast, get_args

from kernel.execution.durations import Duration, parse_duration
from kernel.execution.ledger import StepOwner
from kernel.payloads import clean_text

OnReclaim: TypeAlias = Literal["rerun", "fail"]
MAX_STEP_ID_LENGTH = 255
MAX_RETRIES = 1_000_000
MAX_DELAY_S = 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a `run` step is leased and retried; durations in seconds."""

    lease_s: float
    retries: int
    retry_delay_s: float
    factor: float
    max_delay_s: float
    jitter: bool
    heartbeat_s: float | None
    on_reclaim: OnReclaim

    def delay_s(self, failures: int) -> float:
        """Return how long to wait after the n-th failure: retry_delay * factor^(n-1), capped, without overflow."""
        if not self.retry_delay_s:
            return 0.0
        try:
            delay = self.retry_delay_s * self.factor ** (failures - 1)
        except OverflowError:
            delay = self.max_delay_s
        delay = min(delay, self.max_delay_s)
        return random.uniform(0, delay) if self.jitter else delay  # noqa: S311 - jitter, not a secret


def run_options(  # noqa: PLR0913 - the options of `step.run`
    *,
    lease: Duration,
    retries: int,
    retry_delay: Duration,
    retry_backoff: Mapping[str, object] | None,
    heartbeat: Duration | None,
    on_reclaim: str,
) -> RunOptions:
    """Return checked options.

    Raises:
        ValueError: an option is not what it must be; the text names it.
    """
    if retry_backoff is None:
        # A program has few of them, and reading them is much of what a step costs.
        with suppress(TypeError):
            return _kept_options(lease, retries, retry_delay, heartbeat, on_reclaim)
    return _options(lease, retries, retry_delay, heartbeat, on_reclaim, retry_backoff)


def _options(  # noqa: PLR0913, PLR0917 - the options of `step.run`
    lease: Duration,
    retries: int,
    retry_delay: Duration,
    heartbeat: Duration | None,
    on_reclaim: str,
    retry_backoff: Mapping[str, object] | None = None,
) -> RunOptions:
    if type(retries) is not int or not 0 <= retries <= MAX_RETRIES:
        message = f"retries: {retries!r} is no number of retries from 0 to {MAX_RETRIES}"
        raise ValueError(message)
    if on_reclaim not in get_args(OnReclaim):
        message = f"on_reclaim: {on_reclaim!r} is neither 'rerun' nor 'fail'"
        raise ValueError(message)
    lease_s = parse_duration(lease, name="lease", allow_zero=False)
    heartbeat_s = None if heartbeat is None else parse_duration(heartbeat, name="heartbeat", allow_zero=False)
    if heartbeat_s is not None and heartbeat_s >= lease_s:
        message = f"heartbeat: {heartbeat!r} is not shorter than the lease, {lease!r}"
        raise ValueError(message)
    factor, max_delay_s, jitter = _backoff(retry_backoff)
    return RunOptions(
        lease_s=lease_s,
        retries=retries,
        retry_delay_s=parse_duration(retry_delay, name="retry_delay"),
        factor=factor,
        max_delay_s=max_delay_s,
        jitter=jitter,
        heartbeat_s=heartbeat_s,
        on_reclaim=cast("OnReclaim", on_reclaim),
    )


# By their types too: True is no number of retries.
_kept_options = lru_cache(maxsize=512, typed=True)(_options)


def _backoff(options: Mapping[str, object] | None) -> tuple[float, float, bool]:
    if options is not None and not isinstance(cast("object", options), Mapping):
        message = f"retry_backoff: {options!r} is no mapping; it has factor, max_delay and jitter"
        raise ValueError(message)
    given = dict(options or {})
    factor = given.pop("factor", 1.0)
    max_delay = given.pop("max_delay", MAX_DELAY_S)
    jitter = given.pop("jitter", False)
    if given:
        message = f"retry_backoff: unknown {', '.join(map(repr, sorted(given)))}; it has factor, max_delay and jitter"
        raise ValueError(message)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < float("inf"):
        message = f"retry_backoff: factor {factor!r} is no finite number of 1 or more"
        raise ValueError(message)
    if not isinstance(jitter, bool):
        message = f"retry_backoff: jitter {jitter!r} is neither True nor False"
        raise ValueError(message)  # noqa: TRY004 - every bad option is a ValueError
    return float(factor), parse_duration(cast("Duration", max_delay), name="retry_backoff max_delay"), jitter


def check_callable(name: str, function: object) -> None:
    """Check a function that is handed to a step.

    Raises:
        ValueError: it cannot be called, as what a call has returned already.
    """
    if callable(function):
        return
    if inspect.iscoroutine(function):
        function.close()
    message = f"{name}: {function!r:.100} cannot be called; give the function, not what it returns"
    raise ValueError(message)


def check_step_id(step_id: object) -> str:
    """Return a step's id.

    Raises:
        ValueError: it has not 1 to 255 characters, or one of them cannot be stored.
    """
    if not isinstance(step_id, str) or not 1 <= len(step_id) <= MAX_STEP_ID_LENGTH:
        message = f"a step's id is a text of 1 to {MAX_STEP_ID_LENGTH} characters, not {step_id!r:.100}"
        raise ValueError(message)
    if clean_text(step_id) != step_id:
        message = f"step id {step_id!r:.100} has a character that cannot be stored"
        raise ValueError(message)
    return step_id


class ExternalKeys:
    """The keys under which the effects of an execution's steps are known outside: the same whenever it is repeated."""

    __slots__ = ("_hash",)

    def __init__(self, owner: StepOwner) -> None:
        # As JSON, so that no two splits of the same characters collide; all but the step's id is hashed once.
        parts = [str(owner.tenant_id), str(owner.fence.run_id), owner.fence.stage_id, owner.generation]
        self._hash = hashlib.blake2b(json.dumps(parts).removesuffix("]").encode(), digest_size=16)

    def of(self, step_id: str) -> str:
        """Return the key of a step."""
        hashed = self._hash.copy()
        hashed.update(f", {json.dumps(step_id)}]".encode())
        return "tny-" + hashed.hexdigest()
