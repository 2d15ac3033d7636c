"""Where the navigation leads: to the pages that the caller may open, and to no others."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from service.auth import Scope


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the navigation; `key` opens it after `g`, `scope` is what the page asks for."""

    address: str
    title: str
    key: str
    scope: Scope | None = None


PLACES: Final = (
    Place("/console", "Overview", "o"),
    Place("/console/runs", "Runs", "r", Scope.RUNS_READ),
    Place("/console/workflows", "Workflows", "w", Scope.RUNS_READ),
    Place("/console/workers", "Workers", "k", Scope.RUNS_READ),
    Place("/console/keys", "Keys", "e", Scope.KEYS_ADMIN),
    Place("/console/usage", "Usage", "u"),
)


def places_for(scopes: Collection[str]) -> list[Place]:
    """Return where a caller with these scopes may go, in the order of the navigation."""
    return [place for place in PLACES if place.scope is None or place.scope in scopes]
