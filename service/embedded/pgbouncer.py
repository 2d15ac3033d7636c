"""PgBouncer in transaction mode, where its binary is on the machine."""

import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from service.embedded.account import Account
from service.embedded.place import Place
from service.embedded.processes import Child, Launch, end_orphan, is_listening

DATABASE = "tenantry"
_CONFIGURATION = """\
[databases]
{database} = host=127.0.0.1 port={server_port} dbname={database}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
server_login_retry = 1
"""


def find_pgbouncer() -> Path | None:
    """Return the binary, also from where Debian puts it outside a user's PATH."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
    return Path(found) if found else None


def start_pgbouncer(binary: Path, place: Place, server_port: int, passwords: Mapping[str, str]) -> tuple[Child, int]:
    """Start PgBouncer in front of the server on `server_port` for these logins; return it and its port.

    Raises:
        EmbeddedError: it does not start.
    """
    directory, account = place.directory, place.account
    pid_file = directory / "pgbouncer.pid"
    end_orphan(pid_file, str(directory))
    users = directory / "userlist.txt"
    _write_private(users, "".join(f'"{login}" "{password}"\n' for login, password in passwords.items()), account)
    port = place.ports.take("PgBouncer")
    configuration = directory / "pgbouncer.ini"
    text = _CONFIGURATION.format(database=DATABASE, server_port=server_port, port=port, users=users)
    _write_private(configuration, text, account)
    command = [str(binary), "-q", str(configuration)]
    child = Launch("PgBouncer", command, directory / "pgbouncer.log", account, signal.SIGTERM, grace=3.0).start()
    pid_file.write_text(f"{child.process.pid}\n")
    child.await_ready(lambda: is_listening(port))
    return child, port


def _write_private(path: Path, text: str, account: Account) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    account.own(path)
