"""Makes a form of a JSON Schema, and JSON of what was filled in.

What a form can ask for becomes a field: texts, numbers, switches, choices, dates, objects of these, and lists, an entry
a line. Anything else is a box for JSON. A field that is left empty is left out: the model's own default counts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

from kernel import FieldError
from kernel.payloads import pointer_token
from service.console.forms import Form
from service.http.bodies import parse_json
from service.problems import ProblemError

Kind = Literal["text", "long", "number", "integer", "switch", "choice", "date", "moment", "lines", "json", "group"]
_FORMATS: Final[Mapping[str, Kind]] = {"date": "date", "date-time": "moment"}
_SCALARS: Final = frozenset({"string", "integer", "number"})
MAX_DEPTH: Final = 5
# Texts that may be longer than this get a box of several lines.
LONG_FROM: Final = 200
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `pointer` is where its value goes, as a JSON Pointer, and its name in the form."""

    pointer: str
    label: str
    kind: Kind
    is_required: bool = False
    description: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    children: tuple["Field", ...] = ()
    item: str = ""
    is_nullable: bool = False


@dataclass(frozen=True, slots=True)
class Filled:
    """A field with what is in it and what is wrong with that."""

    field: Field
    value: str
    errors: tuple[str, ...]
    children: tuple["Filled", ...]


def field_of(schema: Mapping[str, Any], pointer: str, label: str) -> Field:
    """Return the form of a schema, its values below `pointer`."""
    return _Reader(schema.get("$defs", {})).read(schema, pointer, label, is_required=True, depth=0)


