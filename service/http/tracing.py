"""The span of a request, and what a client's own trace has to do with it."""

from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context, set_value
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind

from kernel import KernelError, spans
from kernel.telemetry import SHARE, failed, parse_traceparent, tracer
from service.auth import Credential
from service.problems import ProblemError

SERVER_ERROR = 500
MAX_TRACESTATE = 512
MAX_ACQUAINTANCES = 10_000


class Acquaintances:
    """Credentials that held lately in this process, the last of them.

    A request is sampled before its credential was looked up: whoever makes keys up must not use up the share of the
    tenant that they name.
    """

    def __init__(self) -> None:
        # Hashes alone: no reason to keep secrets.
        self._known: OrderedDict[int, None] = OrderedDict()

    def share_of(self, credential: Credential | None, route: str) -> str | None:
        """Return whose share of the sampled requests of a route one with this credential is taken from."""
        if credential is None:
            return None
        is_signed = credential.key is None and credential.session_hash is None
        if is_signed or hash(credential) in self._known:
            return f"{credential.tenant_id} {route}"
        return f"strangers {route}"

    def meet(self, credential: Credential) -> None:
        """Note that a credential held."""
        self._known[hash(credential)] = None
        self._known.move_to_end(hash(credential))
        if len(self._known) > MAX_ACQUAINTANCES:
            self._known.popitem(last=False)


def inbound(headers: Mapping[str, str], share: str | None, *, is_trusted: bool) -> tuple[Context, tuple[Link, ...]]:
    """Return the context to start a request's span in, and its links.

    A client that is not trusted could otherwise choose another's trace id, or have all it does sampled.
    """
    context = set_value(SHARE, share, Context())
    tracestate = headers.get("tracestate", "")
    given = parse_traceparent(headers.get("traceparent"), tracestate if len(tracestate) <= MAX_TRACESTATE else None)
    if given is None:
        return context, ()
    if is_trusted:
        return trace.set_span_in_context(NonRecordingSpan(given), context), ()
    return context, (Link(given),)


@contextmanager
def request_span(name: str, context: Context, links: tuple[Link, ...]) -> Generator[Span]:
    """Run the block in a span of kind SERVER. What the service itself got wrong is an error, what it refused is not."""
    tracing = tracer()
    if tracing is None:
        yield trace.INVALID_SPAN
        return
    span = spans.begin(tracing, name, context, kind=SpanKind.SERVER, links=links)
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except ProblemError as problem:
            span.set_attribute("http.response.status_code", problem.status)
            if problem.status >= SERVER_ERROR:
                failed(span, problem.code)
            raise
        except KernelError:
            raise
        except Exception as error:
            failed(span, type(error).__name__)
            raise
        finally:
            spans.end(span)


def shown_path(path: str) -> str:
    """Return a route's path as documents show it: `/v1/runs/{run_id}`."""
    return path.replace(":str}", "}")
