"""The ledger of durable steps, under the policies of every table, and what a suspended stage waits for."""

from alembic import op

from migrations.policies import Access, protect
from migrations.script import run_script

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and put it under its policies."""
    run_script(__file__)
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    for statement in protect("workflow_steps", Access()):
        connection.execute(statement)
