"""Runs go on after their end: former attempts, and generations of stages."""

from migrations.script import run_script

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and replace the function."""
    run_script(__file__)
