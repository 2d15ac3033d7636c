"""A workflow: stages in 1-based groups, with its version; and the builder that makes one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from kernel.definition.annotations import defining_frame
from kernel.definition.schema import Adapter, JsonSchema, input_schema, make_adapter, parse
from kernel.definition.stage import AnyStage, Stage, check_id
from kernel.definition.versioning import structure_hash, structure_of
from kernel.errors import (
    DuplicateStageIdError,
    EmptyWorkflowError,
    FieldError,
    InvalidConfigError,
    InvalidInputError,
    InvalidOptionError,
    PayloadError,
    UnknownRequirementError,
)
from kernel.payloads import dump, pointer_token

Names = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage where it stands in a workflow: `group` and `number` are 1-based, `number` counts over all groups."""

    stage: AnyStage
    group: int
    number: int

    @property
    def stage_id(self) -> str:
        """The id of the stage."""
        return self.stage.id

    @property
    def max_attempts(self) -> int:
        """How many attempts the stage has within a generation."""
        return self.stage.max_attempts


class Place(Protocol):
    """Where a stage stands in a definition, be it served here or only stored."""

    @property
    def stage_id(self) -> str:
        """The id of the stage."""
        ...

    @property
    def group(self) -> int:
        """The 1-based execution group."""
        ...

    @property
    def number(self) -> int:
        """The 1-based number over all groups."""
        ...

    @property
    def max_attempts(self) -> int:
        """How many attempts the stage has within a generation."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Workflow:
    """A built workflow. `definition_version` is declared, or the `structure_hash`."""

    id: str
    name: str
    definition_version: str
    declared: bool
    structure_hash: str
    groups: tuple[tuple[PlacedStage, ...], ...]
    stages: tuple[PlacedStage, ...]
    input_adapter: Adapter
    input_schema: JsonSchema
    _by_id: Mapping[str, PlacedStage] = field(repr=False)
    _faults_without_config: tuple[FieldError, ...] = field(repr=False)

    def placed(self, stage_id: str) -> PlacedStage | None:
        """Return a stage of this workflow by id."""
        return self._by_id.get(stage_id)

    def snapshot(self) -> dict[str, object]:
        """Return the definition as JSON data: what is stored beside the runs pinned to it."""
        return {
            "id": self.id,
            "name": self.name,
            "definition_version": self.definition_version,
            "declared": self.declared,
            "structure_hash": self.structure_hash,
            "input_schema": self.input_schema,
            "stages": [_stage_snapshot(placed) for placed in self.stages],
        }

    def validate_input(self, value: object) -> None:
        """Check an input.

        Raises:
            InvalidInputError: it is no JSON data or does not fit; pointers start with `/input`.
        """
        try:
            text = dump(value)
        except PayloadError as error:
            raise InvalidInputError([error.below("/input")]) from None
        self.check_input_json(text)

    def check_input_json(self, text: str) -> None:
        """Check an input given as JSON text.

        Raises:
            InvalidInputError: it does not fit; pointers start with `/input`.
        """
        _, errors = parse(self.input_adapter, text, "/input")
        if errors:
            raise InvalidInputError(errors)

    def validate_config(self, config: Mapping[str, object]) -> None:
        """Check a config by stage id, those of stages that it does not name included.

        Raises:
            InvalidConfigError: it is no JSON data or does not fit; pointers start with `/config`.
        """
        try:
            text = dump(config if isinstance(config, dict) else dict(config))
        except PayloadError as error:
            raise InvalidConfigError([error.below("/config")]) from None
        except (TypeError, ValueError):
            raise InvalidConfigError([_NO_OBJECT]) from None
        self.check_config_json(text)

    def check_config_json(self, text: str) -> None:
        """Check a config given as JSON text.

        Raises:
            InvalidConfigError: it does not fit; pointers start with `/config`.
        """
        errors = list(self._faults_without_config) if text == "{}" else list(_config_faults(self.stages, text))
        if errors:
            raise InvalidConfigError(errors)


@dataclass(frozen=True, slots=True)
class WorkflowBuilder:
    """Collects groups of stages; every call returns a new builder."""

    id: str
    input: object
    name: str | None = None
    declared_version: str | None = None
    groups: tuple[tuple[AnyStage, ...], ...] = ()
    names: Names = field(default_factory=dict[str, object], repr=False)

    def pipe(self, stage: AnyStage) -> "WorkflowBuilder":
        """Append a group of one stage."""
        return self._with_group((stage,))

    def parallel(self, *stages: AnyStage) -> "WorkflowBuilder":
        """Append a group whose stages run side by side; the next group gets `{stage_id: output}`.

        Raises:
            EmptyWorkflowError: no stage is given.
        """
        if not stages:
            message = f"workflow {self.id!r}: a parallel group has no stage"
            raise EmptyWorkflowError(message)
        return self._with_group(stages)

    def version(self, version: str) -> "WorkflowBuilder":
        """Declare the version by hand.

        Raises:
            InvalidOptionError: it is no printable string of 1 to 255 characters, or looks like a hash.
        """
        check_id(version, f"workflow {self.id!r}, version")
        if version.startswith("sha256-"):
            message = f"workflow {self.id!r}: a declared version must not start with 'sha256-'"
            raise InvalidOptionError(message)
        return replace(self, declared_version=version)

    def build(self) -> Workflow:
        """Return the workflow.

        Raises:
            BuilderError: it is empty, an id is there twice, a requirement is not in an earlier group, or an annotation
                is missing or cannot be resolved.
        """
        if not self.groups:
            message = f"workflow {self.id!r} has no stage"
            raise EmptyWorkflowError(message)
        stages = tuple(_placed(self.groups))
        by_id = _by_id(self.id, stages)
        _check_requirements(self.id, stages, by_id)
        what = f"workflow {self.id!r}, input"
        adapter = make_adapter(self.input, what, self.names)
        schema = input_schema(adapter, what)
        hashed = structure_hash(_contract(schema, stages))
        return Workflow(
            id=self.id,
            name=self.name or self.id,
            definition_version=self.declared_version or hashed,
            declared=self.declared_version is not None,
            structure_hash=hashed,
            groups=tuple(tuple(p for p in stages if p.group == number) for number in range(1, len(self.groups) + 1)),
            stages=stages,
            input_adapter=adapter,
            input_schema=schema,
            _by_id=by_id,
            _faults_without_config=tuple(_config_faults(stages, "{}")),
        )

    def _with_group(self, stages: tuple[AnyStage, ...]) -> "WorkflowBuilder":
        for stage in stages:
            if not isinstance(cast("object", stage), Stage):
                message = f"workflow {self.id!r}: {stage!r} is no stage; decorate the function with @stage"
                raise InvalidOptionError(message)
        return replace(self, groups=(*self.groups, stages))


def workflow(
    id: str,  # noqa: A002 - the word that users type
    *,
    input: object = dict,  # noqa: A002 - the word that users type
    name: str | None = None,
) -> WorkflowBuilder:
    """Begin a workflow; `input` is the model, or plain type, of a run's input.

    Raises:
        InvalidOptionError: a `ValueError`; the id has not 1 to 255 printable characters.
    """
    frame = defining_frame(1)
    names = {} if frame is None else dict(frame.f_locals)
    if name is not None:
        check_id(name, f"workflow {id!r}, name")
    return WorkflowBuilder(check_id(id, "workflow"), input, name, names=names)


_NO_OBJECT = FieldError("/config", "dict_type", "Input should be an object")


def _placed(groups: tuple[tuple[AnyStage, ...], ...]) -> Iterable[PlacedStage]:
    number = 0
    for group, stages in enumerate(groups, start=1):
        for stage in stages:
            number += 1
            yield PlacedStage(stage, group, number)


def _by_id(workflow_id: str, stages: Iterable[PlacedStage]) -> dict[str, PlacedStage]:
    by_id: dict[str, PlacedStage] = {}
    for placed in stages:
        if placed.stage.id in by_id:
            message = f"workflow {workflow_id!r} has two stages with the id {placed.stage.id!r}"
            raise DuplicateStageIdError(message)
        by_id[placed.stage.id] = placed
    return by_id


def _check_requirements(workflow_id: str, stages: Iterable[PlacedStage], by_id: Mapping[str, PlacedStage]) -> None:
    for placed in stages:
        for required in placed.stage.requires:
            if required not in by_id or by_id[required].group >= placed.group:
                message = (
                    f"workflow {workflow_id!r}: stage {placed.stage.id!r} requires {required!r}, "
                    "which is in no earlier group"
                )
                raise UnknownRequirementError(message)


def _contract(schema: JsonSchema, stages: Iterable[PlacedStage]) -> dict[str, object]:
    return {
        "input": structure_of(schema),
        "stages": [
            {
                "id": placed.stage.id,
                "group": placed.group,
                "requires": sorted(placed.stage.requires),
                "input": _structure(placed.stage.models.input_schema),
                "output": _structure(placed.stage.models.output_schema),
                "config": _structure(placed.stage.models.config_schema),
            }
            for placed in stages
        ],
    }


def _structure(schema: JsonSchema | None) -> JsonSchema | None:
    return None if schema is None else structure_of(schema)


def _stage_snapshot(placed: PlacedStage) -> dict[str, object]:
    stage = placed.stage
    return {
        "id": stage.id,
        "name": stage.name,
        "group": placed.group,
        "number": placed.number,
        "max_attempts": stage.max_attempts,
        "requires": list(stage.requires),
        "input_schema": stage.models.input_schema,
        "output_schema": stage.models.output_schema,
        "config_schema": stage.models.config_schema,
    }


def _config_faults(stages: Iterable[PlacedStage], text: str) -> Iterable[FieldError]:
    """Yield the faults of a config, given as JSON text, stage by stage."""
    config: object = json.loads(text)
    if not isinstance(config, dict):
        yield _NO_OBJECT
        return
    rest = dict(cast("dict[str, object]", config))
    for placed in stages:
        stage, prefix = placed.stage, "/config" + pointer_token(placed.stage.id)
        given = rest.pop(stage.id, {})
        if stage.config_adapter is not None:
            yield from parse(stage.config_adapter, json.dumps(given, ensure_ascii=False), prefix)[1]
        elif not isinstance(given, dict):
            yield FieldError(prefix, "dict_type", "Input should be an object")
    for stage_id in rest:
        yield FieldError("/config" + pointer_token(stage_id), "unknown_stage", "the workflow has no such stage")
