"""Runs the `.sql` half of a revision."""

from pathlib import Path

from alembic import op


def run_script(revision_file: str) -> None:
    """Run the file beside a revision: `run_script(__file__)`.

    Through the driver: it takes many statements in one text, and a percent sign for what it is.
    """
    connection = op.get_bind().connection.driver_connection
    assert connection is not None
    connection.execute(Path(revision_file).with_suffix(".sql").read_text(encoding="utf-8"))