class _Reader:
    """Reads schemas that refer to definitions."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def read(self, schema: Any, pointer: str, label: str, *, is_required: bool, depth: int) -> Field:
        """Return the field, or group of fields, of a schema."""
        plain, is_nullable = self._resolved(schema)
        kind = self._kind(plain, depth)
        given: dict[str, Any] = {
            "pointer": pointer,
            "label": str(plain.get("title") or label),
            "is_required": is_required,
            "description": str(plain.get("description") or ""),
            "hint": _hint(plain),
            "is_nullable": is_nullable,
        }
        if kind == "group":
            return Field(kind=kind, children=tuple(self._children(plain, pointer, depth)), **given)
        choices = tuple(map(_choice, plain.get("enum", ()))) if kind == "choice" else ()
        item = str(self._resolved(plain.get("items", {}))[0].get("type", "")) if kind == "lines" else ""
        return Field(kind=kind, choices=choices, item=item, **given)

    def _children(self, schema: Mapping[str, Any], pointer: str, depth: int) -> Iterator[Field]:
        required = schema.get("required", ())
        for name, part in schema["properties"].items():
            below = pointer + pointer_token(name)
            yield self.read(part, below, name, is_required=name in required, depth=depth + 1)

    def _resolved(self, schema: Any) -> tuple[Mapping[str, Any], bool]:
        """Follow references and look through "or null"; return the plain schema and whether null fits too."""
        is_nullable, around = False, dict[str, Any]()
        for _ in range(MAX_DEPTH * 2):
            if not isinstance(schema, Mapping):
                return {}, is_nullable
            around = {name: value for name, value in schema.items() if name in {"title", "description"}} | around
            options = schema.get("anyOf") or schema.get("allOf") or ()
            others = [option for option in options if option != {"type": "null"}]
            if "$ref" in schema:
                schema = self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
            elif len(others) == 1:
                is_nullable = is_nullable or len(others) < len(options)
                schema = others[0]
            else:
                break
        return {**schema, **around}, is_nullable

    def _kind(self, schema: Mapping[str, Any], depth: int) -> Kind:
        match schema.get("type"):
            case _ if "enum" in schema:
                return "choice"
            case "object" if schema.get("properties") and depth < MAX_DEPTH:
                return "group"
            case "string":
                is_long = int(schema.get("maxLength", LONG_FROM + 1)) > LONG_FROM
                return _FORMATS.get(str(schema.get("format")), "long" if is_long else "text")
            case "integer":
                return "integer"
            case "number":
                return "number"
            case "boolean":
                return "switch"
            case "array" if self._resolved(schema.get("items", {}))[0].get("type") in _SCALARS:
                return "lines"
        return "json"


def value_of(field: Field, form: Form) -> Any:
    """Return what was filled in.

    Raises:
        ProblemError: 422, with a pointer to each field that does not hold what it should.
    """
    faults: list[FieldError] = []
    value = _value(field, form, faults)
    if faults:
        raise ProblemError("invalid_input", "Some fields do not hold what they should.", errors=tuple(faults))
    return {} if value is _MISSING and field.kind == "group" else None if value is _MISSING else value


def _value(field: Field, form: Form, faults: list[FieldError]) -> Any:
    if field.kind == "group":
        if not field.is_required and not _is_touched(field, form):
            return _MISSING
        found = {child: _value(child, form, faults) for child in field.children}
        return {_last(child.pointer): value for child, value in found.items() if value is not _MISSING}
    text = form.text(field.pointer)
    if not text.strip() and not (field.is_required and field.kind in {"text", "long"}):
        if field.is_required and field.is_nullable:
            return None
        return [] if field.kind == "lines" and field.is_required else _MISSING
    try:
        return _parsed(field, text)
    except ValueError as error:
        faults.append(FieldError(field.pointer, "invalid", str(error)))
        return _MISSING


def _is_touched(field: Field, form: Form) -> bool:
    """Whether anything was written into a group: browsers send what was left empty too."""
    return bool(form.text(field.pointer).strip()) or any(_is_touched(child, form) for child in field.children)


def _parsed(field: Field, text: str) -> Any:
    match field.kind:
        case "integer" | "number":
            return _number(text, is_whole=field.kind == "integer")
        case "switch":
            return text == "true"
        case "choice":
            return json.loads(text) if text in field.choices else _refuse("is none of the choices")
        case "lines":
            lines = [line for line in text.split("\n") if line.strip()]
            return (
                lines if field.item == "string" else [_number(line, is_whole=field.item == "integer") for line in lines]
            )
        case "json":
            return json_of(text)
        case "moment":
            # What browsers give has neither seconds nor an offset: it is meant, and labelled, as UTC.
            return f"{text}:00Z" if len(text) == len("2026-12-01T09:30") else text
    return text


def json_of(text: str) -> Any:
    """Return the value of JSON text; a ValueError that says what is wrong with it."""
    try:
        return parse_json(text.encode(errors="surrogatepass"))
    except ProblemError as problem:
        raise ValueError(problem.detail.replace("The body", "This")) from None


def filled(field: Field, value: Any = _MISSING, form: Form | None = None, errors: Sequence[FieldError] = ()) -> Filled:
    """Return the field with what was sent, or with a value, or empty; and with the faults that were found in it."""
    inner = value if isinstance(value, Mapping) else {}
    children = tuple(filled(child, inner.get(_last(child.pointer), _MISSING), form, errors) for child in field.children)
    text = form.text(field.pointer) if form is not None else _written(field, value)
    return Filled(field, text, tuple(fault.message for fault in errors if _is_of(field, fault.pointer)), children)


def _is_of(field: Field, pointer: str) -> bool:
    """Whether a fault is shown at this field: its own, or of something within that has no field."""
    if pointer == field.pointer:
        return True
    return field.kind != "group" and pointer.startswith(f"{field.pointer}/")


def _written(field: Field, value: Any) -> str:
    if value is _MISSING or value is None or field.kind == "group":
        return ""
    if field.kind == "lines" and isinstance(value, list):
        return "\n".join(map(str, value))
    if field.kind in {"text", "long", "date"} and isinstance(value, str):
        return value
    if field.kind == "moment" and isinstance(value, str):
        return value[: len("2026-12-01T09:30")]
    return json.dumps(value, ensure_ascii=False, indent=2 if field.kind == "json" else None)


def _number(text: str, *, is_whole: bool) -> int | float:
    text = text.strip()
    try:
        return int(text) if is_whole else float(text) if any(each in text for each in ".eE") else int(text)
    except ValueError:
        return _refuse("must be a whole number" if is_whole else "must be a number")


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _choice(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _hint(schema: Mapping[str, Any]) -> str:
    """Return the default and the bounds of a field, as far as its schema has them."""
    bounds = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above", "exclusiveMaximum": "below"}
    parts = [f"{word} {schema[name]}" for name, word in bounds.items() if name in schema]
    if isinstance(schema.get("pattern"), str):
        parts.append(f"matches {schema['pattern']}")
    if "default" in schema:
        parts.append(f"{json.dumps(schema['default'], ensure_ascii=False)} when left empty")
    return ", ".join(parts)


def _last(pointer: str) -> str:
    return pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
