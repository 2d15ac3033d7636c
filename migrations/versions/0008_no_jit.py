"""Functions that switch plans off are not compiled."""

from migrations.script import run_script

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Alter the functions."""
    run_script(__file__)
