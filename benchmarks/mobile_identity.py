"""Are text and logits of an export with speculation those of plain decoding, to the last bit?

    python benchmarks/mobile_identity.py EXPORT [--prompts N] [--tokens N] [--out FILE] [--threads N]

Chains of 1 to 8, trees of 4, 8 and 16 nodes, n-gram; greedy and at temperature .8, top-p .95; prompts in chunks of 1,
7, 64 and 512. The drafts guess the known text and are wrong every fifth time, so that every path through a round
occurs. With --out the file is written after every text, and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import prompts, write
from foredraft.chat import encode_prompt
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.executorch import ExecutorchConfig, ExecutorchEngine
from foredraft.types import Budget, SamplingParams
from tests.support.recorded import Guesser, Job, Written, differences

BUDGETS = {f"chain of {k}": Budget.chain(k) for k in range(1, 9)} | {
    f"tree of {nodes}": Budget(nodes, depth, 4) for nodes, depth in ((4, 3), (8, 4), (16, 5))
}
CHUNKS = (1, 7, 64)
RIGHT = 0.8
"""Share of right guesses."""


def compare(job: Job) -> dict[str, Any]:
    """What differs, by way of decoding; nothing should."""
    plain = job.write()
    guesser = Guesser([*job.prompt, *plain.ids], job.engine.info.vocab_size, RIGHT)
    found: dict[str, Any] = {}

    def add(name: str, other: Written) -> None:
        found[name] = {
            "differences": differences(plain, other, job.prompt),
            "drafted": other.drafted,
            "accepted": other.accepted,
        }

    for name, budget in BUDGETS.items():
        add(name, job.write(guesser, budget))
    add("n-gram", job.write(NgramDrafter(), Budget.chain(7)))
    if not job.law.greedy:  # the prompt is read in the same way
        return found
    short = Job(job.engine, job.prompt, job.law, 8)
    whole = short.write()
    for chunk in CHUNKS:
        other = short.write(chunk=chunk)
        found[f"prompt in chunks of {chunk}"] = {"differences": differences(whole, other, job.prompt)}
    return found


def main() -> None:
    """Parse, compare, keep the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("--out", type=Path)
    for name, default in (("prompts", 20), ("tokens", 300), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    engine = ExecutorchEngine(args.export, ExecutorchConfig(threads=args.threads))
    rows = _finished(args.out, engine.info.model, args.tokens)
    for number, row in enumerate(prompts(args.prompts)):
        ids = list(encode_prompt(engine.tokenizer, row["prompt"]).ids)
        for temperature, top_p in ((0.0, 1.0), (0.8, 0.95)):
            if any((done["prompt"], done["temperature"]) == (number, temperature) for done in rows):
                continue
            law = SamplingParams(temperature=temperature, top_p=top_p, seed=number)
            found = compare(Job(engine, ids, law, args.tokens))
            differing = [name for name, value in found.items() if value["differences"]]
            rows.append(
                {
                    "prompt": number,
                    "temperature": temperature,
                    "tokens": args.tokens,
                    "threads": args.threads,
                    "found": found,
                }
            )
            print(f"prompt {number}, temperature {temperature}: {differing or 'identical in every way'}", flush=True)
            write("mobile-identity", {"model": engine.info.model, "texts": rows}, args.out)
    outcomes = [value["differences"] for row in rows for value in row["found"].values()]
    print(f"{len(outcomes)} comparisons, {sum(map(bool, outcomes))} differ")


def _finished(path: Path | None, model: str, tokens: int) -> list[dict[str, Any]]:
    """The texts of an interrupted run with the same model and length."""
    if path is None or not path.exists():
        return []
    data = json.loads(path.read_text())["rows"]
    return [row for row in data["texts"] if row["tokens"] == tokens] if data["model"] == model else []


if __name__ == "__main__":
    main()
