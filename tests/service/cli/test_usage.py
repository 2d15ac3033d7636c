"""What needs no server: versions, usage, bad settings, and servers that are not there."""

import time
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from service.cli.tree import app
from tests.support.command_line import CommandLine
from tests.support.system import free_port


def test_version_is_one_json_document(tenantry: CommandLine) -> None:
    answer = tenantry("version", "--json")
    assert (answer.status, answer.json) == (0, {"version": version("tenantry")})
    assert tenantry("version").out.strip() == version("tenantry")


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("run", "start"),
        ("run", "start", "w"),
        ("run", "start", "w", "--input", "{not json"),
        ("run", "start", "w", "--input", "@/no/such/file"),
        ("run", "signal", "r", "s", "t"),
        ("run", "signal", "r", "s", "--payload", "1"),
        ("run", "signal", "00000000-0000-7000-8000-000000000000", "s", "t", "--payload", "{not json"),
        ("run", "signal", "00000000-0000-7000-8000-000000000000", "s", "t", "--payload", "@/no/such/file"),
        ("run", "steps", "r", "--limit", "0"),
        ("run", "logs"),
        ("run", "logs", "00000000-0000-7000-8000-000000000000", "--follow", "--limit", "5"),
        ("run", "redrive"),
        ("run", "redrive", "r", "--from"),
        ("run", "list", "--bogus"),
        ("run", "list", "--limit", "0"),
        ("tenant", "create"),
        ("tenant", "delete", "acme"),
        ("key", "create"),
        ("key", "create", "--tenant", "acme", "--scope", "everything"),
        ("key", "create", "--tenant", "acme", "--expires-in", "soon"),
        ("key", "create", "--tenant", "acme", "--expires-in", "0s"),
        ("worker", "--processes", "0"),
        ("api", "--port", "http"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_so_on_stderr(arguments: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr


def test_wrong_usage_of_the_process_ends_with_2(tenantry: CommandLine) -> None:
    answer = tenantry("run", "start", "w", "--json")
    assert (answer.status, answer.out) == (2, "")
    assert "--input" in answer.err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("tenant", "list"), "operator_database_url"),
        (("key", "list", "--tenant", "acme"), "operator_database_url"),
        (("db", "status"), "direct_database_url"),
        (("db", "migrate"), "direct_database_url"),
        (("workflow", "check"), "workflows"),
        (("run", "list"), "api_key"),
        (("queue",), "api_key"),
        (("api",), "database_url"),
        (("worker",), "workflows"),
    ],
)
def test_a_missing_setting_is_one_line_that_names_it(
    tenantry: CommandLine, arguments: tuple[str, ...], name: str
) -> None:
    answer = tenantry(*arguments)
    assert answer.status == 1
    assert answer.out == ""
    assert name in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("command", ["api", "worker"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://nowhere"),
        ("HEARTBEAT_INTERVAL", "10m"),
        ("STALE_LEASE_THRESHOLD", "soon"),
        ("WORKFLOWS", "no.such.module:registry"),
    ],
)
def test_a_bad_setting_ends_a_server_within_seconds(tenantry: CommandLine, command: str, name: str, value: str) -> None:
    good = {
        "DATABASE_URL": "postgresql://u@127.0.0.1:1/d",
        "DISPATCHER_DATABASE_URL": "postgresql://u@127.0.0.1:1/d",
        "WORKFLOWS": "service.demo.invoices:registry",
    }
    began = time.monotonic()
    answer = tenantry(command, **{**good, name: value})
    assert time.monotonic() - began < 10
    assert answer.status == 1
    assert name.lower() in answer.err
    assert answer.err.count("\n") == 1


def test_a_mistake_in_a_setting_of_others_does_not_matter(tenantry: CommandLine) -> None:
    answer = tenantry("db", "status", PORT="many")
    assert "direct_database_url" in answer.err


def test_a_database_that_is_away_is_one_line(tenantry: CommandLine) -> None:
    url = f"postgresql://tenantry_admin@127.0.0.1:{free_port()}/tenantry"
    answer = tenantry("tenant", "list", "--json", OPERATOR_DATABASE_URL=url)
    assert answer.status == 1
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    answer = tenantry("db", "status", DIRECT_DATABASE_URL=url)
    assert answer.status == 1
    assert answer.err.count("\n") == 1


def test_an_api_that_is_away_is_one_line(tenantry: CommandLine) -> None:
    answer = tenantry("run", "list", "--json", API_URL=f"http://127.0.0.1:{free_port()}", API_KEY="tny_x")
    assert answer.status == 1
    assert answer.out == ""
    assert "cannot be reached" in answer.err


def test_an_address_that_is_none_is_named(tenantry: CommandLine) -> None:
    answer = tenantry("queue", API_URL="localhost:8000", API_KEY="tny_x")
    assert (answer.status, "api_url" in answer.err) == (1, True)
