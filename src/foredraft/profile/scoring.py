"""Teacher forcing: a model reads a known text in wide passes and says what it would have written at every position."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.base import Engine, Session
from foredraft.errors import PromptError
from foredraft.profile.laws import Laws, summarise
from foredraft.profile.replay import Copies
from foredraft.profile.trace import RANKS
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Ids, Logits

WIDTH = 32
"""Positions scored in one pass."""
_CHUNK = 512
_LONGEST_COPY, _ROUND = 15, 7
"""Tokens asked of n-gram lookup; tokens a round of the decoding that its copy point follows."""


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt and the text written behind it, both at least one token; ``limit``: tokens the text might have had."""

    prompt: Sequence[int]
    ids: Sequence[int]
    limit: int

    def context(self) -> History:
        """The prompt alone, to be pushed on."""
        return History(self.prompt)


def rows(session: Session, known: Known, limit: int) -> Iterator[Logits]:
    """Rows float32[n, limit] that predict the tokens of the text, in order and chunks; each is valid until the next.

    ``session`` may hold a beginning of the prompt. Ids from ``limit`` on are unknown to the model and left out of what
    it reads; what follows one is predicted from what stands before it.
    """
    text = [*known.prompt, *known.ids[:-1]]
    reading = [token for token in text if token < limit]
    first = sum(token < limit for token in known.prompt)  # tokens read before the first one of the text is predicted
    if not first:
        raise PromptError("the draft knows no token of the prompt; choose a draft with the target's vocabulary")
    if session.length:
        session.rewind(min(session.length, first - 1))
    while session.length < first - 1:
        _feed(session, reading[session.length : min(session.length + _CHUNK, first - 1)], 0)
    counts = np.cumsum([token < limit for token in text])[len(known.prompt) - 1 :] - first  # row of each position
    for start in range(first - 1, len(reading), WIDTH):
        logits = _feed(session, reading[start : start + WIDTH], min(WIDTH, len(reading) - start))
        inside = counts[(counts >= start - first + 1) & (counts < start - first + 1 + len(logits))]
        yield logits[inside - (start - first + 1), :limit]


def _feed(session: Session, tokens: Sequence[int], count: int) -> Logits:
    ids = np.array(tokens, np.int32)
    scores = session.extend(ids, np.arange(-1, len(ids) - 1, dtype=np.int32), count)
    session.keep(range(len(ids)))
    return scores.logits


def score_target(session: Session, known: Known, vocabulary: int) -> Laws:
    """The target's laws at every position of its text."""
    return Laws.joined([summarise(part) for part in rows(session, known, vocabulary)])


@dataclass(frozen=True)
class DraftModel:
    """A draft model and what it may propose: ids below ``limit`` and not ``barred`` (see ``pair``)."""

    engine: Engine
    limit: int
    barred: Collection[int] = ()

    def check(self, known: Known, name: str) -> None:
        """PromptError if its context is too small."""
        most, need = self.engine.info.max_context, len(known.prompt) + len(known.ids)
        if need > most:
            raise PromptError(f"prompt and text have {need} tokens; {name} holds {most}; give a larger --draft-ctx")


def score_draft(model: DraftModel, session: Session, known: Known, sampler: Sampler) -> tuple[Laws, NDArray[np.int8]]:
    """The draft's laws, and the rank int8[P] of the text's token among its guesses: what it would have proposed with
    the noise of the recorded settings (-1: not among the first ``RANKS``). ``sampler``: the draft's."""
    laws, ranks, context = list[Laws](), list[int](), known.context()
    barred = np.array(sorted(model.barred), np.int64)
    for part in rows(session, known, model.limit):
        if len(barred):
            part[:, barred] = -np.inf  # rows picked by index are a copy
        summary = summarise(part)
        laws.append(summary)
        for row, best in zip(part, summary.ids, strict=True):
            token = known.ids[len(ranks)]
            ranks.append(_rank(_guesses(row, best, context, sampler), token))
            context.push(token)
    return Laws.joined(laws), np.array(ranks, np.int8)


def _guesses(row: Logits, best: Ids, context: History, sampler: Sampler) -> Ids:
    """Its first ``RANKS`` guesses; a greedy draft's are the likeliest tokens, which are known already."""
    return best[:RANKS] if sampler.params.greedy else sampler.children(row, context, RANKS).ids


def _rank(guesses: Ids, token: int) -> int:
    found = np.flatnonzero(guesses == token)
    return int(found[0]) if len(found) else -1


def copies(known: Known, sampler: Sampler) -> Copies:
    """What n-gram lookup would propose at every position. Where it stopped copying (its copy point) follows rounds of
    ``_ROUND`` tokens, which differ little from those of other lengths."""
    drafter, context = NgramDrafter(), known.context()
    drafter.begin(known.prompt)
    count, following = len(known.ids), 0
    proposed, matched = np.zeros((2, count), np.int16)
    for at, token in enumerate(known.ids):
        draft = drafter.propose(context, Budget.chain(_LONGEST_COPY), sampler)
        proposed[at] = len(draft)
        matched[at] = _common(draft.tokens, known.ids[at : at + len(draft)])
        if at == following:
            drafted = min(int(proposed[at]), _ROUND, known.limit - at - 1)
            good = min(int(matched[at]), drafted)
            following = at + good + 1
            if drafted > 0:
                drafter.observe(range(good))
        context.push(token)
    return Copies(proposed, matched)


def _common(left: Ids, right: Sequence[int]) -> int:
    """Length of the common beginning."""
    same = left[: len(right)] == np.array(right, np.int32)
    return int(np.argmin(same)) if not same.all() else len(same)
