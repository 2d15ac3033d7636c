"""The embedded database: it comes back with its data, tolerates what a crash leaves, and listens on loopback only."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from service.embedded import EmbeddedDatabase, EmbeddedError, state_directory, temporary_directory
from service.embedded.processes import end_orphan

CHECKOUT = Path(__file__).resolve().parents[3]
# Enters the database, says where it is, and stays until it is killed.
STAY = """
import sys, time
from pathlib import Path
from service.embedded import EmbeddedDatabase
with EmbeddedDatabase(Path(sys.argv[1])) as database:
    print(database.postgres_pid, database.pgbouncer_pid or database.postgres_pid, flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_data_and_addresses_outlive_a_stop() -> None:
    with temporary_directory() as directory:
        with EmbeddedDatabase(directory) as first:
            urls = first.urls
            with psycopg.connect(urls.direct, autocommit=True) as connection:
                connection.execute("create table kept as select 42 as answer")
            pids = [pid for pid in (first.postgres_pid, first.pgbouncer_pid) if pid is not None]
        assert not [pid for pid in pids if is_alive(pid)]
        with EmbeddedDatabase(directory) as second, psycopg.connect(second.urls.direct) as connection:
            assert connection.execute("select answer from kept").fetchone() == (42,)
            assert (second.urls, second.moved) == (urls, ())
            with psycopg.connect(urls.worker) as worker:
                assert worker.execute("select session_user").fetchone() == ("tenantry_worker",)
    assert not directory.exists()


def test_every_login_needs_its_password_and_only_loopback_is_served() -> None:
    with temporary_directory() as directory, EmbeddedDatabase(directory) as database:
        with psycopg.connect(database.urls.direct) as connection:
            assert connection.execute("show listen_addresses").fetchone() == ("127.0.0.1",)
            assert connection.execute("show fsync").fetchone() == ("on",)
        for url in (database.urls.api, database.urls.direct):
            user, _, rest = url.removeprefix("postgresql://").partition(":")
            address = rest.partition("@")[2]
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(f"postgresql://{user}:wrong@{address}", connect_timeout=5)
        assert (directory / "passwords.json").stat().st_mode & 0o077 == 0


def test_a_directory_serves_one_process_at_a_time() -> None:
    with (
        temporary_directory() as directory,
        EmbeddedDatabase(directory),
        pytest.raises(EmbeddedError, match="Another process"),
    ):
        EmbeddedDatabase(directory).__enter__()


def test_a_server_whose_owner_was_killed_is_ended_at_the_next_start() -> None:
    with temporary_directory() as directory:
        owner = subprocess.Popen(
            [sys.executable, "-c", STAY, str(directory)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
        assert owner.stdout is not None
        with owner.stdout as stdout:
            orphans = [int(word) for word in stdout.readline().split()]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert all(map(is_alive, orphans))
        with EmbeddedDatabase(directory) as database:
            assert database.postgres_pid not in orphans
            assert not any(map(is_alive, orphans))
            assert database.moved == (), "the ports that the orphans held are not another program's"


def test_a_pid_file_that_names_a_stranger_is_no_reason_to_end_it(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (tmp_path / "postmaster.pid").write_text(f"{stranger.pid}\n")
        end_orphan(tmp_path / "postmaster.pid", "/some/data")
        time.sleep(0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_data_of_another_major_version_is_refused_with_its_place() -> None:
    with temporary_directory() as directory:
        data = directory / "postgres" / "data"
        data.mkdir(parents=True)
        (data / "PG_VERSION").write_text("14\n")
        with pytest.raises(EmbeddedError, match="of Postgres 14"):
            EmbeddedDatabase(directory).__enter__()


def test_the_state_directory_follows_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_directory() == tmp_path / "tenantry"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory() == tmp_path / ".local" / "state" / "tenantry"
