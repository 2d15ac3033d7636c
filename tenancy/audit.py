"""Reads the catalogs of any database and lists every way in which the isolation of its tenants can leak.

Nothing is written and no table is read: what is asked is in `audit.sql`, one section a check, named as the code of its
findings. What Tenantry's own schema does on purpose is listed here by name, with how far it may go.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tenancy.expressions import ALWAYS, BLIND, UNKNOWN, passage
from tenancy.sql import load
from tenancy.transaction import RoleTransaction, Row

SQL = load(__file__)
Level = Literal["error", "warning"]
SERVER_CODE = "server_version"


@dataclass(frozen=True, slots=True)
class Check:
    """A check: the code of its findings and of its section, how much they matter, and what they are about."""

    code: str
    level: Level
    title: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One way for isolation to leak: the object that leaks, why, and what closes it."""

    level: Level
    code: str
    object: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Exemption:
    """What Tenantry does on purpose: the object's finding, for this role, as long as it reaches no further.

    `reach` names what the role may do with the table, `select tenant_id` or `delete`; none: whatever it likes.
    """

    code: str
    object: str
    because: str
    role: str | None = None
    reach: frozenset[str] | None = None


CHECKS = (
    Check("role_unknown", "error", "Audited role that does not exist"),
    Check("schema_unknown", "error", "Audited schema that does not exist"),
    Check("role_superuser", "error", "Role that is, or may become, a superuser"),
    Check("role_bypassrls", "error", "Role that has, or may get, BYPASSRLS"),
    Check(
        "role_owner", "error", "Role that owns, or may become the owner of, audited tables or what their policies call"
    ),
    Check("role_powers", "error", "Role with an attribute or membership that reaches past policies"),
    Check("role_membership", "error", "Role that is a member of more of Tenantry's roles than meant"),
    Check("rls_off", "error", "Table without row-level security"),
    Check("rls_not_forced", "error", "Table whose row-level security does not bind its owner"),
    Check("partition_unprotected", "error", "Partition without row-level security of its own"),
    Check("tenant_column_missing", "error", "Table without the tenant column"),
    Check("tenant_column_nullable", "warning", "Tenant column that may be null"),
    Check("policy_missing", "error", "Table without a permissive policy"),
    Check("policy_command_missing", "error", "Granted command that no policy covers"),
    Check("policy_without_check", "error", "Policy without WITH CHECK"),
    Check("policy_open", "error", "Policy that is true for every tenant's rows"),
    Check("policy_alternative", "error", "Policy by which rows pass otherwise than by their tenant"),
    Check("policy_by_function", "warning", "Policy that leaves the tenant to a function"),
    Check("policy_unindexable", "warning", "Policy that cannot use an index"),
    Check("tenant_index_missing", "warning", "Table without an index that starts with the tenant column"),
    Check("key_without_tenant", "error", "Primary or unique key without the tenant column"),
    Check("foreign_key_without_tenant", "error", "Foreign key without the tenant column"),
    Check("table_reachable", "error", "Table elsewhere, within an audited role's reach and without policies"),
    Check("foreign_table", "error", "Foreign table"),
    Check("function_security_definer", "error", "SECURITY DEFINER function"),
    Check("function_leakproof", "warning", "Function that is asked about rows before the policies are"),
    Check("view_without_security_invoker", "error", "View that reads with its owner's rights"),
    Check("materialized_view", "error", "Materialized view"),
    Check("grant_past_policies", "error", "Grant of TRUNCATE, REFERENCES or TRIGGER"),
    Check("default_privileges", "error", "Default privileges on tables yet to be made"),
    Check("publication", "error", "Publication of audited tables"),
    Check("rule_as_owner", "error", "Rule that runs with the owner's rights"),
    Check("schema_create", "warning", "Role that may create in an audited schema"),
    Check("tenant_preset", "error", "Role or database that binds a tenant by itself"),
    Check("statistics_exposed", "warning", "View of statistics from before a fix of the server"),
    Check(SERVER_CODE, "warning", "Server with known holes in row-level security"),
)

