"""Decides what comes after a group of stages: pure functions of a definition and the stages' states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kernel.definition.workflow import Workflow
from kernel.states import DONE_STAGE_STATUSES, StageStatus

Action = Literal["advanced", "completed", "failed", "noop"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a run does next; `next_group` is set when it advances, `failed_stage_id` when it fails."""

    action: Action
    next_group: int | None = None
    failed_stage_id: str | None = None


NOOP = Decision("noop")


def decide(workflow: Workflow, statuses: Mapping[str, StageStatus]) -> Decision:
    """Return what follows from the statuses of the stages that exist, by stage id.

    A failed stage fails the run at once. A group is left only when each of its stages is COMPLETED or SKIPPED; a stage
    that is missing from its group, or CANCELLED, holds the run where it is.
    """
    for placed in workflow.stages:
        if statuses.get(placed.stage.id) is StageStatus.FAILED:
            return Decision("failed", failed_stage_id=placed.stage.id)
    reached = max((placed.group for placed in workflow.stages if placed.stage.id in statuses), default=0)
    if reached and any(statuses.get(p.stage.id) not in DONE_STAGE_STATUSES for p in workflow.groups[reached - 1]):
        return NOOP
    if reached == len(workflow.groups):
        return Decision("completed")
    return Decision("advanced", next_group=reached + 1)


def group_output(workflow: Workflow, group: int, outputs: Mapping[str, str]) -> str | None:
    """Return the JSON text that a group hands on, or None when all of its stages were skipped.

    `outputs` holds the JSON text of the completed stages by id. A group of one hands on its stage's output, a parallel
    group an object by stage id without the skipped ones.
    """
    members = workflow.groups[group - 1]
    done = [placed.stage.id for placed in members if placed.stage.id in outputs]
    if not done:
        return None
    if len(members) == 1:
        return outputs[done[0]]
    return "{" + ",".join(f'"{_quote(stage_id)}":{outputs[stage_id]}' for stage_id in done) + "}"


def stage_input(workflow: Workflow, group: int, outputs: Mapping[str, str], run_input: str) -> str:
    """Return the JSON text that the stages of a group receive.

    What the last group that ran handed on, else the run's input.
    """
    for earlier in range(group - 1, 0, -1):
        handed_on = group_output(workflow, earlier, outputs)
        if handed_on is not None:
            return handed_on
    return run_input


def run_output(workflow: Workflow, outputs: Mapping[str, str]) -> str:
    """Return the JSON text of a completed run's output: that of the last group that ran, `null` when none did."""
    for group in range(len(workflow.groups), 0, -1):
        handed_on = group_output(workflow, group, outputs)
        if handed_on is not None:
            return handed_on
    return "null"


def _quote(stage_id: str) -> str:
    return stage_id.replace("\\", "\\\\").replace('"', '\\"')
