"""Why a run that nobody works on waits, in words: what the queue says of it, and whether anybody takes what is due."""

from collections.abc import Mapping
from typing import Any, Final

from service.cli.client import ApiClient

# Workers look for what is due many times a second; what has been due for so long is left by all of them.
LEFT_AFTER_S: Final = 10.0
_REASONS: Final = {
    "tenant_suspended": "the tenant is suspended: nothing new begins.",
    "version_not_served": (
        "the API does not know this version of the workflow; only a worker that serves it can take the run."
    ),
    "run_at": "it is not due yet.",
    "backoff": "an attempt failed; the next one follows after a pause.",
    "tenant_cap": "as many of the tenant's jobs run as may at once.",
    "priority": "it is in line; the next free worker takes what is first.",
}


def may_wait(run: Mapping[str, Any]) -> bool:
    """Whether the run, or a stage of it, may be waiting for a worker."""
    return run["status"] == "PENDING" or (
        run["status"] == "RUNNING" and any(stage["status"] == "PENDING" for stage in run.get("stages") or [])
    )


async def reason_of(client: ApiClient, run: Mapping[str, Any]) -> str:
    """Return why the run waits for a worker, a sentence; empty when it does not, or is not among the first in line.

    Raises:
        ApiError: the API refuses, or cannot be reached.
    """
    return told(run, await client.get("/v1/queue")) if may_wait(run) else ""


def told(run: Mapping[str, Any], queue: Mapping[str, Any]) -> str:
    """Say what the answer of `/v1/queue` means for the run.

    Which workers are up is written nowhere. That none takes what is due shows: nothing of the workflow runs though some
    of it has been due for a while, which is so when none of them serves it, or all are busy with other work.
    """
    reason = next((entry["reason"] for entry in queue["waiting"] if entry["run_id"] == run["id"]), None)
    if reason is None:
        return ""
    share = next((share for share in queue["by_workflow"] if share["workflow"] == run["workflow"]), None)
    is_left = share is not None and not share["running"] and (share["oldest_age_seconds"] or 0.0) >= LEFT_AFTER_S
    if reason == "priority" and is_left:
        version = run.get("definition_version")
        served = f"{run['workflow']} at version {version}" if version else run["workflow"]
        return (
            f"It waits: no worker takes what is due of {run['workflow']}. Is one up that serves {served}, or are all of"
            " them busy?"
        )
    return f"It waits: {_REASONS.get(reason, reason)}"
