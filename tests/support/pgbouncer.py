"""A throw-away PgBouncer in transaction mode on a free loopback port."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

import psycopg

from tests.support.postgres import SUPERUSER, Postgres
from tests.support.system import await_start, end, free_port, missing, server_directory, start_as_server

ADMIN = "pgbouncer_admin"
LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")


def program() -> str | None:
    """Find PgBouncer's binary; Debian puts it where a plain user's PATH may not look."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@cache
def version_of(program: str) -> tuple[int, int]:
    """Ask a PgBouncer for its version."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", told)
    assert found is not None, told
    return int(found[1]), int(found[2])


def programs() -> list[str]:
    """Find every PgBouncer to test with: the machine's own, and those that TENANTRY_TEST_PGBOUNCERS lists with colons."""
    listed = os.environ.get("TENANTRY_TEST_PGBOUNCERS", "").split(os.pathsep)
    return list(dict.fromkeys(found for found in (program(), *listed) if found))


class PgBouncer:
    """One pooler in front of one cluster: every database, the given users, trust on loopback, removed by `close`."""

    def __init__(
        self,
        postgres: Postgres,
        *,
        default_pool_size: int = 20,
        users: Sequence[str] = (),
        program_path: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        found = program_path or program()
        if found is None:
            missing("PgBouncer", "pgbouncer")
        self._program = found
        self.version = version_of(found)
        self._settings = settings or {}
        self._postgres = postgres
        self._pool_size = default_pool_size
        self._users = (SUPERUSER, ADMIN, *LOGINS, *users)
        self._directory = server_directory("pgbouncer")
        self._log = self._directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.host = "127.0.0.1"
        self.port = free_port()

    @property
    def log(self) -> str:
        """What the pooler has logged so far."""
        return self._log.read_text(errors="replace")

    def url(self, user: str, database: str = "postgres") -> str:
        """Address of a database through the pooler."""
        return f"postgresql://{user}@{self.host}:{self.port}/{database}"

    def start(self) -> "PgBouncer":
        """Write its files, start it and wait until its console answers."""
        for _ in range(5):
            configuration = self._directory / "pgbouncer.ini"
            configuration.write_text(self._configuration())
            users = "".join(f'"{user}" ""\n' for user in self._users)
            (self._directory / "userlist.txt").write_text(users)
            self._process = start_as_server([self._program, str(configuration)], self._directory, self._log)
            if await_start(self._process, self._is_up, self._log):
                return self
            if not self._was_up:
                self.port = free_port()
        msg = f"PgBouncer ended at its start:\n{self.log[-2000:]}"
        raise RuntimeError(msg)

    _was_up = False

    def _configuration(self) -> str:
        return "\n".join(
            (
                "[databases]",
                f"* = host={self._postgres.host} port={self._postgres.port}",
                "[pgbouncer]",
                f"listen_addr = {self.host}",
                f"listen_port = {self.port}",
                "unix_socket_dir =",
                "auth_type = trust",
                f"auth_file = {self._directory}/userlist.txt",
                f"pidfile = {self._directory}/pgbouncer.pid",
                f"admin_users = {ADMIN}",
                "pool_mode = transaction",
                f"default_pool_size = {self._pool_size}",
                "max_client_conn = 1000",
                "server_login_retry = 1",
                *(f"{name} = {value}" for name, value in self._settings.items()),
                "",
            )
        )

    def _is_up(self) -> bool:
        try:
            self.console("show version")
        except psycopg.OperationalError:
            return False
        self._was_up = True
        return True

    def console(self, command: str) -> list[dict[str, object]]:
        """Give a command to the admin console (`show servers`, `pause`, …) and return its rows, if it has any."""
        url = self.url(ADMIN, "pgbouncer")
        with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor, connect_timeout=5) as admin:
            cursor = admin.execute(command.encode())
            if cursor.description is None:
                return []
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def reconnect(self) -> None:
        """Close every server connection as soon as it is released."""
        self.console("reconnect")

    def stop(self) -> None:
        """Stop at once: every client loses its connection."""
        if self._process is not None:
            # Since 1.23 SIGTERM waits for the clients to leave.
            end(self._process, signal.SIGTERM if self.version < (1, 23) else signal.SIGQUIT)
            self._process = None

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Stop it in its tracks: connections stay, and nothing comes through them until the end of the block."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop and remove everything."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)
