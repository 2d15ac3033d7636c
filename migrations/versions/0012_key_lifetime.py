"""How long idempotency keys are kept, for every door alike; `tenantry.enqueue()` asks what run.create asks."""

from migrations.script import run_script

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the function of the lifetime and replace that of the run from SQL."""
    run_script(__file__)
