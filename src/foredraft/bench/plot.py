"""The picture of a report: speed-up by kind of prompt for every arm, with intervals.

The only room that knows matplotlib. Figures are made without its global
state and drawn by Agg, so that no display is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foredraft.bench.arms import PLAIN
from foredraft.bench.report import TargetReport
from foredraft.errors import InvalidValue, MissingExtra
from foredraft.whole_files import replacing

ENDINGS = ("png", "svg", "pdf")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F")
"""Seven of the eight of Okabe and Ito (2008), which remain distinct to colour-blind readers; yellow became grey."""
MARKERS = "oDs^vPX"
"""Beyond seven arms the colours come round with the next marker. Arms that choose by themselves are black."""


def check_plot(path: Path) -> None:
    """Raise InvalidValue for a name that ends in no known format, MissingExtra if matplotlib is not there."""
    if path.suffix.lower().removeprefix(".") not in ENDINGS:
        raise InvalidValue("--plot", str(path), "a file name ending in " + ", ".join(f".{each}" for each in ENDINGS))
    if not path.absolute().parent.is_dir():
        raise InvalidValue("--plot", str(path), "a file in a directory that exists")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "--plot needs the package matplotlib; install it with: pip install 'foredraft[plot]'"
        ) from error


def draw(reports: Sequence[TargetReport], path: Path) -> None:
    """Write the picture, one panel for each target, in the format that the file's ending names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = max(len(report.kinds) for report in reports)
    arms = max(len(report.arms) for report in reports) - 1
    size = (2.6 + groups * max(1.1, 0.16 * arms), 3.1 * len(reports) + 0.7 + 0.2 * ((arms + 2) // 3))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(reports), 1, squeeze=False, sharey=True)[:, 0]
    for panel, report in zip(panels, reports, strict=True):
        _panel(panel, report)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    ending = path.suffix.lower().removeprefix(".")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending, dpi=160)


def _panel(panel: Any, report: TargetReport) -> None:
    arms = [arm for arm in report.arms if arm != PLAIN]
    looks = _looks(arms)
    for number, arm in enumerate(arms):
        ratios = [report.cells[arm, kind].speedup for kind in report.kinds]
        shift = 0.8 * ((number + 0.5) / len(arms) - 0.5)
        below = [ratio.value - (ratio.low if ratio.low is not None else ratio.value) for ratio in ratios]
        above = [(ratio.high if ratio.high is not None else ratio.value) - ratio.value for ratio in ratios]
        panel.errorbar(
            [place + shift for place in range(len(ratios))],
            [ratio.value for ratio in ratios],
            yerr=[below, above],
            label=arm,
            linestyle="none",
            markersize=4.5,
            elinewidth=1.2,
            **looks[arm],
        )
    panel.axhline(1.0, color="0.35", linewidth=1.0)
    for edge in range(1, len(report.kinds)):
        panel.axvline(edge - 0.5, color="0.9", linewidth=0.8, zorder=0)
    panel.set_xlim(-0.5, len(report.kinds) - 0.5)
    panel.set_xticks(range(len(report.kinds)), [_label(report, kind) for kind in report.kinds])
    panel.tick_params(axis="x", length=0)
    panel.set_ylabel("speed-up, 95 % intervals\n(plain decoding = 1)")
    panel.grid(axis="y", color="0.92")
    panel.set_axisbelow(True)
    panel.set_title(report.target, fontsize="medium")
    panel.spines[["top", "right"]].set_visible(False)


def _looks(arms: Sequence[str]) -> dict[str, dict[str, str]]:
    """Colour and marker of every arm."""
    chosen = [arm for arm in arms if arm.partition(":")[2].startswith("cost")]
    others = [arm for arm in arms if arm not in chosen]
    looks = {arm: {"color": "black", "marker": MARKERS[(1 + n) % len(MARKERS)]} for n, arm in enumerate(chosen)}
    for number, arm in enumerate(others):
        turn, colour = divmod(number, len(COLOURS))
        looks[arm] = {"color": COLOURS[colour], "marker": MARKERS[turn % len(MARKERS)]}
    return looks


def _label(report: TargetReport, kind: str) -> str:
    count = report.cells[PLAIN, kind].speedup.prompts
    return f"{kind}\n{count} prompt{'' if count == 1 else 's'}"
