"""The devices that ``profile`` and ``what-if`` predict for: this machine, phones of the catalogue, measured
profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from foredraft.devices import read_profile
from foredraft.devices.device import Device, MeasuredDevice
from foredraft.devices.estimate import Weights, estimate
from foredraft.devices.phones import Catalogue, catalogue
from foredraft.errors import InvalidValue
from foredraft.profile.trace import TraceSettings

DEVICE_OPTIONS = (
    click.option(
        "--device",
        "devices",
        multiple=True,
        metavar="NAME|FILE",
        help="A phone of the catalogue (estimated), or a FILE that `foredraft doctor -o` wrote on one. Repeatable.",
    ),
    click.option(
        "--device-file",
        "device_files",
        multiple=True,
        metavar="FILE",
        help="Further phones, or better numbers for known ones; see the guide.",
    ),
    click.option("--here/--not-here", default=True, show_default=True, help="Predict for this machine too."),
)


def find_devices(given: Any, settings: TraceSettings) -> list[Device]:
    """The devices named by ``--device``, in order; UsageError for a name that is unknown."""
    known = catalogue(*map(Path, given.device_files))
    devices = [_device(name, known, settings) for name in given.devices]
    names = [device.name for device in devices]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue("--device", name, "every device once")
    return devices


def _device(name: str, known: Catalogue, settings: TraceSettings) -> Device:
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        return MeasuredDevice(read_profile(path), path.stem)
    return estimate(known, name, weights(settings))


def weights(settings: TraceSettings) -> Weights:
    """Bytes of the models that a trace is of."""
    return Weights(settings.target.bytes, {draft.name: draft.bytes for draft in settings.drafts})
