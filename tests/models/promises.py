"""What must hold after every commit of one run with one stage: the tables of semantics.md, and what the ledger promises.

Each check is given what was and what is, and yields the promises it found broken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kernel import Fence
from tests.models.clockwork import Row
from tests.models.process import Execution
from tests.models.program import READY_AT, Node, Play

UNSAFE = "kernel.step_errors.StepNotReplaySafeError"
TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
RUN_MOVES: Mapping[str | None, set[str]] = {
    None: {"PENDING"},
    "PENDING": {"RUNNING", "CANCELLED"},
    "RUNNING": TERMINAL,
}
STAGE_MOVES: Mapping[str | None, set[str]] = {
    None: {"PENDING", "RUNNING"},
    "PENDING": {"RUNNING", "FAILED", "CANCELLED"},
    "RUNNING": {"COMPLETED", "SUSPENDED", "FAILED", "PENDING", "CANCELLED"},
    "SUSPENDED": {"COMPLETED", "FAILED", "PENDING", "CANCELLED"},
}
# Run, stage, job and whether that is a replay: every way in which they may stand beside each other.
STANDINGS = {
    ("PENDING", None, None, None),
    ("CANCELLED", None, None, None),
    ("RUNNING", "PENDING", "PENDING", False),
    ("RUNNING", "RUNNING", "RUNNING", False),
    ("RUNNING", "SUSPENDED", "PENDING", True),
    ("RUNNING", "SUSPENDED", "RUNNING", True),
    ("COMPLETED", "COMPLETED", None, None),
    ("FAILED", "FAILED", "FAILED", False),
    ("FAILED", "FAILED", "FAILED", True),
    ("CANCELLED", "CANCELLED", None, None),
    # Until its worker has let go of it.
    ("CANCELLED", "CANCELLED", "RUNNING", False),
    ("CANCELLED", "CANCELLED", "RUNNING", True),
}
FOLLOWERS: Mapping[str | None, set[str]] = {
    None: {"workflow:created"},
    "workflow:created": {"workflow:started", "workflow:cancelled"},
    "workflow:started": {"stage:started", "workflow:cancelled"},
    "stage:started": {"stage:suspended", "stage:retrying", "stage:completed", "stage:failed", "workflow:cancelled"},
    "stage:suspended": {"stage:suspended", "stage:retrying", "stage:completed", "stage:failed", "workflow:cancelled"},
    "stage:retrying": {"stage:started", "workflow:cancelled"},
    "stage:completed": {"workflow:completed"},
    "stage:failed": {"workflow:failed"},
}
# What may be told of a run at any time before its end.
ASIDES = {"step:signalled", "annotation:created"}
SHOWN = ("status", "attempt", "result", "error", "is_reclaim", "due_at", "lease_expires_at", "deadline_at", "claim_id")
FIXED = ("seq", "kind", "external_key", "deadline_at", "created_at")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a run at one moment of the engine's clock; `notes` are its annotations."""

    now: datetime
    run: Row | None = None
    stage: Row | None = None
    job: Row | None = None
    steps: Mapping[str, Row] | None = None
    events: Sequence[Row] = ()
    notes: Sequence[Row] = ()

    def step(self, step_id: str) -> Row | None:
        return (self.steps or {}).get(step_id)

    @property
    def standing(self) -> tuple[Any, ...]:
        replay = self.job["replay"] if self.job else None
        return _status(self.run), _status(self.stage), _status(self.job), replay

    @property
    def fence(self) -> Fence | None:
        """The lease of the job, None when nobody has it."""
        job = self.job
        if job is None or job["status"] != "RUNNING":
            return None
        return Fence(job["run_id"], job["stage_id"], job["attempt"], job["started_at"])


def _status(row: Row | None) -> str | None:
    return row["status"] if row else None


# -- run, stage, job ---------------------------------------------------------------------------------------------------


