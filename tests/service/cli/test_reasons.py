"""Why a run waits, as the command line says it: from the queue's reason, and from whether anybody takes what is due."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from service.cli import watching
from service.cli.client import ApiClient
from service.cli.reasons import LEFT_AFTER_S, told
from service.cli.run_tree import Watched
from tenancy import Database
from tests.service.cli.serving import key_of, serving
from tests.support.command_line import CommandLine
from tests.support.environment import DatabaseUrls
from tests.support.system import free_port
from tests.support.workflows import HandWorker

RUN = {"id": "r", "workflow": "orders", "status": "PENDING", "definition_version": "sha256-1"}


def queue(reason: str, *, running: int | str = 0, age_s: float | None = LEFT_AFTER_S) -> dict[str, Any]:
    share = {"workflow": "orders", "depth": 1, "running": running, "oldest_age_seconds": age_s}
    other = {**share, "workflow": "other", "running": 7}
    return {
        "waiting": [{"run_id": "q", "reason": "backoff"}, {"run_id": "r", "reason": reason}],
        "by_workflow": [other, share],
    }


def test_what_is_due_and_left_by_all_workers_is_told_with_the_version_that_it_needs() -> None:
    said = told(RUN, queue("priority"))
    assert said.startswith("It waits: no worker takes what is due of orders.")
    assert "serves orders at version sha256-1," in said
    assert "serves orders, or" in told({**RUN, "definition_version": None}, queue("priority"))


@pytest.mark.parametrize("facts", [{"running": 1}, {"running": "10000+"}, {"age_s": LEFT_AFTER_S - 1}, {"age_s": None}])
def test_what_is_in_line_for_a_moment_or_behind_others_is_in_line(facts: dict[str, Any]) -> None:
    assert "in line" in told(RUN, queue("priority", **facts))


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("tenant_suspended", "suspended"),
        ("version_not_served", "serves it"),
        ("run_at", "not due"),
        ("backoff", "attempt failed"),
        ("tenant_cap", "as may"),
        ("something_new", "something_new"),
    ],
)
def test_another_reason_comes_before_it(reason: str, word: str) -> None:
    assert word in told(RUN, queue(reason))


def test_of_a_run_that_is_not_among_the_first_nothing_is_known() -> None:
    assert told({**RUN, "id": str(uuid4())}, queue("priority")) == ""


async def test_a_run_that_no_worker_takes_says_so_when_shown_and_when_watched(
    database: Database,
    database_urls: DatabaseUrls,
    tenant: UUID,
    superuser: psycopg.AsyncConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "WONDER_EVERY_S", 0.1)
    hand, port, key = HandWorker(database, tenant), free_port(), await key_of(database, tenant)
    run_id = str(await hand.create("single", 1))
    url = f"http://127.0.0.1:{port}"
    tenantry = CommandLine({"API_URL": url, "API_KEY": key})
    with serving(database_urls, port):
        assert "It waits: it is in line" in (await asyncio.to_thread(tenantry, "run", "show", run_id)).out
        await superuser.execute(
            "update tenantry.workflow_runs set available_at = available_at - interval '1 minute' where run_id = %s",
            (run_id,),
        )
        assert "Is one up that serves single at" in (await asyncio.to_thread(tenantry, "run", "show", run_id)).out
        hints: list[str] = []
        wondered = asyncio.Event()

        def show(watched: Watched) -> None:
            hints.append(watched.hint)
            if watched.hint:
                wondered.set()

        async with asyncio.timeout(20), ApiClient(url, key) as client, asyncio.TaskGroup() as tasks:
            following = tasks.create_task(watching.follow(client, run_id, show))
            await wondered.wait()
            (job,) = await hand.tick()
            await hand.settle(job)
        assert following.result()["status"] == "COMPLETED"
        assert (hints[0], hints[-1]) == ("", "")
        assert any("no worker takes what is due of single" in hint for hint in hints)
        assert "It waits" not in (await asyncio.to_thread(tenantry, "run", "show", run_id)).out
