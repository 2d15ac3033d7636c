"""`tenantry db userlist`: what PgBouncer must know, from mounted secrets."""

import stat
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine


def mount(directory: Path, **passwords: bytes) -> Path:
    """As Kubernetes does: the files lie in a hidden folder, links to them in the directory."""
    hidden = directory / "..data"
    hidden.mkdir()
    for login, password in passwords.items():
        (hidden / login).write_bytes(password)
        (directory / login).symlink_to(hidden / login)
    return directory


def test_every_file_is_a_line_and_quotes_are_doubled(tenantry: CommandLine, tmp_path: Path) -> None:
    passwords = mount(tmp_path, tenantry_worker=b'a"b\\c %41;#\n', tenantry_api="ü".encode())
    answer = tenantry("db", "userlist", str(passwords))
    assert (answer.status, answer.err) == (0, "")
    assert answer.out == '"tenantry_api" "ü"\n"tenantry_worker" "a""b\\c %41;#"\n'


def test_the_file_is_for_owner_and_group_alone_and_no_password_is_shown(tenantry: CommandLine, tmp_path: Path) -> None:
    output = tmp_path / "userlist.txt"
    (tmp_path / "passwords").mkdir()
    passwords = mount(tmp_path / "passwords", tenantry_api=b"hush")
    answer = tenantry("db", "userlist", str(passwords), "--output", str(output), "--json")
    assert (answer.status, answer.json) == (0, {"logins": ["tenantry_api"]})
    assert output.read_text() == '"tenantry_api" "hush"\n'
    assert stat.S_IMODE(output.stat().st_mode) & 0o137 == 0


@pytest.mark.parametrize("password", [b"", b"\n", b"two\nlines", b"a\0b", b"\xff", b"x" * 2001])
def test_a_password_that_pgbouncer_cannot_hold_is_refused_by_its_login(
    tenantry: CommandLine, tmp_path: Path, password: bytes
) -> None:
    answer = tenantry("db", "userlist", str(mount(tmp_path, tenantry_api=password)))
    assert (answer.status, answer.out) == (1, "")
    assert "tenantry_api" in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_nothing_to_read_is_an_error(tenantry: CommandLine, tmp_path: Path) -> None:
    assert tenantry("db", "userlist", str(tmp_path)).status == 1
    assert "No such file" in tenantry("db", "userlist", str(tmp_path / "nowhere")).err
