"""What a flush of steps costs: its ops are read from JSON once, not once for each statement."""

from migrations.script import run_script

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the function."""
    run_script(__file__)
