"""What every table gets with its creation: row-level security, forced, the one tenant policy, and its grants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TENANT_POLICY = "tenant_id = tenantry.current_tenant_id()"
ALL = ("select", "insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what with a table.

    `tenant` is what `tenantry_tenant` may, whole table; `tenant_columns` and `scheduler` are column grants, by
    privilege. `operator` sees and does everything, across tenants.
    """

    tenant: Sequence[str] = ALL
    tenant_columns: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    scheduler: Sequence[str] = ()
    operator: bool = False
    has_tenant_policy: bool = True


def protect(table: str, access: Access) -> list[str]:
    """Return the statements that put a new table of the schema under its policies and grants."""
    name = f"tenantry.{table}"
    statements = [
        f"alter table {name} enable row level security",
        f"alter table {name} force row level security",
    ]
    if access.has_tenant_policy:
        statements.append(
            f"create policy tenant_isolation on {name} for all to public"
            f" using ({TENANT_POLICY}) with check ({TENANT_POLICY})"
        )
    if access.tenant:
        statements.append(f"grant {', '.join(access.tenant)} on {name} to tenantry_tenant")
    for privilege, columns in access.tenant_columns.items():
        statements.append(f"grant {privilege} ({', '.join(columns)}) on {name} to tenantry_tenant")
    if access.scheduler:
        statements += [
            f"create policy scheduler_reads on {name} for select to tenantry_scheduler using (true)",
            f"grant select ({', '.join(access.scheduler)}) on {name} to tenantry_scheduler",
        ]
    if access.operator:
        statements += [
            f"create policy operator_administers on {name} for all to tenantry_operator using (true) with check (true)",
            f"grant {', '.join(ALL)} on {name} to tenantry_operator",
        ]
    return statements
