"""The hot path's statements as functions, whose plans stay on the server's connections."""

from migrations.script import run_script

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the functions."""
    run_script(__file__)
