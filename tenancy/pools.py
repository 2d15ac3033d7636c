"""The pool right behind PgBouncer in transaction mode: no prepared statements by default, no start-up options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from psycopg_pool import AsyncConnectionPool
from sqlalchemy import URL

from tenancy.message import MessageConnection

Driver = Literal["psycopg", "asyncpg"]
Pool = AsyncConnectionPool[MessageConnection]

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
    come within `pool_timeout` counts as the database being away. `prepared_statements` needs a pooler that can. A
    connection older than `max_lifetime` is replaced when it is free, so that a pooler that is being stopped is left.
    """

    database_url: str
    prepared_statements: bool = False
    pool_size: int = 10
    pool_timeout: float = 5.0
    connect_timeout: float = 5.0
    max_lifetime: float = 3600.0


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
        connection_class=MessageConnection,
        kwargs=dict(options),
        min_size=1,
        max_size=settings.pool_size,
        timeout=settings.pool_timeout,
        max_lifetime=settings.max_lifetime,
        # Short: after it a waiting transaction makes the pool try afresh, instead of sitting out a long back-off.
        reconnect_timeout=settings.pool_timeout,
        open=False,
        name="tenantry",
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
