"""Who the servers run as: Postgres refuses root, so root lends them an unprivileged account."""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.embedded.errors import EmbeddedError

_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """An account for child processes; `uid` of None is the account we run as."""

    uid: int | None
    gid: int | None

    @classmethod
    def unprivileged(cls) -> "Account":
        """Return our own account, or as root the first one that exists of `postgres` and `nobody`."""
        if os.geteuid() != 0:
            return cls(None, None)
        for name in _CANDIDATES:
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid)
        message = "Postgres refuses to run as root and there is no user 'postgres' or 'nobody': run as another user."
        raise EmbeddedError(message)

    def popen_options(self) -> dict[str, Any]:
        """Return the options of `subprocess` that run a program as this account."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Make the account the owner of a file or an (empty) directory."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can_reach(self, path: Path) -> bool:
        """Whether the account can see a file: every directory above it must let it pass."""
        test = shutil.which("test") or "/usr/bin/test"
        probe = subprocess.run([test, "-r", str(path)], check=False, cwd="/", **self.popen_options())  # noqa: S603
        return probe.returncode == 0
