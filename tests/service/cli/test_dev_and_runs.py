"""`tenantry dev` from an empty machine, and the commands on runs against it."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from service.cli.client import ApiClient, Event
from service.cli.run_tree import Watched
from service.cli.watching import follow
from tests.service.cli.development import WORKFLOWS, Development, start
from tests.support.command_line import CommandLine
from tests.support.processes import answers


def test_a_port_that_is_taken_is_refused_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = CommandLine({})("dev", "--port", str(port))
    assert refused.status == 1
    assert refused.err.startswith(f"tenantry: port: cannot listen on 127.0.0.1:{port}: ")
    assert "--port" in refused.err
    assert "Starting" not in refused.err


def test_a_run_is_started_watched_shown_and_listed(development: Development) -> None:
    tenantry = development.tenantry
    run = tenantry(
        "run", "start", "doubling", "--input", "21", "--tag", "x", "--tag", "y", "--priority", "9", "--json"
    ).json
    assert (run["workflow"], run["tags"], run["priority"]) == ("doubling", ["x", "y"], 9)
    watched = tenantry("run", "watch", run["id"], "--json")
    assert (watched.status, watched.json["status"], watched.json["output"]) == (0, "COMPLETED", 42)
    told = tenantry("run", "watch", run["id"])
    assert told.out.splitlines()[-1] == "42"
    assert f"run {run['id']} COMPLETED" in told.out
    assert tenantry("run", "show", run["id"], "--json").json["stages"][0]["id"] == "double"
    assert "double" in tenantry("run", "show", run["id"]).out
    assert [item["id"] for item in tenantry("run", "list", "--tag", "x", "--tag", "y", "--json").json] == [run["id"]]
    assert tenantry("run", "list", "--workflow", "napping", "--status", "FAILED", "--json").json == []


def test_a_failed_run_is_watched_to_1(development: Development) -> None:
    run = development.tenantry("run", "start", "doubling", "--input", "-1", "--json").json
    watched = development.tenantry("run", "watch", run["id"])
    assert watched.status == 1
    assert "negative" in watched.out


def test_a_start_is_followed_to_its_end_with_a_key_from_a_file(development: Development, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{development.settings['API_KEY']}\n")
    tenantry = CommandLine({"API_URL": development.settings["API_URL"], "API_KEY_FILE": str(key)})
    ended = tenantry("run", "start", "doubling", "--input", "21", "--watch", "--json")
    assert (ended.status, ended.json["status"], ended.json["output"]) == (0, "COMPLETED", 42)
    assert tenantry("run", "start", "doubling", "--input", "-1", "--watch").status == 1


def test_a_repeat_with_its_key_starts_nothing_new_and_another_request_is_refused(development: Development) -> None:
    tenantry, key = development.tenantry, uuid4().hex
    first = tenantry("run", "start", "doubling", "--input", "1", "--idempotency-key", key, "--json").json
    again = tenantry("run", "start", "doubling", "--input", "1", "--idempotency-key", key, "--json").json
    assert first["id"] == again["id"]
    other = tenantry("run", "start", "doubling", "--input", "2", "--idempotency-key", key, "--json")
    assert (other.status, other.out) == (1, "")
    assert "idempotency_key_reused" in other.err


def test_a_running_run_is_cancelled_and_a_finished_one_stays(development: Development) -> None:
    tenantry = development.tenantry
    run = tenantry("run", "start", "napping", "--input", "60", "--json").json
    assert tenantry("run", "cancel", run["id"], "--reason", "enough", "--json").json["status"] == "CANCELLED"
    assert tenantry("run", "cancel", run["id"], "--json").json["status"] == "CANCELLED"
    assert tenantry("run", "watch", run["id"], "--json").status == 1


def test_a_cancelled_run_goes_on_and_a_completed_one_starts_again(development: Development) -> None:
    tenantry = development.tenantry
    run = tenantry("run", "start", "approving", "--input", "{}", "--json").json["id"]
    refused = tenantry("run", "redrive", run, "--json")
    assert (refused.status, refused.out, "conflict" in refused.err) == (1, "", True)
    tenantry("run", "cancel", run)
    redriven = tenantry("run", "redrive", run, "--json")
    assert (redriven.status, redriven.json["status"], redriven.json["redrive_count"]) == (0, "RUNNING", 1)
    tenantry("run", "signal", run, "ask", "approve", "--payload", '{"n": 1}')
    assert tenantry("run", "watch", run, "--json").json["output"] == {"n": 1}
    key = tenantry("run", "steps", run, "--json").json[0]["external_key"]
    assert "redrive count" in tenantry("run", "redrive", run, "--from", "start", "--definition-version", "latest").out
    tenantry("run", "signal", run, "ask", "approve", "--payload", '{"n": 2}')
    assert tenantry("run", "watch", run, "--json").json["output"] == {"n": 2}
    steps = {step["step_id"]: step for step in tenantry("run", "steps", run, "--json").json}
    assert steps["prepare"]["external_key"] != key
    assert tenantry("run", "redrive", run, "--from", "ask", "--json").json["redrive_count"] == 3
    assert tenantry("run", "watch", run, "--json").json["output"] == {"n": 2}, "what is completed stays"
    for options, word in (("--from", "nobody"), "/from/stage_id"), (("--definition-version", "v9"), "not served"):
        refused = tenantry("run", "redrive", run, *options, "--json")
        assert (refused.status, refused.out, word in refused.err) == (1, "", True)


def test_a_terminal_shows_a_failure_without_obeying_it_and_the_first_part_of_a_large_output(
    development: Development,
) -> None:
    tenantry = development.tenantry
    failed = tenantry.on_terminal("run", "start", "doubling", "--input", "-1", "--watch")
    assert failed.status == 1
    assert failed.out.count("Terminal: negative \\x1b[2J") == 2, "in its line and below the tree"
    assert "\x1b[2J" not in failed.out
    run = tenantry("run", "start", "writing", "--input", "200000", "--json").json["id"]
    whole = tenantry("run", "watch", run)
    assert json.loads(whole.out.splitlines()[-1]) == "\x9b" + "x" * 200_000, "a pipe gets all of it"
    first_part = tenantry.on_terminal("run", "watch", run)
    assert first_part.status == 0
    assert len(first_part.out) < 5_000
    assert f"All of it: tenantry run show {run} --json" in first_part.out
    shown = tenantry.on_terminal("run", "show", run)
    assert len(shown.out) < 5_000
    assert "more characters, with --json" in " ".join(shown.out.split())
    assert "\x9b" not in first_part.out + shown.out
    for columns in (80, 120):
        listed = tenantry.on_terminal("run", "list", "--limit", "1", columns=columns)
        assert run in listed.out, "no id is folded"
        assert ("completed at" in listed.out) == (columns == 120)
    trace = tenantry.on_terminal("run", "trace", run)
    assert trace.status == 0
    assert "job.execute writing/write" in trace.out
    assert "█" in trace.out


def test_ctrl_c_ends_a_watch_with_130_on_a_terminal(development: Development) -> None:
    run = development.tenantry("run", "start", "approving", "--input", "{}", "--json").json["id"]
    watched = development.tenantry.on_terminal("run", "watch", run, interrupt_at="waits for signal approve")
    assert watched.status == 130
    assert watched.out.endswith(f"tenantry run watch {run}\n")
    development.tenantry("run", "cancel", run)


async def test_a_run_is_followed_from_its_present_through_a_restart_of_the_api(development: Development) -> None:
    tenantry = development.tenantry
    run = tenantry("run", "start", "approving", "--input", "{}", "--json").json["id"]
    assert tenantry.on_terminal("run", "watch", run, interrupt_at="waits for signal approve").status == 130
    seen: list[tuple[str, str, bool]] = []
    away = asyncio.Event()

    def show(watched: Watched) -> None:
        seen.append((watched.run["status"], watched.stages()[0]["status"], bool(watched.trouble)))
        if watched.trouble:
            away.set()

    async with ApiClient(development.settings["API_URL"], development.settings["API_KEY"]) as client:
        history = [event.type async for event in first_of(client.events(run), "stage:suspended")]
        assert len(history) == 4
        assert [event.type async for event in first_of(client.events(run, 3), "stage:suspended")] == history[3:]
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(client, run, show))
            (development.project / "flows.py").write_text(WORKFLOWS)
            await away.wait()
            await asyncio.to_thread(development.await_ready)
            await client.post(f"/v1/runs/{run}/signals", {"stage_id": "ask", "step_id": "approve", "payload": {"n": 7}})
    assert (following.result()["status"], following.result()["output"]) == ("COMPLETED", {"n": 7})
    until_away = seen[: seen.index(("RUNNING", "SUSPENDED", True))]
    assert set(until_away) == {("RUNNING", "SUSPENDED", False)}
    assert len(until_away) <= 2, "once as it was, and once when the stream ended"
    assert seen[-1] == ("COMPLETED", "COMPLETED", False)


async def first_of(events: AsyncIterator[Event], last: str) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if event.type == last:
            return


def test_a_waiting_run_is_shown_and_signalled(development: Development, tmp_path: Path) -> None:
    tenantry = development.tenantry
    run = tenantry("run", "start", "approving", "--input", "{}", "--json").json["id"]

    def stages() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = tenantry("run", "show", run, "--json").json["stages"]
        return found

    development.process.until(lambda: [stage["status"] for stage in stages()] == ["SUSPENDED"])
    assert stages()[0]["waiting_for"]["step_id"] == "approve"
    shown = tenantry("run", "show", run).out
    assert "signal approve" in shown
    assert "prepare" in shown
    steps = tenantry("run", "steps", run, "--json").json
    assert [(step["step_id"], step["result"]) for step in steps] == [("prepare", "prepared"), ("approve", None)]
    assert "completed" in tenantry("run", "steps", run).out
    assert len(tenantry("run", "steps", run, "--limit", "1", "--json").json) == 1
    refused = tenantry("run", "signal", run, "nobody", "approve", "--payload", "1", "--json")
    assert (refused.status, refused.out, "/stage_id" in refused.err) == (1, "", True)
    refused = tenantry("run", "signal", run, "ask", "prepare", "--payload", "1", "--json")
    assert (refused.status, refused.out, "conflict" in refused.err) == (1, "", True)
    (tmp_path / "payload.json").write_text('{"by": "ada"}')
    sent = tenantry("run", "signal", run, "ask", "approve", "--payload", f"@{tmp_path}/payload.json", "--json")
    assert (sent.status, sent.json) == (0, {"signalled": True, "already_completed": False})
    assert tenantry("run", "watch", run, "--json").json["output"] == {"by": "ada"}
    assert tenantry("run", "signal", run, "ask", "approve", "--payload", "null").status == 1


def test_a_person_is_told_in_words_what_became_of_a_signal(development: Development) -> None:
    tenantry = development.tenantry
    run = tenantry("run", "start", "talking", "--input", "1", "--json").json["id"]
    signal = ("run", "signal", run, "first", "later", "--payload", "1")
    sent, again = tenantry(*signal), tenantry(*signal)
    assert (sent.status, again.status) == (0, 0)
    assert sent.out.startswith("Step later of stage first has its signal: if the stage waits for it, it goes on now; ")
    assert again.out == "Step later of stage first had its signal already: the payload of the first one stays.\n"
    assert tenantry(*signal, "--json").json == {"signalled": True, "already_completed": True}
    tenantry("run", "cancel", run)


def test_input_comes_from_a_file_or_from_stdin(development: Development, tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text("3")
    run = development.tenantry("run", "start", "doubling", "--input", f"@{tmp_path}/input.json", "--json").json
    assert run["input"] == 3
    assert development.tenantry("run", "start", "doubling", "--input", "@-", "--json", stdin="4").json["input"] == 4


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run", "start", "nobody", "--input", "1"), "unknown_workflow"),
        (("run", "start", "doubling", "--input", '"x"'), "/input"),
        (("run", "start", "doubling", "--input", "1", "--priority", "99"), "/priority"),
        (("run", "show", str(uuid4())), "not_found"),
        (("run", "watch", str(uuid4())), "not_found"),
        (("run", "show", "../tenant"), "no run"),
        (("run", "steps", str(uuid4())), "not_found"),
        (("run", "logs", str(uuid4())), "not_found"),
        (("run", "logs", str(uuid4()), "--follow"), "not_found"),
        (("run", "logs", "nothing"), "no run"),
        (("run", "redrive", str(uuid4())), "not_found"),
        (("run", "redrive", "nothing"), "no run"),
        (("run", "signal", str(uuid4()), "ask", "approve", "--payload", "null"), "not_found"),
        (("run", "signal", "nothing", "ask", "approve", "--payload", "null"), "no run"),
        (("run", "list", "--status", "BOGUS"), "status"),
    ],
)
def test_a_refusal_is_told_on_stderr_and_ends_with_1(
    development: Development, arguments: tuple[str, ...], word: str
) -> None:
    answer = development.tenantry(*arguments, "--json")
    assert (answer.status, answer.out) == (1, "")
    assert word in answer.err


def test_the_queue_and_a_wrong_key(development: Development) -> None:
    assert set(development.tenantry("queue", "--json").json) == {
        "depth",
        "running",
        "oldest_age_seconds",
        "by_workflow",
        "waiting",
    }
    answer = development.tenantry("queue", API_KEY="tny_wrong")
    assert (answer.status, "unauthorized" in answer.err) == (1, True)


def test_a_build_that_would_strand_active_runs_is_told(
    development: Development, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = development.tenantry("run", "start", "napping", "--input", "50", "--json").json
    check = CommandLine({"DISPATCHER_DATABASE_URL": development.settings["DISPATCHER_DATABASE_URL"]})
    monkeypatch.setenv("PYTHONPATH", str(development.project))
    serving = check("workflow", "check", "--json", WORKFLOWS="flows:registry")
    assert (serving.status, serving.json) == (0, {"stranded": []})
    stranding = check("workflow", "check", "--json", WORKFLOWS="service.demo.invoices:registry")
    assert stranding.status == 1
    assert stranding.json["stranded"][0]["workflow"] == "napping"
    assert later["definition_version"] in stranding.err
    development.tenantry("run", "cancel", later["id"])


def test_a_change_of_the_code_is_served_and_a_broken_one_waits_for_the_next(development: Development) -> None:
    flows = development.project / "flows.py"
    process = development.process
    flows.write_text("def broken(:")
    process.until(lambda: "start again when the code changes" in process.output)
    flows.write_text(WORKFLOWS.replace("* 2", "* 3"))
    development.await_ready()
    run = development.tenantry("run", "start", "doubling", "--input", "5", "--json").json
    assert development.tenantry("run", "watch", run["id"], "--json").json["output"] == 15


def test_a_stop_is_graceful_and_the_next_start_has_data_key_and_a_word_on_a_port_that_is_gone(
    development: Development, state: Path
) -> None:
    assert development.process.stop(signal.SIGINT) == 0, development.process.output
    assert not answers(f"{development.settings['API_URL']}/healthz")
    door = urlsplit(development.settings["DATABASE_URL"]).port
    assert door is not None
    with socket.create_server(("127.0.0.1", door)):
        again = start(state, development.project)
    with again.process:
        assert urlsplit(again.settings["DATABASE_URL"]).port != door
        assert f"Port {door}, where " in again.process.output
        assert again.settings["API_KEY"] == development.settings["API_KEY"]
        assert again.tenantry("run", "list", "--workflow", "doubling", "--json").json != []
        assert again.process.stop(signal.SIGTERM) == 0
