"""`run.list_versions`: which versions still have runs, and which of them are served here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import ClassVar

from kernel.arguments import is_name
from kernel.command import Command, Scope, handles
from kernel.definition.registry import Registry
from kernel.states import TERMINAL_RUN_STATUSES, RunStatus
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)


@dataclass(frozen=True, slots=True)
class WorkflowVersion:
    """One version of one workflow; `definition_version` is None for runs that are not pinned yet.

    `counts` has the runs by status, `active` those that are not over, and a version without active runs is `drained`.
    `oldest_created_at` is that of the oldest active run. `served` tells of this process's registry.
    """

    workflow_id: str
    definition_version: str | None
    counts: Mapping[RunStatus, int]
    active: int
    drained: bool
    served: bool
    oldest_created_at: datetime | None


@dataclass(frozen=True, slots=True)
class VersionsListed:
    """The versions, by workflow; those that are served are listed even without a run."""

    versions: tuple[WorkflowVersion, ...]


@dataclass(frozen=True, slots=True)
class RunListVersions(Command[VersionsListed]):
    """List the versions of one workflow, or of all."""

    name: ClassVar[str] = "run.list_versions"
    is_read: ClassVar[bool] = True
    workflow_id: str | None = None


@handles(RunListVersions)
async def run_list_versions(command: RunListVersions, tx: TenantTransaction, scope: Scope) -> VersionsListed:
    """Count, then add what is served and has no run."""
    if command.workflow_id is not None and not is_name(command.workflow_id):
        return VersionsListed(())
    rows = await tx.fetch_all(SQL["counts"], workflow_id=command.workflow_id)
    found = {
        key: _version(key, group, scope.registry)
        for key, group in groupby(rows, key=lambda row: (str(row["workflow_id"]), str(row["version"])))
    }
    for key in scope.registry.served:
        if key not in found and command.workflow_id in {None, key[0]}:
            found[key] = _version(key, (), scope.registry)
    return VersionsListed(tuple(found[key] for key in sorted(found)))


def _version(key: tuple[str, str], rows: Iterable[Row], registry: Registry) -> WorkflowVersion:
    workflow_id, version = key
    counted = {RunStatus(row["status"]): row for row in rows}
    open_rows = [row for status, row in counted.items() if status not in TERMINAL_RUN_STATUSES]
    active = sum(row["runs"] for row in open_rows)
    return WorkflowVersion(
        workflow_id=workflow_id,
        definition_version=version or None,
        counts={status: row["runs"] for status, row in counted.items()},
        active=active,
        drained=active == 0,
        # A run that is not pinned yet is served when its workflow is: the claim pins it.
        served=key in registry.served or (not version and registry.get(workflow_id) is not None),
        oldest_created_at=min((row["oldest_created_at"] for row in open_rows), default=None),
    )
