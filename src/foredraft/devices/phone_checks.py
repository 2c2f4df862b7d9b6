"""What may stand in a device file, beyond what types say. Knows the words of no catalogue."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from typing import Any

from foredraft.records import DamagedRecord, shown

_LEAST_BANDWIDTH, _LEAST_MEMORY = 1e9, 256 << 20
"""Less than any phone has: bytes/s, bytes."""
Choices = Mapping[str, Sequence[str]]
"""Name of a field -> the words that it may hold."""


def check_keys(data: Any, read: Any, where: str) -> None:
    """A misspelt key would be passed over in silence: ``data`` may have no keys that what was ``read`` has not."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in read:
                near = difflib.get_close_matches(key, read, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise DamagedRecord(f"{where or 'it'} has the unknown key {shown(key)}; {hint}known: {', '.join(read)}")
            check_keys(value, read[key], f"{where}.{key}" if where else key)
    elif isinstance(data, list):
        for index, (value, inner) in enumerate(zip(data, read, strict=True)):
            check_keys(value, inner, f"{where}[{index}]")


def check_values(item: Any, where: str, choices: Choices) -> None:
    """What types do not show: no number is 0, every source is named, dates, versions and words of a choice are such."""
    for part in fields(item):
        value, place = getattr(item, part.name), f"{where}.{part.name}" if where else part.name
        if isinstance(value, tuple):
            for index, inner in enumerate(value):
                if is_dataclass(inner):
                    check_values(inner, f"{place}[{index}]", choices)
                else:
                    _check_text("alias", inner, f"{place}[{index}]", choices)
        elif is_dataclass(value):
            check_values(value, place, choices)
        elif isinstance(value, str):
            _check_text(part.name, value, place, choices)
        elif type(value) in (int, float) and value <= 0:
            raise DamagedRecord(f"{place} is {value}, not more than 0; write null for what is not known")


def check_units(file: Any) -> None:
    """Sizes in gigabytes instead of bytes are the likely mistake. ``file``: a ``DeviceFile``."""
    for thing in (*file.phones, *file.chips):
        if thing.bandwidth is not None and thing.bandwidth.value < _LEAST_BANDWIDTH:
            raise DamagedRecord(f"the bandwidth of {thing.name} is {thing.bandwidth.value:g}; give bytes/s: 51.2e9")
    for phone in file.phones:
        if phone.memory is not None and phone.memory.value < _LEAST_MEMORY:
            raise DamagedRecord(
                f"the memory of {phone.name} is {phone.memory.value:g}; give bytes: 8589934592 for 8 GiB"
            )
    for limit in file.limits:
        if limit.bytes < _LEAST_MEMORY >> 3:
            raise DamagedRecord(f"a limit of {limit.device} is {limit.bytes}; give bytes: 3539992576 for 3376 MiB")


def _check_text(kind: str, text: str, place: str, choices: Choices) -> None:
    if not text.strip() or not text.isprintable():
        raise DamagedRecord(f"{place} is {shown(text)}, not a text of printable characters")
    if text not in choices.get(kind, (text,)):
        raise DamagedRecord(f"{place} is {shown(text)}, not one of {', '.join(choices[kind])}")
    if kind == "date" and not _is_date(text):
        raise DamagedRecord(f"{place} is {shown(text)}, not a date such as 2026, 2026-11 or 2026-11-30")
    if kind in ("system_from", "system_to") and not read_version(text):
        raise DamagedRecord(f"{place} is {shown(text)}, not numbers with dots, such as 26.1")


def _is_date(text: str) -> bool:
    if not re.fullmatch(r"\d{4}(-\d\d){0,2}", text, re.ASCII):
        return False
    try:
        date.fromisoformat(f"{text}-01-01"[:10])
    except ValueError:
        return False
    return True


def read_version(text: str) -> tuple[int, ...]:
    """ "26.1" -> (26, 1, 0, 0); () if it is none."""
    if not re.fullmatch(r"\d{1,4}(\.\d{1,4}){0,3}", text, re.ASCII):
        return ()
    return tuple(int(part) for part in text.split(".") + ["0"] * (3 - text.count(".")))
