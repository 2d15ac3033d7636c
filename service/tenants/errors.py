"""What can be refused about tenants and keys. Each error says who must act and carries a stable `code`."""

from typing import ClassVar

from kernel.errors import FieldError


class TenantError(Exception):
    """The root of everything that is refused here; `code` is one of HTTP's problem codes."""

    code: ClassVar[str] = "invalid_request"


class TenantNotFoundError(TenantError):
    """The caller named a tenant that does not exist."""

    code = "not_found"

    def __init__(self, tenant: object) -> None:
        super().__init__(f"There is no tenant {str(tenant)!r}.")


class TenantExistsError(TenantError):
    """The caller must choose another slug: this one is taken."""

    code = "conflict"

    def __init__(self, slug: str) -> None:
        super().__init__(f"A tenant {slug!r} exists already.")


class TenantDeletingError(TenantError):
    """The tenant is being deleted: all that can be done to it is to delete it."""

    code = "conflict"

    def __init__(self, slug: str) -> None:
        super().__init__(f"Tenant {slug!r} is being deleted.")


class InvalidTenantError(TenantError):
    """The caller must correct the fields in `errors`; their pointers are those of the request's body."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors


class ApiKeyNotFoundError(TenantError):
    """The tenant has no key of this id."""

    code = "not_found"

    def __init__(self, key_id: object) -> None:
        super().__init__(f"There is no API key {str(key_id)!r}.")
