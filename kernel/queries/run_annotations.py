"""Reads what bodies and the engine noted at one run."""

from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Final, NamedTuple
from uuid import UUID

from tenancy import Row, TenantTransaction, load_sql

SQL: Final = load_sql(__file__)
OLDEST: Final = UUID(int=0)
# A page ends with the annotation that takes it beyond this: a redrive archives whole outputs.
MOST_BYTES: Final = 4 * 1024 * 1024
_ALL: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AnnotationView:
    """One annotation; `value` and `payload` are JSON texts, or the beginnings of such, of that many characters in all.

    `is_superseded`: a redrive took back the attempt that it is about.
    """

    annotation_id: UUID
    stage_id: str | None
    attempt: int | None
    key: str
    value: str
    value_length: int
    payload: str | None
    payload_length: int | None
    created_at: datetime
    is_superseded: bool


class AnnotationPage(NamedTuple):
    """Annotations, oldest first, and whether more follow."""

    annotations: list[AnnotationView]
    has_more: bool


async def run_annotations(  # noqa: PLR0913 - a page, and what of it
    tx: TenantTransaction,
    run_id: UUID,
    *,
    after: UUID = OLDEST,
    limit: int,
    stage_id: str | None = None,
    most_length: int = _ALL,
) -> AnnotationPage:
    """Return up to `limit` annotations behind the one called `after`, of one stage where it is named.

    None for an unknown run. Of a value or a payload come `most_length` characters at most. A page has fewer annotations
    where they are large: it ends with the one that takes it beyond 4 MiB.
    """
    rows = await tx.fetch_all(
        SQL["page"],
        run_id=run_id,
        after=after,
        limit=limit + 1,
        stage_id=stage_id,
        most_bytes=MOST_BYTES,
        most_length=most_length,
    )
    shown = list(takewhile(lambda row: not row["is_beyond"], rows[:limit]))
    return AnnotationPage([_view(row) for row in shown], has_more=len(rows) > len(shown))


def _view(row: Row) -> AnnotationView:
    return AnnotationView(
        annotation_id=row["annotation_id"],
        stage_id=row["stage_id"],
        attempt=row["attempt"],
        key=row["key"],
        value=row["value"],
        value_length=row["value_length"],
        payload=row["payload"],
        payload_length=row["payload_length"],
        created_at=row["created_at"],
        is_superseded=row["is_superseded"],
    )
