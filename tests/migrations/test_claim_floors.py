"""Jobs that were there before revision 0003 get their run's priority, and so do those that the release before writes."""

from uuid import UUID, uuid4

import psycopg
import pytest
from alembic import command

import migrations
from migrations import runner
from tests.support.postgres import Postgres

UPGRADE = command.upgrade
INSERT_JOB = (
    '[{{"run_id": "{}", "stage_id": "next", "workflow_id": "w", "version": "v", "status": "PENDING", "ready": true,'
    ' "rank": "2026-01-01T00:00:00Z", "available_at": "2026-01-01T00:00:00Z", "attempt": 0, "max_attempts": 3}}]'
)


def _add_run(root: psycopg.Connection, tenant_id: UUID, priority: int) -> UUID:
    """A run with a queued job, as before the revision."""
    row = root.execute(
        "insert into tenantry.workflow_runs"
        " (tenant_id, workflow_id, version, status, priority, rank, ready, available_at, input)"
        " values (%s, 'w', 'v', 'RUNNING', %s, now(), false, now(), '{}') returning run_id",
        (tenant_id, priority),
    ).fetchone()
    assert row is not None
    root.execute(
        "insert into tenantry.job_queue"
        " (tenant_id, run_id, stage_id, workflow_id, version, ready, rank, available_at, max_attempts)"
        " values (%s, %s, 'first', 'w', 'v', true, now(), now(), 3)",
        (tenant_id, row[0]),
    )
    run_id: UUID = row[0]
    return run_id


def test_every_job_has_the_priority_of_its_run(
    bare: Postgres, root: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runner.command, "upgrade", lambda config, _revision: UPGRADE(config, "0002"))
        migrations.upgrade(bare.url())
    tenants = [uuid4(), uuid4()]
    runs = {_add_run(root, tenant_id, priority): priority for tenant_id in tenants for priority in (0, 5, 9)}

    migrations.upgrade(bare.url())

    jobs = root.execute("select run_id, priority from tenantry.job_queue").fetchall()
    assert dict(jobs) == runs
    forced = root.execute(
        "select relname from pg_class where relrowsecurity and relforcerowsecurity"
        " and oid in ('tenantry.job_queue'::regclass, 'tenantry.workflow_runs'::regclass)"
    ).fetchall()
    assert len(forced) == 2

    run_id = next(run_id for run_id, priority in runs.items() if priority == 9)
    (tenant_id,) = (
        root.execute("select tenant_id from tenantry.workflow_runs where run_id = %s", (run_id,)).fetchone() or ()
    )
    root.execute(
        "select tenantry.write_changes_v1(%s, '{}', null, null, null, null, null, %s, null, null, null)",
        (tenant_id, INSERT_JOB.format(run_id)),
    )
    written = root.execute("select priority from tenantry.job_queue where stage_id = 'next'").fetchall()
    assert written == [(9,)]
