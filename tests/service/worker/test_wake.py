"""A host that is told of a tenant works for it at once, and still asks who else has work."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from service.worker.dispatcher import Dispatcher, DueTenant
from tests.support.arena import Arena
from tests.support.hosts import running, settings
from tests.support.waiting import until

SELDOM = timedelta(minutes=5)


async def test_a_tenant_that_is_told_of_is_ticked_unasked(ring: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question after the first is held back: the run comes to its end all the same."""
    answered, may_answer = 0, asyncio.Event()
    ask = Dispatcher.due

    async def due(self: Dispatcher, floors: Sequence[dict[str, object]] = ()) -> list[DueTenant]:
        nonlocal answered
        if answered:
            await may_answer.wait()
        found = await ask(self, floors)
        answered += 1
        return found

    monkeypatch.setattr(Dispatcher, "due", due)
    async with running(settings(ring.urls, poll_interval_min=SELDOM, poll_interval_max=SELDOM)) as host:
        await until(lambda: answered == 1, "the first question")
        await ring.start("nap")
        await asyncio.sleep(0.2)
        assert await ring.statuses() == {"PENDING": 1}

        host.wake(ring.tenant_id)

        assert await ring.all_over() == {"COMPLETED": 1}
        assert answered == 1
        may_answer.set()
        await until(lambda: answered > 1, "the question that follows a tick on somebody's word")
    await ring.assert_settled_once()


async def test_a_teller_that_never_stops_keeps_nobody_waiting(ring: Arena, other_tenant: UUID) -> None:
    """Whoever is told of all the time has nothing to do; another's run is found by the questions in between."""
    async with running(settings(ring.urls, poll_interval_min=SELDOM, poll_interval_max=SELDOM)) as host:
        await asyncio.sleep(0.2)
        await ring.start("nap")

        async def tell() -> None:
            while True:
                host.wake(other_tenant)
                host.wake(uuid4())  # one that is nobody
                await asyncio.sleep(0.001)

        telling = asyncio.create_task(tell())
        try:
            assert await ring.all_over() == {"COMPLETED": 1}
        finally:
            telling.cancel()
