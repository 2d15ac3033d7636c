"""Pages of what a run has many of: steps, log lines, annotations, events; oldest first, of one stage where it is named.

What such a page may lead to next is the list's own: each has cursors of its kind, those of the API.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from litestar.response.base import ASGIResponse

from service.console.run_reading import standing
from service.console.runs import RUNS
from service.console.visits import Visit
from service.http.queries import CursorKind
from tenancy import TenantTransaction

P = TypeVar("P")
PAGE_SIZE: Final = 200
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Wanted(Generic[P]):
    """Which page of a list: of which run, of one stage or of all, behind which position."""

    run_id: UUID
    stage_id: str | None
    after: P


@dataclass(frozen=True, slots=True)
class Found(Generic[P]):
    """The rows of a page as they are shown, and the position behind which there are more; None where there are not."""

    rows: Sequence[object]
    last: P | None


@dataclass(frozen=True, slots=True)
class Listing(Generic[P]):
    """A list: the last part of its address, which names its template too, its cursors and how a page of it is read."""

    name: str
    cursor: CursorKind[P]
    first: P
    read: Callable[[TenantTransaction, Wanted[P]], Awaitable[Found[P]]]

    async def show(
        self, visit: Visit, context: Mapping[str, Any] = _NOTHING, kept: Mapping[str, str] = _NOTHING
    ) -> ASGIResponse:
        """Show the page that the query asks for; its links keep the parameters `kept`, and the stage.

        Raises:
            ProblemError: 404 where there is no such run, one that was purged meanwhile included.
        """
        query = visit.query()
        run_id = visit.path_id("run_id", "run")
        wanted = Wanted(run_id, query.text("stage"), query.cursor(self.cursor, self.first))
        async with visit.transaction() as tx:
            found = await self.read(tx, wanted)
            progress = await standing(tx, run_id)
        of_stage = {**kept, **({"stage": wanted.stage_id} if wanted.stage_id is not None else {})}
        links = {
            "of_all": self._address(run_id, kept) if wanted.stage_id is not None else None,
            "first": self._address(run_id, of_stage) if wanted.after != self.first else None,
            "next": self._address(run_id, {**of_stage, "cursor": self.cursor.write(found.last)})
            if found.last is not None
            else None,
        }
        shown = {"run_id": run_id, "stage_id": wanted.stage_id, "rows": found.rows, "links": links}
        return visit.show(f"{self.name}.html", {**shown, "event_count": progress.event_sequence, **context})

    def _address(self, run_id: UUID, query: Mapping[str, str]) -> str:
        path = f"{RUNS}/{run_id}/{self.name}"
        return f"{path}?{urlencode(query)}" if query else path
