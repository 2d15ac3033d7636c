"""How long to wait before trying again; pure, and safe at any attempt."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from kernel.execution.durations import MAX_SECONDS

MAX_STAGE_DELAY_S = 3_600.0
Uniform = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a delay grows: by `factor` with each failure, up to `max_delay_s`; jitter draws from zero to the delay."""

    factor: float = 1.0
    max_delay_s: float = MAX_SECONDS
    has_jitter: bool = False


def retry_delay_s(attempt: int, *, has_jitter: bool = False, uniform: Uniform = random.uniform) -> float:
    """Return the seconds to wait after a stage's 1-based `attempt` failed: 2^attempt, at most an hour."""
    delay_s = min(2.0 ** min(max(attempt, 0), 12), MAX_STAGE_DELAY_S)
    return uniform(0.0, delay_s) if has_jitter else delay_s


def backoff_delay_s(delay_s: float, failures: int, backoff: Backoff, *, uniform: Uniform = random.uniform) -> float:
    """Return the seconds after the `failures`-th failure: `delay_s` x factor^(failures - 1), at most `max_delay_s`."""
    capped = _grown(delay_s, max(failures, 1) - 1, backoff)
    return uniform(0.0, capped) if backoff.has_jitter else capped


def _grown(delay_s: float, exponent: int, backoff: Backoff) -> float:
    if delay_s <= 0 or delay_s >= backoff.max_delay_s:
        return min(delay_s, backoff.max_delay_s)
    try:
        return min(delay_s * backoff.factor**exponent, backoff.max_delay_s)
    except OverflowError:
        # The power left the range of floats: whatever it multiplies has long been past any sensible bound.
        return backoff.max_delay_s
