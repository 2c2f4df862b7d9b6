"""What is known of machines: device profiles measured by ``foredraft doctor``, and what they say."""

from foredraft.devices.machine import Machine, free_memory, this_machine
from foredraft.devices.measured import (
    DeviceProfile,
    DraftTimes,
    ModelFacts,
    Noise,
    Rollback,
    Timing,
    read_profile,
    write_profile,
)

__all__ = [
    "DeviceProfile",
    "DraftTimes",
    "Machine",
    "ModelFacts",
    "Noise",
    "Rollback",
    "Timing",
    "free_memory",
    "read_profile",
    "this_machine",
    "write_profile",
]
