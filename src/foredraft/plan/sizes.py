"""Reads sizes as people write them. A unit is required, and powers of two and of ten are told apart."""

from __future__ import annotations

import math
import re

from foredraft.errors import InvalidValue

_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZE = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-zA-Z]{1,3})\s*")


def read_size(name: str, text: str) -> int:
    """Bytes. InvalidValue naming the option ``name`` otherwise.

    >>> read_size("--available", "3.1GiB"), read_size("--available", "3100 MB")
    (3328599654, 3100000000)
    """
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None or not math.isfinite(float(match[1])):
        raise InvalidValue(name, text, "a number with its unit: 3.1GiB, 3100MiB, 3.3GB")
    return round(float(match[1]) * unit)
