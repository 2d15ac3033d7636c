"""Run the bench: `python -m tests.bench [--only w1,w3,…] [--quick] [--alone]`."""

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from tests.bench import ours
from tests.bench.ours import Setting
from tests.bench.report import OURS, Figure, print_table, say, show
from tests.bench.servers import BenchCluster
from tests.support.system import sweep


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: `rounds` repeats each measurement, one contender after the other."""

    is_quick: bool
    with_peers: bool

    @property
    def rounds(self) -> int:
        return 1 if self.is_quick else 3


Part = Callable[[BenchCluster, Plan], Iterable[Figure]]


def w1(cluster: BenchCluster, plan: Plan) -> Iterable[Figure]:
    """Throughput of runs of three stages: a backlog, and live."""
    count = 2000 if plan.is_quick else 5000
    settings = [Setting(), Setting(processes=2)]
    if not plan.is_quick:
        settings += [Setting(concurrency=128), Setting(concurrency=256), Setting(processes=2, concurrency=128)]
    for _ in range(plan.rounds):
        for setting in settings:
            yield from attempt("W1 backlog", setting.label, lambda s=setting: [ours.backlog(cluster, s, count)])
        for setting in (Setting(), Setting(processes=2), Setting(live_batch=50, live_clients=2)):
            yield from attempt("W1 live", setting.label, lambda s=setting: [ours.live(cluster, s, count)])


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


PARTS: dict[str, Part] = {"w1": w1}


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
    began = monotonic()
    sweep()
    cluster = BenchCluster()
    figures: list[Figure] = []
    try:
        for name in chosen:
            say(f"{name}: {(PARTS[name].__doc__ or name).splitlines()[0]}")
            figures += PARTS[name](cluster, plan)
    finally:
        cluster.close()
    print_table(figures)
    say(f"{monotonic() - began:.0f} s")
    return int(any(figure.value is None for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
