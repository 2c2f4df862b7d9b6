"""The devices of real users: on how many of them a plan fits. A fleet file is CSV or JSON with ``device`` and
``share``."""

from __future__ import annotations

import csv
import io
import json
import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foredraft.errors import InvalidValue, UsageError
from foredraft.plan.planner import Planned

_MOST_BYTES, _MOST_ROWS, _MOST_SHARE = 1 << 20, 10_000, 1e12


class FleetError(UsageError):
    """A fleet file that cannot be used."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Device names with their share of users; shares sum to 1."""

    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class FleetView:
    """Shares of users: where the plan fits, where it does not, of whose device nothing is known (its name or its
    memory). ``quartiles``: the devices at 25, 50 and 75 % of the known users, the least memory first."""

    fits: float
    misses: float
    unknown: float
    quartiles: tuple[tuple[int, str], ...]
    unknown_devices: tuple[str, ...]


def read_fleet(path: Path) -> Fleet:
    """The fleet in a CSV file with the columns device and share, or in a JSON list of such objects or of pairs. Shares
    may be counts or percentages: they are divided by their sum. FleetError, one line, naming the row."""
    try:
        if not path.is_file():
            raise FleetError(f"{path}: {'is no file' if path.exists() else 'no such file'}; give CSV or JSON")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise FleetError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
    except UnicodeDecodeError:
        raise FleetError(f"{path}: is not UTF-8; convert it first") from None
    if len(data) > _MOST_BYTES:
        raise FleetError(f"{path}: is larger than {_MOST_BYTES >> 10} KiB; keep one row for each kind of device")
    rows = _json_rows(path, text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(path, text)
    return _fleet(path, rows)


def _json_rows(path: Path, text: str) -> list[tuple[object, object]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise FleetError(f"{path}: is not JSON; give a list of objects with device and share") from None
    if isinstance(found, dict):
        return list(found.items())
    rows: list[tuple[object, object]] = []
    for index, row in enumerate(found):
        if isinstance(row, dict) and {"device", "share"} <= set(row):
            rows.append((row["device"], row["share"]))
        elif isinstance(row, list) and len(row) == 2:
            rows.append((row[0], row[1]))
        else:
            raise FleetError(f"{path}: entry {index + 1} has no device and share; allowed: objects with both, or pairs")
    return rows


def _csv_rows(path: Path, text: str) -> list[tuple[object, object]]:
    reader = csv.DictReader(io.StringIO(text))
    names = [str(name).strip().lower() for name in reader.fieldnames or ()]
    if not {"device", "share"} <= set(names):
        raise FleetError(f"{path}: the first line is {', '.join(names) or 'empty'}; it must name device and share")
    reader.fieldnames = names
    try:
        return [(row["device"], row["share"]) for row in reader]
    except csv.Error as error:
        raise FleetError(f"{path}: line {reader.line_num} is no CSV ({error})") from None


def _fleet(path: Path, rows: Sequence[tuple[object, object]]) -> Fleet:
    if not 1 <= len(rows) <= _MOST_ROWS:
        raise FleetError(f"{path}: has {len(rows)} rows; allowed: 1 to {_MOST_ROWS}")
    sums: dict[str, float] = {}
    for number, (device, share) in enumerate(rows, 1):
        name = device.strip() if isinstance(device, str) else ""
        if not name:
            raise FleetError(f"{path}: row {number} names no device")
        sums[name] = sums.get(name, 0.0) + _share(path, number, share)
    total = sum(sums.values())
    if total <= 0:
        raise FleetError(f"{path}: all shares are 0")
    return Fleet(tuple((name, share / total) for name, share in sums.items()))


def _share(path: Path, number: int, share: object) -> float:
    try:
        value = float(share.strip().removesuffix("%")) if isinstance(share, str) else float(share)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(share, bool) or not 0 <= value <= _MOST_SHARE:
        raise FleetError(f"{path}: row {number} has the share {reprlib.repr(share)}; allowed: a number from 0 to 1e12")
    return value


def view(fleet: Fleet, found: Sequence[Planned | None]) -> FleetView:
    """On how many users' devices the asked plan fits. ``found``: one for each device of the fleet, None where the name
    is unknown. InvalidValue if they do not match."""
    if len(found) != len(fleet.shares):
        raise InvalidValue("plans", len(found), f"one for each of {len(fleet.shares)} devices")
    fits = misses = 0.0
    known, unknown = [], []
    for (name, share), planned in zip(fleet.shares, found, strict=True):
        bound = None if planned is None else planned.binding
        if planned is None or bound is None:
            unknown.append(name)
            continue
        known.append((bound.nbytes, name, share))
        if planned.asked.fits:
            fits += share
        else:
            misses += share
    return FleetView(fits, misses, max(0.0, 1.0 - fits - misses), _quartiles(known), tuple(unknown))


def _quartiles(known: list[tuple[int, str, float]]) -> tuple[tuple[int, str], ...]:
    total, found = sum(share for _, _, share in known), []
    for percent in (25, 50, 75):
        reached = 0.0
        for _, name, share in sorted(known):
            reached += share
            if reached >= percent / 100 * total - 1e-12:
                found.append((percent, name))
                break
    return tuple(found)
