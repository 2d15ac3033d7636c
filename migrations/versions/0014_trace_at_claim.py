"""Runs that were made where nothing traced get the context of their creation when they are started."""

from migrations.script import run_script

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the function that writes changes."""
    run_script(__file__)
