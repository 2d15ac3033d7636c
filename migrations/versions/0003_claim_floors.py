"""Ready indexes by priority and then rank, so that a claim can start where the last one of its priority ended."""

from migrations.script import run_script

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the indexes and give jobs their run's priority."""
    run_script(__file__)
