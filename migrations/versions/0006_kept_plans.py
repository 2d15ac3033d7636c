"""Admission and claims keep their plans."""

from migrations.script import run_script

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the functions."""
    run_script(__file__)
