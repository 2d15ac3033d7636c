"""Decides where a run that is over goes on, and what becomes of each of its stages: a pure function.

Definitions: a stage is *done* when it is COMPLETED or SKIPPED. A run goes on in one execution group. Stages of earlier
groups are done and kept; stages of that group that are not done, or that are asked for, are opened again in place;
whatever the run has beyond it is dropped, to be created anew when its turn comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from kernel import payloads
from kernel.definition.workflow import Place
from kernel.errors import FieldError, InvalidRequestError, UnknownStageError
from kernel.locking import StageRow
from kernel.states import DONE_STAGE_STATUSES, StageStatus

RedriveKind: TypeAlias = Literal["last_failure", "start", "stage"]
KINDS: tuple[RedriveKind, ...] = get_args(RedriveKind)


@dataclass(frozen=True, slots=True)
class RedriveFrom:
    """Where to go on: `stage_id` is given with the kind `stage`, and only then."""

    kind: RedriveKind
    stage_id: str | None = None

    def faults(self) -> list[FieldError]:
        """Return what is wrong with it, whatever the run."""
        if self.kind not in KINDS:
            return [FieldError("/kind", "unknown_kind", f"must be one of {', '.join(KINDS)}")]
        if self.kind == "stage" and not self.stage_id:
            return [FieldError("/stage_id", "missing", "is required with the kind stage")]
        if self.stage_id is not None and self.kind != "stage":
            return [FieldError("/stage_id", "unexpected", "is given with the kind stage only")]
        if self.stage_id is not None and payloads.clean_text(self.stage_id) != self.stage_id:
            return [FieldError("/stage_id", "invalid", "is no stage's id")]
        return []


@dataclass(frozen=True, slots=True)
class Resumption:
    """What becomes of a run's stages; places are those of the definition that the run goes on with."""

    from_stage_id: str
    kept: tuple[Place, ...]
    reopened: tuple[Place, ...]
    created: tuple[Place, ...]
    dropped: tuple[StageRow, ...]


def resume(workflow_id: str, places: Sequence[Place], stages: Mapping[str, StageRow], start: RedriveFrom) -> Resumption:
    """Return how the run goes on; `places` is the definition, `stages` what the run has.

    `last_failure` is the group in which the run came to its end: the first that is not done. Where all are (nothing
    failed) it is the last one, and all of it is opened again.

    Raises:
        UnknownStageError: the definition has no stage of that id.
        InvalidRequestError: something that comes before the stage is not done.
    """
    if start.kind == "start":
        first = tuple(place for place in places if place.group == 1)
        return Resumption(first[0].stage_id, (), (), first, tuple(stages.values()))
    if start.kind == "stage":
        asked = _asked(workflow_id, places, stages, str(start.stage_id))
        return _from(asked.stage_id, asked.group, {asked.stage_id}, places, stages)
    undone = [place for place in places if not _is_done(place, stages)]
    if not undone:
        group = places[-1].group
        members = [place.stage_id for place in places if place.group == group]
        return _from(members[0], group, set(members), places, stages)
    members = [place.stage_id for place in undone if place.group == undone[0].group]
    failed = [stage_id for stage_id in members if stage_id in stages and stages[stage_id].status is StageStatus.FAILED]
    return _from((failed or members)[0], undone[0].group, set(), places, stages)


def _asked(workflow_id: str, places: Sequence[Place], stages: Mapping[str, StageRow], stage_id: str) -> Place:
    asked = next((place for place in places if place.stage_id == stage_id), None)
    if asked is None:
        raise UnknownStageError(workflow_id, stage_id)
    before = [place.stage_id for place in places if place.group < asked.group and not _is_done(place, stages)]
    if before:
        message = f"stage {before[0]!r} comes before it and has not completed"
        raise InvalidRequestError([FieldError("/stage_id", "not_reached", message)])
    return asked


def _from(
    stage_id: str, group: int, named: set[str], places: Sequence[Place], stages: Mapping[str, StageRow]
) -> Resumption:
    reached = [place for place in places if place.group <= group]
    going = [place for place in reached if place.stage_id in named or not _is_done(place, stages)]
    going_ids, staying = ({place.stage_id for place in some} for some in (going, reached))
    return Resumption(
        stage_id,
        kept=tuple(place for place in reached if place.stage_id not in going_ids),
        reopened=tuple(place for place in going if place.stage_id in stages),
        created=tuple(place for place in going if place.stage_id not in stages),
        dropped=tuple(stage for stage in stages.values() if stage.stage_id not in staying),
    )


def _is_done(place: Place, stages: Mapping[str, StageRow]) -> bool:
    stage = stages.get(place.stage_id)
    return stage is not None and stage.status in DONE_STAGE_STATUSES
