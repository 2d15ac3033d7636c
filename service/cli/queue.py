"""`tenantry queue`: what waits and why, over HTTP."""

import asyncio
from typing import Any

from service.cli.client import ApiClient
from service.cli.output import Json, print_fields, print_json, print_table


def queue(*, json: Json = False) -> None:
    """Show the tenant's queue: depth, age, what runs, and why each of the first runs waits."""

    async def run() -> dict[str, Any]:
        async with ApiClient.from_environment() as client:
            answer: dict[str, Any] = await client.get("/v1/queue")
            return answer

    answer = asyncio.run(run())
    if json:
        print_json(answer)
        return
    print_fields({key: answer.get(key) for key in ("depth", "running", "oldest_age_seconds")})
    if answer.get("by_workflow"):
        print_table(answer["by_workflow"], ("workflow", "depth", "running", "oldest_age_seconds"))
    if answer.get("waiting"):
        print_table(answer["waiting"], ("run_id", "reason"))
