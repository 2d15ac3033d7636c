"""The product's commands as real processes, for tests that kill them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

COMMAND = Path(sys.executable).with_name("tenantry")
CHECKOUT = Path(__file__).resolve().parents[2]
LOOK_AGAIN_S = 0.1


class Process:
    """One `tenantry …` process; its output goes to a file, so a full pipe never stops it. Use as a context manager."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        with tempfile.NamedTemporaryFile(prefix="tenantry-process-", suffix=".log", delete=False) as log:
            self._log = Path(log.name)
            self._process = subprocess.Popen(
                [str(COMMAND), *arguments],
                cwd=CHECKOUT,
                env={**_environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that was started: bodies and requests run in it."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written so far, both streams together."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill it as the out-of-memory killer would (kill -9)."""
        self._process.kill()
        self._process.wait()

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 30) -> int:
        """Ask it to stop and return its exit status."""
        if self.is_running:
            self._process.send_signal(how)
        return self._process.wait(seconds)

    def wait(self, seconds: float = 30) -> int:
        """Wait for its own end and return its exit status."""
        return self._process.wait(seconds)

    def until(self, is_so: Callable[[], object], seconds: float = 60) -> None:
        """Look until something is so; AssertionError with its output when it ends before, or within `seconds` it is not.

        A process tells nobody of its progress: there is nothing to wait for but what it has written or answers.
        """
        deadline = time.monotonic() + seconds
        while not is_so():
            assert self.is_running, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(LOOK_AGAIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()
        self._log.unlink(missing_ok=True)


def answers(url: str) -> bool:
    """Whether an address answers 200; made for `waiting.until(lambda: answers(ready), …)`."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TENANTRY_")}
