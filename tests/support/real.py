"""Requests to real models, and the verdict on two texts that should be one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foredraft import certify
from foredraft.decode import Limits
from foredraft.engines.base import Engine
from foredraft.engines.llama_cpp import LlamaEngine
from foredraft.sampling import Sampler
from tests.support.scripted import Run

PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Once upon a time",
    "1, 2, 3, 4, 5,",
    "Water boils when",
    "Dear Sir or Madam,",
    "- apples\n- pears\n-",
    "The opposite of hot is",
)
PROSE = (
    "The old harbour was quiet in the morning. A keeper walked along the wall and counted the boats, as he had "
    "done every day since the storm of 1953: three red, two green and one without any paint. "
)


def asks(engine: LlamaEngine, prompt: str | Sequence[int], max_tokens: int = 96) -> Run:
    """A request with a raw text, or with ids."""
    ids = engine.tokenizer.encode(prompt, add_special=True, parse_special=True) if isinstance(prompt, str) else prompt
    limits = Limits(max_tokens, engine.tokenizer.eog_ids)
    return Run(engine, ids, limits=limits, tokenizer=engine.tokenizer)


def tree_noise(engine: Engine, text: Sequence[int], depth: int = 4) -> float:
    """``certify.numeric_noise`` of trees: the text is fed ``depth`` tokens a pass, each with a wrong sibling before it.

    Behind the first kept path the cells of the cache are out of order, so that attention sums in another order.
    """
    single, tree = engine.open(), engine.open()
    worst = 0.0
    for start in range(0, len(text), depth):
        right = text[start : start + depth]
        tokens = [id for token in right for id in ((token + 1) % engine.info.vocab_size, token)]
        parents = [above for level in range(len(right)) for above in [2 * level - 1] * 2]
        rows = tree.extend(np.array(tokens, np.int32), np.array(parents, np.int32), len(tokens)).logits[1::2].copy()
        tree.keep(range(1, len(tokens), 2))
        for token, row in zip(right, rows, strict=True):
            change = row - single.extend(np.array([token], np.int32), np.array([-1], np.int32), 1).logits[0]
            single.keep([0])
            worst = max(worst, float(change.max() - change.min()))
    single.close()
    tree.close()
    return worst


def difference(run: Run, plain: Sequence[int], other: Sequence[int]) -> certify.Difference | None:
    """Where ``other`` leaves the plain text; None if it does not."""
    sampler = Sampler(run.params, eog_ids=run.limits.eog_ids)
    return certify.explain(run.engine, sampler, run.prompt, plain, other)


def same(run: Run, plain: Sequence[int], other: Sequence[int]) -> bool:
    """True if the texts are identical, or part at a choice that rounding can turn (float weights: from width 2 on)."""
    found = difference(run, plain, other)
    if found is None or found.near_tie:
        return True
    return run.engine.info.tree and found.gap <= tree_noise(run.engine, [*run.prompt, *plain[: found.index]])
