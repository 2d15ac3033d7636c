"""Collects what a transaction makes of its locked runs and writes it, set-based, in one statement.

A command locks, reads, decides in Python and hands its decisions to one `Changes`; `write` turns them into one
statement whatever their number, which writes in one order for all commands: runs, stages, jobs, events.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import orjson

from kernel import telemetry
from kernel.blobs import BlobStore, PutAside, reference_to
from kernel.counts import COUNTS, Moves
from kernel.locking import LockedRun, StageRow
from kernel.work import Work
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
    because one UPDATE takes only one item a row. `moves` are counted, `creations` and `markers` told to the runs'
    traces once the transaction is committed. Outputs that are too large for their rows go to `blobs`; without one they
    stay.
    """

    blobs: BlobStore | None = None
    update_runs: list[Item] = field(default_factory=list[Item])
    insert_stages: list[Item] = field(default_factory=list[Item])
    update_stages: dict[tuple[UUID, str], Item] = field(default_factory=dict[tuple[UUID, str], Item])
    insert_jobs: list[Item] = field(default_factory=list[Item])
    update_jobs: dict[tuple[UUID, str], Item] = field(default_factory=dict[tuple[UUID, str], Item])
    delete_jobs: set[tuple[UUID, str]] = field(default_factory=set[tuple[UUID, str]])
    insert_events: list[Item] = field(default_factory=list[Item])
    insert_annotations: list[Item] = field(default_factory=list[Item])
    insert_definitions: list[Item] = field(default_factory=list[Item])
    moves: Moves = field(default_factory=Moves)
    creations: list[telemetry.Creation] = field(default_factory=list[telemetry.Creation])
    markers: list[telemetry.Marker] = field(default_factory=list[telemetry.Marker])

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

    def mark(
        self, name: str, run: LockedRun, stage: StageRow | None = None, *, at: datetime | None = None, **values: str
    ) -> None:
        """Have the run's trace told of a moment, now or `at`; `values` are attributes (`a__b` is `tenantry.a.b`)."""
        parent = telemetry.traced_context(run.run_id, run.traceparent)
        if parent is None:
            return
        self.markers.append(
            telemetry.Marker(
                name,
                run.run_id,
                run.workflow_id,
                parent,
                at or run.now,
                stage=None if stage is None else stage.stage_id,
                attempt=None if stage is None else stage.attempt,
                attributes={f"tenantry.{key.replace('__', '.')}": value for key, value in values.items() if value},
            )
        )

    def begin_trace(self, run: LockedRun, tenant_id: UUID) -> bool:
        """Give the run a context of its own, if it has none and something traces here; returns whether it was."""
        if run.traceparent is not None:
            return False
        work = Work(tenant_id, run.run_id, run.workflow_id, op="run.create")
        creation = telemetry.creation_of(work, at=_created_at(run))
        run.traceparent, run.tracestate = creation.traceparent, creation.tracestate
        self.creations.append(creation)
        return run.traceparent is not None

    def finished(self, run: LockedRun, error: Mapping[str, object] | None = None) -> None:
        """Count the run as ended, and have its trace told how."""
        outcome = run.status.lower()
        self.moves.runs_finished[outcome] += 1
        code = "" if error is None else str(error["code"])
        self.mark("run.finished", run, outcome=outcome, error__code=code)

    def arguments(self) -> dict[str, str | None]:
        """Return the items as the statement takes them: JSON arrays in key order, None for those that have none.

        Key order is the lock order of all writers, so two transactions never hold rows the other way round.
        """
        batches: dict[str, list[Item]] = {
            "definitions": self.insert_definitions,
            "run_updates": self.update_runs,
            "stage_inserts": self.insert_stages,
            "stage_updates": list(self.update_stages.values()),
            "job_deletes": [{"run_id": run_id, "stage_id": stage_id} for run_id, stage_id in self.delete_jobs],
            "job_inserts": self.insert_jobs,
            "job_updates": list(self.update_jobs.values()),
            "events": self.insert_events,
            "annotations": self.insert_annotations,
        }
        return {name: encode(sorted(items, key=_key)) if items else None for name, items in batches.items()}

    async def write(self, tx: TenantTransaction) -> None:
        """Write everything, if there is anything; the statement may travel together with the caller's COMMIT."""
        references = await self._put_aside(tx) if self.blobs is not None else ()
        arguments = self.arguments()
        if any(arguments.values()):
            await tx.send([(SQL["write"], {**arguments, "run_ids": self.run_ids()}), *references])
        self.tell_after(tx)

    def tell_after(self, tx: TenantTransaction) -> None:
        """Count and trace what became of the runs once `tx` is committed."""
        if self.moves or self.creations or self.markers:
            tx.after_commit(partial(self._tell, tx.tenant_id))

    def _tell(self, tenant_id: UUID) -> None:
        COUNTS.add(self.moves)
        for creation in self.creations:
            creation.tell()
        telemetry.tell(tenant_id, self.markers)

    async def _put_aside(self, tx: TenantTransaction) -> Sequence[Call]:
        """Put large outputs into the blob store; returns what makes their rows, once written, refer to them."""
        assert self.blobs is not None
        aside = PutAside(self.blobs)
        moved: dict[str, Iterable[Item]] = {"refer_stages": self.update_stages.values(), "refer_runs": self.update_runs}
        large: dict[str, list[Item]] = {}
        for section, items in moved.items():
            for item in items:
                digest = aside.take(item, "output")
                if digest is not None:
                    large.setdefault(section, []).append({**_name_of(item), "digest": digest.hex()})
        if not aside.contents:
            return ()
        await self.blobs.put(tx, aside.contents)
        return [reference_to(section, items) for section, items in large.items()]

    def run_ids(self) -> list[UUID]:
        """Return the runs whose rows are updated or deleted, in key order: they bound what the statement reads."""
        moved = {run_id for run_id, _ in (*self.update_stages, *self.update_jobs, *self.delete_jobs)}
        return sorted(moved.union(item["run_id"] for item in self.update_runs))


def _name_of(item: Item) -> Item:
    return {name: item[name] for name in ("run_id", "stage_id") if name in item}


def _created_at(run: LockedRun) -> datetime:
    """Return when a run was created, as its id says."""
    is_dated = run.run_id.version == 7  # noqa: PLR2004 - what the database makes
    return datetime.fromtimestamp((run.run_id.int >> 80) / 1000, UTC) if is_dated else run.now


def _key(item: Item) -> tuple[int | str, str, int]:
    run = item.get("run_id")
    if run is None:
        return item["workflow_id"], item["version"], 0
    # A UUID's number sorts as Postgres sorts the UUID, and costs no text.
    return run.int, item.get("stage_id") or "", item.get("sequence", 0)
