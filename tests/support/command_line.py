"""The command line as users call it: a process, its two streams or a terminal, and its exit status."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs `tenantry` with these settings and no others of ours."""

    settings: Mapping[str, str]

    def __call__(self, *arguments: str, stdin: str = "", **settings: str) -> Answer:
        """Run it with these arguments, and with further settings, to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "service.cli", *arguments],
            cwd=CHECKOUT,
            env=self._environment(settings),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, *arguments: str, interrupt_at: str | None = None, columns: int = 80) -> Answer:
        """Run it on a terminal of 24 lines, both streams in `out`; Ctrl-C is pressed once `interrupt_at` is shown."""
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # A size that the tests' own processes were told is not this terminal's.
        inherited = {name: value for name, value in self._environment({}).items() if name not in {"COLUMNS", "LINES"}}
        # A job in a shell's background ignores Ctrl-C, and so would what it starts.
        ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
        process = subprocess.Popen(
            [sys.executable, "-m", "service.cli", *arguments],
            cwd=CHECKOUT,
            env={**inherited, "TERM": "xterm-256color"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        signal.signal(signal.SIGINT, ctrl_c)
        with process:
            os.close(terminal)
            try:
                shown = _interrupted(process, master, interrupt_at)
                process.wait(60)
            finally:
                process.kill()
                os.close(master)
        assert b"Traceback" not in shown
        return Answer(process.returncode, shown.decode().replace("\r\n", "\n"), "")

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TENANTRY_")}
        return {**inherited, **{f"TENANTRY_{name}": value for name, value in {**self.settings, **settings}.items()}}


def _interrupted(process: subprocess.Popen[bytes], master: int, interrupt_at: str | None) -> bytes:
    """Return all that a process shows, pressing Ctrl-C where it is to be."""
    shown = b""
    # Reading fails once no process holds the terminal.
    while part := _read(master):
        shown += part
        if interrupt_at is not None and interrupt_at.encode() in shown:
            interrupt_at = None
            process.send_signal(signal.SIGINT)
    return shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""
