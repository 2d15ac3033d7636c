"""How the spans of a run are told: each below its parent, traces by their beginnings, what tells namesakes apart."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

DEEPEST: Final = 8
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a span stands; `index` is its place among those that were given, times are seconds since the epoch.

    `depth` is counted below the root of its tree and ends at `DEEPEST`.
    """

    index: int
    trace_id: str
    span_id: str
    parent_span_id: str | None
    began: float
    ended: float
    depth: int = 0

    @property
    def is_moment(self) -> bool:
        """Whether it has no length: a marker of something in the run's life."""
        return self.ended <= self.began

    @property
    def key(self) -> _Key:
        """Return what its children name."""
        return self.trace_id, self.span_id

    @property
    def parent_key(self) -> _Key:
        """Return the key of the span that it lies in, if there is one."""
        return self.trace_id, self.parent_span_id or ""


def in_order(places: Iterable[Place]) -> list[Place]:
    """Return them in the order of a tree, siblings by their start; a span without its parent is a root.

    A marker of the run's life that is later than all work of its own trace stands among the traces that follow, where
    it belongs in time. Ids come from outside: a span that is its own ancestor is told once, as if it had no parent.
    """
    ordered = sorted(places, key=lambda place: (place.began, place.span_id))
    known = {place.key for place in ordered}
    is_alone = sum(place.parent_key not in known for place in ordered) <= 1
    worked_until: dict[str, float] = {}
    for place in ordered:
        if not place.is_moment:
            worked_until[place.trace_id] = max(place.ended, worked_until.get(place.trace_id, place.ended))
    roots: list[Place] = []
    children: dict[_Key, list[Place]] = {}
    for place in ordered:
        is_late = place.is_moment and place.began > worked_until.get(place.trace_id, place.ended)
        if place.parent_key not in known or (is_late and not is_alone):
            roots.append(place)
        else:
            children.setdefault(place.parent_key, []).append(place)
    return list(_walk([*roots, *ordered], children))


def _walk(firsts: Sequence[Place], children: Mapping[_Key, list[Place]]) -> Iterator[Place]:
    told: set[int] = set()
    for first in firsts:
        pending = [first]
        while pending:
            place = pending.pop()
            if place.index in told:
                continue
            told.add(place.index)
            yield place
            below = children.get(place.key, [])
            pending += [replace(child, depth=min(place.depth + 1, DEEPEST)) for child in reversed(below)]


def notes_on(kind: str, status: str, attributes: Mapping[str, Any]) -> list[str]:
    """Return what tells executions, and tries of steps, apart that have one name; an error's type comes last."""
    notes: list[str] = []
    if kind == "CONSUMER" and _is_repeated(attributes.get("tenantry.attempt")):
        notes.append(f"attempt {attributes['tenantry.attempt']}")
    if attributes.get("tenantry.replay") is True:
        notes.append("replay")
    if _is_repeated(attributes.get("tenantry.step.attempt")):
        notes.append(f"attempt {attributes['tenantry.step.attempt']}")
    if status == "ERROR":
        notes.append(str(attributes.get("error.type") or "error"))
    return notes


def _is_repeated(attempt: object) -> bool:
    return isinstance(attempt, int) and attempt > 1
