"""How much of a tenant's work may be claimed: its standing, and its cap on running jobs, counted under a lock."""

from kernel.errors import RateLimitedError, TenantSuspendedError
from tenancy import Call, Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
# Whoever asks for one job again so soon asks as often as a worker that is busy.
RETRY_AFTER_S = 1.0


def standing_call() -> Call:
    """Return the call that asks for the tenant's standing: one row, `status` and `running_jobs`."""
    return SQL["standing"], {}


async def room_for(most: int, standing: Row, tx: TenantTransaction) -> int:
    """Return how many of `most` jobs may be leased now; with a cap, counted under the claim lock, if it can be had."""
    if standing["status"] != "active":
        return 0
    if standing["running_jobs"] is None:
        return most
    locked, running = await tx.fetch_batch([(SQL["lock_claim"], {}), (SQL["running"], {})])
    if not locked or locked[0]["running_jobs"] is None:
        return 0
    cap: int = locked[0]["running_jobs"]
    used: int = running[0]["running"]
    return min(most, cap - used)


async def admit_one(standing: Row, tx: TenantTransaction, *, is_seen: bool) -> None:
    """Let one job be leased, or refuse it.

    `is_seen`: the lease is committed before the body runs, so it counts for others; the claim lock is waited for, as
    the last lock of its transaction. A lease that begins and ends in a caller's transaction counts for nobody, and the
    lock would keep the tenant's workers from claiming for as long as the caller likes: there it is only counted what
    runs.

    Raises:
        TenantSuspendedError: the tenant is suspended or about to be deleted.
        RateLimitedError: as many of its jobs run as may.
    """
    if standing["status"] != "active":
        raise TenantSuspendedError
    if standing["running_jobs"] is None:
        return
    caps, running = await tx.fetch_batch([(SQL["await_claim" if is_seen else "cap"], {}), (SQL["running"], {})])
    cap = caps[0]["running_jobs"] if caps else None
    if cap is not None and running[0]["running"] >= cap:
        raise RateLimitedError(RETRY_AFTER_S, "running_jobs")
