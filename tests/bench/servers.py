"""The servers of a bench: one durable Postgres 18 behind one PgBouncer that prepares nothing."""

from collections.abc import Mapping

from tests.support.environment import Cluster
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import Postgres

SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "deadlock_timeout": "1s",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "10000",
    "pg_stat_statements.track_utility": "on",
    "pg_stat_statements.track_planning": "on",
}
POOL = 40


class BenchCluster(Cluster):
    """Like the tests' cluster, but with fsync, full_page_writes and synchronous_commit on, and statistics kept."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are the server's, beyond those of every bench."""
        self.postgres = Postgres(18, fsync=True, settings={**SETTINGS, **(settings or {})}).start()
        self.pgbouncer = PgBouncer(self.postgres, default_pool_size=POOL).start()
        self._count = 0
        self._has_template = False
