"""Every table of the schema for every role, by the product's own plugin: what a migration adds is tested with no line here.

One test a table, command and situation. What a role is meant to see of all tenants is named, and no column beyond it passes.
"""

from functools import cache

from tenancy.database import SQL
from tenancy.isolation import Isolation
from tests.support.environment import session_cluster

SCHEMAS = ("tenantry",)
AS_TENANT = "select set_config('role', 'tenantry_tenant', true)"
BIND = (SQL["bind"].pyformat,)
SHARED = {"tenantry.alembic_version": "the revision of the schema, which every process asks for"}
EVERYTHING = dict.fromkeys(("select", "lock", "insert", "update", "delete", "merge", "copy", "upsert"))
DUE = ("tenant_id", "workflow_id", "version", "status", "ready", "priority", "rank", "available_at")


def _read(*columns: str) -> dict[str, tuple[str, ...]]:
    return {"select": columns, "copy": columns}


@cache
def _superuser() -> str:
    """A database of this module's own; its cluster is stopped with the session."""
    return session_cluster().create().direct


test_tenant_of_the_worker = Isolation(
    superuser_url=_superuser, login="tenantry_worker", schemas=SCHEMAS, enter=[AS_TENANT], bind=BIND, shared=SHARED
)
test_tenant_of_the_api = Isolation(
    superuser_url=_superuser,
    login="tenantry_api",
    schemas=SCHEMAS,
    enter=[AS_TENANT],
    bind=BIND,
    shared=SHARED,
    commands=("select", "insert", "update", "delete"),
    situations=("other",),
)
# A login that takes on no role: the setting alone opens nothing.
test_login_without_a_role = Isolation(
    superuser_url=_superuser, login="tenantry_worker", schemas=SCHEMAS, shared=SHARED, situations=("other", "none")
)
test_scheduler = Isolation(
    superuser_url=_superuser,
    login="tenantry_dispatcher",
    schemas=SCHEMAS,
    enter=[SQL["become_scheduler"].pyformat],
    bind=(),
    shared=SHARED,
    situations=("other",),
    crossing={
        "tenantry.tenants": _read("tenant_id", "status", "weight"),
        "tenantry.workflow_runs": _read(*DUE),
        "tenantry.job_queue": _read(*DUE, "locked_at", "started_at"),
    },
)
test_operator = Isolation(
    superuser_url=_superuser,
    login="tenantry_admin",
    schemas=SCHEMAS,
    enter=[SQL["become_operator"].pyformat],
    bind=(),
    shared=SHARED,
    situations=("other",),
    # Slugs are one space: operators name tenants by them.
    crossing={"tenantry.tenants": EVERYTHING | {"keys": None}, "tenantry.tenant_limits": EVERYTHING},
)
# FORCE binds the owner too; what an owner may do to its tables themselves is its own affair.
test_owner = Isolation(
    superuser_url=_superuser,
    login="tenantry_owner",
    schemas=SCHEMAS,
    shared=SHARED,
    crossing={"tenantry.alembic_version": {"write": None}},
    commands=("select", "insert", "update", "delete"),
    situations=("other", "none"),
)
