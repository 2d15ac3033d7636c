"""`tenantry.enqueue()`: a run started from SQL."""

from migrations.script import run_script

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the function."""
    run_script(__file__)
