"""What commands that speak HTTP have in common: the run they name, and a client for one question."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar
from uuid import UUID

import typer

from service.cli.client import ApiClient, ApiError

T = TypeVar("T")
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
NOT_FOUND = 404


def ask(question: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Return what the question gets from the API that the environment names.

    Raises:
        SettingsError: the environment names none, or no key.
        ApiError: it refuses, or cannot be reached.
    """

    async def run() -> T:
        async with ApiClient.from_environment() as client:
            return await question(client)

    return asyncio.run(run())


def plain_id(text: str) -> str:
    """Return a run's id in its plain form, so that it can stand in a path.

    Raises:
        ApiError: it is none, so there is no such run.
    """
    try:
        return str(UUID(text))
    except ValueError:
        message = f"There is no run {text!r}."
        raise ApiError(message, NOT_FOUND) from None