def broken_states(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Check that run and stage went from state to state as the tables say, and stand beside their job as they may."""
    for name, moves in (("run", RUN_MOVES), ("stage", STAGE_MOVES)):
        old, new = _status(getattr(before, name)), _status(getattr(after, name))
        if old != new and new not in moves.get(old, set()):
            yield f"the {name} went from {old} to {new}"
    if after.standing not in STANDINGS:
        yield f"run, stage, job and replay stand as {after.standing}"
    if after.stage is not None and (after.stage["next_poll_at"] is not None) != (after.stage["status"] == "SUSPENDED"):
        yield f"the stage is {after.stage['status']}, its next poll {after.stage['next_poll_at']}"


def broken_history(events: Sequence[Row]) -> Iterator[str]:
    """Check that the history has no gap, tells each thing where it belongs and each attempt of the stage once."""
    if [event["sequence"] for event in events] != list(range(1, len(events) + 1)):
        yield f"the history has gaps: {[event['sequence'] for event in events]}"
    last = None
    for event in events:
        if event["type"] in ASIDES and last is not None and FOLLOWERS.get(last):
            continue
        if event["type"] not in FOLLOWERS.get(last, set()):
            yield f"{event['type']} after {last}"
        last = event["type"]
    begun = [event["payload"]["attempt"] for event in events if event["type"] == "stage:started"]
    if begun != list(range(1, len(begun) + 1)):
        yield f"attempts of the stage are told as {begun}"


def broken_notes(notes: Iterable[Row]) -> Iterator[str]:
    """Check that a refused outcome is told of once."""
    told = [(note["value"]["step_id"], note["value"]["attempt"]) for note in notes]
    if len(told) != len(set(told)):
        yield f"a refused outcome is told of twice: {told}"


# -- the ledger --------------------------------------------------------------------------------------------------------


def broken_ledger(before: Snapshot, after: Snapshot, play: Play) -> Iterator[str]:
    """Check every step that has changed: an outcome is written once, and nobody takes over what is somebody's."""
    for step_id in (before.steps or {}).keys() - (after.steps or {}).keys():
        yield f"{step_id} has vanished"
    for step_id, new in (after.steps or {}).items():
        old = before.step(step_id)
        if old == new:
            continue
        is_over = _status(before.run) in TERMINAL
        if not (_may_begin(new, is_over=is_over) if old is None else _may_become(old, new, after.now)):
            yield f"{step_id} went from {_short(old)} to {_short(new)}"
        if new["kind"] == "run" and new["status"] in ("completed", "failed"):
            yield from _broken_outcome(step_id, new, play, is_over=is_over)
        if new["kind"] == "wait" and new["status"] == "completed" and new["result"] not in play.polled.get(step_id, ()):
            yield f"{step_id} has {new['result']}, which no poll returned"


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
            # A heartbeat or the end of a lease; or another claim once it has run out.
            may = is_same or (is_next and is_lapsed and new["is_reclaim"])
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


def moves(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Name what steps did between two commits, so that a test can tell whether it saw enough."""
    for step_id, new in (after.steps or {}).items():
        old = before.step(step_id)
        if old is None or old["status"] != new["status"] or old["attempt"] != new["attempt"]:
            is_taken = new["is_reclaim"] and new["status"] == "running"
            note = " taken over" if is_taken else " unsafe" if new["error_type"] == UNSAFE else ""
            yield f"{new['kind']} {old['status'] if old else 'new'} > {new['status']}{note}"


def _broken_outcome(step_id: str, row: Row, play: Play, *, is_over: bool) -> Iterator[str]:
    """Check a recorded outcome against what the function of that attempt did."""
    call = (step_id, row["attempt"])
    if row["status"] == "completed" and (is_over or row["result"] != play.returned.get(call)):
        yield f"{call} is recorded with {row['result']}, returned was {play.returned.get(call)}, over: {is_over}"
    if row["status"] == "failed" and not is_over and row["error_type"] != UNSAFE and call not in play.raised:
        yield f"{call} is recorded as failed with {row['error']}, which it did not raise"


def broken_begin(node: Node, attempt: int, execution: Execution, latest: Snapshot, now: datetime) -> Iterator[str]:
    """Check what is committed at the moment at which a function begins."""
    row = latest.step(node.step_id)
    if row is None or (row["status"], row["attempt"]) != ("running", attempt) or row["lease_expires_at"] <= now:
        yield f"attempt {attempt} of {node.step_id} begins, its row is {_short(row)}"
    for step_id in node.before:
        earlier = latest.step(step_id)
        if earlier is None or earlier["status"] not in ("completed", "failed"):
            yield f"{node.step_id} begins before {step_id} is recorded: {_short(earlier)}"
        elif earlier["status"] == "completed" and earlier["result"] != execution.got[step_id]:
            yield f"{node.step_id} begins on {execution.got[step_id]!r} of {step_id}: {_short(earlier)}"


def _short(row: Row | None) -> str:
    if row is None:
        return "nothing"
    return " ".join(f"{name}={row[name]}" for name in SHOWN if row[name] is not None)


# -- wake-ups ----------------------------------------------------------------------------------------------------------


def broken_wake_up(before: Snapshot, after: Snapshot, executions: Mapping[Fence, Execution]) -> Iterator[str]:
    """Check that a parked stage is due when the first of the steps needs it that its last body was not answered."""
    if after.standing[1:] != ("SUSPENDED", "PENDING", True) or after.job is None or after.stage is None:
        return
    if after.job["available_at"] != after.stage["next_poll_at"]:
        yield f"due at {after.job['available_at']}, next poll at {after.stage['next_poll_at']}"
    execution = executions.get(before.fence) if before.fence is not None else None
    for step_id in execution.asked - execution.got.keys() if execution is not None else ():
        row = after.step(step_id)
        at = _needed_at(row, after.now) if row is not None and not _is_own(row, step_id, execution) else None
        if at is not None and after.job["available_at"] > max(at, after.now):
            yield f"parked until {after.job['available_at']}, {step_id} needs it at {at}: {_short(row)}"
    for step_id, row in (after.steps or {}).items():
        old = before.step(step_id)
        is_signalled = row["kind"] == "signal" and row["status"] == "completed" and old is not None and old != row
        if is_signalled and after.job["available_at"] > after.now:
            yield f"{step_id} was signalled, and its stage is parked until {after.job['available_at']}"


def _is_own(row: Row, step_id: str, execution: Execution | None) -> bool:
    """Whether this is a step of the execution's own that outlasted its lease: nobody can wait for it."""
    return row["status"] == "running" and execution is not None and step_id in execution.began


def _needed_at(row: Row, now: datetime) -> datetime | None:
    if row["status"] in ("completed", "failed"):
        return now
    if row["status"] == "running":
        return row["lease_expires_at"]
    times = [at for at in (row["due_at"], row["deadline_at"]) if at is not None]
    return min(times) if times else None


# -- the end -----------------------------------------------------------------------------------------------------------


def expected_output(play: Play, snapshot: Snapshot, signals: Mapping[str, int]) -> list[Any]:
    """Return what the run's output must be: of each step what the ledger holds, where the model allows that at all."""
    return [
        [[_expected(node, snapshot.step(node.step_id), signals) for node in branch] for branch in group]
        for group in play.program.groups()
    ]


def _expected(node: Node, row: Row | None, signals: Mapping[str, int]) -> Any:
    if node.kind == "stumble":
        return "walked"
    assert row is not None, f"{node.step_id} is not in the ledger"
    if node.kind in ("signal", "hasty"):
        return signals.get(node.step_id, "failed: StepTimeoutError")
    allowed = {
        "vain": {"failed"},
        "broken": {"failed"},
        "flaky": {"completed", "failed"},
        "once": {"completed", "failed"},
    }
    assert row["status"] in allowed.get(node.kind, {"completed"}), f"{node.step_id}: {_short(row)}"
    if node.kind == "poll":
        assert row["result"] >= READY_AT
    if row["status"] == "completed":
        return row["result"]
    return {"vain": "failed: StepTimeoutError", "once": "failed: StepNotReplaySafeError"}.get(
        node.kind, "failed: RefusedError"
    )
