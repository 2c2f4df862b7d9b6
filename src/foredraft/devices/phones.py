"""What is known of phones: memory, bandwidth, what one app may use, speeds that were measured; every number with its
source, its date and how it was come by. What nobody says stays None.

The numbers lie in ``phones.json``; a user's own device file has the same shape and wins. Nothing is computed here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from foredraft.devices.phone_checks import check_keys, check_units, check_values, read_version
from foredraft.errors import InvalidValue, ProfileError, UnknownName
from foredraft.records import DamagedRecord, record, shown

FORMAT = "foredraft-devices"
SCHEMA = 1
_MAX_BYTES = 1 << 20
_MAKERS = ("apple", "google", "samsung", "qualcomm", "mediatek")
"""Makers that people may or may not write before a name."""

MARKS = ("measured", "published", "computed")
"""How a number was come by: measured on the device; printed by a maker, a data sheet or the press; computed from a
printed number, as its note says."""
SYSTEMS = ("iOS", "iPadOS", "Android")
TIERS = ("top", "standard", "entry", "reference")
"""Where a maker places a phone in its year: its top line, its ordinary one, the cheap one; or a reference design that
nobody can buy. Our own sorting, not a measurement."""
PROCESSORS = ("CPU", "GPU", "NPU")
_CHOICES = {"mark": MARKS, "system": SYSTEMS, "tier": TIERS, "processor": PROCESSORS}


@dataclass(frozen=True, slots=True)
class Fact:
    """A number with where it comes from. ``mark``: one of ``MARKS``. ``date``: of the source (YYYY, YYYY-MM or
    YYYY-MM-DD); where the source has none, when it was read, and ``note`` says so."""

    value: float
    mark: str
    source: str
    date: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Chip:
    """A system on a chip. ``bandwidth``: peak of its memory interface, bytes/s. ``npu``: the accelerator's name, with
    the ``npu_architecture`` that compilers ask for; ``npu_operations``: operations/s as its maker counts them (10¹² are
    one "TOPS"); ``npu_memory``: bytes of its own."""

    name: str
    bandwidth: Fact | None = None
    npu: str | None = None
    npu_architecture: str | None = None
    npu_operations: Fact | None = None
    npu_memory: Fact | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Phone:
    """A device; its numbers are those of the version measured most, which ``note`` names where there are several.

    ``memory``: all of it, in bytes: what is sold as "8 GB" is 8 GiB, as memory chips are made. ``bandwidth``: only
    where it differs from its chip's, or where ``chip`` is not known. ``source`` and ``date`` are of chip and aliases.
    """

    name: str
    system: str | None = None
    chip: str | None = None
    tier: str | None = None
    year: Fact | None = None
    memory: Fact | None = None
    bandwidth: Fact | None = None
    aliases: tuple[str, ...] = ()
    source: str | None = None
    date: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """What one app could use on ``device``, in ``bytes``, before the system ended it or said that no more is there.

    ``entitlement``: with Apple's increased-memory-limit (None: not said). ``system_from``, ``system_to``: the versions
    seen, both included (None: not said). Limits that iOS prints in MB count MiB; what people wrote as GB is taken as
    10⁹ bytes, the smaller reading.
    """

    device: str
    bytes: int
    mark: str
    source: str
    date: str
    entitlement: bool | None = None
    system_from: str | None = None
    system_to: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """Plain decoding that somebody measured. ``file_bytes``: size of the model file (None: not said)."""

    device: str
    model: str
    runtime: str
    processor: str
    tokens_per_second: float
    mark: str
    source: str
    date: str
    file_bytes: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding that somebody measured, in tokens/s with it ``off`` and ``on``; ``ratio`` is on ÷ off.
    ``device`` may also be a computer that the catalogue does not list."""

    device: str
    model: str
    runtime: str
    ratio: float
    mark: str
    source: str
    date: str
    off: float | None = None
    on: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """What a device file holds; only ``format`` and ``schema`` are required."""

    format: str
    schema: int
    chips: tuple[Chip, ...] = ()
    phones: tuple[Phone, ...] = ()
    limits: tuple[Limit, ...] = ()
    decode: tuple[Decode, ...] = ()
    speculation: tuple[Speculation, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Phones and chips, and rows of what was seen on them, a user's own before the built-in ones.

    ``by_name``, ``chips_by_name``: names and aliases as ``_key`` writes them.
    """

    phones: tuple[Phone, ...]
    chips: tuple[Chip, ...]
    limits: tuple[Limit, ...]
    decode: tuple[Decode, ...]
    speculation: tuple[Speculation, ...]
    by_name: Mapping[str, Phone]
    chips_by_name: Mapping[str, Chip]

    def find(self, name: str) -> Phone | None:
        """The phone that ``phone`` finds; None if there is none."""
        return self.by_name.get(_key(name))

    def phone(self, name: str) -> Phone:
        """The phone of that name or alias, in any case, with or without its maker's name; the name of a chip stands for
        any phone with it, of which nothing else is known. UnknownName with the nearest name and the list of all."""
        found = self.find(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(_key(name), self.by_name, 1, 0.6)
        hint = f"did you mean {self.by_name[near[0]].name!r}? " if near else ""
        listed = ", ".join([phone.name for phone in self.phones] + [chip.name for chip in self.chips])
        raise UnknownName(
            f"no device is called {shown(name)}; {hint}known: {listed}; others can be described in a device file"
        )

    def chip(self, phone: Phone) -> Chip | None:
        """The phone's chip; None where it is not known, or differs between countries."""
        return self.chips_by_name.get(_key(phone.chip)) if phone.chip is not None else None

    def bandwidth(self, phone: Phone) -> Fact | None:
        """Bytes/s: the phone's own figure, else its chip's; None if neither is known."""
        chip = self.chip(phone)
        return phone.bandwidth or (chip.bandwidth if chip is not None else None)

    def limits_of(self, phone: Phone, *, entitlement: bool, system: str | None = None) -> list[Limit]:
        """What one app could use on ``phone``, a user's own rows first: those seen with (or without) the entitlement or
        that do not say, and at the version ``system`` ("26.1"; None: any). Empty: nobody says."""
        version = None if system is None else read_version(system)
        if version == ():
            raise InvalidValue("system version", system, "numbers with dots, such as 26.1")
        rows = [row for row in self.limits if row.device == phone.name and row.entitlement in (entitlement, None)]
        return [row for row in rows if version is None or _within(row, version)]

    def speeds_of(self, phone: Phone) -> list[Decode]:
        """Plain decoding measured on ``phone``."""
        return [row for row in self.decode if row.device == phone.name]

    def speculation_on(self, phone: Phone) -> list[Speculation]:
        """Speculative decoding measured on ``phone``."""
        return [row for row in self.speculation if row.device == phone.name]


def catalogue(*files: Path) -> Catalogue:
    """The built-in catalogue with a user's device ``files``, of which later ones win. ProfileError, one line, for a
    file that is damaged or says what cannot be."""
    found = _built_in()
    for path in files:
        try:
            found = _joined(_parsed(_text(path)), found)
        except DamagedRecord as error:
            raise ProfileError(f"{path}: {error}; the guide on devices shows what a device file is") from None
    return found


@lru_cache(1)
def _built_in() -> Catalogue:
    text = resources.files("foredraft.devices").joinpath("phones.json").read_text("utf-8")
    return _joined(_parsed(text), Catalogue((), (), (), (), (), {}, {}))


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise DamagedRecord("is not a file" if path.exists() else "no such file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise DamagedRecord(f"is larger than {_MAX_BYTES >> 10} KiB, so it is no device file")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise DamagedRecord(f"cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise DamagedRecord("is not UTF-8") from None


def _parsed(text: str) -> DeviceFile:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedRecord("is not JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DamagedRecord(f'is no device file: it has no "format": "{FORMAT}"')
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise DamagedRecord(f"schema version is {shown(schema)}; this foredraft reads {SCHEMA}")
    found = record(DeviceFile, data)
    check_keys(data, asdict(found), "")
    check_values(found, "", _CHOICES)
    check_units(found)
    return found


# --- joining -----------------------------------------------------------------------------------------------

_Named = TypeVar("_Named", bound=Chip | Phone)
_Row = TypeVar("_Row", bound=Limit | Decode | Speculation)


def _joined(own: DeviceFile, base: Catalogue) -> Catalogue:
    """``own`` before ``base``: a chip or a phone replaces the one of the same name."""
    chips, phones = _named("chips", own.chips, base.chips), _named("phones", own.phones, base.phones)
    by_chip = {_key(name): chip for chip in reversed(chips) for name in (*chip.aliases, chip.name)}
    for phone in own.phones:
        if phone.chip is not None and _key(phone.chip) not in by_chip:
            listed = ", ".join(chip.name for chip in chips)
            raise DamagedRecord(f"{phone.name} has the unknown chip {shown(phone.chip)}; known: {listed}")
    by_name = {key: Phone(chip.name, chip=chip.name) for key, chip in by_chip.items()}
    by_name |= {_key(name): phone for phone in reversed(phones) for name in (*phone.aliases, phone.name)}
    limits = [_about(row, by_name) for row in own.limits]
    decode = [_about(row, by_name) for row in own.decode]
    speculation = [_about(row, by_name) if _key(row.device) in by_name else row for row in own.speculation]
    return Catalogue(
        phones,
        chips,
        (*limits, *base.limits),
        (*decode, *base.decode),
        (*speculation, *base.speculation),
        by_name,
        by_chip,
    )


def _named(what: str, own: tuple[_Named, ...], base: tuple[_Named, ...]) -> tuple[_Named, ...]:
    seen: set[str] = set()
    for item in own:
        keys = {_key(name) for name in (item.name, *item.aliases)}
        if "" in keys:
            raise DamagedRecord(f"{what} has the name or alias {shown(item.name)}, which has no letter or digit")
        if keys & seen:
            raise DamagedRecord(f"{what} has {shown(item.name)} or one of its aliases twice")
        seen |= keys
    replaced = {_key(item.name) for item in own}
    return (*own, *(item for item in base if _key(item.name) not in replaced))


def _about(row: _Row, by_name: Mapping[str, Phone]) -> _Row:
    """``row`` under the device's own name, however it was called."""
    phone = by_name.get(_key(row.device))
    if phone is None:
        raise DamagedRecord(f"a row is about {shown(row.device)}, which is no device of this file or of the catalogue")
    return replace(row, device=phone.name)


def _key(name: str) -> str:
    """A name as it is compared: "Samsung Galaxy-S24" is "galaxy s24"."""
    words = re.sub(r"[\W_]+", " ", name.replace("+", " plus ").casefold()).split()
    return " ".join(words[1:] if words[:1] and words[0] in _MAKERS and len(words) > 1 else words)


def _within(row: Limit, version: tuple[int, ...]) -> bool:
    """Whether ``row`` was seen at ``version``; "26.3" as the last one includes 26.3.1."""
    if row.system_from is not None and version < read_version(row.system_from):
        return False
    if row.system_to is None:
        return True
    parts = row.system_to.count(".") + 1
    return version[:parts] <= read_version(row.system_to)[:parts]
