"""Draws how training went: loss, and what was measured on held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foredraft.errors import MissingExtra
from foredraft.train.loop import Event
from foredraft.whole_files import replacing


def draw_curve(events: Sequence[Event], path: Path, title: str) -> None:
    """One picture (PNG). MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("the curve needs matplotlib: pip install 'foredraft[plot]'") from None
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([event.step for event in events], [event.loss for event in events], lw=1)
    left.set(xlabel="step", ylabel="training loss", title=title)
    left.grid(alpha=0.3)
    found = [(event.step, event.measured) for event in events if event.measured is not None]
    steps = [step for step, _ in found]
    depth = len(found[0][1].greedy) if found else 0
    for level in range(depth):
        right.plot(steps, [measured.greedy[level] for _, measured in found], lw=1, label=f"depth {level + 1}")
    right.plot(steps, [measured.accepted for _, measured in found], "k--", lw=1.5, label="accepted of a chain")
    right.set(xlabel="step", title="held-out texts: greedy acceptance by depth")
    right.grid(alpha=0.3)
    if found:
        right.legend(fontsize=8, ncol=2)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
