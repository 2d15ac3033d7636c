"""Random runs, two workers and everything that can befall them, against what durable steps promise.

`machine.py` says what happens, `*_promises.py` and `redrives.py` what holds. `make soak` plays many more examples; a
failing one is made smaller, and is printed with what repeats it.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kernel.execution import flights, step_effects, step_execution
from tests.models.clockwork import World
from tests.models.machine import StepsMachine
from tests.support.environment import DatabaseUrls

SOAK_SEED = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(1_000_000))
# What happened to steps and stages in the examples: a model that does not see these proves little.
MUST_BE_SEEN = {
    "run running > running taken over",
    "run running > pending",
    "run failed > running",
    "run pending > running",
    "wait pending > completed",
    "wait pending > failed",
    "signal new > completed",
    "signal pending > completed",
    "signal pending > failed",
    "sleep pending > completed",
    "stage:retrying",
    "stage:failed",
    "stage:skipped",
    "workflow:completed",
    "workflow:cancelled",
    "workflow:failed",
    "when raises",
    "when says yes",
    "thread completed",
    "once completed",
    "group 2 begins",
    "group 3 begins",
    "two stages at once",
    # Leased ahead, by the settle of what came before it.
    "stage new > RUNNING",
    "output in the blob store",
    "redrive last_failure of FAILED",
    "redrive last_failure of CANCELLED",
    "redrive last_failure of COMPLETED",
    "redrive start of COMPLETED",
    "redrive stage of FAILED",
    "redrive: stage kept",
    "redrive: stage reopened",
    "redrive: stage dropped",
    "redrive: stage created",
    "redrive: run completed stays in place",
    "redrive: run completed goes",
    "redrive: run running opens in place",
    "redrive: run failed opens in place",
    "redrive: signal completed stays in place",
    "redrive: wait pending goes in place",
}


@pytest.fixture
def world(database_urls: DatabaseUrls, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    opened = World(database_urls)
    # The worker's own clock goes with the engine's: a process that stood still finds its leases as old as they are.
    for module in (flights, step_effects, step_execution):
        monkeypatch.setattr(module, "monotonic", opened.loop.time)
    # No time passes by itself: what waits for others to go on looks at them once and leaves.
    monkeypatch.setattr(flights, "HOLD_S", 0.0)
    yield opened
    opened.close()


def _machine(world: World, seen: Counter[str], number: int) -> Callable[[], StepsMachine]:
    """Return what makes the machines of a batch; the number repeats it."""

    @seed(number)
    def machine() -> StepsMachine:
        return StepsMachine(world, seen)

    return machine


FEWEST_BATCHES = 2
MOST_BATCHES = 12
QUIET = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(400)
def test_steps_keep_their_promises_whatever_breaks(world: World) -> None:
    """Two batches of examples, and more until they have shown all that must be seen.

    Their seeds are fixed, and yet Hypothesis draws differently beside other modules, whose constants it tries.
    """
    # A failing example is not made smaller here: that takes longer than a test may. `make soak` does it.
    batch = settings(QUIET, max_examples=30, stateful_step_count=40, phases=[Phase.generate])
    seen: Counter[str] = Counter()
    for part in range(MOST_BATCHES):
        run_state_machine_as_test(_machine(world, seen, part), settings=batch)
        if part + 1 >= FEWEST_BATCHES and seen.keys() >= MUST_BE_SEEN:
            return
    pytest.fail(f"not seen in {MOST_BATCHES} batches: {MUST_BE_SEEN - seen.keys()}")


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(20))
def test_the_same_for_long(world: World, part: int) -> None:
    """Two thousand examples; SOAK_SEED=n repeats those of a soak that printed n."""
    print(f"\nSOAK_SEED={SOAK_SEED} part {part}")  # noqa: T201 - what repeats it

    seen: Counter[str] = Counter()
    many = settings(QUIET, max_examples=100, stateful_step_count=50)
    run_state_machine_as_test(_machine(world, seen, SOAK_SEED + part), settings=many)
    print(*(f"{number:7} {what}" for what, number in sorted(seen.items())), sep="\n")  # noqa: T201 - what it saw