OWN_ROLES = ("tenantry_owner", "tenantry_tenant", "tenantry_scheduler", "tenantry_operator")
OWN_LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
# Which roles a login of ours is to become, by SET ROLE and only so.
INTENDED = (
    "tenantry_api tenantry_tenant",
    "tenantry_worker tenantry_tenant",
    "tenantry_dispatcher tenantry_scheduler",
    "tenantry_admin tenantry_operator",
    "tenantry_admin tenantry_tenant",
)


def _selects(*columns: str) -> frozenset[str]:
    return frozenset(f"select {column}" for column in columns)


_DUE = ("tenant_id", "workflow_id", "version", "status", "ready", "priority", "rank", "available_at")
EXEMPTIONS = (
    Exemption(
        "tenant_column_missing", "tenantry.alembic_version", "it holds the schema's revision and no tenant's row"
    ),
    Exemption(
        "policy_open",
        "tenantry.alembic_version: policy everyone_reads",
        "every process asks whether the schema is its own",
        reach=_selects("version_num"),
    ),
    Exemption("key_without_tenant", "tenantry.tenants: unique tenants_slug_key", "operators name tenants by slug"),
    Exemption(
        "policy_open",
        "tenantry.tenants: policy operator_administers",
        "the operator creates and suspends tenants",
        role="tenantry_operator",
    ),
    Exemption(
        "policy_open",
        "tenantry.tenant_limits: policy operator_administers",
        "the operator sets limits",
        role="tenantry_operator",
    ),
    Exemption(
        "policy_open",
        "tenantry.tenants: policy scheduler_reads",
        "which tenant is active, and its weight",
        role="tenantry_scheduler",
        reach=_selects("tenant_id", "status", "weight"),
    ),
    Exemption(
        "policy_open",
        "tenantry.workflow_runs: policy scheduler_reads",
        "which tenant has work due when; no ids of runs, no payloads",
        role="tenantry_scheduler",
        reach=_selects(*_DUE),
    ),
    Exemption(
        "policy_open",
        "tenantry.job_queue: policy scheduler_reads",
        "which tenant has work due when; no ids of runs, no payloads",
        role="tenantry_scheduler",
        reach=_selects(*_DUE, "locked_at", "started_at"),
    ),
)

# Holes in row-level security, and the first minor version of each major without them, as the release notes of these
# versions and the CVE records say. A newer major never had them.
SERVER_HOLES: Mapping[str, Mapping[int, int]] = {
    "CVE-2023-2455 (policies ignore a change of role after inlining)": {15: 3, 14: 8, 13: 11},
    "CVE-2023-39418 (MERGE skips policies)": {15: 4},
    "CVE-2024-4317 (statistics of others' expressions are visible)": {16: 3, 15: 7, 14: 12},
    "CVE-2024-10976 (policies below subqueries ignore a change of role)": {17: 1, 16: 5, 15: 9, 14: 14, 13: 17},
    "CVE-2025-8713 (statistics leak through views and partitions)": {17: 6, 16: 10, 15: 14, 14: 19, 13: 22},
    "CVE-2026-120154 (ON CONFLICT looks at rows before the policy does)": {18: 7, 17: 12, 16: 16, 15: 20, 14: 25},
}


@dataclass(frozen=True, slots=True)
class Scope:
    """What is audited: these roles, against the tables of these schemas, in which this column names the tenant.

    `surrogates_accepted`: a key without the tenant is fine where it is one made-up value (uuid, identity, serial).
    """

    roles: tuple[str, ...] = (*OWN_LOGINS, *OWN_ROLES[1:])
    schemas: tuple[str, ...] = ("tenantry",)
    tenant_column: str = "tenant_id"
    surrogates_accepted: bool = False


