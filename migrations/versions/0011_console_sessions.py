"""Sessions of the console, under the policies of every table."""

from alembic import op

from migrations.policies import Access, protect
from migrations.script import run_script

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and put it under its policies."""
    run_script(__file__)
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    for statement in protect("console_sessions", Access()):
        connection.execute(statement)
