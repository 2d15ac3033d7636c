"""The database's clock as this worker knows it: read with its transactions, moved on by the monotonic clock between."""

from datetime import datetime, timedelta
from time import monotonic


class DatabaseClock:
    """Never ahead of what the database told and the time since; so never ahead of the database, but for drift.

    Once a time was observed, no later estimate is before it: a lease that is taken at an estimate is younger than
    whatever was read before.
    """

    def __init__(self) -> None:
        self._told: datetime | None = None
        self._heard_at = 0.0

    def observe(self, told: datetime) -> None:
        """Take a time that the database told; one that is older than the last told is of no use."""
        if self._told is None or told > self._told:
            self._told, self._heard_at = told, monotonic()

    def estimate(self) -> datetime | None:
        """Return the database's time now, a little behind it; None while it was never told."""
        return None if self._told is None else self._told + timedelta(seconds=monotonic() - self._heard_at)
