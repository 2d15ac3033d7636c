"""Keeps the leases alive from a thread and a connection of its own, so that no body and no busy loop can starve it.

One statement a tenant for all its jobs; the answers say which runs were cancelled and which leases are lost.
"""

import contextlib
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from kernel import Fence, Heartbeat, beat_call, heartbeats
from kernel.command import REPLAY_MARGIN
from tenancy import DatabaseSettings, binding_call

logger = logging.getLogger(__name__)
CHUNK = 500
SHORTEST_ROUND_S = 5.0
Leases = Mapping[UUID, Sequence[Fence]]


def replay_margin(heartbeat_interval: timedelta) -> timedelta:
    """Return how far ahead a heartbeat sets a replay's next poll: one round may fail, and the replay is still ours."""
    return max(REPLAY_MARGIN, 2 * heartbeat_interval)


class HeartbeatThread:
    """Beats every `interval_s` (jittered down by at most a fifth) until stopped; a failed round is tried again soon."""

    def __init__(
        self,
        database: DatabaseSettings,
        interval_s: float,
        leases: Callable[[], Leases],
        answered: Callable[[UUID, Sequence[Heartbeat]], None],
    ) -> None:
        """`leases` and `answered` are called in the thread: the host makes both safe for that."""
        self._database = database
        self._interval_s = interval_s
        self._replay_margin = replay_margin(timedelta(seconds=interval_s))
        self._leases = leases
        self._answered = answered
        self._stopped = threading.Event()
        self._connection: psycopg.Connection[dict[str, object]] | None = None
        self._connected_at = 0.0
        self._thread = threading.Thread(target=self._run, name="tenantry-heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and wait for the thread; the leases must have been given back before."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        delay_s = self._interval_s
        while not self._stopped.wait(delay_s * random.uniform(0.8, 1.0)):  # noqa: S311 - jitter, not a secret
            try:
                self._beat_all()
                delay_s = self._interval_s
            except Exception as error:  # noqa: BLE001 - the thread must live as long as the leases
                # The leases outlast several rounds; a quick next try costs nothing.
                logger.warning("heartbeat_failed", extra={"error": type(error).__name__})
                self._disconnect()
                delay_s = min(self._interval_s, 1.0)
        self._disconnect()

    def _beat_all(self) -> None:
        if monotonic() - self._connected_at > self._database.max_lifetime:
            # As the pools do: a pooler that is being stopped waits for its clients to leave.
            self._disconnect()
        # A path that drops packets never says so, and the leases would lapse meanwhile.
        hang_up = threading.Timer(max(self._interval_s, SHORTEST_ROUND_S), self._hang_up)
        hang_up.daemon = True
        hang_up.start()
        try:
            for tenant_id, fences in self._leases().items():
                for start in range(0, len(fences), CHUNK):
                    self._answered(tenant_id, self._beat(tenant_id, fences[start : start + CHUNK]))
        finally:
            hang_up.cancel()

    def _beat(self, tenant_id: UUID, fences: Sequence[Fence]) -> tuple[Heartbeat, ...]:
        connection = self._connect()
        with connection.transaction(), connection.cursor() as cursor:
            for statement, params in (binding_call(tenant_id), beat_call(fences, self._replay_margin)):
                cursor.execute(statement.pyformat.encode(), {**params, "tenant_id": tenant_id})
            return heartbeats(cursor.fetchall())

    def _connect(self) -> psycopg.Connection[dict[str, object]]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._database.database_url,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=5,
                row_factory=dict_row,
            )
            self._connected_at = monotonic()
        return self._connection

    def _hang_up(self) -> None:
        connection = self._connection
        if connection is None or connection.closed:
            return
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
