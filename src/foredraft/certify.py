"""Is this text plain decoding's text? If not: where does it leave it, and could rounding explain that?

On most engines kernels differ by width, so that scoring 5 rows at once may flip a near-tie that scoring one row would
not. A difference whose gap is larger than the engine's measured noise is a bug, never a near-tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foredraft.engines.base import Engine, Session
from foredraft.sampling import History, Sampler
from foredraft.types import Ids, Logits


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two texts. ``gap``: by how much the logit of the other token would have to rise to be
    the plain choice (greedy: the top-2 gap if it is the runner-up). ``noise``: the engine's measured numeric noise,
    in the same unit (logits)."""

    index: int
    plain: int | None
    other: int | None
    gap: float
    noise: float

    @property
    def near_tie(self) -> bool:
        """True if numeric noise can explain the difference."""
        return self.gap <= self.noise


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first differing token (a missing one differs), None if the texts are identical."""
    for index, (left, right) in enumerate(zip(plain, other, strict=False)):
        if left != right:
            return index
    return None if len(plain) == len(other) else min(len(plain), len(other))


def numeric_noise(engine: Engine, text: Sequence[int], widths: Sequence[int] = (2, 4, 8), prefix: int = 0) -> float:
    """How much the logits of one text depend on the width it is scored at, in logits.

    For every position behind the first ``prefix`` tokens and every width: the spread max(Δ) - min(Δ) over the
    vocabulary of the difference to width 1, which bounds the change of any gap between two tokens. Returns the
    largest; 0.0 means bit for bit the same.
    """
    single = _scored(engine, text, 1, prefix)
    worst = 0.0
    for width in widths:
        change = _scored(engine, text, width, prefix) - single
        worst = max(worst, float((change.max(axis=1) - change.min(axis=1)).max()))
    return worst


def tree_noise(engine: Engine, text: Sequence[int], prefix: int = 0, depth: int = 4) -> float:
    """``numeric_noise`` of trees: the text is fed ``depth`` tokens a pass, each with a wrong sibling before it.

    Behind the first kept path the cells of the cache may be out of order, so that attention sums in another order.
    """
    single = _scored(engine, text, 1, prefix)
    session = engine.open()
    worst = 0.0
    try:
        if prefix:
            _feed(session, text[:prefix], 0)
        for start in range(prefix, len(text), depth):
            right = text[start : start + depth]
            tokens = [id for token in right for id in ((token + 1) % engine.info.vocab_size, token)]
            parents = [above for level in range(len(right)) for above in [2 * level - 1] * 2]
            rows = session.extend(np.array(tokens, np.int32), np.array(parents, np.int32), len(tokens)).logits[1::2]
            change = rows - single[start - prefix : start - prefix + len(right)]
            worst = max(worst, float((change.max(axis=1) - change.min(axis=1)).max()))
            session.keep(range(1, len(tokens), 2))
        return worst
    finally:
        session.close()


def _scored(engine: Engine, text: Sequence[int], width: int, prefix: int) -> Logits:
    """Logits of every token behind ``prefix``, fed ``width`` at a time, float32[len(text) - prefix, V]."""
    session = engine.open()
    try:
        if prefix:
            _feed(session, text[:prefix], 0)
        rows = [
            _feed(session, text[start : start + width], len(text[start : start + width]))
            for start in range(prefix, len(text), width)
        ]
        return np.concatenate(rows)
    finally:
        session.close()


def _feed(session: Session, tokens: Sequence[int], rows: int) -> Logits:
    ids: Ids = np.array(tokens, np.int32)
    logits = session.extend(ids, np.arange(-1, len(ids) - 1, dtype=np.int32), rows).logits.copy()
    session.keep(range(len(ids)))
    return logits


def choice_gap(logits: Logits, sampler: Sampler, history: History, other: int) -> float:
    """The smallest raise of ``other``'s logit that makes it the choice after ``history``, in logits, to 1e-4.

    Greedy: top logit - logit of ``other``. It also measures the distance to the edge of a nucleus, which the top-2
    gap cannot see. At most 64; infinite if the token is barred.
    """

    def chosen(raised: float) -> bool:
        row = logits.copy()
        row[other] += np.float32(raised)
        return sampler.choose(row, history) == other

    if not chosen(64.0):
        return float("inf")
    low, high = 0.0, 64.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if chosen(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Texts:
    """A prompt and two continuations of it: plain decoding's and another."""

    prompt: Sequence[int]
    plain: Sequence[int]
    other: Sequence[int]


def explain(
    engine: Engine,
    sampler: Sampler,
    texts: Texts,
    widths: Sequence[int] = (2, 4, 8),
) -> Difference | None:
    """None if the texts are identical; else their first difference with its gap and the engine's noise: that of chains
    of ``widths``, and of trees where the engine takes them.

    The gap is taken at the row plain decoding chose from, scored again one token at a time.
    """
    prompt, plain, other = texts.prompt, texts.plain, texts.other
    index = first_difference(plain, other)
    if index is None:
        return None
    left = plain[index] if index < len(plain) else None
    right = other[index] if index < len(other) else None
    text = [*prompt, *plain[:index]]
    noise = _noise(engine, text, widths)
    if left is None or right is None:
        return Difference(index, left, right, float("inf"), noise)
    history = History(prompt, sampler.params.penalty_window)
    for token in plain[:index]:
        history.push(token)
    row = _replayed(engine, prompt, plain[:index])
    return Difference(index, left, right, choice_gap(row, sampler, history, right), noise)


def _noise(engine: Engine, text: Sequence[int], widths: Sequence[int]) -> float:
    """Measured on the last 64 tokens of ``text``, after what precedes them."""
    prefix = max(0, len(text) - 64)
    noise = numeric_noise(engine, text, widths, prefix)
    if not engine.info.tree:
        return noise
    fits = engine.info.max_context - 4  # a tree holds a wrong sibling for each of the last 4 tokens
    return max(noise, tree_noise(engine, text[:fits], prefix))


def _replayed(engine: Engine, prompt: Sequence[int], generated: Sequence[int]) -> Logits:
    """The last row of the text, fed as plain decoding feeds it: the prompt in one piece, then token by token."""
    session = engine.open()
    try:
        if len(prompt) > 1:
            _feed(session, prompt[:-1], 0)
        row = _feed(session, prompt[-1:], 1)
        for token in generated:
            row = _feed(session, [token], 1)
        return np.asarray(row[0], np.float32)
    finally:
        session.close()
