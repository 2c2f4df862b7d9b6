"""A profile of toy models: scripted engines over the toy tokenizer, prompts of a few words."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from foredraft.devices.measured import ModelFacts
from foredraft.engines.scripted import ScriptedEngine
from foredraft.pair import PairReport
from foredraft.pipeline import Pipeline
from foredraft.profile import measure
from foredraft.profile.trace import Sampled, TraceSettings
from foredraft.prompts import Prompt
from foredraft.types import Logits
from tests.support.toy_tokenizer import ToyTokenizer

TOY = ToyTokenizer()
VOCAB = TOY.vocab_size
LIMIT = VOCAB - 3
"""The last ids are padding."""
BARRED = 7


def row(text: tuple[int, ...], seed: int) -> Logits:
    """Depends on the last four tokens; ids that end a text are unlikely."""
    random = np.random.default_rng([seed, *text[-4:]])
    made = (random.standard_normal(VOCAB) * 2).astype(np.float32)
    made[:5] -= 4.0
    made[LIMIT:] = -30.0  # no model writes padding
    return made


def target_table(text: tuple[int, ...]) -> Logits:
    return row(text, 1)


def draft_table(text: tuple[int, ...]) -> Logits:
    return (target_table(text) + row(text, 2) * 0.35).astype(np.float32)


def slow_table(text: tuple[int, ...]) -> Logits:
    """The same, so that a run can be caught in the middle."""
    time.sleep(0.001)
    return target_table(text)


def pipeline(*, slow: bool = False) -> Pipeline:
    target = ScriptedEngine(slow_table if slow else target_table, VOCAB)
    report = PairReport((), (), frozenset({BARRED, *range(LIMIT, VOCAB)}), LIMIT)
    return Pipeline(target, TOY, helpers=(ScriptedEngine(draft_table, VOCAB),), pairs=(report,))


def prompts(count: int, kinds: tuple[str, ...] = ("code", "chat")) -> list[Prompt]:
    return [
        Prompt(at + 1, kinds[at % len(kinds)], ({"role": "user", "content": f"ab the cat {at} abc"},), None, f"key{at}")
        for at in range(count)
    ]


def settings(sampled: Sampled | None = None, *, redacted: bool = False, tokens: int = 24) -> TraceSettings:
    return TraceSettings(
        ModelFacts("big", "program-1", "scripted", 1000),
        (ModelFacts("small", "program-2", "scripted", 200),),
        measure.prompts_hash(prompts(4)),
        sampling=sampled or Sampled(),
        max_tokens=tokens,
        raw=True,
        redacted=redacted,
        version="0.1.0",
    )


def record(directory: Path, count: int = 4, sampled: Sampled | None = None, *, redacted: bool = False) -> None:
    """A whole run."""
    made = replace(settings(sampled, redacted=redacted), prompts=measure.prompts_hash(prompts(count)))
    with pipeline() as opened:
        measure.run(opened, measure.Job(made, prompts(count)), directory)


if __name__ == "__main__":  # a process that a test kills
    made = replace(settings(Sampled(0.8, seed=3)), prompts=measure.prompts_hash(prompts(12)))
    with pipeline(slow=True) as opened:
        measure.run(opened, measure.Job(made, prompts(12)), Path(sys.argv[1]))
