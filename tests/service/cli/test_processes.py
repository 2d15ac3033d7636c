"""`tenantry worker --processes N`: a process each, replaced when one is killed, all of them gone after a stop."""

import psutil
import pytest

from tests.support.environment import DatabaseUrls
from tests.support.processes import Process


@pytest.fixture
def settings(database_urls: DatabaseUrls) -> dict[str, str]:
    return {
        "TENANTRY_DATABASE_URL": database_urls.worker,
        "TENANTRY_DISPATCHER_DATABASE_URL": database_urls.dispatcher,
        "TENANTRY_WORKFLOWS": "service.demo.invoices:registry",
    }


def test_a_killed_worker_is_replaced_and_a_stop_ends_all(settings: dict[str, str]) -> None:
    with Process("worker", "--processes", "2", environment=settings) as process:
        supervisor = psutil.Process(process.pid)
        process.until(lambda: process.output.count("worker_started") == 2)
        first, second = supervisor.children()
        first.kill()
        process.until(lambda: process.output.count("worker_started") == 3)
        workers = supervisor.children()
        assert second.pid in {worker.pid for worker in workers}
        assert len(workers) == 2
        assert process.stop() == 0, process.output
        assert not [worker for worker in workers if worker.is_running()]


def test_a_bad_setting_ends_all_of_them_with_1(settings: dict[str, str]) -> None:
    bad = {**settings, "TENANTRY_WORKFLOWS": "no.such.module:registry"}
    with Process("worker", "--processes", "2", environment=bad) as process:
        assert process.wait(60) == 1
        assert "workflows" in process.output
        assert "Traceback" not in process.output
