"""A release of the chart without a cluster: its containers as processes here, their mounts as files, PgBouncer included."""

import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psycopg

from service.settings import Settings
from tests.support.chart import Helm, Manifest, Values, merged, values_of
from tests.support.environment import DatabaseUrls
from tests.support.pgbouncer import program
from tests.support.processes import Process
from tests.support.system import await_start, end, free_port, missing, server_directory, start_as_server

# Characters that shells, URLs, INI files and quoted strings would each like to have for themselves.
PASSWORDS: Mapping[str, str] = {
    "tenantry_api": " a/b?c#d@e:f%41[g]'h\"i\\j k+l&m=n;ü$(x)`y` ",
    "tenantry_worker": '"";-- #',
    "tenantry_dispatcher": "percent%20 and {{ braces }}",
    "tenantry_admin": "\\\\'quoted'\t",
}


class Release:
    """The case `minimal` with these changes, on a test's database. Use as a context manager: PgBouncer runs in it.

    Debian's PgBouncer keeps no prepared statements and the tests' Postgres speaks no TLS and asks for no password.
    """

    def __init__(self, helm: Helm, urls: DatabaseUrls, changes: Values) -> None:
        if program() is None:
            missing("PgBouncer", "pgbouncer")
        server = urls.postgres
        self.directory = server_directory("release")
        self.ports = {"8000": str(free_port()), "8001": str(free_port()), "6432": str(free_port())}
        here = {
            "database": {
                "host": server.host,
                "port": server.port,
                "name": urls.database,
                "sslMode": "disable",
                "preparedStatements": False,
                "ca": {"existingSecret": ""},
                "logins": {"owner": {"username": "postgres"}},
            },
            "pgbouncer": {"port": int(self.ports["6432"])},
        }
        self.rendered = helm.render(values_of("minimal", merged(here, changes)))
        self.secrets = {"password": "unasked", "token": "operator", "key": ""}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self.ports['8000']}"

    def pod(self, kind: str, end: str) -> Manifest:
        """Return the spec of the pod of a workload."""
        found = self.rendered.one(kind, end)["spec"]
        spec: Manifest = found.get("template", {}).get("spec", found)
        return spec

    def environment(self, container: Manifest) -> dict[str, str]:
        """Return the variables of a container, its mounts, ports and neighbours being here."""
        found = {}
        for item in container.get("env", []):
            found[item["name"]] = self._here(item["value"])
            if item["name"].endswith("_FILE"):
                self._mount(Path(found[item["name"]]))
        return found

    def settings(self, kind: str, end: str, **changes: str) -> Settings:
        """Read the settings that the only container of a pod gets."""
        (container,) = self.pod(kind, end)["containers"]
        return Settings.from_environment({**self.environment(container), **changes})

    def start(self, container: Manifest) -> Process:
        """Run a container's command with its environment."""
        return Process(*map(self._here, container["args"]), environment=self.environment(container))

    def __enter__(self) -> Self:
        spec = self.pod("Deployment", "-pgbouncer")
        (init,) = spec["initContainers"]
        passwords = self.directory / "passwords"
        passwords.mkdir()
        (self.directory / "users").mkdir()
        (mounted,) = [volume["projected"]["sources"] for volume in spec["volumes"] if "projected" in volume]
        for source in mounted:
            (item,) = source["secret"]["items"]
            (passwords / item["path"]).write_text(f"{PASSWORDS[item['path']]}\n")
        with self.start(init) as written:
            assert written.wait() == 0, written.output
        users = self.directory / "users" / "userlist.txt"
        # Kubernetes gives it to the group of the pod; here PgBouncer may run as another user.
        users.chmod(0o644)
        ini = self._here(self.rendered.one("ConfigMap", "-pgbouncer")["data"]["pgbouncer.ini"])
        (self.directory / "pgbouncer.ini").write_text(ini.replace("listen_addr = *", "listen_addr = 127.0.0.1"))
        command = [str(program()), str(self.directory / "pgbouncer.ini")]
        self._process = start_as_server(command, self.directory, self.directory / "log")
        log = self.directory / "log"
        assert await_start(self._process, self._listens, log), log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process, signal.SIGTERM)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _here(self, text: str) -> str:
        places = {
            "/etc/tenantry/": f"{self.directory}/",
            "/etc/pgbouncer/": f"{self.directory}/",
            "rel-tenantry-pgbouncer:": "127.0.0.1:",
            "http://rel-tenantry-api:80": self.url,
            "0.0.0.0": "127.0.0.1",
        }
        for there, here in places.items():
            text = text.replace(there, here)
        return self.ports.get(text, text)

    def _mount(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        login = f"tenantry_{path.parent.name}"
        path.write_text(PASSWORDS.get(login, self.secrets[path.name]) + "\n")

    def _listens(self) -> bool:
        try:
            psycopg.connect(f"postgresql://nobody@127.0.0.1:{self.ports['6432']}/x", connect_timeout=2).close()
        except psycopg.OperationalError as error:
            return "refused" not in str(error)
        return True
