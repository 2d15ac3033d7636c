"""The smallest body that a JSON Schema takes, for routes that nobody has written one for."""

from collections.abc import Mapping
from typing import Any

FORMATS = {
    "date-time": "2030-01-01T00:00:00Z",
    "uuid": "00000000-0000-7000-8000-000000000000",
    "uri": "https://example.org/",
    "duration": "P1D",
}


def instance(schema: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    """Return a value of the schema's with what it requires and no more; `given` are the values of fields by name."""
    return _value(schema, schema.get("$defs", {}), given)


def _value(schema: Mapping[str, Any], defs: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    if "$ref" in schema:
        return _value(defs[schema["$ref"].rsplit("/", 1)[-1]], defs, given)
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    for word in ("examples", "enum"):
        if schema.get(word):
            return schema[word][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return _value(schema[word][0], defs, given)
    return _of_type(schema, defs, given)


def _of_type(schema: Mapping[str, Any], defs: Mapping[str, Any], given: Mapping[str, str]) -> Any:
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        return {
            name: given[name] if name in given else _value(properties[name], defs, given)
            for name in properties
            if name in schema.get("required", ()) or name in given
        }
    if kind == "array":
        return [_value(schema["items"], defs, given)] * schema.get("minItems", 0)
    if kind == "string":
        return FORMATS.get(schema.get("format", ""), "x" * max(1, schema.get("minLength", 1)))
    if kind in ("integer", "number"):
        return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    return {"boolean": True, "null": None}.get(str(kind), {})
