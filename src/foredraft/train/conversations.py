"""What the target is asked: the user's prompts, or questions that it writes itself.

An instruction-tuned model that is given its chat template up to where the user speaks goes on as the user (Magpie,
arXiv 2406.08464, section 2.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from foredraft.chat import encode_messages, user_opening
from foredraft.prompts import Prompt
from foredraft.tokens import TextStream, Tokenizer
from foredraft.train.texts import DataSettings, Text, split_of
from foredraft.train.writing import Job, Written
from foredraft.types import SamplingParams

OWN = "own"
"""The kind of questions that the target asked itself."""
LONGEST_QUESTION = 128
"""Tokens; a question that does not end within them is not used."""


@dataclass(frozen=True)
class Asked:
    """One prompt: ``ids`` for the model, its ``words`` for the split, its ``kind``."""

    ids: tuple[int, ...]
    words: str
    kind: str


def asked(prompt: Prompt, tokenizer: Tokenizer) -> Asked:
    """A prompt of the user's file."""
    return Asked(prompt.encoded(tokenizer).ids, prompt.messages[-1]["content"], prompt.kind)


class Conversations:
    """A source of jobs for texts ``0 .. count - 1`` without those in ``finished``; ``keep`` is given each text."""

    def __init__(
        self,
        settings: DataSettings,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        finished: Collection[int],
        keep: Callable[[Text], None],
    ) -> None:
        self._settings, self._tokenizer, self._keep = settings, tokenizer, keep
        self._prompts = prompts
        self._opening = user_opening(tokenizer) if settings.questions else ()
        self._waiting = deque(number for number in range(total(settings, len(prompts))) if number not in finished)
        self._ready: deque[Job] = deque()
        self._asked: dict[int, Asked] = {}

    def take(self) -> Job | None:
        """An answer whose question is known, else the next question."""
        if self._ready:
            return self._ready.popleft()
        while self._waiting:
            number = self._waiting.popleft()
            if self._settings.questions:
                params = SamplingParams(temperature=1.0, top_p=0.98, seed=self._seed(number))
                return Job(number, self._opening, params, LONGEST_QUESTION)
            self._ask(number, asked(self._prompts[number // self._settings.samples], self._tokenizer))
            if self._ready:
                return self._ready.popleft()
        return None

    def done(self, written: Written) -> None:
        """A question is asked, an answer is kept."""
        number = written.job.number
        if number in self._asked:
            self._finish(self._asked.pop(number), written)
            return
        stream = TextStream(self._tokenizer)
        words = (stream.push(written.ids) + stream.finish()).strip()
        if not written.ended or len(words) < 2:
            self._skip(number, "the question did not end" if not written.ended else "the question is empty")
            return
        self._ask(number, Asked(encode_messages(self._tokenizer, [{"role": "user", "content": words}]).ids, words, OWN))

    def _ask(self, number: int, question: Asked) -> None:
        settings = self._settings
        if len(question.ids) + 1 >= settings.context:
            self._skip(number, f"the prompt has {len(question.ids)} tokens")
            return
        temperature = self._temperature(number)
        params = SamplingParams(
            temperature=temperature, top_p=settings.top_p if temperature else 1.0, seed=self._seed(number) + 1
        )
        self._asked[number] = question
        self._ready.append(Job(number, question.ids, params, settings.max_tokens))

    def _finish(self, question: Asked, written: Written) -> None:
        number, ids = written.job.number, (*question.ids, *written.ids)
        split, temperature = split_of(question.words), self._temperature(number)
        self._keep(Text(number, question.kind, split, temperature, len(question.ids), ids, written.ended))

    def _skip(self, number: int, why: str) -> None:
        self._keep(Text(number, OWN, "train", self._temperature(number), 0, (), ended=False, skipped=why))

    def _temperature(self, number: int) -> float:
        """Samples of one prompt take turns too."""
        return self._settings.temperatures[number % len(self._settings.temperatures)]

    def _seed(self, number: int) -> int:
        return (self._settings.seed << 32) + 2 * number


def total(settings: DataSettings, prompts: int) -> int:
    """Texts to write."""
    return settings.questions or prompts * settings.samples
