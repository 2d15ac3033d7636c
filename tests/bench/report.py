"""What is printed: one line for every measurement as it is made, one table with ratios at the end."""

import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tests.bench.meter import Cost

OURS = "tenantry"
BUSY = 0.08


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement: `value` in `unit`, and what a run cost. `note` says what went wrong, and then there is no value."""

    work: str
    contender: str
    setting: str
    value: float | None
    unit: str = "runs/s"
    cost: Cost | None = None
    runs: int = 0
    note: str = ""
    budget: float | None = None

    @property
    def is_over(self) -> bool:
        return self.budget is not None and self.value is not None and self.value > self.budget

    @property
    def key(self) -> tuple[str, str, str]:
        return self.work, self.contender, self.setting

    @property
    def lower_is_better(self) -> bool:
        return self.unit == "ms"


def say(text: str = "") -> None:
    """Write a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show(figure: Figure) -> Figure:
    """Tell a measurement when it is made."""
    say("  " + "  ".join(cell.strip() for cell in _cells(figure) if cell.strip()))
    return figure


def medians(figures: Iterable[Figure]) -> list[Figure]:
    """Return of each measurement that was repeated the one in the middle; failures stay, each of them."""
    rounds: dict[tuple[str, str, str], list[Figure]] = {}
    kept: list[Figure] = []
    for figure in figures:
        if figure.value is None:
            kept.append(figure)
        else:
            rounds.setdefault(figure.key, []).append(figure)
    for repeats in rounds.values():
        middle = statistics.median_low(figure.value for figure in repeats if figure.value is not None)
        kept.append(next(figure for figure in repeats if figure.value == middle))
    return kept


def print_table(figures: Iterable[Figure]) -> None:
    """Print every measurement, the best of each contender, and how ours relates to theirs."""
    everything = sorted(medians(figures), key=lambda figure: figure.work)
    kept = [figure for figure in everything if figure.budget is None]
    budgets = [figure for figure in everything if figure.budget is not None]
    say()
    header = (
        "work",
        "contender",
        "setting",
        "value",
        "client",
        "postgres",
        "pooler",
        "writing tx",
        "statements",
        "others",
    )
    widths = (22, 14, 52, 17, 10, 10, 10, 12, 11, 7)
    say("".join(name.ljust(width) for name, width in zip(header, widths, strict=True)))
    say("".join(("-" * (width - 1)).ljust(width) for width in widths))
    for figure in kept:
        say("".join(cell.ljust(width) for cell, width in zip(_cells(figure), widths, strict=False)).rstrip())
    say()
    say(
        "client, postgres, pooler: CPU in ms a run; writing tx: transactions that took an xid; both and statements a run."
    )
    busy = [figure for figure in kept if figure.cost is not None and figure.cost.foreign > BUSY]
    if busy:
        say(f"NOT A QUIET MACHINE: in {len(busy)} of {len(kept)} measurements others used more than {BUSY:.0%} of it.")
    for line in _ratios(kept):
        say(line)
    for figure in budgets:
        say(f"budget  {_value(figure):<32}{figure.setting}")


def _cells(figure: Figure) -> list[str]:
    cells = [figure.work, figure.contender, figure.setting, _value(figure)]
    if figure.cost is None or not figure.runs:
        return cells
    cost, runs = figure.cost, figure.runs
    return [
        *cells,
        *(f"{seconds * 1000 / runs:.2f} ms" for seconds in (cost.client, cost.postgres, cost.pgbouncer)),
        f"{cost.writing / runs:.2f} tx",
        f"{cost.statements / runs:.1f} st",
        f"{cost.foreign:.0%}",
    ]


def _value(figure: Figure) -> str:
    if figure.value is None:
        return f"FAILED: {figure.note[:200]}"
    told = f"{figure.value:,.{_digits(figure.value)}f} {figure.unit}"
    if figure.budget is None:
        return told
    return f"{told} ({'OVER' if figure.is_over else 'within'} {figure.budget:g})"


def _digits(value: float) -> int:
    return 0 if value >= 1000 else 1 if value >= 10 else 2


def _ratios(figures: list[Figure]) -> list[str]:
    best: dict[tuple[str, str], Figure] = {}
    for figure in figures:
        if figure.value is None:
            continue
        so_far = best.get((figure.work, figure.contender))
        if so_far is None or so_far.value is None or _is_better(figure, so_far.value):
            best[figure.work, figure.contender] = figure
    lines: list[str] = []
    for (work, contender), theirs in best.items():
        ours = best.get((work, OURS))
        if contender == OURS or ours is None or not theirs.value or not ours.value:
            continue
        ratio = theirs.value / ours.value if ours.lower_is_better else ours.value / theirs.value
        lines.append(f"{work:<22}{OURS} ({ours.setting}) is {ratio:.2f} x {contender} ({theirs.setting})")
    return lines


def _is_better(figure: Figure, than: float) -> bool:
    assert figure.value is not None
    return figure.value < than if figure.lower_is_better else figure.value > than
