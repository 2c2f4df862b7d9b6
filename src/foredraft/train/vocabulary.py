"""The draft vocabulary of a head: the tokens that its texts are made of (FR-Spec, arXiv 2502.14856, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foredraft.export.output_rows import choose_rows
from foredraft.tokens import Tokenizer
from foredraft.train.states import TextStates

STEP, WORTH = 2048, 0.01
"""The automatic choice takes so many more tokens as long as they are so much of the held-out answers: each costs a row
of the output matrix in every pass."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``ids`` ascending; ``coverage``: share of the tokens of held-out answers that are among them."""

    ids: tuple[int, ...]
    coverage: float


def draft_vocabulary(
    train: Sequence[TextStates], held_out: Sequence[TextStates], tokenizer: Tokenizer, count: int = 0
) -> Vocabulary:
    """The ``count`` most frequent tokens of the training answers, with those that cannot be done without; 0: as many as
    are worth their row (see ``WORTH``)."""
    counts, size = Counter(_tokens(train)), tokenizer.vocab_size
    if count:
        ids = choose_rows(count, counts, tokenizer)
        return Vocabulary(ids, covered_share(ids, held_out))
    best = Vocabulary((), -1.0)
    for rows in range(STEP, size + STEP, STEP):
        ids = choose_rows(min(rows, size), counts, tokenizer)
        more = Vocabulary(ids, covered_share(ids, held_out))
        if more.coverage < best.coverage + WORTH:
            break
        best = more
    return best


def covered_share(ids: Iterable[int], texts: Sequence[TextStates]) -> float:
    """Share of the answers' tokens that are among ``ids``."""
    known, counts = frozenset(ids), Counter(_tokens(texts))
    return sum(count for id, count in counts.items() if id in known) / max(1, sum(counts.values()))


def _tokens(texts: Sequence[TextStates]) -> Iterable[int]:
    for text in texts:
        yield from text.text.ids[text.text.prompt_tokens :]
