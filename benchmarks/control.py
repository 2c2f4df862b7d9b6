"""Controllers on synthetic machines and texts: what share of the best fixed setting's speed does each reach?

    python benchmarks/control.py [--seeds N] [--out FILE]

The best fixed setting is chosen knowing the outcome, for each scenario: off, chains of 1 to 15, n-gram copies, trees.
Times are virtual, so the numbers are the same on every machine. Scenarios: ``tests/support/scenarios.py``.
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import write
from foredraft.control import CostAware, CostConfig, Threshold
from tests.support.scenarios import SCENARIOS
from tests.support.simulator import play, priors


def outcome(job: tuple[int, int]) -> dict[str, Any]:
    """One scenario, averaged over ``seeds`` drawn texts: speeds in units of plain decoding."""
    scenario, seeds = SCENARIOS[job[0]], job[1]
    worlds = [scenario.world(100 + seed) for seed in range(seeds)]
    arms = {
        name: fmean(play(world, controller, names) for world in worlds) for name, controller, names in scenario.arms()
    }
    config = CostConfig(tree=31 if scenario.trees else 0)
    cost = fmean(play(world, CostAware(priors(world), config)) for world in worlds)
    blind = fmean(play(world, CostAware(priors(world, measured=False), config)) for world in worlds)
    threshold = fmean(play(world, Threshold()) for world in worlds)
    best = min(arms, key=lambda name: arms[name])
    plain = arms["off"]
    return {
        "scenario": scenario.name,
        "best_fixed": best,
        "best_fixed_speed": plain / arms[best],
        "cost_speed": plain / cost,
        "cost_share": arms[best] / cost,
        "unmeasured_share": arms[best] / blind,
        "threshold_share": arms[best] / threshold,
        "arms": {name: plain / seconds for name, seconds in arms.items()},
    }


def main() -> None:
    """Parse, play, keep the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print("| scenario | best fixed setting | its speed | cost | cost ÷ best | no profile | threshold ÷ best |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    with Pool() as pool:
        for row in pool.imap(outcome, [(number, args.seeds) for number in range(len(SCENARIOS))]):
            rows.append(row)
            speeds = f"{row['best_fixed_speed']:.2f}× | {row['cost_speed']:.2f}×"
            shares = " | ".join(f"{row[name]:.3f}" for name in ("cost_share", "unmeasured_share", "threshold_share"))
            print(f"| {row['scenario']} | {row['best_fixed']} | {speeds} | {shares} |", flush=True)
    write("control", rows, args.out)


if __name__ == "__main__":
    main()
