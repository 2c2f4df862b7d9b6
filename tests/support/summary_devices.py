"""Devices and drafts that synthetic summaries are about."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.profile.report.shape import DeviceUsed, DraftUsed

WIDTHS = (1, 2, 4, 8)
HERE: DeviceUsed = {
    "name": "this machine",
    "estimated": False,
    "step_seconds": 0.052,
    "verify": {"widths": list(WIDTHS), "values": [1.0, 1.36, 1.45, 1.57]},
    "draft_cost": {"ngram": 0.0, "qwen-0.5b": 0.22, "smol-135m": 0.06},
    "fixed": 0.01,
    "note": "measured 2026-11-30",
}


def device(
    name: str, step: float, values: Sequence[float], costs: tuple[float, float], *, estimated: bool
) -> DeviceUsed:
    """A device with v at ``WIDTHS``; ``costs``: c of the larger and the smaller draft model."""
    note = "estimated from memory bandwidth, 2024" if estimated else "measured 2026-11-30"
    draft_costs = {"ngram": 0.0, "qwen-0.5b": costs[0], "smol-135m": costs[1]}
    curve: DeviceUsed = {**HERE, "name": name, "estimated": estimated, "step_seconds": step, "note": note}
    return {**curve, "verify": {"widths": list(WIDTHS), "values": list(values)}, "draft_cost": draft_costs}


FAST = device("Pixel 8 Pro", 0.081, (1.0, 1.02, 1.06, 1.15), (0.27, 0.08), estimated=True)
PHONE = device("iPhone 15 Pro", 0.044, (1.0, 1.03, 1.09, 1.21), (0.26, 0.08), estimated=True)
STEEP = device("Raspberry Pi 5", 0.41, (1.0, 1.9, 3.4, 6.1), (0.35, 0.11), estimated=False)
NPU = device("Galaxy S24 Ultra", 0.038, (1.0, 1.01, 1.02, 1.05), (0.3, 0.1), estimated=True)
DIPS = device("cheaper when wide", 0.1, (1.0, 1.3, 1.2, 1.1), (0.2, 0.1), estimated=False)
UNMEASURED: DeviceUsed = {**FAST, "name": "one width", "verify": {"widths": [1], "values": [1.0]}}
DEVICES = (HERE, FAST, STEEP)

DRAFTS: tuple[DraftUsed, ...] = (
    {"name": "ngram", "source": "ngram", "bytes": 0},
    {"name": "qwen-0.5b", "source": "model", "bytes": 397_000_000},
    {"name": "smol-135m", "source": "model", "bytes": 105_000_000},
    {"name": "ngram+qwen-0.5b", "source": "both", "bytes": 397_000_000},
)
