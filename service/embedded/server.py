"""The embedded database as one thing: started, migrated, with a URL for every login, and stopped."""

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psycopg
from psycopg import sql

from service.embedded.account import Account
from service.embedded.errors import EmbeddedError
from service.embedded.pgbouncer import DATABASE, find_pgbouncer, start_pgbouncer
from service.embedded.place import Place
from service.embedded.ports import Ports
from service.embedded.postgres import SUPERUSER, start_postgres

LOGINS = ("tenantry_api", "tenantry_worker", "tenantry_dispatcher", "tenantry_admin")
NO_PGBOUNCER = "PgBouncer is not on this machine (apt-get install pgbouncer): going to Postgres directly."


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """A URL for every login; all but `direct` go through PgBouncer when it is there."""

    api: str
    worker: str
    dispatcher: str
    operator: str
    direct: str


class EmbeddedDatabase:
    """A context manager: a running, migrated database with its data under `directory`.

    `urls`, `postgres_pid`, `pgbouncer_pid` (None without PgBouncer) and `moved`, a line for each server that is not at
    its port of last time, are there once it is entered. Entering blocks for some seconds: call it in a thread from a
    running loop.

    Raises:
        EmbeddedError: something is missing or another process uses the directory.
    """

    urls: DatabaseUrls
    postgres_pid: int
    pgbouncer_pid: int | None
    moved: tuple[str, ...]

    def __init__(self, directory: Path) -> None:
        """Name the state directory; it is made when the database is entered."""
        self._directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Start everything, or nothing."""
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop PgBouncer, then Postgres."""
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        account = Account.unprivileged()
        directory = self._directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        stack.callback(_lock(directory).close)
        work = directory / "postgres"
        work.mkdir(exist_ok=True, mode=0o700)
        account.own(work)
        if not account.can_reach(work):
            message = (
                f"The account that Postgres runs as cannot reach {directory}: set XDG_STATE_HOME to a directory it can."
            )
            raise EmbeddedError(message)
        passwords = _passwords(directory / "passwords.json")
        place = Place(work, account, Ports(directory / "ports.json"))
        server, port = start_postgres(place, passwords[SUPERUSER])
        stack.callback(server.stop)
        self.postgres_pid = server.process.pid
        direct = _url(SUPERUSER, passwords[SUPERUSER], port)
        _prepare(port, passwords, direct)
        logins = {login: passwords[login] for login in LOGINS}
        self.pgbouncer_pid, door = None, port
        binary = find_pgbouncer()
        if binary is not None:
            bouncer, door = start_pgbouncer(binary, place, port, logins)
            stack.callback(bouncer.stop)
            self.pgbouncer_pid = bouncer.process.pid
        api, worker, dispatcher, operator = (_url(login, password, door) for login, password in logins.items())
        self.urls = DatabaseUrls(api, worker, dispatcher, operator, direct)
        self.moved = tuple(place.ports.moved)


def state_directory() -> Path:
    """Return where a development database lives between starts: `tenantry` in the user's state directory.

    Root's home is closed to the account that Postgres runs as, so root's is `/var/lib/tenantry`.
    """
    configured = os.environ.get("XDG_STATE_HOME", "")
    if configured.startswith("/"):
        return Path(configured) / "tenantry"
    if os.geteuid() == 0:
        return Path("/var/lib/tenantry")
    return Path.home() / ".local" / "state" / "tenantry"


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Make a directory for one database, and remove it at the end."""
    path = Path(tempfile.mkdtemp(prefix="tenantry-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _lock(directory: Path) -> IO[str]:
    file = (directory / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        message = f"Another process runs the embedded database in {directory}; end it first."
        raise EmbeddedError(message) from None
    return file


def _passwords(path: Path) -> Mapping[str, str]:
    stored: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    missing = [login for login in (SUPERUSER, *LOGINS) if login not in stored]
    if missing:
        stored |= {login: secrets.token_urlsafe(24) for login in missing}
        unfinished = path.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(stored, file)
        unfinished.rename(path)
    return stored


def _prepare(port: int, passwords: Mapping[str, str], direct: str) -> None:
    import migrations  # noqa: PLC0415 - Alembic takes long to load, and most commands have no use for it

    administration = _url(SUPERUSER, passwords[SUPERUSER], port, "postgres")
    with psycopg.connect(administration, autocommit=True) as connection:
        known = connection.execute("select 1 from pg_database where datname = %s", [DATABASE]).fetchone()
        if known is None:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
    migrations.upgrade(direct)
    with psycopg.connect(direct, autocommit=True) as connection:
        for login in LOGINS:
            statement = sql.SQL("alter role {} password {}").format(
                sql.Identifier(login), sql.Literal(passwords[login])
            )
            connection.execute(statement)


def _url(login: str, password: str, port: int, database: str = DATABASE) -> str:
    return f"postgresql://{login}:{password}@127.0.0.1:{port}/{database}"
