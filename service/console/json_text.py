"""Shows JSON text as it is stored: laid out and coloured, not parsed and written anew, so that no digit changes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

# More than this is cut and left to the download.
MAX_SHOWN: Final = 20_000
# A text that is cut may end within a string.
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+')
_INDENT: Final = "  "
_CLOSERS: Final = {"}": "{", "]": "["}


@dataclass(frozen=True, slots=True)
class JsonText:
    """A payload to be shown; `size` is that of the whole text, in characters."""

    markup: Markup
    size: int
    is_cut: bool


def shown(text: str | None) -> JsonText | None:
    """Return the text laid out with marks for keys, texts, numbers and words; None stays None."""
    return None if text is None else laid_out(text)


def laid_out(text: str, *, most: int = MAX_SHOWN, size: int | None = None) -> JsonText:
    """Return the first `most` characters laid out; `size` is that of the whole where the text itself is cut."""
    pieces: list[str] = []
    used = 0
    taken = text[: 2 * most]
    whole = len(text) if size is None else size
    for piece, kind in _pieces(taken):
        used += len(piece)
        if used > most:
            pieces.append(str(escape(piece[: max(len(piece) - used + most, 0)])))
            return JsonText(Markup("".join(pieces)), whole, is_cut=True)  # noqa: S704 - every piece is escaped
        pieces.append(f'<span class="j-{kind}">{escape(piece)}</span>' if kind else str(escape(piece)))
    return JsonText(Markup("".join(pieces)), whole, is_cut=len(taken) < whole)  # noqa: S704 - every piece is escaped


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of the layout, each with what it is: key, text, number, word, or nothing of note."""
    depth = 0
    pieces = _TOKEN.findall(text)
    for index, piece in enumerate(pieces):
        following = pieces[index + 1] if index + 1 < len(pieces) else ""
        if piece in "{[":
            depth += 1
            yield piece, ""
            if _CLOSERS.get(following) != piece:
                yield _line(depth), ""
        elif piece in "}]":
            depth = max(depth - 1, 0)
            if index and pieces[index - 1] != _CLOSERS[piece]:
                yield _line(depth), ""
            yield piece, ""
        elif piece == ",":
            yield f",{_line(depth)}", ""
        elif piece == ":":
            yield ": ", ""
        else:
            yield piece, _kind(piece, following)


def _line(depth: int) -> str:
    return "\n" + _INDENT * depth


def _kind(piece: str, following: str) -> str:
    if piece.startswith('"'):
        return "key" if following == ":" else "text"
    return "word" if piece in {"true", "false", "null"} else "number"
