"""What spreads the schema over a Citus cluster, by tenant: the rules it has to keep, and the statements.

No test of this project runs on a cluster: the statements are parsed, and the rules are held against every table,
function and statement. A build says with `SWITCHES` what it does not do yet as a cluster needs it; until all are on,
nothing is distributed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenancy.audit import OWN_LOGINS
from tenancy.sql import load, parse
from tenancy.transaction import RoleTransaction

SQL = load(__file__)
# Held whole by every node: the slug of a tenant is unique over all tenants, and each node asks for the revision.
REFERENCE_TABLES = ("tenants", "alembic_version")


@dataclass(frozen=True, slots=True)
class Switch:
    """Something that has to be done otherwise on a cluster, and whether this build does it so."""

    name: str
    is_on: bool
    needed: str


SWITCHES = (
    Switch(
        "literal_binding",
        is_on=False,
        needed="transactions are bound by `set local` with the checked id: set_config is not forwarded to the nodes",
    ),
    Switch(
        "plain_hot_statements",
        is_on=False,
        needed="creations, claims, settles and steps are plain statements of one tenant each: a function that writes"
        " several tables is not routed",
    ),
    Switch(
        "dispatch_by_shard",
        is_on=False,
        needed="tenants with work are found shard by shard: an index scan over all tenants does not cross nodes",
    ),
)


@dataclass(frozen=True, slots=True)
class Violation:
    """An object of the schema that cannot be distributed, and the rule that it breaks."""

    rule: str
    object: str

    def __str__(self) -> str:
        """Return both as a sentence."""
        return f"{self.object} {self.rule}"


def switched_off() -> Sequence[Switch]:
    """Return what this build does not do yet as a cluster needs it."""
    return [switch for switch in SWITCHES if not switch.is_on]


async def violations(tx: RoleTransaction) -> list[Violation]:
    """Return what in the schema breaks a rule; `tx` is anybody's, nothing is written."""
    rows = await tx.fetch_all(SQL["violations"], reference_tables=[*REFERENCE_TABLES])
    return [Violation(row["rule"], row["object"]) for row in rows]


async def plan(tx: RoleTransaction) -> list[str]:
    """Return the statements that distribute the schema as it is, in their order."""
    rows = await tx.fetch_all(SQL["plan"], reference_tables=[*REFERENCE_TABLES], logins=[*OWN_LOGINS])
    return [row["statement"] for row in rows]


async def has_cluster(tx: RoleTransaction) -> bool:
    """Tell whether the server has Citus."""
    row = await tx.fetch_one(SQL["cluster"])
    return row is not None and bool(row["is_there"])


async def distribute(tx: RoleTransaction) -> int:
    """Run the plan in the caller's transaction and return the number of its statements."""
    statements = await plan(tx)
    for statement in statements:
        await tx.fetch_all(parse(f"-- name: step\n{statement}", "plan")["step"])
    return len(statements)
