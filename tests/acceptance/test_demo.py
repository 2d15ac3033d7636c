"""The demonstration as a newcomer sees it: it ends well, survives a killed worker, and leaves nothing behind."""

import json
import os
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Process

WAIT = 90.0


def until(process: Process, is_so: Callable[[str], object]) -> str:
    process.until(lambda: is_so(process.output), WAIT)
    return process.output


def pids(output: str) -> dict[str, int]:
    return {name: int(pid) for name, pid in re.findall(r"^ +(\w+) +pid (\d+)$", output, re.MULTILINE)}


def exports(output: str) -> dict[str, str]:
    return dict(re.findall(r"^ +export (\w+)=(\S*)$", output, re.MULTILINE))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def get(url: str, key: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def test_once_prints_both_reports_proves_isolation_and_leaves_nothing() -> None:
    with Process("demo", "--once") as demo:
        assert demo.wait(WAIT) == 0, demo.output
        output = demo.output
    for word in ("northwind-stationery.csv", "bergwerk-technik.csv", "Totals", "Rejects", "broken_encoding", "payable"):
        assert word in output
    assert output.count("-> 404") == 2
    assert "is tried again" in output
    assert "waits for an approval" in output
    assert re.search(r'POST /v1/runs/\S+/signals -> .*"signalled": true', output)
    assert len(re.findall(r"exchange-rates +run +completed +2 ", output)) == 2
    assert len(re.findall(r"approval +signal +completed +waited.*approved by", output)) == 1
    assert len(re.findall(r"cooling-off +sleep +completed", output)) == 1
    assert len(re.findall(r" pay +run +completed +1 .*tny-", output)) == 2
    found = pids(output)
    assert {"postgres", "api", "worker"} <= set(found)
    assert not [name for name, pid in found.items() if is_alive(pid)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_gracefully(how: signal.Signals) -> None:
    with Process("demo") as demo:
        found = pids(until(demo, lambda output: "Ctrl-C ends everything" in output))
        assert demo.stop(how) == 0, demo.output
        assert not [name for name, pid in found.items() if is_alive(pid)]
        assert "Traceback" not in demo.output


@pytest.mark.parametrize(
    ("moment", "times"), [("parse COMPLETED", 2), ("waits for signal approval", 1)], ids=["in a body", "in a wait"]
)
def test_runs_of_a_killed_worker_complete_on_another_with_every_stage_settled_once(moment: str, times: int) -> None:
    short = {
        "TENANTRY_STALE_LEASE_THRESHOLD": "6s",
        "TENANTRY_HEARTBEAT_INTERVAL": "2s",
        "TENANTRY_DEMO_STAGE_SECONDS": "3",
    }
    with Process("demo", environment=short) as demo:
        output = until(demo, lambda output: output.count(moment) == times)
        os.kill(pids(output)["worker"], signal.SIGKILL)
        with Process("worker", environment=exports(output)) as other:
            output = until(demo, lambda output: "Ctrl-C ends everything" in output)
            assert other.stop() == 0, other.output
        assert len(re.findall(r": run \S+ COMPLETED$", output, re.MULTILINE)) == 2
        accounts = re.findall(r"TENANTRY_API_URL=(\S+) TENANTRY_API_KEY=(\S+)", output)
        assert len(accounts) == 2
        for url, key in accounts:
            (run,) = get(f"{url}/v1/runs", key)["data"]
            events = get(f"{url}/v1/runs/{run['id']}/events?limit=200", key)["data"]
            settled = Counter(event["stage_id"] for event in events if event["type"] == "stage:completed")
            assert settled == {"parse": 1, "totals": 1, "duplicates": 1, "payment": 1, "report": 1}
            steps = get(f"{url}/v1/runs/{run['id']}/steps", key)["data"]
            assert {step["status"] for step in steps} == {"completed"}
            assert run["status"] == "COMPLETED"
        assert demo.stop() == 0, demo.output
