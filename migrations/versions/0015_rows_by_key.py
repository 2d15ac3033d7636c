"""What a flush costs grows with what is in it, not with its square, nor with the steps its stages took before."""

from migrations.script import run_script

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the two functions."""
    run_script(__file__)
