"""The ground floor: nothing is ever stored without a tenant.

Transactions bound to one tenant, the roles and policies that hold it, and the pools behind PgBouncer.
"""

from tenancy.binding import adopt, bind
from tenancy.callers import turn
from tenancy.database import Database, binding_call
from tenancy.errors import (
    CommitOutcomeUnknownError,
    DatabaseUnavailableError,
    NoTransactionError,
    ReadOnlyTransactionError,
    StatementFailedError,
    TenancyError,
    TenantMismatchError,
    TransactionAbortedError,
    UnsafeRoleError,
    repeatable_failure,
)
from tenancy.pools import DatabaseSettings
from tenancy.sql import Statement, Statements
from tenancy.sql import load as load_sql
from tenancy.transaction import Call, RoleTransaction, Row, TenantTransaction

__all__ = [
    "Call",
    "CommitOutcomeUnknownError",
    "Database",
    "DatabaseSettings",
    "DatabaseUnavailableError",
    "NoTransactionError",
    "ReadOnlyTransactionError",
    "RoleTransaction",
    "Row",
    "Statement",
    "StatementFailedError",
    "Statements",
    "TenancyError",
    "TenantMismatchError",
    "TenantTransaction",
    "TransactionAbortedError",
    "UnsafeRoleError",
    "adopt",
    "bind",
    "binding_call",
    "load_sql",
    "repeatable_failure",
    "turn",
]
