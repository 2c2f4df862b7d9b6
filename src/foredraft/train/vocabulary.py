"""The draft vocabulary of a head: the tokens that its texts are made of (FR-Spec, arXiv 2502.14856, section 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foredraft.export.output_rows import choose_rows
from foredraft.tokens import Tokenizer
from foredraft.train.states import TextStates

ENOUGH = 0.985
"""Share of the held-out texts' tokens that the automatic choice covers."""
STEP = 2048


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``ids`` ascending; ``coverage``: share of the tokens of held-out answers that are among them."""

    ids: tuple[int, ...]
    coverage: float


def draft_vocabulary(
    train: Sequence[TextStates], held_out: Sequence[TextStates], tokenizer: Tokenizer, count: int = 0
) -> Vocabulary:
    """The ``count`` most frequent tokens of the training answers, with those that cannot be done without; 0: as few
    thousands as cover ``ENOUGH`` of the held-out answers, or all tokens that occur."""
    counts, unseen = Counter(_tokens(train)), Counter(_tokens(held_out))
    total = sum(unseen.values())

    def covered(ids: Iterable[int]) -> float:
        return sum(unseen[id] for id in ids) / max(1, total)

    sizes = [count] if count else list(range(STEP, tokenizer.vocab_size, STEP))[:16] or [tokenizer.vocab_size]
    ids: tuple[int, ...] = ()
    for size in sizes:
        ids = choose_rows(min(size, tokenizer.vocab_size), counts, tokenizer)
        if covered(ids) >= ENOUGH:
            break
    return Vocabulary(ids, covered(ids))


def _tokens(texts: Sequence[TextStates]) -> Iterable[int]:
    for text in texts:
        yield from text.text.ids[text.text.prompt_tokens :]
