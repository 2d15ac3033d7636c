"""The rendered configuration, in a real PgBouncer: logins by their mounted passwords, whatever characters these hold."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from service.settings import Settings
from service.tenants import list_keys
from tenancy import Database, DatabaseUnavailableError
from tests.support.chart import CHECKOUT, Helm, Rendered, containers_of, values_of
from tests.support.environment import DatabaseUrls
from tests.support.pgbouncer import program
from tests.support.system import await_start, end, free_port, missing, server_directory, start_as_server

PASSWORDS = {
    "tenantry_api": " a/b?c#d@e:f%41[g]'h\"i\\j k+l&m=n;ü$(x)`y` ",
    "tenantry_worker": '"";-- #',
    "tenantry_dispatcher": "percent%20 and {{ braces }}",
}


class Pooler:
    """PgBouncer with the chart's own files, and the settings that the chart gives its clients."""

    def __init__(self, rendered: Rendered, port: int, directory: Path) -> None:
        self.rendered = rendered
        self.port = port
        self.passwords = directory / "passwords"

    def settings(self, deployment: str, **changes: str) -> Settings:
        """Read the environment of a container, its mounted files taken from here."""
        (container,) = containers_of(self.rendered.one("Deployment", deployment)["spec"]["template"]["spec"])
        environment = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        for name, value in environment.items():
            environment[name] = value.replace("rel-tenantry-pgbouncer:", "127.0.0.1:")
            if name.endswith("_PASSWORD_FILE"):
                environment[name] = str(self.passwords / f"tenantry_{Path(value).parent.name}")
        return Settings.from_environment({**environment, **changes})


@pytest.fixture(scope="module")
def pooler(helm: Helm, database_urls: DatabaseUrls) -> Iterator[Pooler]:
    binary = program()
    if binary is None:
        missing("PgBouncer", "pgbouncer")
    directory = server_directory("pgbouncer-of-the-chart")
    port, server = free_port(), database_urls.postgres
    # Debian's PgBouncer keeps no prepared statements; the test's Postgres speaks no TLS.
    database = {
        "host": server.host,
        "port": server.port,
        "name": database_urls.database,
        "sslMode": "disable",
        "preparedStatements": False,
    }
    rendered = helm.render(
        values_of("minimal", {"database": {**database, "ca": {"existingSecret": ""}}, "pgbouncer": {"port": port}})
    )
    made = Pooler(rendered, port, directory)
    made.passwords.mkdir()
    for login, password in PASSWORDS.items():
        (made.passwords / login).write_text(f"{password}\n")
    _as_the_init_container_does(rendered, made.passwords, directory / "userlist.txt")
    ini = rendered.one("ConfigMap", "-pgbouncer")["data"]["pgbouncer.ini"]
    (directory / "pgbouncer.ini").write_text(
        ini.replace("/etc/pgbouncer/users/", f"{directory}/").replace("listen_addr = *", "listen_addr = 127.0.0.1")
    )
    process = start_as_server([binary, str(directory / "pgbouncer.ini")], directory, directory / "log")
    assert await_start(process, lambda: _listens(port), directory / "log"), (directory / "log").read_text()
    yield made
    end(process, signal.SIGTERM)
    shutil.rmtree(directory, ignore_errors=True)


def _as_the_init_container_does(rendered: Rendered, passwords: Path, output: Path) -> None:
    (init,) = rendered.one("Deployment", "-pgbouncer")["spec"]["template"]["spec"]["initContainers"]
    places = {"/etc/tenantry/passwords": str(passwords), "/etc/pgbouncer/users/userlist.txt": str(output)}
    arguments = [places.get(argument, argument) for argument in init["args"]]
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Kubernetes gives it to the group of the pod; here PgBouncer runs as another user.
    output.chmod(0o644)


def _listens(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://nobody@127.0.0.1:{port}/x", connect_timeout=2).close()
    except psycopg.OperationalError as error:
        return "refused" not in str(error)
    return True


@pytest.mark.parametrize(("deployment", "name"), [("-api", "database_url"), ("-worker-default", "database_url"), ("-worker-default", "dispatcher_database_url")])  # fmt: skip
async def test_a_pod_logs_in_with_the_password_that_is_mounted(pooler: Pooler, deployment: str, name: str) -> None:
    settings = pooler.settings(deployment)
    url = settings.require(name)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None) as connection:
        row = await (await connection.execute("select session_user::text")).fetchone()
    assert row == (psycopg.conninfo.conninfo_to_dict(url)["user"],)


async def test_the_api_works_through_it(pooler: Pooler) -> None:
    settings = pooler.settings("-api")
    assert (settings.prepared_statements, settings.log_format, settings.host) == (False, "json", "0.0.0.0")
    async with Database(settings.api_database()) as database:
        await database.check_login()
        async with database.transaction(uuid4()) as tx:
            assert await list_keys(tx, limit=1) == []


async def test_another_password_is_refused(pooler: Pooler) -> None:
    (pooler.passwords / "wrong").write_text("wrong")
    settings = pooler.settings("-api", TENANTRY_DATABASE_PASSWORD_FILE=str(pooler.passwords / "wrong"))
    with pytest.raises(psycopg.OperationalError, match=r"password authentication failed|SASL"):
        await psycopg.AsyncConnection.connect(settings.require("database_url"))
    async with Database(settings.api_database()) as database:
        with pytest.raises(DatabaseUnavailableError):
            await database.check_login()
