"""What annotations are to a reader: notes of bodies, and the attempts that redrives took back."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ValidationError

from kernel.commands.run_redrive import SUPERSEDED
from kernel.queries.run_annotations import AnnotationPage, AnnotationView
from kernel.states import StageStatus
from service.console import json_text

# Of a value this much is read, and this much shown; the whole is a download.
MOST_READ: Final = 64 * 1024
MOST_SHOWN: Final = 4_000


class _Key(BaseModel):
    step_id: str
    external_key: str


class _Archived(BaseModel):
    """What a redrive leaves of an attempt (`run_redrive.sql`, archive)."""

    stage_id: str
    attempt: int
    status: StageStatus
    error: str | None
    completed_at: datetime | None
    redrive_count: int
    external_keys: list[_Key]


@dataclass(frozen=True, slots=True)
class Note:
    """An annotation to be shown."""

    annotation: AnnotationView
    value: json_text.JsonText
    payload: json_text.JsonText | None

    @property
    def is_cut(self) -> bool:
        """Whether not all of it is shown."""
        return self.value.is_cut or (self.payload is not None and self.payload.is_cut)


@dataclass(frozen=True, slots=True)
class Superseded:
    """An attempt that the redrive of this number took back.

    `keys` are those of its steps' effects that nobody will ask for again. `annotation` has its output as payload.
    """

    annotation: AnnotationView
    stage_id: str
    attempt: int
    status: StageStatus
    error: str | None
    ended_at: datetime | None
    redrive: int
    keys: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Told:
    """The annotations of a run, or of a stage of it; `has_more` when there are others behind them."""

    notes: tuple[Note, ...]
    superseded: tuple[Superseded, ...]
    has_more: bool

    def superseded_up_to(self, stage_id: str) -> int:
        """Return the last attempt of a stage that was taken back; 0 when none was."""
        return max((each.attempt for each in self.superseded if each.stage_id == stage_id), default=0)


def told(page: AnnotationPage) -> Told:
    """Return annotations as they are shown.

    Bodies may use the engine's key too: what is not as a redrive writes it, or was not read to its end, is a note.
    """
    notes: list[Note] = []
    superseded: list[Superseded] = []
    for each in page.annotations:
        archived = _superseded(each) if each.key == SUPERSEDED else None
        if archived is None:
            notes.append(note_of(each))
        else:
            superseded.append(archived)
    return Told(tuple(notes), tuple(superseded), page.has_more)


def notes_of(annotations: Iterable[AnnotationView]) -> list[Note]:
    """Return all of them as notes, those of redrives too."""
    return [note_of(each) for each in annotations]


def note_of(annotation: AnnotationView) -> Note:
    """Return an annotation with as much of its value and payload as is shown."""
    value = json_text.laid_out(annotation.value, most=MOST_SHOWN, size=annotation.value_length)
    payload = None
    if annotation.payload is not None:
        payload = json_text.laid_out(annotation.payload, most=MOST_SHOWN, size=annotation.payload_length)
    return Note(annotation, value, payload)


def _superseded(annotation: AnnotationView) -> Superseded | None:
    try:
        said = _Archived.model_validate_json(annotation.value)
    except ValidationError:
        return None
    return Superseded(
        annotation=annotation,
        stage_id=said.stage_id,
        attempt=said.attempt,
        status=said.status,
        error=said.error,
        ended_at=said.completed_at,
        redrive=said.redrive_count + 1,
        keys=tuple((key.step_id, key.external_key) for key in said.external_keys),
    )
