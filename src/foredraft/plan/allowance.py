"""What one app may have on a device: limits that were seen, and what is left to the system. Every bound says where it
is from, and whether it is a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.devices.phones import Catalogue, Limit, Phone, catalogue
from foredraft.memory import size

SHARES = {"Android": 0.5, "iOS": 0.6, "iPadOS": 0.6}
"""Part of all memory that one app can hold while the system goes on: a judgement. Android: a Galaxy S23 with 8 GiB had
about 4 GB free, and a 4-bit 7B was ended (pytorch/executorch#3599); other reports (#5582, alibaba/MNN#4435) agree. iOS:
4.8 GB of weights brought an 8 GiB iPhone to its knees (sawfwair/mere-run#331), 4.2 of 6 GiB were to be had
(pocketpal-ai#651)."""
LIMIT, SHARE = "limit of one app", "share of the memory"
_SIZES = (2, 3, 4, 6, 8, 12, 16, 24)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Bound:
    """At most ``nbytes`` because of ``name``; ``origin`` in words; ``guess``: nobody measured it on this device."""

    name: str
    nbytes: int
    origin: str
    guess: bool = False


@dataclass(frozen=True, slots=True)
class Allowance:
    """The bounds of a device; none where nothing is known of its memory. ``system``, ``memory`` (all of it, in bytes):
    None = not said. ``entitled``: the same with Apple's increased-memory-limit, where that is known and not asked
    for. ``mapped_free``: pages that are mapped from files do not count."""

    device: str
    bounds: tuple[Bound, ...]
    system: str | None = None
    memory: int | None = None
    entitled: Allowance | None = None
    mapped_free: bool = False

    @property
    def binding(self) -> Bound | None:
        """The smallest bound."""
        return min(self.bounds, key=lambda bound: bound.nbytes, default=None)

    def needs(self, nbytes: int) -> int | None:
        """The memory in GiB of the smallest usual device of this system that would hold ``nbytes``; None if something
        else than memory limits this one, if it has as much, or none has enough."""
        if any(bound.nbytes < nbytes and bound.name != SHARE for bound in self.bounds):
            return None
        share = SHARES.get(self.system or "", min(SHARES.values()))
        enough = next((memory for memory in _SIZES if memory * _GIB * share >= nbytes), None)
        return enough if enough is not None and enough * _GIB > (self.memory or 0) else None


def given_allowance(device: str, nbytes: int, system: str | None = None) -> Allowance:
    """A measured figure, such as a reading of ``os_proc_available_memory``, which wins over everything known."""
    return Allowance(device, (Bound("memory given", nbytes, "as given"),), system)


def allowance(known: Catalogue, phone: Phone, *, entitlement: bool, system: str | None = None) -> Allowance:
    """What ``phone`` allows: the lowest limit that was seen for one app (a user's own rows alone, if there are any),
    and a share of all memory. ``entitlement``, ``system``: see ``Catalogue.limits_of``."""
    bounds = []
    limit = _limit(known, phone, entitlement=entitlement, system=system)
    if limit is not None:
        bounds.append(limit)
    share, memory = SHARES.get(phone.system or "", min(SHARES.values())), phone.memory
    if memory is not None:
        origin = f"{share:.0%} of {size(memory.value)}, a judgement; memory: {memory.mark}, {memory.source}"
        bounds.append(Bound(SHARE, int(share * memory.value), origin, guess=True))
    entitled = None
    if limit is not None and not entitlement and _limit(known, phone, entitlement=True, system=system) is not None:
        entitled = allowance(known, phone, entitlement=True, system=system)
    whole = None if memory is None else int(memory.value)
    return Allowance(phone.name, tuple(bounds), phone.system, whole, entitled)


def _limit(known: Catalogue, phone: Phone, *, entitlement: bool, system: str | None) -> Bound | None:
    rows = known.limits_of(phone, entitlement=entitlement, system=system)
    own = [row for row in rows if row not in catalogue().limits]
    if rows:
        return _bound(own or rows)
    rows = known.limits_of(phone, entitlement=entitlement)
    if rows:  # seen under another version of the system, which tells more than another phone does
        return _bound(rows, guess=True)
    if phone.memory is None or phone.system not in ("iOS", "iPadOS"):
        return None
    like = [
        row
        for other in known.phones
        if other.system == phone.system and other.memory is not None and other.memory.value <= phone.memory.value
        for row in known.limits_of(other, entitlement=entitlement, system=system)
    ]
    if not like:
        return None
    memory = {other.name: other.memory.value for other in known.phones if other.memory is not None}
    largest = max(memory[row.device] for row in like)
    return _bound([row for row in like if memory[row.device] == largest], guess=True)


def _bound(rows: Sequence[Limit], *, guess: bool = False) -> Bound:
    row = min(rows, key=lambda row: row.bytes)
    where = f"as on {row.device}, " if guess else ""
    with_it = "" if row.entitlement is None else ", with the entitlement" if row.entitlement else ", no entitlement"
    versions = f", {row.system_from} to {row.system_to}" if row.system_from else ""
    return Bound(LIMIT, row.bytes, f"{where}{row.mark}, {row.source}, {row.date}{with_it}{versions}", guess)
