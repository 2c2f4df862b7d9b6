"""Synthetic traces: laws drawn at random, texts written by them, drafts that are the target with noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foredraft.devices.measured import ModelFacts
from foredraft.profile.laws import summarise
from foredraft.profile.measure import redacted
from foredraft.profile.replay import Copies
from foredraft.profile.trace import Ask, DraftTrace, Sampled, TextFacts, TextTrace, Trace, TraceSettings
from foredraft.sampling import History, Sampler
from foredraft.types import Logits

VOCAB = 200
TARGET = ModelFacts("big.gguf", "ends-big", "llama_cpp", 1_000_000_000)
DRAFT = ModelFacts("small.gguf", "ends-small", "llama_cpp", 300_000_000)


@dataclass(frozen=True)
class Made:
    """``noise``: how far the draft's logits are from the target's; ``sharp``: how peaked laws are."""

    texts: int = 6
    tokens: int = 40
    noise: float = 0.8
    sharp: float = 3.0
    sampled: Sampled = Sampled()  # noqa: RUF009  frozen
    kinds: tuple[str, ...] = ("code", "chat")
    seed: int = 1
    drafts: int = 1


def make(options: Made | None = None) -> Trace:
    """A whole trace."""
    made = options or Made()
    settings = TraceSettings(
        TARGET, tuple(replace(DRAFT, name=f"small{number or ''}.gguf") for number in range(made.drafts)), "hash",
        sampling=made.sampled, max_tokens=made.tokens, version="0.1.0",
    )  # fmt: skip
    return Trace(settings, tuple(text(made, index) for index in range(made.texts)))


def rows_of(made: Made, index: int) -> tuple[Logits, list[Logits]]:
    """Logits of target and drafts at every position, float32[P, VOCAB] each."""
    random = np.random.default_rng([made.seed, index])
    target = (random.standard_normal((made.tokens, VOCAB)) * made.sharp).astype(np.float32)
    drafts = [
        (target + random.standard_normal((made.tokens, VOCAB)) * made.noise * (1 + number)).astype(np.float32)
        for number in range(made.drafts)
    ]
    return target, drafts


def text(made: Made, index: int) -> TextTrace:
    """One text: each position's token is the target's choice there."""
    target, drafts = rows_of(made, index)
    params = replace(made.sampled.params(), seed=made.sampled.seed + index)
    sampler, context = Sampler(params), History([1, 2, 3])
    ids, ranks = [], [list[int]() for _ in drafts]
    for at, row in enumerate(target):
        token = sampler.choose(row, context)
        for number, draft in enumerate(drafts):
            guesses = sampler.children(draft[at], context, 4).ids
            found = np.flatnonzero(guesses == token)
            ranks[number].append(int(found[0]) if len(found) else -1)
        ids.append(token)
        context.push(token)
    random = np.random.default_rng([made.seed, index, 7])
    proposed = np.where(random.random(made.tokens) < 0.3, random.integers(1, 9, made.tokens), 0).astype(np.int16)
    left = np.arange(made.tokens, 0, -1)
    matched = np.minimum(np.minimum(random.integers(0, 9, made.tokens), proposed), left).astype(np.int16)
    facts = TextFacts(
        index, index + 1, f"key{index}", made.kinds[index % len(made.kinds)], 3, made.tokens, made.tokens, "length",
        f"prompt {index}", (1.0, 0.2),
    )  # fmt: skip
    return TextTrace(
        facts,
        Copies(proposed, matched),
        tuple(DraftTrace(np.array(rank, np.int8), summarise(rows)) for rank, rows in zip(ranks, drafts, strict=True)),
        np.array(ids, np.int32),
        tuple(f" t{token}".encode() for token in ids),
        summarise(target),
    )


def redact(trace: Trace) -> Trace:
    """The same without ids, laws and words."""
    settings = replace(trace.settings, redacted=True)
    ask = Ask(trace.settings.sampling.params(), "coupled", trace.settings.draft_temperature)
    return Trace(settings, tuple(redacted(text, ask) for text in trace.texts))
