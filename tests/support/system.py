"""The machine under the tests: free ports, an unprivileged user for servers, stopping by pid, missing packages."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

SERVER_USER = "postgres"
PREFIX = "tenantry-test-"


def missing(what: str, package: str) -> NoReturn:
    """Skip the test with the apt-get line that would let it run; under CI=true it is an error."""
    reason = f"{what} is missing: apt-get install {package}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """Find a port on loopback that nobody listens on; another program may still be faster, so starters retry."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def server_user() -> str | None:
    """Name the user that servers run as: our own unless we are root, which Postgres and PgBouncer refuse."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(SERVER_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", "--user-group", SERVER_USER], check=True)
    return SERVER_USER


def server_directory(kind: str) -> Path:
    """Make a private directory for a server's files; its name carries our pid, so that `sweep` knows its owner."""
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-{kind}-"))
    user = server_user()
    if user is not None:
        shutil.chown(directory, user, user)
    return directory


def run_as_server(command: list[str], directory: Path) -> None:
    """Run a command to its end as the server user; its output is the error's text when it fails."""
    done = subprocess.run(
        command, cwd=directory, user=server_user(), group=server_user(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        msg = f"{command[0]} exited {done.returncode}: {done.stderr or done.stdout}"
        raise RuntimeError(msg)


def start_as_server(command: list[str], directory: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a server in the foreground of its own session, away from the terminal's Ctrl-C; output goes to `log`."""
    user = server_user()
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=directory,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def await_start(process: subprocess.Popen[bytes], is_up: Callable[[], bool], log: Path, seconds: float = 30) -> bool:
    """Poll until the server answers: True; False when it ended first. RuntimeError with its log when it hangs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if is_up():
            return True
        time.sleep(0.02)
    msg = f"{process.args!r} did not come up within {seconds} s:\n{log.read_text()[-2000:]}"
    raise RuntimeError(msg)


def end(process: subprocess.Popen[bytes], how: signal.Signals, seconds: float = 20) -> None:
    """Send the signal and wait for the end; whoever does not end in time is killed."""
    if process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def sweep() -> None:
    """Stop servers and remove directories that a killed test session left behind, each by the pid in its own file."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = directory.name.removeprefix(PREFIX).split("-")[0]
        if not owner.isdecimal() or Path(f"/proc/{owner}").exists():
            continue
        for pid_file in (*directory.glob("data/postmaster.pid"), *directory.glob("pgbouncer.pid")):
            pid = int(pid_file.read_text().split()[0])
            if str(directory).encode() in _command_line(pid):
                os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(directory, ignore_errors=True)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
