"""A worker killed over results of five megabytes: the next one answers from them and makes none again."""

import json

from kernel.queries.run_get import run_get
from tests.support.arena import Arena

QUICK = {"stale_lease_threshold": "1500ms", "heartbeat_interval": "500ms"}


async def test_large_results_outlive_the_worker_that_made_them(ring: Arena) -> None:
    run_ids = await ring.start("bulky", 3, hang_at=0)
    with ring.worker(**QUICK) as first:
        await ring.noted("hung", 3, 60)
        first.kill()
    kept = await ring.rows("select content from tenantry.workflow_blobs where tenant_id = %(tenant)s")
    assert sorted(row["content"] for row in kept) == sorted(f'"{name * (5 * 1024 * 1024)}"' for name in "aaabbb")
    with ring.worker(**QUICK) as second:
        assert await ring.all_over(60) == {"COMPLETED": 3}
        assert second.stop() == 0

    assert sorted(ring.notes("part")) == sorted([str(run_id), name] for run_id in run_ids for name in "ab")
    for run_id in run_ids:
        async with ring.database.transaction(ring.tenant_id) as tx:
            view = await run_get(tx, run_id)
        assert view is not None
        assert json.loads(view.output or "") == {"parts": [name * (5 * 1024 * 1024) for name in "ab"]}
    await ring.assert_settled_once()
