"""`ctx.step`: durable steps of one execution of a stage. Completed ones are answered from the ledger.

A stage resumes by running its body again from the top. Whatever must wait leaves the body with `Suspension`; what the
execution comes to in the end is `StepExecution.conclude`'s to say.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kernel.execution import step_effects, step_waits
from kernel.execution.durations import Duration, parse_duration
from kernel.execution.flights import LANDING_S
from kernel.execution.step_calls import check_model
from kernel.execution.step_execution import StepExecution
from kernel.execution.step_options import OnReclaim, check_callable, run_options
from kernel.execution.step_waits import Poll


class Steps:
    """The durable steps of one execution. Ids are the caller's, each used once in an execution."""

    def __init__(self, execution: StepExecution) -> None:
        self._execution = execution

    async def run(  # noqa: PLR0913 - the public signature
        self,
        id: str,  # noqa: A002 - the public name
        fn: Callable[..., Any],
        *,
        lease: Duration = "5m",
        retries: int = 0,
        retry_delay: Duration = 0,
        retry_backoff: Mapping[str, object] | None = None,
        heartbeat: Duration | None = None,
        on_reclaim: OnReclaim = "rerun",
        model: Any = None,
    ) -> Any:
        """Call `fn` once and return its result as JSON gives it back; a replay returns the recorded result.

        `fn` takes the step if it has a positional parameter. Retries wait retry_delay * factor^(n-1), the stage
        suspended. `on_reclaim` says what becomes of a step whose worker vanished: `rerun`, or `fail`. Once `lease` has
        run out without a heartbeat somebody else may have the step: it must be longer than a write takes.

        Raises:
            ValueError: a bad option; nothing was recorded.
            StepError: see its subclasses; whatever `fn` raises when its retries are spent, in replays too.
        """
        options = run_options(
            lease=lease,
            retries=retries,
            retry_delay=retry_delay,
            retry_backoff=retry_backoff,
            heartbeat=heartbeat,
            on_reclaim=on_reclaim,
        )
        check_callable("fn", fn)
        check_model(model)
        execution = self._execution
        use = await execution.use(id, "run")
        if use.row is not None and execution.is_ended(use.row):
            return execution.end_of(use.row, model)
        return await execution.fly(use, options.lease_s, step_effects.run(execution, use, fn, options, model))

    async def sleep(self, id: str, duration: Duration) -> None:  # noqa: A002 - the public name
        """Wait for a duration from the first use on; the stage is suspended, its worker free."""
        delay_s = parse_duration(duration)
        execution = self._execution
        use = await execution.use(id, "sleep")
        if use.row is not None and execution.is_ended(use.row):
            execution.end_of(use.row, None)
            return
        await execution.fly(use, LANDING_S, step_waits.until_due(execution, use, delay_s))

    async def wait_for(  # noqa: PLR0913 - the public signature
        self,
        id: str,  # noqa: A002 - the public name
        *,
        poll: Callable[..., Any],
        ready: Callable[[Any], object],
        every: Duration,
        timeout: Duration,  # noqa: ASYNC109 - durable: it outlives the process
        poll_backoff: Duration | None = None,
    ) -> Any:
        """Poll until `ready(value)` and return the value; between polls the stage is suspended.

        `every` is how long after a poll the next one comes, `poll_backoff` how long after one that raised. Less than
        100 ms counts as 100 ms, but for a `Harness`: each poll is a replay of the body, and written.

        Raises:
            StepTimeoutError: the deadline, `timeout` after the first use, has passed.
        """
        every_s = parse_duration(every, name="every")
        backoff_s = every_s if poll_backoff is None else parse_duration(poll_backoff, name="poll_backoff")
        timeout_s = parse_duration(timeout, name="timeout")
        check_callable("poll", poll)
        check_callable("ready", ready)
        execution = self._execution
        use = await execution.use(id, "wait")
        if use.row is not None and execution.is_ended(use.row):
            return execution.end_of(use.row, None)
        how = Poll(poll, ready, every_s, backoff_s)
        return await execution.fly(use, LANDING_S, step_waits.until_ready(execution, use, timeout_s, how))

    async def wait_for_signal(
        self,
        id: str,  # noqa: A002 - the public name
        *,
        timeout: Duration,  # noqa: ASYNC109 - durable: it outlives the process
        keepalive: Duration = "5m",
        model: Any = None,
    ) -> Any:
        """Wait for `step.signal` and return its payload; one that came before counts.

        `keepalive` only bounds a wake-up that was lost; less than 100 ms counts as 100 ms.

        Raises:
            StepTimeoutError: no signal came within `timeout` of the first use.
            StepModelMismatchError: the payload does not fit `model`.
        """
        timeout_s = parse_duration(timeout, name="timeout")
        keepalive_s = parse_duration(keepalive, name="keepalive", allow_zero=False)
        check_model(model)
        execution = self._execution
        use = await execution.use(id, "signal")
        if use.row is not None and execution.is_ended(use.row):
            return execution.end_of(use.row, model)
        keepalive_s = max(keepalive_s, execution.least_wait_s)
        opening = {"timeout_s": timeout_s, "wait_state": {"keepalive_s": keepalive_s}}
        return await execution.fly(use, LANDING_S, step_waits.until_signalled(execution, use, opening, model))
