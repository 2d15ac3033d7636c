"""What must hold of a run, its stages and jobs after every commit: the tables of the states, the history, wake-ups.

Each check is given what was and what is, and yields the promises it found broken.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from kernel import Fence
from tests.models.clockwork import Row
from tests.models.process import Execution
from tests.models.program import Program
from tests.models.snapshot import DONE, OVER, Snapshot, short, status_of

RUN_MOVES: Mapping[str | None, set[str]] = {
    None: {"PENDING"},
    "PENDING": {"RUNNING", "CANCELLED"},
    "RUNNING": OVER,
}
STAGE_MOVES: Mapping[str | None, set[str]] = {
    None: {"PENDING", "RUNNING"},
    "PENDING": {"RUNNING", "SKIPPED", "FAILED", "CANCELLED"},
    "RUNNING": {"COMPLETED", "SUSPENDED", "FAILED", "PENDING", "CANCELLED"},
    "SUSPENDED": {"COMPLETED", "FAILED", "PENDING", "CANCELLED"},
}
# Run, stage, job and whether that is a replay: every way in which they may stand beside each other. The job of a stage that
# was cancelled stays until its worker has let go of it.
_BOTH = (False, True)
STANDINGS = {
    ("RUNNING", "PENDING", "PENDING", False),
    ("RUNNING", "PENDING", "RUNNING", False),
    ("RUNNING", "RUNNING", "RUNNING", False),
    ("RUNNING", "SUSPENDED", "PENDING", True),
    ("RUNNING", "SUSPENDED", "RUNNING", True),
    *((run, stage, None, None) for run in ("RUNNING", *OVER) for stage in DONE),
    *(("FAILED", "FAILED", "FAILED", replay) for replay in _BOTH),
    *((run, "CANCELLED", None, None) for run in ("FAILED", "CANCELLED")),
    *((run, "CANCELLED", "RUNNING", replay) for run in ("FAILED", "CANCELLED") for replay in _BOTH),
}
RUN_EVENTS: Mapping[str | None, set[str]] = {
    None: {"workflow:created"},
    "workflow:created": {"workflow:started", "workflow:cancelled"},
    "workflow:started": {"workflow:completed", "workflow:failed", "workflow:cancelled"},
    # What a redrive supersedes is told of before it starts the run again.
    "workflow:completed": {"workflow:started"},
    "workflow:failed": {"workflow:started"},
    "workflow:cancelled": {"workflow:started"},
}
_ENDS = {"stage:suspended", "stage:retrying", "stage:completed", "stage:failed"}
STAGE_EVENTS: Mapping[str | None, set[str]] = {
    None: {"stage:started"},
    "stage:started": _ENDS,
    "stage:suspended": _ENDS,
    "stage:retrying": {"stage:started"},
}
# A stage with a `when` is leased before it begins: it can be skipped, and that attempt can fail. It is asked again when it
# is taken up after a stop, which gave back an attempt that had started.
WHEN_EVENTS: Mapping[str | None, set[str]] = {
    **STAGE_EVENTS,
    None: {"stage:started", "stage:skipped", "stage:retrying", "stage:failed"},
    "stage:started": {*_ENDS, "stage:skipped"},
    "stage:retrying": {"stage:started", "stage:skipped", "stage:retrying", "stage:failed"},
}


def broken_states(before: Snapshot, after: Snapshot, program: Program) -> Iterator[str]:
    """Check that run and stages went from state to state as the tables say, and stand beside each other as they may."""
    old, new = status_of(before.run), status_of(after.run)
    if old != new and new not in RUN_MOVES.get(old, set()):
        yield f"the run went from {old} to {new}"
    for stage_id in before.stages.keys() | after.stages.keys():
        old, new = status_of(before.stages.get(stage_id)), status_of(after.stages.get(stage_id))
        if old != new and new not in STAGE_MOVES.get(old, set()):
            yield f"stage {stage_id} went from {old} to {new}"
    yield from broken_standing(after, program)


def broken_standing(after: Snapshot, program: Program) -> Iterator[str]:
    """Check how run, stages and jobs stand beside each other, and the groups after one another."""
    for stage_id in after.stages.keys() | after.jobs.keys():
        if after.standing(stage_id) not in STANDINGS:
            yield f"run, stage {stage_id}, job and replay stand as {after.standing(stage_id)}"
    for stage_id, stage in after.stages.items():
        if (stage["next_poll_at"] is not None) != (stage["status"] == "SUSPENDED"):
            yield f"stage {stage_id} is {stage['status']}, its next poll {stage['next_poll_at']}"
    done = {stage_id for stage_id, stage in after.stages.items() if stage["status"] in DONE}
    failed = {stage_id for stage_id, stage in after.stages.items() if stage["status"] == "FAILED"}
    for stage_id in after.stages:
        earlier = {stage.stage_id for group in program.groups[: program.group_of(stage_id)] for stage in group}
        if not earlier <= done:
            yield f"{stage_id} exists, and {earlier - done} before it are not done"
    run = status_of(after.run)
    if (run == "COMPLETED") != (done == program.stages.keys()) or (run == "FAILED") != bool(failed):
        yield f"the run is {run}, done are {done}, failed are {failed}"


def broken_history(events: Sequence[Row], program: Program) -> Iterator[str]:
    """Check that the history has no gap, tells each thing where it belongs and each attempt of a stage once."""
    if [event["sequence"] for event in events] != list(range(1, len(events) + 1)):
        yield f"the history has gaps: {[event['sequence'] for event in events]}"
    begun: dict[str, list[int]] = {}
    for event in events:
        if event["type"] == "stage:started":
            begun.setdefault(event["stage_id"], []).append(event["payload"]["attempt"])
    for stage_id, attempts in begun.items():
        # An attempt that fails in its `when` has not started.
        are_all = program.stages[stage_id].when is None
        if attempts != (list(range(1, len(attempts) + 1)) if are_all else sorted(set(attempts))):
            yield f"attempts of stage {stage_id} are told as {attempts}"
    yield from _broken_order(events, program)


def _broken_order(events: Sequence[Row], program: Program) -> Iterator[str]:
    run: str | None = None
    stages: dict[str, str] = {}
    for event in events:
        told, stage_id = event["type"], event["stage_id"]
        if told.startswith("workflow:"):
            if told not in RUN_EVENTS.get(run, set()):
                yield f"{told} after {run}"
            run = told
            # A redrive opens stages anew.
            stages = {} if told == "workflow:started" else stages
        elif told.startswith("stage:"):
            follows = WHEN_EVENTS if program.stages[stage_id].when else STAGE_EVENTS
            if run != "workflow:started" or told not in follows.get(stages.get(stage_id), set()):
                yield f"{told} of {stage_id} after {stages.get(stage_id)} and {run}"
            stages[stage_id] = told
        elif told not in ("step:signalled", "annotation:created") or run is None:
            yield f"{told} after {run}"


def broken_notes(notes: Iterable[Row]) -> Iterator[str]:
    """Check that a refused outcome is told of once."""
    told = [
        (note["stage_id"], note["value"]["step_id"], note["value"]["attempt"])
        for note in notes
        if note["key"] == "step.outcome_conflict"
    ]
    if len(told) != len(set(told)):
        yield f"a refused outcome is told of twice: {told}"


# -- wake-ups ----------------------------------------------------------------------------------------------------------


def broken_wake_ups(before: Snapshot, after: Snapshot, executions: Mapping[Fence, Execution]) -> Iterator[str]:
    """Check that a parked stage is due when the first of the steps needs it that its last body was not answered."""
    for stage_id, stage in after.stages.items():
        if after.standing(stage_id) != ("RUNNING", "SUSPENDED", "PENDING", True):
            continue
        due_at = after.jobs[stage_id]["available_at"]
        if due_at != stage["next_poll_at"]:
            yield f"{stage_id} is due at {due_at}, its next poll is at {stage['next_poll_at']}"
        fence = before.fence(stage_id)
        execution = executions.get(fence) if fence is not None else None
        for step_id in execution.asked - execution.got.keys() if execution is not None else ():
            row = after.steps.get((stage_id, step_id))
            at = _needed_at(row, after.now) if row is not None and not _is_own(row, step_id, execution) else None
            if at is not None and due_at > max(at, after.now):
                yield f"{stage_id} is parked until {due_at}, {step_id} needs it at {at}: {short(row)}"
        for name, row in after.steps.items():
            old = before.steps.get(name)
            is_signalled = row["kind"] == "signal" and row["status"] == "completed" and old is not None and old != row
            if name[0] == stage_id and is_signalled and due_at > after.now:
                yield f"{name} was signalled, and its stage is parked until {due_at}"


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
