"""Steps count how often in a row their lease ran out before their function could begin."""

from migrations.script import run_script

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and replace the function that moves steps."""
    run_script(__file__)
