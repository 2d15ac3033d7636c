"""The workflows that a process serves."""

from collections.abc import Iterable
from typing import cast

from kernel.definition.workflow import Workflow
from kernel.errors import BuilderError, DefinitionVersionConflictError, DuplicateWorkflowError


class Registry:
    """An immutable set of workflows, one version of each."""

    __slots__ = ("_by_id", "_served")

    def __init__(self, workflows: Iterable[Workflow] = ()) -> None:
        """Take the workflows.

        Raises:
            DefinitionVersionConflictError: one declared version of one workflow stands for two structures.
            DuplicateWorkflowError: two workflows have one id.
        """
        by_id: dict[str, Workflow] = {}
        for workflow in workflows:
            if not isinstance(cast("object", workflow), Workflow):
                message = f"{workflow!r} is no workflow; call .build()"
                raise BuilderError(message)
            if (other := by_id.get(workflow.id)) is not None:
                raise _conflict(workflow, other)
            by_id[workflow.id] = workflow
        self._by_id = by_id
        self._served = tuple((workflow.id, workflow.definition_version) for workflow in by_id.values())

    @property
    def workflows(self) -> tuple[Workflow, ...]:
        """The workflows, in the order given."""
        return tuple(self._by_id.values())

    @property
    def served(self) -> tuple[tuple[str, str], ...]:
        """The pairs of workflow id and version that this build executes."""
        return self._served

    @property
    def modules(self) -> frozenset[str]:
        """The modules that the stages' functions come from."""
        placed = (placed for workflow in self._by_id.values() for group in workflow.groups for placed in group)
        return frozenset(one.stage.function.__module__ for one in placed)

    def get(self, workflow_id: str) -> Workflow | None:
        """Return a workflow by id."""
        return self._by_id.get(workflow_id)

    def find(self, workflow_id: str, version: str) -> Workflow | None:
        """Return a workflow by id and version, None unless this build serves that version."""
        workflow = self._by_id.get(workflow_id)
        return workflow if workflow is not None and workflow.definition_version == version else None


def _conflict(workflow: Workflow, other: Workflow) -> BuilderError:
    version = workflow.definition_version
    if version == other.definition_version and workflow.structure_hash != other.structure_hash:
        message = f"workflow {workflow.id!r}: version {version!r} is declared for two different structures"
        return DefinitionVersionConflictError(message)
    return DuplicateWorkflowError(f"two workflows have the id {workflow.id!r}")
