"""Trees against chains: tokens per pass of the target, counted, not timed.

    python benchmarks/trees.py TARGET DRAFT [--prompts N] [--tokens N] [--out FILE]

Half of the prompts of each kind measure acceptance by depth and rank with a bushy tree. From that the best tree of 4, 8
and 16 nodes is made; on the other half it is set against the uniform tree of as many nodes, the chain of equal depth
and the chain of equal width (as many nodes), greedily and at temperature .8; predicted tokens per round stand beside
measured ones. TARGET and DRAFT are files, exports or names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.measure import HERE, write
from foredraft.catalogue import resolve
from foredraft.chat import encode_prompt
from foredraft.control import Fixed
from foredraft.control.estimates import Acceptance
from foredraft.engines.opening import Settings
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.summary import Summary
from foredraft.trees import Bounds, best_shape, children, depths, expected_length, uniform_shape
from foredraft.types import Budget, SamplingParams

SIZES = (4, 8, 16)
DEPTH = 6
LEARNING = Budget(24, 5, 4)
LAWS = {"greedy": SamplingParams(), "temperature .8": SamplingParams(temperature=0.8, seed=7)}


def budget(parents: Sequence[int]) -> Budget:
    """A budget for exactly this tree."""
    shape = np.array(parents, np.int32)
    most = max(len(kids) for kids in children(shape).values())
    return Budget(len(parents), int(depths(shape).max()), most, tuple(parents) if most > 1 else ())


def chain(length: int) -> tuple[int, ...]:
    """Parents of a chain."""
    return tuple(range(-1, length - 1))


def table(seen: Acceptance) -> list[list[float]]:
    """Acceptance by depth and rank."""
    return [seen.by_rank(first, 4) for first in seen.by_depth(DEPTH)]


def run(pipeline: Pipeline, ids: Sequence[int], law: SamplingParams, what: Budget, tokens: int) -> list[Any]:
    """The steps of one request."""
    return list(pipeline.stream(Request(ids, law, Fixed(what), max_tokens=tokens)))


def shapes(acceptance: list[list[float]]) -> dict[str, tuple[int, ...]]:
    """What is compared, by name."""
    found: dict[str, tuple[int, ...]] = {}
    for size in SIZES:
        best = best_shape(acceptance, lambda _levels: 1.0, Bounds(size, DEPTH, frozenset((size,))))
        assert best is not None
        found[f"best tree, {size} nodes"] = best.parents
        found[f"uniform tree, {size} nodes"] = tuple(uniform_shape(size, 2).tolist())
        depth = int(depths(np.array(best.parents, np.int32)).max())
        found[f"chain as deep as the best tree of {size}"] = chain(depth)
        found[f"chain of {size} nodes"] = chain(size)
    return found


def compare(pipeline: Pipeline, rows: list[dict[str, str]], law: SamplingParams, tokens: int) -> list[dict[str, Any]]:
    """Learn on the even prompts, compare on the odd ones."""
    ids = [encode_prompt(pipeline.tokenizer, row["prompt"]).ids for row in rows]
    seen = Acceptance(memory=1e9)
    for prompt in ids[::2]:
        for step in run(pipeline, prompt, law, LEARNING, tokens):
            seen.observe(step.trials)
    acceptance = table(seen)
    found = []
    for name, parents in shapes(acceptance).items():
        total, own = Summary(), Acceptance(memory=1e9)
        for prompt in ids[1::2]:
            for step in run(pipeline, prompt, law, budget(parents), tokens):
                total.add(step)
                own.observe(step.trials)
        measured = total.mean_accepted_length or 0.0
        found.append(
            {
                "arm": name,
                "parents": list(parents),
                "tokens_per_round": measured,
                "predicted": expected_length(parents, acceptance),
                "predicted_from_own_trials": expected_length(parents, table(own)),
                "rounds": total.rounds,
            }
        )
        row = found[-1]
        print(
            f"   {name:38} {measured:.2f} tokens a round; predicted from the other prompts {row['predicted']:.2f}, "
            f"from its own trials {row['predicted_from_own_trials']:.2f}",
            flush=True,
        )
    return found


def main() -> None:
    """Parse, compare, keep the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--out", type=Path)
    for name, default in (("prompts", 4), ("tokens", 96), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    lines = [json.loads(line) for line in (HERE / "kinds.jsonl").read_text().splitlines()]
    rows = []
    for kind in dict.fromkeys(line["kind"] for line in lines):
        rows += [line for line in lines if line["kind"] == kind and "prompt" in line][: args.prompts]
    results = {}
    target, draft = (Path(name) if Path(name).exists() else resolve(name) for name in (args.target, args.draft))
    with Pipeline.open(Setup(target, (draft,), Settings(threads=args.threads, lines=64))) as pipeline:
        for name, law in LAWS.items():
            print(f"{pipeline.engine.info.model}, {name}")
            results[name] = compare(pipeline, rows, law, args.tokens)
            write("trees", results, args.out)


if __name__ == "__main__":
    main()
