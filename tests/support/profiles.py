"""A device profile made by hand, and others like it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from foredraft.devices import DeviceProfile, DraftTimes, Machine, ModelFacts, Noise, Rollback, Timing

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HERE = Machine("Linux", "x86_64", "A processor", 4, 8 << 30)
TARGET = ModelFacts("target.gguf", "ends-1", "llama_cpp", 1_000_000_000)
DRAFT = ModelFacts("draft.gguf", "ends-2", "llama_cpp", 200_000_000)


def timings(values: dict[int, float], step: float = 0.02, spread: float = 0.01, runs: int = 16) -> tuple[Timing, ...]:
    return tuple(Timing(width, step * value, spread, runs) for width, value in values.items())


PROFILE = DeviceProfile(
    date=NOW.isoformat(),
    machine=HERE,
    versions={"foredraft": "0.1.0"},
    settings={"strict": "no"},
    threads=4,
    target=TARGET,
    context=256,
    curve=timings({1: 1.0, 2: 1.05, 4: 1.2, 8: 1.6, 16: 2.6, 32: 4.6}),
    drafts=(DraftTimes(DRAFT, timings({1: 0.22, 4: 0.26})),),
    rollback=Rollback(0.0002, 0.0004),
    tree=True,
    hidden=False,
    width_noise=(Noise(2, 0.0), Noise(8, 0.0)),
    tree_noise=(Noise(8, 0.0),),
    took=19.5,
    free_bytes=4_000_000_000,
    notes=("a note",),
)


def with_curve(values: dict[int, float], **changes: Any) -> DeviceProfile:
    return replace(PROFILE, curve=timings(values, **changes))
