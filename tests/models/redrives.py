"""What a redrive may do to a run that is over: where it goes on, what stays of each stage and of each of its steps."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.models.clockwork import Row
from tests.models.program import Program
from tests.models.snapshot import DONE, UNSAFE, Snapshot, short

SUPERSEDED = "run.superseded_attempt"


@dataclass(frozen=True, slots=True)
class Redrive:
    """A redrive that was asked for; `stage_id` with the kind `stage` only."""

    kind: str
    stage_id: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to become of the stages, by id; those that are in none of these do not exist yet."""

    kept: frozenset[str]
    reopened: frozenset[str]
    dropped: frozenset[str]
    created: frozenset[str]


def changes_of(before: Snapshot, after: Snapshot, program: Program, redrive: Redrive) -> Iterator[str]:
    """Name what became of stages and steps, so that a test can tell whether it saw enough."""
    plan = plan_of(program, before, redrive)
    fates = {"kept": plan.kept, "reopened": plan.reopened, "dropped": plan.dropped, "created": plan.created}
    for fate, stage_ids in fates.items():
        yield from (f"redrive: stage {fate}" for _ in stage_ids)
    for step in before.steps.values():
        where = "" if step["stage_id"] not in plan.reopened else " in place"
        yield f"redrive: {step['kind']} {step['status']} {_fate(step, plan, redrive, after)}{where}"


def is_reached(program: Program, before: Snapshot, stage_id: str) -> bool:
    """Whether all groups before a stage's are done."""
    return all(
        _is_done(before, stage.stage_id) for group in program.groups[: program.group_of(stage_id)] for stage in group
    )


def plan_of(program: Program, before: Snapshot, redrive: Redrive) -> Plan:
    """Decide by the words of the documentation alone."""
    groups = [[stage.stage_id for stage in group] for group in program.groups]
    existing = set(before.stages)
    if redrive.kind == "start":
        return Plan(frozenset(), frozenset(), frozenset(existing), frozenset(groups[0]))
    asked = {redrive.stage_id} if redrive.stage_id is not None else set()
    if redrive.stage_id is not None:
        number = program.group_of(redrive.stage_id)
    else:
        undone = [n for n, group in enumerate(groups) if not all(_is_done(before, one) for one in group)]
        number = undone[0] if undone else len(groups) - 1
        asked = set() if undone else set(groups[-1])
    going = {one for one in groups[number] if one in asked or not _is_done(before, one)}
    later = {one for group in groups[number + 1 :] for one in group}
    return Plan(
        kept=frozenset(existing - going - later),
        reopened=frozenset(going & existing),
        dropped=frozenset(later & existing),
        created=frozenset(going - existing),
    )


def _is_done(before: Snapshot, stage_id: str) -> bool:
    return stage_id in before.stages and before.stages[stage_id]["status"] in DONE


def broken_redrive(before: Snapshot, after: Snapshot, program: Program, redrive: Redrive) -> Iterator[str]:
    """Check everything that the redrive's transaction has changed."""
    assert before.run is not None
    assert after.run is not None
    plan = plan_of(program, before, redrive)
    counts = (before.run["redrive_count"] + 1, after.run["redrive_count"])
    if counts[0] != counts[1] or after.run["status"] != "RUNNING":
        yield f"the run is {after.run['status']}, redriven {counts[1]} times, expected {counts[0]}"
    if set(after.stages) != plan.kept | plan.reopened | plan.created:
        yield f"stages are {sorted(after.stages)}, expected {plan}"
        return
    for stage_id, stage in after.stages.items():
        yield from _broken_stage(before.stages.get(stage_id), stage, after.jobs.get(stage_id), plan)
    for name, step in before.steps.items():
        fate = _fate(step, plan, redrive, after)
        if not _is_right(fate, step, after.steps.get(name), after):
            yield f"{name} {fate}, went from {short(step)} to {short(after.steps.get(name))}"
    for name in after.steps.keys() - before.steps.keys():
        yield f"a redrive has made step {name}"
    yield from _broken_archive(before, after, plan)


def _broken_stage(old: Row | None, new: Row, job: Row | None, plan: Plan) -> Iterator[str]:
    stage_id = new["stage_id"]
    if stage_id in plan.kept:
        if old != new or job is not None:
            yield f"{stage_id} is to be kept as {old}, is {new} with job {job}"
        return
    if new["status"] != "PENDING" or job is None or (job["status"], job["attempt"]) != ("PENDING", 0):
        yield f"{stage_id} is to go on, is {new['status']}, its job {job}"
    if stage_id in plan.reopened and old is not None:
        # An attempt that was given back on a stop was announced: it is superseded too.
        begun = max(old["attempt"], old["announced_attempt"])
        kept = ("generation", "announced_attempt")
        if new["attempt"] != begun or any(old[name] != new[name] for name in kept):
            yield f"{stage_id} is not opened in place: {old}, {new}"


def _fate(step: Row, plan: Plan, redrive: Redrive, after: Snapshot) -> str:
    """Say what is to become of a step: it stays as it is, opens again, or goes."""
    is_ahead = step["kind"] == "signal" and step["status"] == "completed" and step["seq"] is None
    if redrive.kind == "start" or (step["stage_id"] in plan.dropped and not is_ahead):
        return "goes"
    if step["stage_id"] not in plan.reopened or step["status"] == "completed":
        return "stays"
    if step["kind"] != "run":
        return "goes"
    return "stays" if step["status"] == "running" and not _is_lapsed(step, after) else "opens"


def _is_right(fate: str, old: Row, new: Row | None, after: Snapshot) -> bool:
    if fate == "stays":
        return new == old
    if fate == "goes" or new is None:
        return fate == "goes" and new is None
    # Who goes on is told where an effect may have been had.
    is_reclaim = new["is_reclaim"] or not (_is_lapsed(old, after) or old["error_type"] == UNSAFE)
    is_open = (new["status"], new["failures"]) == ("pending", 0) and new["due_at"] <= after.now
    return is_open and is_reclaim and all(new[name] == old[name] for name in ("attempt", "external_key", "seq"))


def _is_lapsed(step: Row, after: Snapshot) -> bool:
    return step["status"] == "running" and step["lease_expires_at"] <= after.now


def _broken_archive(before: Snapshot, after: Snapshot, plan: Plan) -> Iterator[str]:
    """Check that what is superseded is told of, and every key that nobody will ask for again is kept."""
    old, new = ([note for note in seen.notes if note["key"] == SUPERSEDED] for seen in (before, after))
    told = Counter(note["stage_id"] for note in new) - Counter(note["stage_id"] for note in old)
    begun = {
        stage_id
        for stage_id in plan.reopened | plan.dropped
        if max(before.stages[stage_id]["attempt"], before.stages[stage_id]["announced_attempt"]) > 0
    }
    if told != Counter(begun):
        yield f"superseded are {sorted(begun)}, told of are {told}"
    known = {item["external_key"] for note in new for item in note["value"]["external_keys"]}
    for (stage_id, step_id), row in before.steps.items():
        if stage_id in plan.dropped and row["external_key"] is not None and row["external_key"] not in known:
            yield f"the key of {stage_id}/{step_id} is lost"
