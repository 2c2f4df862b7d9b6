"""What a prompt is, what is known of the file it came from, and how to choose among the prompts of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from foredraft.chat import EncodedPrompt, Message, encode_messages, encode_prompt
from foredraft.errors import PromptError
from foredraft.tokens import Tokenizer

Format = Literal["jsonl", "csv", "text", "parquet"]
Unit = Literal["line", "row"]
"""What ``Prompt.line`` counts: lines of a text file, rows of a parquet file."""
NO_KIND, ALL = "other", "all"
"""The kind of a prompt that names none; the kind that stands for all together, which no prompt may name."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """``line``: the line or row (``unit``) of the file on which it begins, from 1. ``messages``: the conversation, a
    system text first. ``key``: a hash of what the model is given, which finds its record again. ``warm``: the same
    text stood earlier in the file, so that its numbers are not averaged in. ``max_tokens`` None: the caller chooses."""

    line: int
    kind: str
    messages: tuple[Message, ...]
    max_tokens: int | None
    key: str
    warm: bool = False
    unit: Unit = "line"

    @property
    def where(self) -> str:
        """Its place in the file in words, such as "line 3"."""
        return f"{self.unit} {self.line}"

    def encoded(self, tokenizer: Tokenizer, *, raw: bool = False) -> EncodedPrompt:
        """Ids for the model, through its chat template unless ``raw``; PromptError names the place in the file."""
        try:
            if not raw:
                return encode_messages(tokenizer, self.messages)
            if len(self.messages) > 1:
                raise PromptError("a conversation or a system text cannot be fed raw")
            return encode_prompt(tokenizer, self.messages[0]["content"], raw=True)
        except PromptError as error:
            raise PromptError(f"{self.where}: {error}") from error


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of a file, at least one, in its order. ``notes``: sentences on what was made of the file, for the
    user: how a text was cut into prompts, columns that were read as something else, columns that were not read."""

    name: str
    format: Format
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()

    @property
    def distinct(self) -> int:
        """Prompts that repeat no earlier one; with a single one there are no intervals."""
        return sum(not prompt.warm for prompt in self.prompts)


def chosen(prompts: Sequence[Prompt], kinds: Sequence[str] = (), limit: int = 0) -> list[Prompt]:
    """The prompts of these kinds (none named: all), at most ``limit`` of each kind (0: all). PromptError for a kind
    that no prompt is of."""
    known = list(dict.fromkeys(prompt.kind for prompt in prompts))
    for kind in kinds:
        if kind not in known:
            raise PromptError(f"no prompt is of the kind {kind!r}; there are: {', '.join(known)}")
    taken: Counter[str] = Counter()
    result = []
    for prompt in prompts:
        if (not kinds or prompt.kind in kinds) and (not limit or taken[prompt.kind] < limit):
            taken[prompt.kind] += 1
            result.append(prompt)
    return result
