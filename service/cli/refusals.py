"""Errors as lines for people: what is known is told as it is, what is not gets a hint where to look."""

from collections.abc import Iterator

from kernel.errors import KernelError
from service.cli.client import ApiError
from service.embedded.errors import EmbeddedError
from service.environment import SettingsError
from service.tenants.errors import TenantError
from tenancy import DatabaseUnavailableError, TenancyError

KNOWN = (ApiError, EmbeddedError, KernelError, SettingsError, TenancyError, TenantError)


class CommandError(Exception):
    """A command cannot do what it was asked; the text is for the person who asked."""


def explain(error: BaseException) -> Iterator[str]:
    """Yield the lines that tell of an error; of a group, those of its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    if isinstance(error, DatabaseUnavailableError):
        yield f"The database cannot be reached: {text}"
    elif isinstance(error, (*KNOWN, CommandError)):
        yield text
        yield from getattr(error, "details", ())
    else:
        yield f"unexpected {type(error).__name__}: {text}"
        yield "Set TENANTRY_DEBUG=1 to see where it comes from."