async def audit(tx: RoleTransaction, scope: Scope) -> list[Finding]:
    """Return every way for isolation to leak that the catalogs show, errors first; nothing is written.

    `tx` is a transaction of whoever may connect, best REPEATABLE READ and read only; its search_path is set to
    pg_catalog until it ends, so that no object of the audited database is called.
    """
    opening = await tx.fetch_one(SQL["opening"])
    assert opening is not None
    schemas, audited = list(scope.schemas), list(scope.roles)
    params: dict[str, object] = {
        "audited": audited,
        "schemas": schemas,
        "tenant_column": scope.tenant_column,
        "surrogates_accepted": scope.surrogates_accepted,
        "intended": list(INTENDED),
        "own_roles": [*OWN_ROLES, *OWN_LOGINS],
        "roles": [row["role"] for row in await tx.fetch_all(SQL["reachable_roles"], audited=audited)],
        "tables": [row["oid"] for row in await tx.fetch_all(SQL["audited_tables"], schemas=schemas)],
    }
    params |= await _read_policies(tx, params)
    findings: list[Finding] = []
    for check in CHECKS:
        if check.code == SERVER_CODE:
            findings += server_findings(opening["version_number"])
            continue
        section = SQL[check.code]
        rows = await tx.fetch_all(section, **{name: params[name] for name in section.parameters})
        findings += _findings(check, rows)
    return sorted(findings, key=lambda finding: finding.level != "error")


async def _read_policies(tx: RoleTransaction, params: Mapping[str, object]) -> dict[str, object]:
    """Return what the policies' expressions let pass, as parameters of the checks that tell about it."""
    equalities = frozenset(row["operator"] for row in await tx.fetch_all(SQL["equalities"]))
    section = SQL["policies"]
    rows = await tx.fetch_all(section, **{name: params[name] for name in section.parameters})
    open_sides: list[Mapping[str, object]] = []
    alternatives: list[Mapping[str, object]] = []
    by_function: list[Mapping[str, object]] = []
    narrowing: list[int] = []
    for row in rows:
        trees = {"USING": row["using_tree"], "WITH CHECK": row["check_tree"]}
        sides = {name: passage(tree, row["tenant"], equalities) for name, tree in trees.items() if tree is not None}
        if not row["is_permissive"]:
            narrowing += [row["policy"]] * all(side.looks and not side.ways for side in sides.values())
            continue
        blind = [name for name, side in sides.items() if side.ways == BLIND and row["tenant"]]
        open_sides += [
            {"policy": row["policy"], "name": name, "is_true": side.is_always}
            for name, side in sides.items()
            if side.is_always or name in blind
        ]
        ways = frozenset[str]().union(*(side.ways for side in sides.values())) - ALWAYS - BLIND
        if ways:
            told = {"policy": row["policy"], "ways": " and ".join(sorted(ways))}
            (by_function if ways == UNKNOWN else alternatives).append(told)
    found: dict[str, object] = {"open_sides": open_sides, "alternatives": alternatives, "by_function": by_function}
    return {**{name: json.dumps(value) for name, value in found.items()}, "narrowing": narrowing}


def server_findings(version_number: int) -> Iterator[Finding]:
    """Yield the one warning about a server that is known to leak: `180006` is 18.6."""
    major, minor = divmod(version_number, 10_000)
    fixes = {name: fixed[major] for name, fixed in SERVER_HOLES.items() if minor < fixed.get(major, 0)}
    if fixes:
        yield Finding(
            "warning",
            SERVER_CODE,
            f"PostgreSQL {major}.{minor}",
            f"has known holes in row-level security: {'; '.join(fixes)}",
            f"update the server to {major}.{max(fixes.values())} or newer",
        )


def _findings(check: Check, rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding for each object and reason, with all the roles that it concerns, but for the exemptions."""
    concerned: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        reach = frozenset[str](row.get("reach", ()))
        exemption = _exemption(check.code, row)
        if exemption is not None and (exemption.reach is None or reach <= exemption.reach):
            continue
        reason: str = row["reason"]
        if exemption is not None and exemption.reach is not None:
            reason += f", and it may do more than is meant: {', '.join(sorted(reach - exemption.reach))}"
        roles = concerned.setdefault((row["object"], reason, row["fix"]), [])
        if row["role"] is not None:
            roles.append(row["role"])
    for (name, reason, fix), roles in concerned.items():
        whom = f" (role {', '.join(roles)})" if roles else ""
        yield Finding(check.level, check.code, name, reason + whom, fix.replace("{roles}", ", ".join(roles)))


def _exemption(code: str, row: Row) -> Exemption | None:
    for exemption in EXEMPTIONS:
        if (exemption.code, exemption.object) == (code, row["object"]) and exemption.role in (None, row["role"]):
            return exemption
    return None
