"""A device by name or by a measured profile: what it allows, and how fast it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foredraft.devices import read_profile
from foredraft.devices.device import Device, MeasuredDevice
from foredraft.devices.estimate import Weights, estimate
from foredraft.devices.phones import Catalogue, Phone
from foredraft.errors import InvalidValue, UsageError
from foredraft.memory import MAPPED, runtime_for
from foredraft.plan.allowance import Allowance, Bound, allowance, given_allowance
from foredraft.plan.options import HEAD, Candidate
from foredraft.plan.planner import Planned, Question, plan_device

_SAME = 0.02
"""A profile is of the target if their files differ by no more than this part."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the user says of devices: ``available`` bytes measured (None: nothing), the ``entitlement``, the version of
    the ``system``."""

    available: int | None = None
    entitlement: bool = False
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A device to plan for. ``phone`` None: it is not in the catalogue; ``measured``: its profile, if there is one."""

    allowed: Allowance
    known: Catalogue
    phone: Phone | None = None
    measured: MeasuredDevice | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.allowed.device

    @staticmethod
    def of_phone(phone: Phone, known: Catalogue, reading: Reading) -> Place:
        """A phone of the catalogue."""
        if reading.available is not None:
            return Place(given_allowance(phone.name, reading.available, phone.system), known, phone)
        return Place(allowance(known, phone, entitlement=reading.entitlement, system=reading.system), known, phone)

    @staticmethod
    def named(name: str, known: Catalogue, reading: Reading) -> Place:
        """A device by its name in the catalogue, or the file of its profile. UnknownName, ProfileError."""
        if name.endswith(".json") or os.path.isfile(name):
            device = MeasuredDevice(read_profile(Path(name)), Path(name).stem)
            if reading.available is not None:
                return Place(given_allowance(device.name, reading.available), known, None, device)
            return Place(_profiled(device), known, None, device)
        phone = known.find(name)
        if phone is None and reading.available is not None:
            return Place(given_allowance(name[:100], reading.available), known)
        return Place.of_phone(phone or known.phone(name), known, reading)

    def planned(self, question: Question) -> Planned:
        """The answer."""
        return plan_device(question, self.allowed, self.device(question))

    def device(self, question: Question) -> Device | None:
        """For speeds; None where the bandwidth of its memory is not known, or a profile is of another target."""
        if self.measured is not None:
            measured = self.measured.profile.target.bytes
            same = abs(measured - question.target.file_bytes) <= _SAME * measured
            return self.measured if same else None
        if self.phone is None or self.known.bandwidth(self.phone) is None:
            return None
        drafts = {each.name: float(each.nbytes) for each in _with_head(question) if each.shape is not None}
        return estimate(self.known, self.phone.name, Weights(question.target.weight_bytes, drafts))


def _with_head(question: Question) -> Sequence[Candidate]:
    """The head is among the changes that are tried."""
    heads = [] if any(each.name == HEAD for each in question.drafts) else [Candidate.head(question.target)]
    return [*question.drafts, *heads]


def _profiled(device: MeasuredDevice) -> Allowance:
    """What was free beside the loaded models, and what these took that counts as taken: packed weights do, pages mapped
    from files do not."""
    profile = device.profile
    if profile.free_bytes is None:
        return Allowance(device.name, ())
    models = [profile.target, *(times.model for times in profile.drafts)]
    packed = sum(model.bytes for model in models if _packs(model.engine))
    origin = f"free on {profile.measured_at:%Y-%m-%d} beside what was loaded, and its packed weights"
    return Allowance(device.name, (Bound("free memory", profile.free_bytes + packed, origin),))


def _packs(engine: str) -> bool:
    try:
        return runtime_for(engine, here=True).weights != MAPPED
    except InvalidValue:
        return True


def places(names: Sequence[str], known: Catalogue, reading: Reading) -> list[Place]:
    """The devices of ``names``, every one once."""
    found = [Place.named(name, known, reading) for name in names]
    for place in found:
        if sum(other.name == place.name for other in found) > 1:
            raise UsageError(f"--device names {place.name} twice, perhaps under another name; name every device once")
    return found
