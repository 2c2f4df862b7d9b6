"""Makes training texts: the target answers prompts, many at once, and finished texts go to disk in small files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foredraft.models.decoder import Decoder
from foredraft.prompts import Prompt
from foredraft.tokens import Tokenizer
from foredraft.train.conversations import Conversations, total
from foredraft.train.texts import DataSettings, Text, read_texts, write_about, write_part
from foredraft.train.writing import Shelf, Writer

PART = 64
"""Texts in a file: what is lost at most when a run is killed, beside those being written."""


@dataclass
class Progress:
    """``texts`` of ``of`` are finished, ``skipped`` ones included; ``tokens``: written in this run."""

    of: int
    texts: int = 0
    skipped: int = 0
    tokens: int = 0


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Changes with any prompt and with their order; empty for none."""
    return hashlib.sha256("\n".join(prompt.key for prompt in prompts).encode()).hexdigest()[:16] if prompts else ""


@dataclass
class _Shelf:
    """Finished texts on their way to disk."""

    directory: Path
    progress: Progress
    waiting: list[Text] = field(default_factory=list)

    def keep(self, text: Text) -> None:
        self.waiting.append(text)
        self.progress.texts += 1
        self.progress.skipped += bool(text.skipped)
        if len(self.waiting) >= PART:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            write_part(self.directory, sorted(self.waiting, key=lambda text: text.number))
            self.waiting = []


@dataclass(frozen=True)
class Asker:
    """Who writes, and what about: the target's ``decoder`` and ``tokenizer``, and the user's ``prompts``, which are
    none where the target asks itself."""

    decoder: Decoder
    tokenizer: Tokenizer
    prompts: Sequence[Prompt] = ()


def make_texts(
    asker: Asker, settings: DataSettings, directory: Path, rows: int, told: Callable[[Progress], None]
) -> Progress:
    """Write all texts that are missing in ``directory``, ``rows`` at once; ``told`` hears of it after every pass.

    What is finished is kept whatever ends the run. Raises TrainingDataError for texts of other settings.
    """
    write_about(directory, settings)
    finished = [text for _, texts in read_texts(directory) for text in texts]
    skipped = sum(bool(text.skipped) for text in finished)
    progress = Progress(total(settings, len(asker.prompts)), len(finished), skipped)
    shelf = _Shelf(directory, progress)
    source = Conversations(settings, asker.tokenizer, asker.prompts, {text.number for text in finished}, shelf.keep)
    writer = Writer(asker.decoder, asker.tokenizer.eog_ids, Shelf(rows, settings.context))
    try:
        for tokens in writer.run(source):
            progress.tokens += tokens
            told(progress)
    finally:
        shelf.flush()
    return progress
