"""The blob store: payloads too large for their rows, addressed by content within their run."""

from alembic import op

from migrations.policies import Access, protect
from migrations.script import run_script

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, put it under its policies and let rows refer to it."""
    run_script(__file__)
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    for statement in protect("workflow_blobs", Access(tenant=("select", "insert", "delete"))):
        connection.execute(statement)
