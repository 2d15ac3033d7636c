"""Reads `.sql` files: named sections with `:name::type` parameters, compiled to each driver's style.

A section begins with `-- name: snake_case`; a line `-- role: name` says as whom it runs (default `tenantry_tenant`).
Comments
are for readers and are not sent. String literals, comments and casts are told from parameters by a small scanner.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DEFAULT_ROLE = "tenantry_tenant"
_NAME = re.compile(r"--\s*name:\s*(.*?)\s*$")
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9_]*")
_ROLE = re.compile(r"--\s*role:\s*([a-z][a-z0-9_]*)\s*$")
# In the order of the alternatives: literal with escapes, literal, quoted identifier, dollar-quoted body, comments,
# cast, parameter.
_TOKEN = re.compile(
    r"(?P<escape>\b[eE]'(?:[^'\\]|\\.|'')*')"
    r"|(?P<literal>'(?:[^']|'')*')"
    r'|(?P<identifier>"(?:[^"]|"")*")'
    r"|(?P<dollar>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)"
    r"|(?P<comment>--[^\n]*|/\*.*?\*/)"
    r"|(?P<cast>::)"
    r"|(?P<parameter>:(?P<name>[a-z_][a-z0-9_]*)\b)",
    re.DOTALL,
)


class SqlFileError(ValueError):
    """A `.sql` file that cannot be read as sections; whoever wrote it must act."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One section of a file, compiled.

    `text` has `:name` parameters, `pyformat` psycopg's `%(name)s` with `%` doubled, `numbered` the protocol's `$1`,
    in the order of `parameters`, each named once.
    """

    name: str
    source: str
    role: str
    text: str
    parameters: tuple[str, ...]
    pyformat: str
    numbered: str

    def arguments(self, params: Mapping[str, object]) -> list[object]:
        """Return the values for the numbered form.

        Raises:
            KeyError: a parameter has no value.
        """
        return [params[name] for name in self.parameters]


class Statements(Mapping[str, Statement]):
    """The sections of one file by name."""

    def __init__(self, source: str, sections: Mapping[str, Statement]) -> None:
        self.source = source
        self._sections = dict(sections)

    def __getitem__(self, name: str) -> Statement:
        return self._sections[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


def load(module_file: str) -> Statements:
    """Return the sections of the `.sql` file beside a module: `load(__file__)`.

    Raises:
        SqlFileError: a section without a name, a name twice, or a file without sections.
    """
    return load_file(Path(module_file).with_suffix(".sql"))


@cache
def load_file(path: Path) -> Statements:
    """Return the sections of a `.sql` file."""
    return parse(path.read_text(encoding="utf-8"), path.name)


def parse(text: str, source: str) -> Statements:
    """Return the sections of a file's text."""
    sections: dict[str, Statement] = {}
    for name, lines in _sections(text, source):
        if name in sections:
            raise SqlFileError(f"{source}: section {name} stands twice")
        sections[name] = _compile(name, source, lines)
    if not sections:
        raise SqlFileError(f"{source}: no section")
    return Statements(source, sections)


def _sections(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    name: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        named = _NAME.match(line)
        if named is None:
            if name is None and line.strip() and not line.startswith("--"):
                raise SqlFileError(f"{source}: text before the first section")
            lines.append(line)
            continue
        if name is not None:
            yield name, lines
        found = str(named[1])
        if _SNAKE_CASE.fullmatch(found) is None:
            raise SqlFileError(f"{source}: {found!r} is no name of a section: snake_case")
        name, lines = found, []
    if name is not None:
        yield name, lines


def _compile(name: str, source: str, lines: list[str]) -> Statement:
    roles = [found[1] for line in lines if (found := _ROLE.match(line))]
    pieces = [(match.lastgroup, match) for match in _TOKEN.finditer("\n".join(lines))]
    raw = "\n".join(lines)
    text: list[str] = []
    pyformat: list[str] = []
    numbered: list[str] = []
    parameters: list[str] = []
    position = 0
    for _, match in pieces:
        plain = raw[position : match.start()]
        position = match.end()
        text.append(plain)
        pyformat.append(plain.replace("%", "%%"))
        numbered.append(plain)
        if match["comment"] is not None:
            for form in (text, pyformat, numbered):
                form.append(" ")
            continue
        parameter = match["name"]
        if parameter is None:
            text.append(match[0])
            pyformat.append(match[0].replace("%", "%%"))
            numbered.append(match[0])
            continue
        if not raw.startswith("::", position):
            raise SqlFileError(f"{source}: section {name}: parameter :{parameter} is not cast")
        if parameter not in parameters:
            parameters.append(parameter)
        text.append(f":{parameter}")
        pyformat.append(f"%({parameter})s")
        numbered.append(f"${parameters.index(parameter) + 1}")
    rest = raw[position:]
    tails = ((text, rest), (pyformat, rest.replace("%", "%%")), (numbered, rest))
    compiled = [_tidy("".join([*parts, tail])) for parts, tail in tails]
    if not compiled[0]:
        raise SqlFileError(f"{source}: section {name} is empty")
    return Statement(
        name=name,
        source=source,
        role=roles[0] if roles else DEFAULT_ROLE,
        text=compiled[0],
        parameters=tuple(parameters),
        pyformat=compiled[1],
        numbered=compiled[2],
    )


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()).strip().removesuffix(";").rstrip()
