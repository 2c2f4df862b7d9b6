"""Trees against chains: tokens per pass of the target, counted, not timed.

    python benchmarks/trees.py TRACE [--out FILE] [--live TARGET DRAFT]

TRACE is what `foredraft profile -o TRACE` kept: for every position which of the draft's guesses the target chose, which
is all that the tokens of a round depend on. Half of the texts of each kind give acceptance by depth and rank; from that
the best tree of 4, 8 and 16 nodes is made. On the other half it is set against the uniform tree of as many nodes, the
chain of equal depth and the chain of equal width (as many nodes); predicted tokens per round stand beside measured
ones. --live decodes the first texts with the models themselves, to show that the counts are those of real rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.measure import HERE, write
from foredraft.control import Fixed
from foredraft.engines.opening import Settings
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.profile.replay import Text, replay_tree
from foredraft.profile.store import read_trace
from foredraft.profile.trace import RANKS, TextTrace, Trace
from foredraft.prompts import read_prompts
from foredraft.summary import Summary
from foredraft.trees import Bounds, best_shape, children, depths, expected_length, uniform_shape
from foredraft.types import Budget

SIZES = (4, 8, 16)
DEPTH = 6
LIVE = 3
"""Texts decoded again."""


def table(texts: Sequence[TextTrace]) -> list[list[float]]:
    """Acceptance by depth and rank, of chains of guesses of rank 0: [d][r] is how often the token at depth d + 1 is the
    guess of rank r, given that all before it were first guesses."""
    hits, trials = np.zeros((DEPTH, RANKS)), np.zeros(DEPTH)
    for text in texts:
        rank = text.drafts[0].rank
        start = 0
        while start < len(rank):
            depth = 0
            while depth < DEPTH and start + depth < len(rank):
                found = int(rank[start + depth])
                trials[depth] += 1
                if found >= 0:
                    hits[depth, found] += 1
                depth += 1
                if found != 0:
                    break
            start += max(1, depth)
    return [(hits[depth] / max(1.0, trials[depth])).tolist() for depth in range(DEPTH)]


def shapes(acceptance: list[list[float]]) -> dict[str, tuple[int, ...]]:
    """What is compared, by name."""
    found: dict[str, tuple[int, ...]] = {}
    for size in SIZES:
        best = best_shape(acceptance, lambda _levels: 1.0, Bounds(size, DEPTH, frozenset((size,))))
        assert best is not None
        found[f"best tree, {size} nodes"] = best.parents
        found[f"uniform tree, {size} nodes"] = tuple(uniform_shape(size, 2).tolist())
        depth = int(depths(np.array(best.parents, np.int32)).max())
        found[f"chain as deep as the best tree of {size}"] = tuple(range(-1, depth - 1))
        found[f"chain of {size} nodes"] = tuple(range(-1, size - 1))
    return found


def per_round(texts: Sequence[TextTrace], parents: Sequence[int]) -> float:
    """Tokens a round on these texts."""
    rounds = sum(replay_tree(Text(len(text), text.facts.limit), text.drafts[0].rank, parents)[0] for text in texts)
    return sum(map(len, texts)) / rounds


def compare(trace: Trace) -> list[dict[str, Any]]:
    """Learn on the even texts of each kind, compare on the odd ones."""
    kinds = [[text for text in trace.counted if text.facts.kind == kind] for kind in trace.kinds]
    learning = [text for kind in kinds for text in kind[::2]]
    others = [text for kind in kinds for text in kind[1::2]]
    acceptance, own = table(learning), table(others)
    found = []
    for name, parents in shapes(acceptance).items():
        row = {
            "arm": name,
            "parents": list(parents),
            "tokens_per_round": per_round(others, parents),
            "predicted": expected_length(parents, [*acceptance, *acceptance[-1:] * 16]),
            "predicted_from_own_trials": expected_length(parents, [*own, *own[-1:] * 16]),
        }
        found.append(row)
        print(
            f"   {name:38} {row['tokens_per_round']:.2f} tokens a round; predicted from the other texts "
            f"{row['predicted']:.2f}, from its own {row['predicted_from_own_trials']:.2f}"
        )
    return found


def live(trace: Trace, models: Sequence[Path], parents: Sequence[int]) -> list[dict[str, Any]]:
    """Rounds of real decoding beside replayed ones; ``models``: target and draft."""
    target, draft = models
    most = max(len(kids) for kids in children(np.array(parents, np.int32)).values())
    depth = int(depths(np.array(parents, np.int32)).max())
    what = Budget(len(parents), depth, most, tuple(parents))
    prompts = read_prompts(HERE / "kinds.jsonl").prompts
    rows = []
    with Pipeline.open(Setup(target, (draft,), Settings(lines=64))) as pipeline:
        for text in trace.counted[:LIVE]:
            ids = prompts[text.facts.index].encoded(pipeline.tokenizer).ids
            params = trace.settings.sampling.params()
            seeded = replace(params, seed=params.seed + text.facts.index)
            steps = pipeline.stream(Request(ids, seeded, Fixed(what), max_tokens=text.facts.limit))
            found = Summary.of(steps)
            replayed = replay_tree(Text(len(text), text.facts.limit), text.drafts[0].rank, parents)[0]
            rows.append({"text": text.facts.index, "rounds": found.rounds, "replayed": replayed})
            print(f"   text {text.facts.index}: {found.rounds} rounds decoded, {replayed} replayed", flush=True)
    return rows


def main() -> None:
    """Parse, compare, keep the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--live", nargs=2, type=Path, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    trace = read_trace(args.trace)
    heat = trace.settings.sampling.temperature
    print(f"{trace.settings.target.name} with {trace.settings.drafts[0].name}, temperature {heat:g}")
    found = compare(trace)
    rows: dict[str, Any] = {
        "target": trace.settings.target.name,
        "draft": trace.settings.drafts[0].name,
        "temperature": heat,
        "texts": len(trace.counted),
        "arms": found,
    }
    if args.live:
        (tree,) = [row["parents"] for row in found if row["arm"] == "best tree, 8 nodes"]
        rows["live"] = live(trace, args.live, tree)
    write("trees", rows, args.out)


if __name__ == "__main__":
    main()
