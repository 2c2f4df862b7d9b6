"""Training texts in batches of like length; which texts a batch holds depends on the seed and its number alone, so that
a run may be taken up anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from foredraft.errors import TrainingDataError
from foredraft.train.rollout import Batch
from foredraft.train.states import TextStates, texts_of
from foredraft.train.texts import SPLITS, Split, part_files


@dataclass(frozen=True)
class Corpus:
    """Texts with states by split; their tensors are read from disk when a batch needs them."""

    texts: dict[Split, list[TextStates]]

    @staticmethod
    def read(directory: Path) -> Corpus:
        """All texts of ``directory``. TrainingDataError if there are none to train on or to validate with."""
        texts: dict[Split, list[TextStates]] = {split: [] for split in SPLITS}
        for part in part_files(directory):
            for text in texts_of(part):
                if len(text.text) > text.text.prompt_tokens > 1:
                    texts[text.text.split].append(text)  # type: ignore[index]
        for split, word in (("train", "train"), ("validation", "validate")):
            if not texts[split]:  # type: ignore[index]
                raise TrainingDataError(f"{directory}: holds no text to {word} with; make more")
        widths = {text.states.shape[1] for split in texts.values() for text in split}
        if len(widths) > 1:
            raise TrainingDataError(f"{directory}: its states differ in width ({sorted(widths)}); remove its states")
        return Corpus(texts)


@dataclass(frozen=True)
class Batches:
    """``texts`` cut into groups of at most ``tokens`` tokens, padding included."""

    texts: Sequence[TextStates]
    tokens: int
    seed: int

    def epoch(self, number: int) -> list[list[TextStates]]:
        """The groups of one pass over all texts, in the order of that pass."""
        random = np.random.default_rng((self.seed, number))
        lengths = np.array([len(text.text) for text in self.texts]) + random.uniform(0, 32, len(self.texts))
        groups: list[list[TextStates]] = []
        for index in np.argsort(-lengths, kind="stable").tolist():
            text = self.texts[index]
            longest = max((len(one.text) for one in groups[-1]), default=0) if groups else 0
            if not groups or (len(groups[-1]) + 1) * max(longest, len(text.text)) > self.tokens:
                groups.append([])
            groups[-1].append(text)
        return [groups[index] for index in random.permutation(len(groups)).tolist()]


def collated(texts: Sequence[TextStates], device: torch.device, dtype: torch.dtype) -> Batch:
    """One batch, padded on the right."""
    longest, size = max(len(text.text) for text in texts), texts[0].states.shape[1]
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    states = torch.zeros(len(texts), longest, size, dtype=dtype)
    totals = torch.zeros(len(texts), longest)
    best = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, text in enumerate(texts):
        count = len(text.text)
        ids[row, :count] = torch.tensor(text.text.ids)
        states[row, :count] = text.states.to(dtype)
        totals[row, :count] = text.log_totals
        best[row, :count] = text.best
    first = torch.tensor([text.text.prompt_tokens for text in texts])
    end = torch.tensor([len(text.text) for text in texts])
    return Batch(*(tensor.to(device) for tensor in (ids, states, totals, best, first, end)))
