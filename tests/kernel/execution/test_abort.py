import asyncio
from threading import Thread

import pytest

from kernel.errors import StageAbortedError
from kernel.execution.abort import AbortSignal


async def test_a_signal_fires_once_and_keeps_its_first_reason() -> None:
    signal = AbortSignal()
    assert (signal.aborted, signal.reason) == (False, None)
    signal.raise_if_aborted()
    signal.abort("cancelled")
    signal.abort("shutdown")
    assert (signal.aborted, signal.reason) == (True, "cancelled")
    await signal.wait()
    with pytest.raises(StageAbortedError) as aborted:
        signal.raise_if_aborted()
    assert aborted.value.reason == "cancelled"


async def test_everybody_who_waits_is_woken_also_from_another_thread() -> None:
    signal = AbortSignal()
    waits = [asyncio.ensure_future(signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.sleep(0)
    thread = Thread(target=signal.abort, args=("lease-lost",))
    thread.start()
    async with asyncio.timeout(5):
        await asyncio.gather(*waits[1:])
    thread.join()
    assert not signal._waiters


def test_a_signal_outlives_the_loop_of_its_waiters() -> None:
    signal = AbortSignal()

    async def leave() -> None:
        waiter = asyncio.ensure_future(signal.wait())
        await asyncio.sleep(0)
        waiter.cancel()

    asyncio.run(leave())
    signal.abort("shutdown")
    assert signal.aborted
