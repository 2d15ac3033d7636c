"""What a flush of steps costs: one statement records its outcomes, and only what is news is told of."""

from migrations.script import run_script

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Leave room beside steps, and add the function that moves them."""
    run_script(__file__)
