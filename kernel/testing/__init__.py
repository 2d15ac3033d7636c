"""Runs workflows in a test: `Harness` is a worker, a clock and a script for steps, against a real, migrated database.

    async with Harness(orders, transactions=database.transaction) as harness:
        run = await harness.start("orders", {"order_id": "o-1"})
        assert await run.go() == "suspended"
        await harness.advance("24h")
        assert await run.output() == {"approved": False}

Everything happens as in a worker: claim, begin, body and settle in transactions of their own, parallel stages side by
side, each write under its fence. Nothing runs by itself: `go` does what is due, `advance` moves the engine's clock and
does what comes due on the way. `mock_result`, `mock_error`, `mock_timeout` and `skip_sleeps` decide how steps end,
`kill_before`, `kill_after` and `gaps` end the worker between any two of its writes. At the end of the block, or by
`close`, the runs are gone from the database, whether they had ended or not.
"""

from kernel.testing.harness import Harness, StartOptions
from kernel.testing.kills import Kill
from kernel.testing.run import HarnessRun, RunEvent, RunFailure, RunLog, StepView
from kernel.testing.session import RunOutcome

__all__ = [
    "Harness",
    "HarnessRun",
    "Kill",
    "RunEvent",
    "RunFailure",
    "RunLog",
    "RunOutcome",
    "StartOptions",
    "StepView",
]
