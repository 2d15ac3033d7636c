"""`tenantry queue`: what waits and why, over HTTP."""

from typing import Any

from service.cli.asking import ask
from service.cli.output import Json, print_fields, print_json, print_table


def queue(*, json: Json = False) -> None:
    """Show the tenant's queue: depth, age, what runs, and why each of the first runs waits."""
    answer: dict[str, Any] = ask(lambda client: client.get("/v1/queue"))
    if json:
        print_json(answer)
        return
    print_fields({key: answer.get(key) for key in ("depth", "running", "oldest_age_seconds")})
    if answer.get("by_workflow"):
        print_table(answer["by_workflow"], ("workflow", "depth", "running", "oldest_age_seconds"))
    if answer.get("waiting"):
        print_table(answer["waiting"], ("run_id", "reason"))
