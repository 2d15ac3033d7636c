"""Errors as lines for people: what is known is told as it is, what is not gets a hint where to look."""

import sys
from collections.abc import Iterator
from typing import Final

from service.cli.client import ApiError
from service.environment import SettingsError

# Those whose modules a command may have done without: it cannot have met what it has not loaded.
_OTHERS: Final = (
    ("service.embedded.errors", "EmbeddedError"),
    ("kernel.errors", "KernelError"),
    ("tenancy.errors", "TenancyError"),
    ("service.tenants.errors", "TenantError"),
)


class CommandError(Exception):
    """A command cannot do what it was asked; the text is for the person who asked."""


def explain(error: BaseException) -> Iterator[str]:
    """Yield the lines that tell of an error; of a group, those of its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    if _is_one_of(error, (("tenancy.errors", "DatabaseUnavailableError"),)):
        yield f"The database cannot be reached: {text}"
    elif isinstance(error, (ApiError, SettingsError, CommandError)) or _is_one_of(error, _OTHERS):
        yield text
        yield from getattr(error, "details", ())
    else:
        yield f"unexpected {type(error).__name__}: {text}"
        yield "Set TENANTRY_DEBUG=1 to see where it comes from."


def _is_one_of(error: BaseException, classes: tuple[tuple[str, str], ...]) -> bool:
    loaded = [getattr(sys.modules.get(module), name, None) for module, name in classes]
    return isinstance(error, tuple(found for found in loaded if isinstance(found, type)))
