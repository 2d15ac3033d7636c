"""What the framework answers for a route that does begin, bind, one insert, commit: what W5 is measured against.

Started as `python -m tests.bench.plain_route PORT DATABASE_URL TENANT`: same server, same drivers, same pooler.
"""

import sys
from typing import Any
from uuid import UUID, uuid4

import uvicorn
from litestar import Litestar, post
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine

from tenancy import load_sql

SQL = load_sql(__file__)
POOL = 10


class RunBody(BaseModel):
    """The body that is posted to `/v1/runs`."""

    workflow: str
    input: dict[str, Any]


def make_app(database_url: str, tenant_id: UUID) -> Litestar:
    """Return the application with its one route."""
    engine = create_async_engine(
        database_url.replace("postgresql://", "postgresql+asyncpg://"),
        pool_size=POOL,
        max_overflow=0,
        connect_args={"statement_cache_size": 0, "prepared_statement_cache_size": 0},
    )
    bind, insert = SQL["bind"], SQL["insert"]

    @post("/v1/runs")
    async def create(data: RunBody) -> dict[str, Any]:
        run_id = uuid4()
        async with engine.begin() as connection:
            await connection.exec_driver_sql(bind.numbered, (str(tenant_id),))
            values = {
                "tenant_id": tenant_id,
                "run_id": run_id,
                "workflow": data.workflow,
                "input": RunBody.model_dump_json(data),
            }
            await connection.exec_driver_sql(insert.numbered, tuple(insert.arguments(values)))
        return {"id": str(run_id), "workflow": data.workflow, "input": data.input, "status": "PENDING"}

    return Litestar([create], openapi_config=None, logging_config=None)


if __name__ == "__main__":
    app = make_app(sys.argv[2], UUID(sys.argv[3]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_config=None, loop="uvloop")
