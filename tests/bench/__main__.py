"""Run the bench: `python -m tests.bench [--only w1,w3,…] [--quick] [--alone]`."""

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from tests.bench import api, budgets, contenders, hand, ours
from tests.bench.budgets import Sizes
from tests.bench.contenders import PEERS, PYTHON, Load, Peer, PeerSetting
from tests.bench.ours import Setting
from tests.bench.report import OURS, Figure, print_table, say, show
from tests.bench.servers import BenchCluster
from tests.bench.workflows import STEPS, TEN
from tests.support.system import sweep


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: `rounds` repeats each measurement, one contender after the other."""

    is_quick: bool
    with_peers: bool

    @property
    def peers(self) -> tuple[Peer, ...]:
        return PEERS if self.with_peers else ()

    @property
    def rounds(self) -> int:
        return 1 if self.is_quick else 2


LIVE = (
    Setting(),
    Setting(processes=2),
    Setting(live_batch=50, live_clients=2),
    Setting(processes=2, live_batch=50, live_clients=2),
    Setting(processes=2, live_batch=50, live_clients=2, live_by_sql=True),
)
# Compared with ours, without an SDK: the ratios say what tracing costs.
TRACED: dict[str, tuple[tuple[str, str], ...]] = {
    OURS: (("OTEL_SDK_DISABLED", "true"),),
    "none sampled": (("OTEL_TRACES_SAMPLER", "always_off"),),
    "10 % sampled": (("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.1")),
}
TRACED_RUNS = {False: 5000, True: 1000}
Part = Callable[[BenchCluster, Plan], Iterable[Figure]]


def w1(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """W1: runs of three trivial stages, a backlog and live, against the peers and against the same writes by hand."""
    ours_count, live_count, peer_count = (2000, 1000, 300) if plan.is_quick else (5000, 3000, 600)
    settings = [Setting(), Setting(processes=2)]
    by_hand = [(2, 32), (4, 64)]
    if not plan.is_quick:
        settings += [Setting(concurrency=128), Setting(concurrency=256)]
        settings += [Setting(processes=2, concurrency=128), Setting(processes=2, concurrency=256)]
        by_hand += [(1, 64), (4, 16), (2, 128), (8, 32)]
    for _ in range(plan.rounds):
        for setting in settings:
            yield from attempt("W1 backlog", setting.label, lambda s=setting: [ours.backlog(cluster, s, ours_count)])
        for setting in LIVE:
            yield from attempt("W1 live", setting.label, lambda s=setting: [ours.live(cluster, s, live_count)])
        for connections, size in by_hand:
            label = f"{connections} x {size}"
            measure = partial(hand.limit, cluster, connections, size, ours_count)
            yield from attempt("W1 backlog", label, lambda m=measure: [m()], hand.NAME)
        for peer in plan.peers:
            load = Load("W1 backlog", peer_count, peer_count)
            yield from _peer(cluster, peer, peer.settings[:1] if plan.is_quick else peer.settings, load)
            for live in peer.live:
                load = Load("W1 live", peer_count, peer_count, live)
                yield from _peer(cluster, peer, peer.settings[:1], load)


def w2(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """W2: a backlog of runs of ten trivial steps: one stage, against the workflow or task of a peer that has steps."""
    ours_count, peer_count = (500, 100) if plan.is_quick else (3000, 200)
    settings = [Setting(), Setting(processes=2)]
    if not plan.is_quick:
        settings += [Setting(concurrency=128), Setting(concurrency=256)]
        settings += [Setting(processes=2, concurrency=128), Setting(processes=2, concurrency=256)]
    for _ in range(plan.rounds):
        for setting in settings:
            measure = partial(ours.backlog, cluster, setting, ours_count, TEN)
            yield from attempt("W2 backlog", setting.label, lambda m=measure: [m()])
        for peer in plan.peers:
            if peer.has_steps:
                load = Load("W2 backlog", peer_count, peer_count, task={"steps": STEPS})
                yield from _peer(cluster, peer, peer.settings[:1] if plan.is_quick else peer.settings, load)


def w3(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """W3: one run at a random moment on an idle system; over: until a client that looks every 2 ms sees it completed."""
    count = 30 if plan.is_quick else 60
    yield from attempt("W3", "idle", lambda: api.idle(cluster, count))
    for peer in plan.peers:
        for setting in peer.idle[:1] if plan.is_quick else peer.idle:
            yield from attempt("W3", setting.label, partial(_idle_peer, cluster, peer, setting, count), peer.name)


def w4(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """W4: the first 5,000 (peers: 1,000) of 100,000 pending runs, against as many of an empty queue."""
    depth, first, peer_first = (20_000, 2000, 200) if plan.is_quick else (100_000, 5000, 1000)
    yield from attempt("W4 deep backlog", Setting().label, lambda: ours.deep(cluster, Setting(), depth, first))
    for peer in plan.peers if not plan.is_quick else ():
        for work, count in (("W4 deep backlog", depth), ("W4 empty queue", peer_first)):
            yield from _peer(cluster, peer, peer.settings[:1], Load(work, count, peer_first))


def w5(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """W5: how fast the API accepts runs, against the framework's route that does begin, bind, one insert, commit."""
    for _ in range(plan.rounds):
        yield from attempt("W5 accepts", "1 process", lambda: api.accepts(cluster, 3 if plan.is_quick else 6))


