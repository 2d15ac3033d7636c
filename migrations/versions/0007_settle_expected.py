"""Settles that are decided before their locks are had take one statement."""

from migrations.script import run_script

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the function."""
    run_script(__file__)
