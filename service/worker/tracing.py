"""The span of a tick: one for each that found work, none for an empty poll."""

from uuid import UUID

from opentelemetry.context import Context

from kernel import Ticked, spans
from kernel.telemetry import messaging, tracer
from kernel.work import Work


def tell_tick(tenant_id: UUID, ticked: Ticked, began_ns: int) -> None:
    """Tell of a tick that ends now; it is told afterwards, because only then it is known to have found something."""
    tracing = tracer()
    if tracing is None:
        return
    workflows = {job.workflow.id for job in ticked.leased}
    work = Work(tenant_id, op="tick")
    found = {
        **messaging("receive", workflows.pop() if len(workflows) == 1 else None, len(ticked.leased)),
        "tenantry.tick.leased": len(ticked.leased),
        "tenantry.tick.runs": len(ticked.runs.claimed),
        "tenantry.tick.promoted": ticked.promoted,
        "tenantry.tick.reaped": len(ticked.reaped.leases),
    }
    spans.end(spans.begin(tracing, "tick", Context(), work=work, attributes=found, at_ns=began_ns))
