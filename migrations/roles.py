"""The roles of tenancy-and-data.md: created where they are missing, never changed where they exist.

Roles belong to the cluster, not to the database: they may be there from another database, and several migrations may
create
them at once. Logins are NOINHERIT before anything is granted to them: with INHERIT an unbound connection would read
every tenant's rows through the scheduler's policy.
"""

from dataclasses import dataclass

import psycopg
from psycopg import Connection, sql
from psycopg.errors import DuplicateObject, InsufficientPrivilege, UniqueViolation

EXPLICIT_INHERIT = 160_000
ATTRIBUTES = "nosuperuser nobypassrls nocreatedb nocreaterole"


@dataclass(frozen=True, slots=True)
class Role:
    """A role of ours; `member_of` names what a login may become, `timeouts` what is set on it when it is created."""

    name: str
    is_login: bool = False
    member_of: tuple[str, ...] = ()
    timeouts: tuple[tuple[str, str], ...] = ()


SHORT = (("idle_in_transaction_session_timeout", "60s"), ("statement_timeout", "60s"))
ROLES = (
    Role("tenantry_owner"),
    Role("tenantry_tenant"),
    Role("tenantry_scheduler"),
    Role("tenantry_operator"),
    Role("tenantry_api", is_login=True, member_of=("tenantry_tenant",), timeouts=SHORT),
    Role(
        "tenantry_worker",
        is_login=True,
        member_of=("tenantry_tenant",),
        # A worker waits alone and asks again: it must not hang on one row for ever.
        timeouts=(*SHORT, ("lock_timeout", "10s")),
    ),
    Role("tenantry_dispatcher", is_login=True, member_of=("tenantry_scheduler",), timeouts=SHORT),
    Role("tenantry_admin", is_login=True, member_of=("tenantry_operator", "tenantry_tenant"), timeouts=SHORT[:1]),
)


class RolesMissingError(Exception):
    """The migrating user may not create or grant what is missing; `script` is the SQL that somebody else has to run."""

    def __init__(self, script: str) -> None:
        super().__init__("roles are missing and this user may not create them")
        self.script = script


def ensure_roles(connection: Connection[tuple[object, ...]]) -> None:
    """Create the missing roles and memberships on an autocommit connection, each in a transaction of its own.

    Raises:
        RolesMissingError: this user may not; nothing of what it may was left undone.
    """
    refused: list[str] = []
    for role in ROLES:
        if not _exists(connection, role.name):
            _attempt(connection, _create(role), refused)
            for name, value in role.timeouts:
                _attempt(connection, _timeout(role, name, value), refused)
    for role in ROLES:
        for group in role.member_of:
            if not _is_member(connection, role.name, group):
                _attempt(connection, _grant(connection, role.name, group), refused)
    _join_owner(connection, refused)
    if refused:
        raise RolesMissingError("\n".join(f"{statement};" for statement in refused))


def _attempt(connection: Connection[tuple[object, ...]], statement: sql.Composed, refused: list[str]) -> None:
    try:
        connection.execute(statement)
    except (DuplicateObject, UniqueViolation):
        # Another migration was first.
        return
    except (InsufficientPrivilege, psycopg.errors.UndefinedObject):
        refused.append(statement.as_string(connection))
    except psycopg.errors.InternalError_ as error:
        # "tuple concurrently updated": another migration grants the same at this moment.
        if error.sqlstate != "XX000":
            raise


def _create(role: Role) -> sql.Composed:
    kind = "login noinherit" if role.is_login else "nologin"
    return sql.SQL("create role {} " + kind + " " + ATTRIBUTES).format(sql.Identifier(role.name))


def _timeout(role: Role, name: str, value: str) -> sql.Composed:
    return sql.SQL("alter role {} set {} = {}").format(
        sql.Identifier(role.name), sql.Identifier(name), sql.Literal(value)
    )


def _grant(connection: Connection[tuple[object, ...]], member: str, group: str) -> sql.Composed:
    # Before 16 the member's NOINHERIT decides; since then the grant does.
    suffix = " with inherit false, set true" if connection.info.server_version >= EXPLICIT_INHERIT else ""
    return sql.SQL("grant {} to {}" + suffix).format(sql.Identifier(group), sql.Identifier(member))


def _join_owner(connection: Connection[tuple[object, ...]], refused: list[str]) -> None:
    """Make sure that the migrating user can act as the owner."""
    (can,) = connection.execute(
        "select coalesce((select pg_has_role(current_user, oid, 'MEMBER') from pg_roles"
        " where rolname = 'tenantry_owner'), false)"
    ).fetchone() or (False,)
    (is_superuser,) = connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() or (
        False,
    )
    if is_superuser or (can and connection.info.server_version < EXPLICIT_INHERIT):
        return
    suffix = " with set true" if connection.info.server_version >= EXPLICIT_INHERIT else ""
    if connection.info.server_version >= EXPLICIT_INHERIT and _can_set(connection):
        return
    _attempt(
        connection,
        sql.SQL("grant tenantry_owner to {}" + suffix).format(sql.Identifier(connection.info.user)),
        refused,
    )


def _can_set(connection: Connection[tuple[object, ...]]) -> bool:
    row = connection.execute(
        "select pg_has_role(current_user, oid, 'SET') from pg_roles where rolname = 'tenantry_owner'"
    ).fetchone()
    return row is not None and bool(row[0])


def _exists(connection: Connection[tuple[object, ...]], name: str) -> bool:
    return connection.execute("select from pg_roles where rolname = %s", (name,)).fetchone() is not None


def _is_member(connection: Connection[tuple[object, ...]], member: str, group: str) -> bool:
    row = connection.execute(
        "select from pg_auth_members as link join pg_roles as one on one.oid = link.member"
        " join pg_roles as many on many.oid = link.roleid where one.rolname = %s and many.rolname = %s",
        (member, group),
    ).fetchone()
    return row is not None
