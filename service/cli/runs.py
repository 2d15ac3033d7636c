"""`tenantry run …`: a tenant's runs, over HTTP with the tenant's key."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from service.cli import run_logs, waterfall
from service.cli.asking import RunId, ask, plain_id
from service.cli.client import ApiClient
from service.cli.output import (
    Json,
    console,
    print_fields,
    print_json,
    print_line,
    print_payload,
    print_table,
    tell,
    wait_of,
)
from service.cli.reasons import reason_of
from service.cli.watching import watch_run

app = typer.Typer(
    help="Runs: start, list, show, steps, logs, trace, watch, cancel, redrive, signal.", no_args_is_help=True
)
STEPS_SHOWN = 50
# What processes let a tenant's spans wait for, and the writing.
SPANS_WRITTEN_WITHIN_S = 3.0


@app.command("start")
def start(  # noqa: PLR0913 - one parameter an option
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's id.")],
    *,
    input_: Annotated[str, typer.Option("--input", metavar="JSON|@FILE", help="The input; @- reads it from stdin.")],
    idempotency_key: Annotated[str | None, typer.Option(help="A repeat with the same key starts nothing new.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 9, 9 first; 5 by default.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="May be repeated.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends, as `run watch` does.")] = False,
    json: Json = False,
) -> None:
    """Start a run of a workflow."""
    body: dict[str, Any] = {"workflow": workflow, "input": _payload(input_, "--input")}
    if priority is not None:
        body["priority"] = priority
    if tag:
        body["tags"] = tag
    started = ask(lambda client: client.start_run(body, idempotency_key))
    if watch:
        _watch(started["id"], json=json)
    else:
        _show(started, json=json)


@app.command("list")
def list_(
    *,
    status: Annotated[str | None, typer.Option(help="PENDING, RUNNING, COMPLETED, FAILED or CANCELLED.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only runs with this tag; repeated: with all of them.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    json: Json = False,
) -> None:
    """List runs, newest first."""
    filters = {"status": status, "workflow": workflow, "tag": tag}
    found = ask(lambda client: client.pages("/v1/runs", limit, filters))
    if json:
        print_json(found)
    else:
        columns = ("id", "workflow", "status", "tags", "created_at", "completed_at")
        print_table(found, columns, spare=("completed_at",))


@app.command("show")
def show(run: RunId, *, json: Json = False) -> None:
    """Show a run with its stages, what the suspended ones wait for, and its first steps."""
    run_id = plain_id(run)
    if json:
        print_json(ask(lambda client: client.get_run(run_id)))
        return

    async def look(client: ApiClient) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
        found = await client.get_run(run_id)
        path = f"/v1/runs/{run_id}/steps"
        its_steps = await client.pages(path, STEPS_SHOWN + 1) if found["stages"] else []
        return found, its_steps, await reason_of(client, found)

    found, its_steps, reason = ask(look)
    _show(found, json=False)
    if reason:
        print_line(reason)
    if its_steps:
        _show_steps(its_steps[:STEPS_SHOWN])
    if len(its_steps) > STEPS_SHOWN:
        tell(f"There are more: tenantry run steps {run_id}")


@app.command("steps")
def steps(
    run: RunId,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 1000,
    json: Json = False,
) -> None:
    """List the durable steps of a run, oldest first; with their results in --json."""
    run_id = plain_id(run)
    found = ask(lambda client: client.pages(f"/v1/runs/{run_id}/steps", limit))
    if json:
        print_json(found)
    else:
        _show_steps(found)


app.command("logs")(run_logs.logs)


@app.command("trace")
def trace(run: RunId, *, json: Json = False) -> None:
    """Show a run's trace as a waterfall. A run that was not sampled has none."""
    run_id = plain_id(run)

    async def look(client: ApiClient) -> list[dict[str, Any]]:
        await asyncio.sleep(_written_in(await client.get_run(run_id)))
        return list((await client.get(f"/v1/runs/{run_id}/trace"))["data"])

    spans = ask(look)
    if json:
        print_json(spans)
    elif spans:
        screen = console()
        screen.print(waterfall.render(spans, screen.width))
    else:
        tell("Nothing of this run was traced.")


@app.command("watch")
def watch(run: RunId, *, json: Json = False) -> None:
    """Follow a run until it ends; the exit status is 0 when it COMPLETED, 130 after Ctrl-C, else 1."""
    _watch(plain_id(run), json=json)


