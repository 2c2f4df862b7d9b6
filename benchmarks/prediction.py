"""Predicted speed-ups beside measured ones: does a profile tell what decoding will do?

    python benchmarks/prediction.py BENCH TRACE DEVICE [--out FILE]

BENCH is the raw file of `foredraft bench` with fixed arms, TRACE what `foredraft profile` kept of the same prompts,
DEVICE what `foredraft doctor -o` measured with the same models. Both numbers are geometric means over the prompts of a
kind of the plain time per token ÷ the arm's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.measure import write
from foredraft.devices import read_profile
from foredraft.devices.device import MeasuredDevice
from foredraft.profile.store import read_trace
from foredraft.profile.what_if import LONGEST, Choice, Played, choices, play, recorded
from foredraft.speed import Costs


def measured(records: list[dict[str, Any]], arm: str) -> dict[int, float]:
    """Speed-up of an arm by line of the prompt file."""

    def seconds(runs: list[dict[str, Any]]) -> float:
        return float(median(run["seconds"] / run["generated"] for run in runs))

    return {row["line"]: seconds(row["arms"]["plain"]["runs"]) / seconds(row["arms"][arm]["runs"]) for row in records}


def predicted(played: Played, length: int, costs: Costs) -> dict[int, float]:
    """The same from the trace."""
    found = played.tokens(length) / played.seconds(length, costs)
    return {text.facts.line: float(value) for text, value in zip(played.texts, found, strict=True)}


def arm_of(name: str, known: tuple[Choice, ...]) -> tuple[Choice, int] | None:
    """The drafts and the chain length of a fixed arm; None for others."""
    drafts, _, rest = name.partition(":")
    controller, _, length = rest.partition(":")
    sources = {"ngram": "ngram", "model": "model", "ngram+model": "both"}
    if controller != "fixed" or drafts not in sources or "=" in length or int(length) > LONGEST:
        return None
    return next(choice for choice in known if choice.source == sources[drafts]), int(length)


def mean(values: list[float]) -> float:
    """Geometric."""
    return float(np.exp(np.mean(np.log(values))))


def main() -> None:
    """Parse, predict, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bench", "trace", "device"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    records = json.loads(args.bench.read_text())["records"]
    trace, device = read_trace(args.trace), MeasuredDevice(read_profile(args.device))
    rows, kinds = list[dict[str, Any]](), {row["line"]: row["kind"] for row in records}
    for name in records[0]["arms"]:
        arm = arm_of(name, choices(trace))
        if arm is None:
            continue
        choice, length = arm
        real = measured(records, name)
        guess = predicted(play(trace, choice, recorded(trace)), length, device.costs(choice.name))
        for kind in dict.fromkeys(kinds.values()):
            lines = [line for line in real if kinds[line] == kind and line in guess]
            pair = mean([guess[line] for line in lines]), mean([real[line] for line in lines])
            rows.append({"arm": name, "kind": kind, "predicted": pair[0], "measured": pair[1], "texts": len(lines)})
            print(f"{name:24} {kind:10} predicted {pair[0]:.2f}, measured {pair[1]:.2f}, {pair[0] / pair[1] - 1:+.1%}")
    off = [abs(row["predicted"] / row["measured"] - 1) for row in rows]
    for name in dict.fromkeys(row["arm"] for row in rows):
        mine = [abs(row["predicted"] / row["measured"] - 1) for row in rows if row["arm"] == name]
        print(f"{name:24} median over kinds {median(mine):.1%}")
    print(f"all {len(off)}: median {median(off):.1%}, largest {max(off):.1%}")
    write("prediction", {"rows": rows, "median": median(off)}, args.out)


if __name__ == "__main__":
    main()
