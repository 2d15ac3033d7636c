"""Child processes that are stopped by their own pid, and in the order their owner wants."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.embedded.account import Account
from service.embedded.errors import EmbeddedError

START_TIMEOUT = 60.0
_POLL = 0.05
_TAIL = 3


@dataclass(slots=True)
class Child:
    """A running server and how to end it: `stop_signal` first, SIGKILL when `grace` seconds were not enough."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    stop_signal: signal.Signals
    grace: float

    def await_ready(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` says so.

        Raises:
            EmbeddedError: the server ended or did not answer in time; the text ends with its last log lines.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while not ready():
            if self.process.poll() is not None:
                message = f"{self.name} ended with status {self.process.returncode} at start: {self._last_words()}"
                raise EmbeddedError(message)
            if time.monotonic() > deadline:
                self.stop()
                message = f"{self.name} did not answer within {START_TIMEOUT:.0f} s: {self._last_words()}"
                raise EmbeddedError(message)
            time.sleep(_POLL)

    def stop(self) -> None:
        """End the server and wait for it; a repeat does nothing."""
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(self.grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        return " | ".join([line.strip() for line in lines if line.strip()][-_TAIL:]) or "it logged nothing"


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a child: the command, its log file, the account and how it is stopped."""

    name: str
    command: Sequence[str]
    log: Path
    account: Account
    stop_signal: signal.Signals
    grace: float = 20.0

    def start(self) -> Child:
        """Start it in a session of its own: Ctrl-C reaches us alone, and we stop it when its clients are gone."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - a fixed program with arguments of ours
                list(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_plain_environment(),
                start_new_session=True,
                **self.account.popen_options(),
            )
        return Child(self.name, process, self.log, self.stop_signal, self.grace)


def run_tool(command: Sequence[str], account: Account) -> None:
    """Run a program to its end as the account.

    Raises:
        EmbeddedError: it failed; the text ends with its last line.
    """
    done = subprocess.run(  # noqa: S603 - a fixed program with arguments of ours
        list(command),
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
        env=_plain_environment(),
        **account.popen_options(),
    )
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).decode(errors="replace").split("\n") if line.strip()]
        message = f"{Path(command[0]).name} failed: {lines[-1].strip() if lines else 'it said nothing'}"
        raise EmbeddedError(message)


def free_port() -> int:
    """Return a loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether something accepts connections on the loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def end_orphan(pid_file: Path, marker: str) -> None:
    """End the server of this pid file, which outlived the process that started it.

    The pid may belong to another program by now, so it is touched only when its command line names `marker`.

    Raises:
        EmbeddedError: it does not end.
    """
    first = pid_file.read_text().split("\n")[0].strip() if pid_file.exists() else ""
    if not first.isdigit() or marker not in _command_line(int(first)):
        return
    pid = int(first)
    deadline = time.monotonic() + START_TIMEOUT
    os.kill(pid, signal.SIGINT)
    while marker in _command_line(pid):
        if time.monotonic() > deadline:
            message = f"An earlier server (pid {pid}) does not stop: end it and try again."
            raise EmbeddedError(message)
        time.sleep(_POLL)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _plain_environment() -> Mapping[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
