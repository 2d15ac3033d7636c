"""Which runs are traced: decided once a run, by whoever creates it, and followed by all that happens to it."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from time import monotonic
from typing import Final

from opentelemetry.context import Context, get_value
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import get_current_span

from kernel.telemetry import RUN_SAMPLED, SHARE
from service.environment import SettingsError

SHARE_PER_S: Final = 5.0
SHARE_BURST: Final = 50.0
MAX_SHARES: Final = 10_000
_PARENT_BASED: Final = "parentbased_"
_RATIO: Final = "traceidratio"
_CONSTANT: Final[Mapping[str, Sampler]] = {"always_on": ALWAYS_ON, "always_off": ALWAYS_OFF}


class RunSampler(Sampler):
    """Decides once a run: what has a parent follows it, a linked root its run, and only a new root is decided on."""

    def __init__(self, root: Sampler) -> None:
        self._root = root

    def should_sample(
        self, parent_context: Context | None, trace_id: int, *args: object, **kwargs: object
    ) -> SamplingResult:
        """Return the decision."""
        parent = get_current_span(parent_context).get_span_context()
        if parent.is_valid:
            is_sampled: object = parent.trace_flags.sampled
        else:
            is_sampled = get_value(RUN_SAMPLED, parent_context)
        sampler = self._root if is_sampled is None else ALWAYS_ON if is_sampled else ALWAYS_OFF
        return sampler.should_sample(parent_context, trace_id, *args, **kwargs)  # type: ignore[arg-type]

    def get_description(self) -> str:
        """Return what it is."""
        return f"RunSampler({self._root.get_description()})"


class ShareSampler(Sampler):
    """Samples a few roots a second of each share, bursts included: a quiet tenant is always traced, a busy one in part.

    A share is what the context says (`SHARE`), else the span's name.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._shares: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def should_sample(
        self, parent_context: Context | None, trace_id: int, name: str, *args: object, **kwargs: object
    ) -> SamplingResult:
        """Return the decision: sampled while the share has something left."""
        is_sampled = self._take(get_value(SHARE, parent_context) or name)
        sampler = ALWAYS_ON if is_sampled else ALWAYS_OFF
        return sampler.should_sample(parent_context, trace_id, name, *args, **kwargs)  # type: ignore[arg-type]

    def get_description(self) -> str:
        """Return what it is."""
        return f"ShareSampler({SHARE_PER_S:g}/s)"

    def _take(self, share: object) -> bool:
        now = self._clock()
        with self._lock:
            left, at = self._shares.pop(share, (SHARE_BURST, now))
            left = min(left + (now - at) * SHARE_PER_S, SHARE_BURST)
            is_had = left >= 1
            self._shares[share] = (left - is_had, now)
            if len(self._shares) > MAX_SHARES:
                self._shares.popitem(last=False)
        return is_had


def sampler_of(environ: Mapping[str, str]) -> Sampler:
    """Return the sampler of new roots that `OTEL_TRACES_SAMPLER` names, ours when it names none.

    Raises:
        SettingsError: there is none of that name here, or its argument is no share.
    """
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    root = name.removeprefix(_PARENT_BASED)
    if root == _RATIO:
        return TraceIdRatioBased(_ratio(environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"))
    if root and root not in _CONSTANT:
        known = ", ".join((*_CONSTANT, _RATIO))
        raise SettingsError(f"otel_traces_sampler: {name!r} is none of {known}, each also with {_PARENT_BASED}")
    return _CONSTANT[root] if root else ShareSampler()


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise SettingsError(f"otel_traces_sampler_arg: {text!r} is no number from 0 to 1")
    return ratio
