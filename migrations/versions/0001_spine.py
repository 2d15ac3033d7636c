"""The spine: runs, stages, jobs, events, tenants and keys, each under row-level security from its first moment."""

from alembic import op

from migrations.policies import Access, protect
from migrations.script import run_script

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LOGINS = "tenantry_api, tenantry_worker, tenantry_dispatcher, tenantry_admin"
GROUPS = "tenantry_tenant, tenantry_scheduler, tenantry_operator"
APPEND_ONLY = ("select", "insert")

TABLES = {
    "tenants": Access(
        tenant=("select",), scheduler=("tenant_id", "status", "weight"), operator=True, has_tenant_policy=False
    ),
    "tenant_limits": Access(tenant=("select",), tenant_columns={"update": ("claimed_at",)}, operator=True),
    "api_keys": Access(),
    "workflow_definitions": Access(tenant=("select", "insert", "delete")),
    "workflow_runs": Access(
        scheduler=("tenant_id", "workflow_id", "version", "status", "ready", "rank", "available_at")
    ),
    "workflow_run_tags": Access(),
    "workflow_stages": Access(),
    "job_queue": Access(
        scheduler=(
            "tenant_id", "workflow_id", "version", "status", "ready", "rank", "available_at", "locked_at", "started_at",
        )
    ),
    "outbox_events": Access(tenant=(*APPEND_ONLY, "delete")),
    "idempotency_keys": Access(),
    "workflow_logs": Access(),
    "workflow_annotations": Access(),
    "audit_log": Access(tenant=(*APPEND_ONLY, "delete")),
}  # fmt: skip


def upgrade() -> None:
    """Create the tables and put each under its policies."""
    run_script(__file__)
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(f"grant usage on schema tenantry to {GROUPS}, {LOGINS}")
    for table, access in TABLES.items():
        for statement in protect(table, access):
            connection.execute(statement)
    connection.execute(
        "create policy own_row on tenantry.tenants for select to tenantry_tenant"
        " using (tenant_id = tenantry.current_tenant_id())"
    )
    for statement in (
        "alter table tenantry.alembic_version enable row level security",
        "alter table tenantry.alembic_version force row level security",
        "create policy everyone_reads on tenantry.alembic_version for select using (true)",
        (
            "create policy owner_writes on tenantry.alembic_version for all to tenantry_owner"
            " using (true) with check (true)"
        ),
        f"grant select on tenantry.alembic_version to {LOGINS}, {GROUPS}",
    ):
        connection.execute(statement)
