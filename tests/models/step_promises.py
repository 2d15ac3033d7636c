"""What the ledger promises: an outcome is written once, nobody takes over what is somebody's, no body begins too soon."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Any

from kernel import Step
from tests.models.clockwork import Row
from tests.models.play import READY_AT, Call, Play
from tests.models.process import Execution
from tests.models.program import Name, Node
from tests.models.snapshot import UNSAFE, Snapshot, short

FIXED = ("seq", "kind", "external_key", "deadline_at", "created_at")


def broken_ledger(before: Snapshot, after: Snapshot, play: Play) -> Iterator[str]:
    """Check every step that has changed."""
    for name in before.steps.keys() - after.steps.keys():
        yield f"{name} has vanished"
    for name, new in after.steps.items():
        old = before.steps.get(name)
        if old == new:
            continue
        is_right = _may_begin(new, is_over=before.is_over) if old is None else _may_become(old, new, after.now)
        if not is_right:
            yield f"{name} went from {short(old)} to {short(new)}"
        if new["kind"] == "run" and new["status"] in ("completed", "failed"):
            yield from _broken_outcome(name, new, play, is_over=before.is_over)
        if new["kind"] == "wait" and new["status"] == "completed" and new["result"] not in play.polled.get(name, ()):
            yield f"{name} has {new['result']}, which no poll returned"


def _may_begin(new: Row, *, is_over: bool) -> bool:
    """A step begins claimed, waiting or, a signal that was sent ahead, completed; in no run that is over."""
    states = {"run": {("running", 1)}, "signal": {("pending", 0), ("completed", 0)}}
    state = (new["status"], new["attempt"])
    return not is_over and state in states.get(new["kind"], {("pending", 0)})


def _may_become(old: Row, new: Row, now: datetime) -> bool:
    if any(old[name] is not None and new[name] != old[name] for name in FIXED):
        return False
    is_same = (new["attempt"], new["claim_id"]) == (old["attempt"], old["claim_id"])
    is_next = new["attempt"] == old["attempt"] + 1 and new["claim_id"] != old["claim_id"]
    is_lapsed = old["lease_expires_at"] is not None and old["lease_expires_at"] <= now
    match old["kind"], old["status"], new["status"]:
        case "run", "running", "running":
            # A heartbeat or the end of a lease; or another claim once it has run out, of a step that may be repeated.
            may = is_same or (is_next and is_lapsed and new["is_reclaim"] and not new["step_id"].endswith("-once"))
        case "run", "running", "failed" if new["error_type"] == UNSAFE:
            may = new["attempt"] == old["attempt"] and is_lapsed
        case "run", "running", _:
            may = is_same
        case "run", "pending", "running":
            may = is_next and old["due_at"] <= now
        case "run", "failed", "running":
            # Opened again by a later attempt of the stage.
            may = is_next and new["stage_attempt"] > old["stage_attempt"] and old["error_type"] != UNSAFE
        case "wait" | "signal", "pending", "failed":
            may = old["deadline_at"] <= now
        case "sleep", "pending", "completed":
            may = new["due_at"] == old["due_at"] <= now
        case "wait" | "signal", "pending", _:
            may = True
        case _:
            may = False
    return may


def _broken_outcome(name: Name, row: Row, play: Play, *, is_over: bool) -> Iterator[str]:
    """Check a recorded outcome against what the function of that attempt did."""
    call = (row["external_key"], row["attempt"])
    if row["status"] == "completed" and (is_over or row["result"] != play.returned.get(call)):
        yield f"{name} is recorded with {row['result']}, returned was {play.returned.get(call)}, over: {is_over}"
    if row["status"] == "failed" and not is_over and row["error_type"] != UNSAFE and call not in play.raised:
        yield f"{name} is recorded as failed with {row['error']}, which it did not raise"


def broken_begin(node: Node, attempt: int, execution: Execution, latest: Snapshot, now: datetime) -> Iterator[str]:
    """Check what is committed at the moment at which a function begins."""
    stage = latest.stages.get(node.stage_id)
    if stage is None or stage["generation"] != execution.job.generation:
        # Redriven between the reply to its claim and now: nobody has told it, and what it does is under an old key.
        return
    row = latest.steps.get(node.name)
    if row is None or (row["status"], row["attempt"]) != ("running", attempt) or row["lease_expires_at"] <= now:
        yield f"attempt {attempt} of {node.name} begins, its row is {short(row)}"
    for step_id in node.before:
        earlier = latest.steps.get((node.stage_id, step_id))
        if earlier is None or earlier["status"] not in ("completed", "failed"):
            yield f"{node.name} begins before {step_id} is recorded: {short(earlier)}"
        elif earlier["status"] == "completed" and earlier["result"] != execution.got[step_id]:
            yield f"{node.name} begins on {execution.got[step_id]!r} of {step_id}: {short(earlier)}"


def broken_telling(node: Node, step: Step, begun: Iterable[Call], play: Play) -> Iterator[str]:
    """Check that a function is told (`is_reclaim`) when the last one of its key may have had its effect unheard."""
    earlier = [call for call in begun if call[0] == step.external_key and call[1] < step.attempt]
    last = max(earlier, key=itemgetter(1), default=None)
    if last is not None and not play.has_ended(last) and not step.is_reclaim:
        yield f"attempt {step.attempt} of {node.name} begins untold, lost was {last[1]}"


# -- the end -----------------------------------------------------------------------------------------------------------


def expected_output(play: Play, latest: Snapshot, signals: Mapping[Name, int]) -> Any:
    """Return what the run's output must be: of each step what the ledger holds, where the model allows that at all."""
    given: Any = {}
    output: Any = None
    for group in play.program.groups:
        ran = {
            stage.stage_id: {
                "given": given,
                "seen": [[[_expected(node, latest, signals) for node in b] for b in g] for g in stage.groups()],
            }
            for stage in group
            if latest.stages[stage.stage_id]["status"] == "COMPLETED"
        }
        # A group of which nothing ran is transparent.
        if ran:
            given = output = ran if len(group) > 1 else next(iter(ran.values()))
    return output


def _expected(node: Node, latest: Snapshot, signals: Mapping[Name, int]) -> Any:
    if node.kind == "stumble":
        return "walked"
    row = latest.steps.get(node.name)
    assert row is not None, f"{node.name} is not in the ledger"
    if node.kind in ("signal", "hasty"):
        return signals.get(node.name, "failed: StepTimeoutError")
    allowed = {
        "vain": {"failed"},
        "broken": {"failed"},
        "flaky": {"completed", "failed"},
        "once": {"completed", "failed"},
    }
    assert row["status"] in allowed.get(node.kind, {"completed"}), f"{node.name}: {short(row)}"
    if node.kind == "poll":
        assert row["result"] >= READY_AT
    if row["status"] == "completed":
        return row["result"]
    return {"vain": "failed: StepTimeoutError", "once": "failed: StepNotReplaySafeError"}.get(
        node.kind, "failed: RefusedError"
    )
