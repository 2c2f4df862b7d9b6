"""Checks a document against a JSON Schema (draft 2020-12), as far as this project's schemas use it.

Known keywords: $ref to #/$defs, type, const, enum, required, properties, additionalProperties (a schema), items,
prefixItems, minItems, maxItems, minLength, minimum, maximum, exclusiveMinimum. It knows nothing about profiles.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TYPES = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_ANNOTATIONS = {"$schema", "$defs", "title", "description"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: ``where`` in the document (empty: all of it), what is there, what is allowed."""

    where: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.where or 'the document'} is {self.found}; allowed: {self.allowed}"


def first_fault(document: object, schema: Mapping[str, Any]) -> Fault | None:
    """The first fault in reading order, None if the document fits.

    >>> print(first_fault({"step": -1}, {"properties": {"step": {"type": "number", "minimum": 0}}}))
    step is -1; allowed: a number of at least 0
    >>> print(first_fault({}, {"required": ["step"]}))
    step is missing; allowed: a value
    """
    return next(_Check(schema).faults(document, schema, ""), None)


def shown(value: object) -> str:
    """A value as part of a message, never longer than a line's worth."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    short.maxlist = short.maxdict = 3
    return short.repr(value)


def allowed(schema: Mapping[str, Any]) -> str:
    """What a schema without parts of its own lets through, in words.

    >>> allowed({"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1})
    'a number above 0 and of at most 1, or null'
    """
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    types = [schema["type"]] if isinstance(schema.get("type"), str) else list(schema.get("type", ()))
    bounds = []
    if "minimum" in schema:
        bounds.append(f"of at least {schema['minimum']}")
    if "exclusiveMinimum" in schema:
        bounds.append(f"above {schema['exclusiveMinimum']}")
    if "maximum" in schema:
        bounds.append(f"of at most {schema['maximum']}")
    first = " ".join([_TYPES[types[0]] if types else "a value", " and ".join(bounds)]).strip()
    if schema.get("minLength"):
        first += f" of at least {schema['minLength']} character"
    rest = [_TYPES[name] for name in types[1:]]
    return ", or ".join([first, *rest])


class _Check:
    """A walk through document and schema side by side."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def faults(self, value: object, schema: Mapping[str, Any], where: str) -> Iterator[Fault]:
        """All faults at and below ``where``; nothing below what has the wrong type."""
        schema = self._resolved(schema)
        if not _fits(value, schema):
            yield Fault(where, shown(value), allowed(schema))
        elif isinstance(value, Mapping):
            yield from self._object(value, schema, where)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from self._array(value, schema, where)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self._root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        unknown = set(schema) - _KNOWN - _ANNOTATIONS
        if unknown:
            raise NotImplementedError(f"schema keywords {sorted(unknown)}")
        return schema

    def _object(self, value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[Fault]:
        for key in schema.get("required", ()):
            if key not in value:
                part = self._resolved(schema.get("properties", {}).get(key, {}))
                yield Fault(f"{where}.{key}".lstrip("."), "missing", allowed(part))
        known = schema.get("properties", {})
        for key, part in value.items():
            inner = known.get(key, schema.get("additionalProperties"))
            if inner is not None:
                name = f".{key}" if key in known else f"[{shown(key)}]"
                yield from self.faults(part, inner, (where + name).lstrip("."))

    def _array(self, value: Sequence[Any], schema: Mapping[str, Any], where: str) -> Iterator[Fault]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not least <= len(value) <= most:
            words = f"{least}" if least == most else f"at least {least}" if most == math.inf else f"{least} to {most}"
            yield Fault(where, f"a list of {len(value)}", f"a list of {words}")
        first = schema.get("prefixItems", ())
        for index, part in enumerate(value):
            inner = first[index] if index < len(first) else schema.get("items")
            if inner is not None:
                yield from self.faults(part, inner, f"{where}[{index}]")


_KNOWN = {
    "additionalProperties", "const", "enum", "exclusiveMinimum", "items", "maxItems", "maximum", "minItems",
    "minLength", "minimum", "prefixItems", "properties", "required", "type",
}  # fmt: skip


def _fits(value: object, schema: Mapping[str, Any]) -> bool:
    """Whether the value itself is let through, its parts not looked at."""
    if "const" in schema and not _same(value, schema["const"]):
        return False
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return False
    types = schema.get("type", ())
    names = [types] if isinstance(types, str) else types
    if names and not any(_is(value, name) for name in names):
        return False
    if isinstance(value, str):
        return bool(len(value) >= schema.get("minLength", 0))
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, above, high = (schema.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
        return not (
            (low is not None and value < low)
            or (above is not None and value <= above)
            or (high is not None and value > high)
        )
    return True


def _same(left: object, right: object) -> bool:
    """Equal as JSON: true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _is(value: object, name: str) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return {
        "object": isinstance(value, Mapping),
        "array": isinstance(value, Sequence) and not isinstance(value, str),
        "string": isinstance(value, str),
        "integer": whole or (isinstance(value, float) and value.is_integer()),
        "number": whole or (isinstance(value, float) and math.isfinite(value)),
        "boolean": isinstance(value, bool),
        "null": value is None,
    }[name]
