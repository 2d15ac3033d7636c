"""What tenancy refuses and what it reports of the database.

TenancyError
├── NoTransactionError            the caller: no transaction is open on the connection it gave, or not that one any more
├── TenantMismatchError           the caller: another tenant is bound, or none where one should be
├── ReadOnlyTransactionError      the caller: the transaction may not write
├── TransactionAbortedError       the caller: a statement failed, and the transaction has to be rolled back
├── StatementFailedError          the caller: the database refused one of our statements
├── UnsafeRoleError               the operator: the role could read past the policies, or may not work under them
└── DatabaseUnavailableError      nobody: try again later
    └── CommitOutcomeUnknownError the connection broke while COMMIT was under way: ask before repeating

A serialization failure and a deadlock of a caller's own transaction are none of these: they stay the driver's errors,
for the owner of the transaction to repeat the whole of it.
"""

from collections.abc import Iterator
from typing import Final, cast

# A serialization failure and a deadlock: the transaction can be repeated, and only its owner can repeat it.
REPEATABLE_STATES: Final = frozenset({"40001", "40P01"})
_LONGEST_CHAIN = 100


class TenancyError(Exception):
    """What every error of this package is."""


class NoTransactionError(TenancyError):
    """The caller must act: the connection has no open transaction, or would end it after each statement."""


class TenantMismatchError(TenancyError):
    """The caller must act: the transaction is bound to another tenant, or to none."""


class ReadOnlyTransactionError(TenancyError):
    """The caller must act: what it asks for writes, and its transaction is read only. The transaction goes on."""


class TransactionAbortedError(TenancyError):
    """The caller must act: a statement of the transaction failed before, so nothing but ROLLBACK is left to it."""


class StatementFailedError(TenancyError):
    """The caller must act: the database refused a statement with `sqlstate` and aborted the caller's transaction.

    A timeout or a trigger of the caller's, mostly. The driver's error is the cause; its text may quote values.
    """

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__(
            f"the database refused a statement ({sqlstate or 'without a code'}): roll the transaction back"
        )
        self.sqlstate = sqlstate


class UnsafeRoleError(TenancyError):
    """The operator must act: the role is a superuser, bypasses RLS, owns the tables or reaches a role that does.

    Or it may not work under the policies at all: a caller's own has to be an inheriting member of `tenantry_tenant`.
    """


class DatabaseUnavailableError(TenancyError):
    """Nobody can act: the database cannot be reached just now; nothing of the transaction was kept."""


class CommitOutcomeUnknownError(DatabaseUnavailableError):
    """The connection broke at COMMIT: the transaction may have been kept or not."""


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, SQLAlchemy's wrapper around one included."""
    for carrier in (error, getattr(error, "orig", None)):
        state = getattr(carrier, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def repeatable_failure(error: BaseException | None) -> BaseException | None:
    """Return the serialization failure or deadlock that an exception came of, as its driver raised it."""
    if error is None:
        return None
    return next((one for one in _origins(error) if sqlstate_of(one) in REPEATABLE_STATES), None)


def _origins(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the members of a group and what they were raised from, outermost first."""
    pending, seen = [error], set[int]()
    while pending and len(seen) < _LONGEST_CHAIN:
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            pending.extend(cast("BaseExceptionGroup[BaseException]", one).exceptions)
        pending.extend(origin for origin in (one.__cause__, one.__context__) if origin is not None)
