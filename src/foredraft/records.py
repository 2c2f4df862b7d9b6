"""Typed records out of foreign JSON: what is missing or of another type is named by its place. Knows no file."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from reprlib import Repr
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_MOST = 1e15
"""No number is larger: bytes, seconds, runs."""
_MAX_TEXT, _MAX_ITEMS = 4096, 1024


class DamagedRecord(ValueError):
    """What is wrong with a record, in words that follow its file's name."""


def record(kind: type[T], data: object) -> T:
    """``data``, as ``json.loads`` gives it, as a value of the frozen dataclass ``kind``: its fields are texts,
    booleans, numbers from 0 on, records, tuples of one type, mappings of texts, or one of these or None. Fields with a
    default may be missing, and further keys are passed over. DamagedRecord names the first place that is wrong."""
    return _record(kind, data, "")  # type: ignore[no-any-return]


def _decoded(kind: Any, data: Any, name: str) -> Any:
    """``data`` as a value of the type ``kind``: a record, a tuple, a mapping of texts, a scalar, or one of these or
    None."""
    if is_dataclass(kind):
        return _record(kind, data, name)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if data is None else _decoded(inner[0], data, name)
    if origin is tuple:
        if not isinstance(data, list) or len(data) > _MAX_ITEMS:
            raise DamagedRecord(f"{name} is {shown(data)}, not a list of at most {_MAX_ITEMS}")
        return tuple(_decoded(inner[0], item, f"{name}[{index}]") for index, item in enumerate(data))
    if origin is not None:
        if not isinstance(data, dict) or len(data) > _MAX_ITEMS:
            raise DamagedRecord(f"{name} is {shown(data)}, not an object of at most {_MAX_ITEMS} texts")
        return {key: _scalar(str, value, f"{name}.{shown(key)}") for key, value in data.items()}
    return _scalar(kind, data, name)


def _record(kind: Any, data: Any, name: str) -> Any:
    if not isinstance(data, dict):
        raise DamagedRecord(f"{name} is {shown(data)}, not an object")
    hints, values = get_type_hints(kind), {}
    for item in fields(kind):
        place = f"{name}.{item.name}" if name else item.name
        if item.name in data:
            values[item.name] = _decoded(hints[item.name], data[item.name], place)
        elif item.default is MISSING:
            raise DamagedRecord(f"{place} is missing")
    return kind(**values)


def _scalar(kind: type[Any], data: Any, name: str) -> Any:
    if kind is bool:
        good, allowed = isinstance(data, bool), "true or false"
    elif kind is str:
        good, allowed = isinstance(data, str) and len(data) <= _MAX_TEXT, f"a text of at most {_MAX_TEXT} characters"
    elif kind is int:
        good, allowed = type(data) is int and 0 <= data <= _MOST, "a whole number from 0 on"
    else:
        # NaN and infinities, which Python's JSON knows, fail the comparison
        good, allowed = type(data) in (int, float) and 0 <= data <= _MOST, "a finite number from 0 on"
    if not good:
        raise DamagedRecord(f"{name} is {shown(data)}, not {allowed}")
    return float(data) if kind is float else data


def shown(value: object) -> str:
    """``value`` on one short line."""
    short = Repr()
    short.maxstring = short.maxlong = short.maxother = 60
    return short.repr(value)
