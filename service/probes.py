"""Whether this process can work: the database answers, the login is safe and the schema is this build's.

The migrations and the build travel together, so revisions are compared by their order: an older schema is not ready, a
newer one is (the previous release keeps working while the next one's migrations have run).
"""

import asyncio
import logging
import time
from typing import Final

import migrations
from service.patience import within
from tenancy import Database, DatabaseUnavailableError, TenancyError

CHECK_TIMEOUT_S: Final = 3.0
RECHECK_AFTER_S: Final = 1.0
_log = logging.getLogger("tenantry.probes")


class NotReadyError(Exception):
    """The process cannot work yet; the text says what an operator can do."""


class ReadinessGate:
    """Opens when the database, the login and the schema are right; stays open for requests from then on.

    `check` looks every time (the readiness probe), `pass_through` only until it has succeeded once (every request).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_open = False
        self._refusal: str | None = None
        self._refused_at = 0.0
        self._lock = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether a check has ever succeeded."""
        return self._is_open

    async def check(self) -> None:
        """Look now.

        Raises:
            NotReadyError: with what is missing.
            UnsafeRoleError: the login could pass row-level security by.
        """
        try:
            async with within(CHECK_TIMEOUT_S):
                if not self._is_open:
                    await self._database.check_login()
                revision = await self._database.schema_revision()
        except (DatabaseUnavailableError, TimeoutError, OSError) as error:
            _log.warning("probes.database_unavailable", extra={"error": type(error).__name__})
            # A server without our roles refuses the login, and a pooler tells that as it tells an outage.
            hint = "" if self._is_open else " A new one needs `tenantry db migrate`, and the login its password."
            raise NotReadyError(f"The database cannot be reached.{hint}") from error
        if revision is None or revision < migrations.HEAD:
            found = "no schema" if revision is None else f"revision {revision}"
            raise NotReadyError(
                f"The database has {found}, this build needs {migrations.HEAD}: run `tenantry db migrate`."
            )
        self._is_open = True

    async def pass_through(self) -> None:
        """Let a request through, looking first as long as no look has succeeded; a refusal holds for a second.

        Raises:
            NotReadyError: as `check`.
        """
        if not self._is_open:
            async with self._lock:
                await self._open()

    async def _open(self) -> None:
        # Whoever waited for the lock finds what the one before has found.
        if not self._is_open:
            if self._refusal is not None and time.monotonic() - self._refused_at < RECHECK_AFTER_S:
                raise NotReadyError(self._refusal)
            try:
                await self.check()
            except (TenancyError, NotReadyError) as refusal:
                self._refusal, self._refused_at = str(refusal), time.monotonic()
                raise NotReadyError(self._refusal) from refusal
