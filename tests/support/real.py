"""Requests to real models, and the verdict on two texts that should be one."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft import certify
from foredraft.decode import Limits
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


def difference(run: Run, plain: Sequence[int], other: Sequence[int]) -> certify.Difference | None:
    """Where ``other`` leaves the plain text; None if it does not."""
    sampler = Sampler(run.params, eog_ids=run.limits.eog_ids)
    return certify.explain(run.engine, sampler, certify.Texts(run.prompt, plain, other))


def same(run: Run, plain: Sequence[int], other: Sequence[int]) -> bool:
    """True if the texts are identical, or part at a choice that rounding can turn (float weights: from width 2 on)."""
    found = difference(run, plain, other)
    return found is None or found.near_tie
