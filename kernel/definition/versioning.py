"""The version of a definition: a hash over its structural contract, and over nothing else.

The contract: stage ids in order, execution groups, requirements, and the JSON Schemas of every input, output and config
and of the workflow's input. Names and descriptions are no part of it, those that Pydantic takes from classes and
docstrings included: editing a text or renaming a model is a deploy, changing a shape is a new version.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

_TEXTS = frozenset({"title", "description", "examples", "deprecated", "$comment"})
# Keywords whose value maps names of the author's to schemas: there, "title" is a field.
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
# Keywords whose value is data.
_DATA = frozenset({"default", "const", "enum", "dependentRequired"})
_DEFS = "#/$defs/"


def structure_hash(contract: Mapping[str, object]) -> str:
    """Return `sha256-` and 32 hex digits over the canonical JSON of a structural contract."""
    text = json.dumps(contract, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=True)
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def structure_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema without its texts, its models called by the order in which they are first referred to."""
    definitions = cast("Mapping[str, Mapping[str, Any]]", schema.get("$defs", {}))
    names: dict[str, str] = {}
    root = _stripped({key: value for key, value in schema.items() if key != "$defs"}, names)
    found: dict[str, Any] = {}
    # Stripping a definition may meet further ones; names keeps them in the order of first reference.
    while len(found) < len(names):
        original = list(names)[len(found)]
        found[names[original]] = _stripped(definitions[original], names)
    return {**root, "$defs": found} if found else root


def _stripped(schema: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {key: _stripped_value(key, schema[key], names) for key in sorted(schema) if key not in _TEXTS}


def _stripped_value(key: str, value: object, names: dict[str, str]) -> object:
    if key == "$ref" and isinstance(value, str):
        return _renamed(value, names)
    if key == "required":
        return sorted(cast("list[str]", value))
    if key in _DATA:
        return value
    if isinstance(value, dict):
        return _stripped_mapping(key, cast("dict[str, Any]", value), names)
    return _stripped_item(value, names)


def _stripped_mapping(key: str, mapping: Mapping[str, Any], names: dict[str, str]) -> object:
    if key == "mapping":  # of a discriminator: values of the tag to references
        return {tag: _renamed(mapping[tag], names) for tag in sorted(mapping)}
    if key in _NAMED:
        return {name: _stripped_item(mapping[name], names) for name in sorted(mapping)}
    return _stripped(mapping, names)


def _stripped_item(value: object, names: dict[str, str]) -> object:
    if isinstance(value, dict):
        return _stripped(cast("dict[str, Any]", value), names)
    if isinstance(value, list):
        return [_stripped_item(item, names) for item in cast("list[object]", value)]
    return value


def _renamed(reference: str, names: dict[str, str]) -> str:
    if not reference.startswith(_DEFS):
        return reference
    original = reference.removeprefix(_DEFS).replace("~1", "/").replace("~0", "~")
    return _DEFS + names.setdefault(original, f"m{len(names) + 1}")
