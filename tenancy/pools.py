"""Connection pools right behind PgBouncer in transaction mode: no prepared statements by default, no start-up options.

psycopg_pool for the processes of ours; a SQLAlchemy engine on asyncpg, whose own pool recycles what broke, for others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

Driver = Literal["psycopg", "asyncpg"]
Pool = AsyncConnectionPool[AsyncConnection[Any]]

# A machine that is gone is noticed within half a minute, not after the kernel's two hours.
KEEPALIVE: Mapping[str, int] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """How a database is reached.

    `database_url` is `postgresql://user[:password]@host:port/db`, percent-encoded. Times are seconds; a connection
    that does not
    come within `pool_timeout` counts as the database being away. `prepared_statements` needs a pooler that can.
    """

    database_url: str
    prepared_statements: bool = False
    driver: Driver = "psycopg"
    pool_size: int = 10
    pool_timeout: float = 5.0
    connect_timeout: float = 5.0


def psycopg_pool(settings: DatabaseSettings) -> Pool:
    """Return a closed pool of autocommit connections: BEGIN and COMMIT are sent by the transaction itself."""
    options: Mapping[str, Any] = {
        "autocommit": True,
        "prepare_threshold": 5 if settings.prepared_statements else None,
        "connect_timeout": max(int(settings.connect_timeout), 1),
        **KEEPALIVE,
    }
    return AsyncConnectionPool(
        settings.database_url,
        kwargs=dict(options),
        min_size=1,
        max_size=settings.pool_size,
        timeout=settings.pool_timeout,
        # Short: after it a waiting transaction makes the pool try afresh, instead of sitting out a long back-off.
        reconnect_timeout=settings.pool_timeout,
        open=False,
        name="tenantry",
    )


def asyncpg_engine(settings: DatabaseSettings) -> AsyncEngine:
    """Return an engine whose connections keep nothing prepared.

    Its pool is small, the pooler's is the one that counts.
    """
    caches = {} if settings.prepared_statements else {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
    return create_async_engine(
        sqlalchemy_url(settings.database_url, "asyncpg"),
        pool_size=settings.pool_size,
        max_overflow=0,
        pool_timeout=settings.pool_timeout,
        pool_reset_on_return=None,
        connect_args={"timeout": settings.connect_timeout, **caches},
    )


def sqlalchemy_url(database_url: str, driver: Driver) -> URL:
    """Return a plain `postgresql://` URL as SQLAlchemy takes it; user and password may hold any character.

    What stands behind a `?` is kept, since dropping `sslmode` would drop the encryption.
    """
    parts = urlsplit(database_url)
    query = dict(parse_qsl(parts.query))
    if driver == "asyncpg" and "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    return URL.create(
        f"postgresql+{driver}",
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password is not None else None,
        host=unquote(parts.hostname) if parts.hostname else None,
        port=parts.port,
        database=unquote(parts.path.lstrip("/")) or None,
        query=query,
    )