def tracing(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """Tracing: W1 backlog without an SDK, with one that samples no run, and with one that samples a tenth."""
    count = TRACED_RUNS[plan.is_quick]
    for _ in range(plan.rounds + 1):
        for contender, environment in TRACED.items():
            setting = Setting(concurrency=128, environment=environment)
            measure = partial(_traced, cluster, setting, contender, count)
            yield from attempt("W1 tracing", setting.label, lambda m=measure: [m()], contender)


def _traced(cluster: BenchCluster, setting: Setting, contender: str, count: int) -> Figure:
    return replace(ours.backlog(cluster, setting, count), work="W1 tracing", contender=contender)


def budget(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """The budgets: what a run may cost, who has work, claims at depth."""
    sizes = Sizes(1000, 50_000, 50_000, 20_000) if plan.is_quick else Sizes()
    yield from attempt("budget", "cost of a run", lambda: budgets.costs(cluster, 3 if plan.is_quick else 10))
    yield from attempt("budget", "who has work", lambda: budgets.due_query(cluster, sizes))
    yield from attempt("budget", "claims at depth", lambda: budgets.depth(cluster, sizes))


def _peer(cluster: BenchCluster, peer: Peer, settings: Iterable[PeerSetting], load: Load) -> Iterable[Figure]:
    for setting in settings:
        measure = partial(contenders.throughput, cluster, peer, setting, load)
        yield from attempt(load.work, setting.label, lambda m=measure: [m()], peer.name)


def _idle_peer(cluster: BenchCluster, peer: Peer, setting: PeerSetting, count: int) -> Iterable[Figure]:
    latencies = contenders.idle(cluster, peer, setting, count)
    for name, value in zip(("p50", "p95"), api.quantiles(latencies), strict=True):
        yield Figure(f"W3 over {name}", peer.name, setting.label, value, unit="ms")


def attempt(
    work: str, setting: str, measure: Callable[[], Iterable[Figure]], contender: str = OURS
) -> Iterable[Figure]:
    """Measure; a failure becomes a line of the table and hides nothing."""
    try:
        for figure in measure():
            yield show(figure)
    except Exception as error:  # noqa: BLE001 - the table shows it, and the other measurements go on
        note = f"{type(error).__name__}: {str(error).strip()[:300]}"
        yield show(Figure(work, contender, setting, None, note=note))


PARTS: dict[str, Part] = {"w1": w1, "w2": w2, "w3": w3, "w4": w4, "w5": w5, "tracing": tracing, "budgets": budget}


def main() -> int:
    """Measure what was asked for and print the table; the status is 1 when something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small numbers, one round: for a first look")
    parser.add_argument("--alone", action="store_true", help="only ours and the hand-made limit")
    options = parser.parse_args()
    chosen = [name for name in options.only.lower().split(",") if name] or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    plan = Plan(is_quick=options.quick, with_peers=not options.alone)
    if plan.with_peers and not PYTHON.exists():
        parser.error("the peers are not installed: make bench does it, or leave them out with --alone")
    began = monotonic()
    sweep()
    cluster = BenchCluster()
    figures: list[Figure] = []
    try:
        for name in chosen:
            say(f"{(PARTS[name].__doc__ or name).splitlines()[0]} (after {monotonic() - began:.0f} s)")
            figures += PARTS[name](cluster, plan)
    finally:
        cluster.close()
    print_table(figures)
    say(f"{monotonic() - began:.0f} s")
    return int(any(figure.value is None for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
