"""`tenantry wait`: until servers answer; for scripts, tests of a release and whoever starts things in order."""

import asyncio
from typing import Annotated

import httpx
import typer

from service.cli.output import Json, print_json, tell
from service.cli.refusals import CommandError
from service.cli.words import seconds_of

ASK_AGAIN_S = 0.2
ANSWER_WITHIN_S = 5.0


def wait(
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="Such as http://127.0.0.1:8000/readyz.")],
    *,
    timeout: Annotated[str, typer.Option(help="How long at most, such as 60s or 5m.")] = "60s",
    json: Json = False,
) -> None:
    """Wait until every URL has answered with a 2xx, one after the other; 1 when one of them has not in time."""
    try:
        timeout_s = seconds_of(timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from None
    asyncio.run(await_answers(urls, timeout_s))
    if json:
        print_json({"answered": urls})
    else:
        tell("All of them answer.")


async def await_answers(urls: list[str], timeout_s: float) -> None:
    """Wait until every URL has answered with a 2xx, one after the other.

    Raises:
        CommandError: one of them has not within these seconds, or is no URL.
    """
    said = "nothing was asked"
    try:
        async with asyncio.timeout(timeout_s), httpx.AsyncClient(timeout=ANSWER_WITHIN_S, trust_env=False) as client:
            for url in urls:
                said = f"{url} did not answer"
                while True:
                    said = await _ask(client, url)
                    if not said:
                        break
                    await asyncio.sleep(ASK_AGAIN_S)
    except TimeoutError:
        raise CommandError(f"not within {timeout_s:g} s: {said}") from None


async def _ask(client: httpx.AsyncClient, url: str) -> str:
    """Return what is wrong with the answer, nothing when it is a 2xx."""
    try:
        response = await client.get(url)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise CommandError(f"{url}: {error}") from None
    except httpx.HTTPError as error:
        return f"{url}: {str(error) or type(error).__name__}"
    return "" if response.is_success else f"{url} answered {response.status_code}: {response.text[:200]}"
