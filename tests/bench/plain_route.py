"""What the framework answers for a route that does begin, bind, one insert, commit: what W5 is measured against.

Started as `python -m tests.bench.plain_route PORT DATABASE_URL TENANT DRIVER`: same server, same pooler, same pool size. The
driver is `sqlalchemy` (with asyncpg, the framework's usual way) or `psycopg` (as ours: everything in one message).
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

import uvicorn
from litestar import Litestar, post
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine

from tenancy import DatabaseSettings, load_sql
from tenancy.pools import psycopg_pool, sqlalchemy_url

SQL = load_sql(__file__)
POOL = 10


class RunBody(BaseModel):
    """The body that is posted to `/v1/runs`."""

    workflow: str
    input: dict[str, Any]


Insert = Callable[[Mapping[str, object]], Awaitable[None]]


def make_app(insert: Insert, tenant_id: UUID, close: Callable[[], Awaitable[None]]) -> Litestar:
    """Return the application with its one route."""

    @post("/v1/runs")
    async def create(data: RunBody) -> dict[str, Any]:
        run_id = uuid4()
        await insert(
            {
                "tenant_id": str(tenant_id),
                "run_id": run_id,
                "workflow": data.workflow,
                "input": RunBody.model_dump_json(data),
            }
        )
        return {"id": str(run_id), "workflow": data.workflow, "input": data.input, "status": "PENDING"}

    async def shut() -> None:
        await close()

    return Litestar([create], on_shutdown=[shut], openapi_config=None, logging_config=None)


def by_sqlalchemy(database_url: str) -> tuple[Insert, Callable[[], Awaitable[None]]]:
    """Insert through SQLAlchemy and asyncpg."""
    engine = create_async_engine(
        sqlalchemy_url(database_url, "asyncpg"),
        pool_size=POOL,
        max_overflow=0,
        connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0},
    )

    async def insert(values: Mapping[str, object]) -> None:
        async with engine.begin() as connection:
            for statement in (SQL["bind"], SQL["insert"]):
                await connection.exec_driver_sql(statement.numbered, tuple(statement.arguments(values)))

    return insert, engine.dispose


def by_psycopg(database_url: str) -> tuple[Insert, Callable[[], Awaitable[None]]]:
    """Insert through psycopg, BEGIN and COMMIT in the same message."""
    pool = psycopg_pool(DatabaseSettings(database_url, pool_size=POOL))

    async def insert(values: Mapping[str, object]) -> None:
        await pool.open()
        async with pool.connection() as connection, connection.pipeline():
            await connection.execute("begin")
            for statement in (SQL["bind"], SQL["insert"]):
                await connection.execute(statement.pyformat.encode(), values)
            await connection.execute("commit")

    return insert, pool.close


if __name__ == "__main__":
    connect = {"sqlalchemy": by_sqlalchemy, "psycopg": by_psycopg}[sys.argv[4]]
    write, end = connect(sys.argv[2])
    app = make_app(write, UUID(sys.argv[3]), end)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_config=None, loop="uvloop")
