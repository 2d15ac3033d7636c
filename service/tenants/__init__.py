"""What operators do to tenants and their keys: one set of operations behind the CLI and the operator routes.

Operations on tenants take a `tenancy.Database` logged in as `tenantry_admin`; operations on keys take the transaction
of the key's own tenant, because a key is a row like any other of that tenant. Results are dictionaries shaped like
the HTTP objects, with `UUID` and aware `datetime` values.
"""

from service.tenants.errors import (
    ApiKeyNotFoundError,
    InvalidTenantError,
    TenantDeletingError,
    TenantError,
    TenantExistsError,
    TenantNotFoundError,
)
from service.tenants.export import export_tenant
from service.tenants.keys import SCOPES, create_key, list_keys, revoke_key
from service.tenants.records import (
    UNCHANGED,
    TenantChanges,
    create_tenant,
    find_tenant,
    get_tenant,
    list_tenants,
    resume_tenant,
    suspend_tenant,
    update_tenant,
)
from service.tenants.removal import delete_tenant

__all__ = [
    "SCOPES",
    "UNCHANGED",
    "ApiKeyNotFoundError",
    "InvalidTenantError",
    "TenantChanges",
    "TenantDeletingError",
    "TenantError",
    "TenantExistsError",
    "TenantNotFoundError",
    "create_key",
    "create_tenant",
    "delete_tenant",
    "export_tenant",
    "find_tenant",
    "get_tenant",
    "list_keys",
    "list_tenants",
    "resume_tenant",
    "revoke_key",
    "suspend_tenant",
    "update_tenant",
]
