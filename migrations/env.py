"""Alembic's environment: runs the revisions on the connection that `migrations.upgrade` prepared, and on no other."""

from alembic import context

SCHEMA = "tenantry"

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations through `tenantry db migrate`: it takes the lock and the owner's role first")
context.configure(connection=connection, version_table_schema=SCHEMA, transaction_per_migration=False)
context.run_migrations()
