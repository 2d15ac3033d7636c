"""What tenancy refuses and what it reports of the database.

TenancyError
├── NoTransactionError            the caller: no transaction is open on the connection it gave
├── TenantMismatchError           the caller: another tenant is bound, or none where one should be
├── UnsafeRoleError               the operator: the role could read past the policies
└── DatabaseUnavailableError      nobody: try again later
    └── CommitOutcomeUnknownError the connection broke while COMMIT was under way: ask before repeating
"""


class TenancyError(Exception):
    """What every error of this package is."""


class NoTransactionError(TenancyError):
    """The caller must act: the connection has no open transaction, or would end it after each statement."""


class TenantMismatchError(TenancyError):
    """The caller must act: the transaction is bound to another tenant, or to none."""


class UnsafeRoleError(TenancyError):
    """The operator must act: the role is a superuser, bypasses RLS, owns the tables or reaches a role that does."""


class DatabaseUnavailableError(TenancyError):
    """Nobody can act: the database cannot be reached just now; nothing of the transaction was kept."""


class CommitOutcomeUnknownError(DatabaseUnavailableError):
    """The connection broke at COMMIT: the transaction may have been kept or not."""
