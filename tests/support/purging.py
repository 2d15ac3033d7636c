"""What a purge does to a run, by hand and at the moment that a test chooses."""

import psycopg


async def erase(superuser: psycopg.AsyncConnection, run_id: str) -> None:
    """Do what a purge does, in the superuser's open transaction."""
    for table in await tables_of_runs(superuser):
        await superuser.execute(f"delete from tenantry.{table} where run_id = %s".encode(), (run_id,))


async def tables_of_runs(superuser: psycopg.AsyncConnection) -> list[str]:
    cursor = await superuser.execute(
        "select relation.relname from pg_attribute as attribute join pg_class as relation on relation.oid = attrelid"
        " where relation.relnamespace = 'tenantry'::regnamespace and relation.relkind = 'r' and attname = 'run_id'"
    )
    return [name for (name,) in await cursor.fetchall()]