def _watch(run_id: str, *, json: bool) -> None:
    try:
        ended = ask(lambda client: watch_run(client, run_id, quiet=json))
    except KeyboardInterrupt:
        tell(f"Not watched any more; again with: tenantry run watch {run_id}")
        raise
    if json:
        print_json(ended)
    elif ended["status"] == "COMPLETED":
        print_payload(ended["output"], f"tenantry run show {run_id} --json")
    if ended["status"] != "COMPLETED":
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    run: RunId,
    *,
    reason: Annotated[str | None, typer.Option(help="Told to the run's readers.")] = None,
    json: Json = False,
) -> None:
    """Cancel a run; one that is over stays as it is."""
    run_id = plain_id(run)
    body = {} if reason is None else {"reason": reason}
    _show(ask(lambda client: client.post(f"/v1/runs/{run_id}/cancel", body)), json=json)


@app.command("redrive")
def redrive(
    run: RunId,
    *,
    start: Annotated[
        str, typer.Option("--from", metavar="last_failure|start|STAGE", help="Where it goes on.")
    ] = "last_failure",
    definition_version: Annotated[
        str | None, typer.Option(help="Another version of the workflow; `latest` is the one that new runs get.")
    ] = None,
    json: Json = False,
) -> None:
    """Let a run that is over go on: what it has done stays, unless it goes on from its start."""
    run_id = plain_id(run)
    where = {"kind": start} if start in {"last_failure", "start"} else {"kind": "stage", "stage_id": start}
    body: dict[str, Any] = {"from": where}
    if definition_version is not None:
        body["definition_version"] = definition_version
    _show(ask(lambda client: client.redrive_run(run_id, body)), json=json)


@app.command("signal")
def signal(
    run: RunId,
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The stage's id.")],
    step: Annotated[str, typer.Argument(metavar="STEP", help="The id of the step that waits, or will wait.")],
    *,
    payload: Annotated[str, typer.Option(metavar="JSON|@FILE", help="What the step returns; @- reads it from stdin.")],
    json: Json = False,
) -> None:
    """Signal a waiting step. Only the first signal of a step counts."""
    run_id = plain_id(run)
    body = {"stage_id": stage, "step_id": step, "payload": _payload(payload, "--payload")}
    answer = ask(lambda client: client.post(f"/v1/runs/{run_id}/signals", body))
    if json:
        print_json(answer)
    elif answer["already_completed"]:
        print_line(f"Step {step} of stage {stage} had its signal already: the payload of the first one stays.")
    else:
        # Whether it waits already cannot be told: a key may only be good for signals, and the stage moves on meanwhile.
        print_line(
            f"Step {step} of stage {stage} has its signal: if the stage waits for it, it goes on now; if not yet, the"
            " payload is kept until it asks."
        )


def _written_in(run: Mapping[str, Any]) -> float:
    """Return in how many seconds the last spans of a run that has ended are written, by this machine's clock."""
    if run["completed_at"] is None:
        return 0.0
    since_s = (datetime.now(UTC) - datetime.fromisoformat(run["completed_at"])).total_seconds()
    return min(max(SPANS_WRITTEN_WITHIN_S - since_s, 0.0), SPANS_WRITTEN_WITHIN_S)


def _payload(text: str, option: str) -> object:
    try:
        if text == "@-":
            source = sys.stdin.buffer.read()
        else:
            source = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
        return orjson.loads(source)
    except OSError as error:
        message = f"{text[1:]}: {error.strerror}"
        raise typer.BadParameter(message, param_hint=option) from None
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        message = f"this is no JSON: {error}"
        raise typer.BadParameter(message, param_hint=option) from None


def _show(run: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(run)
        return
    print_fields({key: value for key, value in run.items() if key != "stages"})
    if stages := run.get("stages"):
        columns = ["id", "group", "status", "attempt", "started_at", "completed_at", "error_message"]
        if any(stage.get("waiting_for") for stage in stages):
            columns[4:4] = ["waiting_for", "until"]
        print_table([{**stage, **_wait(stage)} for stage in stages], columns, spare=("group", "started_at"))


def _wait(stage: Mapping[str, Any]) -> dict[str, Any]:
    wait = stage.get("waiting_for")
    return {} if wait is None else {"waiting_for": wait_of(stage), "until": wait["until"]}


def _show_steps(found: list[dict[str, Any]]) -> None:
    columns = ("stage_id", "step_id", "kind", "status", "attempt", "external_key", "deadline_at", "error")
    print_table(found, columns, spare=("external_key",))
