"""Collects what a transaction makes of its locked runs and writes it, set-based, in a fixed number of statements.

A command locks, reads, decides in Python and hands its decisions to one `Changes`; `write` turns them into at most nine
statements whatever their number, in one order for all commands: runs, stages, jobs, events.
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from tenancy import Call, TenantTransaction, load_sql

SQL = load_sql(__file__)
Item = dict[str, Any]


def encode(items: list[Item]) -> str:
    """Return items as the JSON text that a statement takes; UUIDs and datetimes as Postgres reads them."""
    return orjson.dumps(items).decode()


@dataclass(slots=True)
class Changes:
    """The writes of one transaction; each field holds the items of the statement of its name.

    A stage or a job may be moved twice in one transaction (retried, then cancelled with its run): the moves are merged,
    because one UPDATE takes only one item a row.
    """

    update_runs: list[Item] = field(default_factory=list[Item])
    insert_stages: list[Item] = field(default_factory=list[Item])
    update_stages: dict[tuple[UUID, str], Item] = field(default_factory=dict[tuple[UUID, str], Item])
    insert_jobs: list[Item] = field(default_factory=list[Item])
    update_jobs: dict[tuple[UUID, str], Item] = field(default_factory=dict[tuple[UUID, str], Item])
    delete_jobs: set[tuple[UUID, str]] = field(default_factory=set[tuple[UUID, str]])
    insert_events: list[Item] = field(default_factory=list[Item])
    insert_annotations: list[Item] = field(default_factory=list[Item])
    insert_definitions: list[Item] = field(default_factory=list[Item])

    def move_stage(self, run_id: UUID, stage_id: str, item: Item) -> None:
        """Update a stage, on top of what this transaction already does to it."""
        self.update_stages.setdefault((run_id, stage_id), {"run_id": run_id, "stage_id": stage_id}).update(item)

    def move_job(self, run_id: UUID, stage_id: str, item: Item) -> None:
        """Update a job, on top of what this transaction already does to it."""
        self.update_jobs.setdefault((run_id, stage_id), {"run_id": run_id, "stage_id": stage_id}).update(item)

    def drop_job(self, run_id: UUID, stage_id: str) -> None:
        """Delete a job; what this transaction was going to make of it is void."""
        self.update_jobs.pop((run_id, stage_id), None)
        self.delete_jobs.add((run_id, stage_id))

    def calls(self) -> list[Call]:
        """Return the statements with their items in key order, leaving out those that have none.

        Key order is the lock order of all writers, so two transactions never hold rows the other way round.
        """
        batches = (
            ("insert_definitions", self.insert_definitions),
            ("update_runs", self.update_runs),
            ("insert_stages", self.insert_stages),
            ("update_stages", list(self.update_stages.values())),
            ("delete_jobs", [{"run_id": run_id, "stage_id": stage_id} for run_id, stage_id in self.delete_jobs]),
            ("insert_jobs", self.insert_jobs),
            ("update_jobs", list(self.update_jobs.values())),
            ("insert_events", self.insert_events),
            ("insert_annotations", self.insert_annotations),
        )
        return [(SQL[name], {"items": encode(sorted(items, key=_key))}) for name, items in batches if items]

    async def write(self, tx: TenantTransaction) -> None:
        """Write everything; the statements may travel together with the caller's COMMIT."""
        calls = self.calls()
        if calls:
            await tx.send(calls)


def _key(item: Item) -> tuple[str, str, int]:
    run = item.get("run_id")
    if run is None:
        return item["workflow_id"], item["version"], 0
    return str(run), item.get("stage_id") or "", item.get("sequence", 0)
