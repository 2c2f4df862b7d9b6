"""How good a head is on held-out texts: acceptance by depth, and the tokens that a chain would get accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from foredraft.models.head import DraftHead
from foredraft.train.batch import Rotation
from foredraft.train.batches import collated
from foredraft.train.frozen import Frozen
from foredraft.train.losses import PIECE, overlap
from foredraft.train.rollout import Batch, answers, rollout
from foredraft.train.states import TextStates


@dataclass(frozen=True)
class Measured:
    """``greedy``: share of accepted first choices at depth 1, 2, … given that those before were accepted, on texts of
    temperature 0; ``overlap``: Σ min(p, q) by depth on all texts; ``accepted``: mean tokens of a chain of that depth
    that are accepted, without the bonus token; ``tokens``: places looked at; ``covered``: the probability that the
    target gives to the draft vocabulary."""

    greedy: tuple[float, ...]
    overlap: tuple[float, ...]
    accepted: float
    tokens: int
    covered: float

    def as_json(self) -> dict[str, object]:
        """Plain numbers, rounded."""
        return {
            name: [round(x, 5) for x in value] if isinstance(value, tuple) else round(value, 5)
            for name, value in asdict(self).items()
        }


class Tally:
    """Sums over batches."""

    def __init__(self, depth: int) -> None:
        self.reached, self.hits, self.overlaps = torch.zeros(depth), torch.zeros(depth), torch.zeros(depth)
        self.accepted = self.covered = 0.0
        self.tokens = 0

    def add(self, accepted: Tensor, overlaps: Tensor, greedy: Tensor, covered: Tensor) -> None:
        """accepted, overlaps float32[n, depth]: at each place the chance that the token of a depth is accepted, given
        those before, and Σ min(p, q); greedy bool[n]: a text of temperature 0; covered float32[n]."""
        chain = accepted.cumprod(-1)
        certain = accepted[greedy]
        before = torch.cat([torch.ones(len(certain), 1), certain.cumprod(-1)[:, :-1]], -1)
        self.reached += before.sum(0)
        self.hits += (before * certain).sum(0)
        self.overlaps += overlaps.sum(0)
        self.accepted += float(chain.sum())
        self.covered += float(covered.sum())
        self.tokens += len(accepted)

    def measured(self) -> Measured:
        """The means."""
        count = max(1, self.tokens)
        greedy = (self.hits / self.reached.clamp_min(1e-9)).tolist()
        overlaps = (self.overlaps / count).tolist()
        return Measured(tuple(greedy), tuple(overlaps), self.accepted / count, self.tokens, self.covered / count)


@torch.no_grad()
def measure(
    head: DraftHead, frozen: Frozen, groups: Iterable[Sequence[TextStates]], depth: int, rotation: Rotation
) -> Measured:
    """Let the head guess ``depth`` tokens behind every place of the answers of ``groups``."""
    tally, device = Tally(depth), frozen.embedding.device
    for texts in groups:
        batch = collated(texts, device, torch.float32)
        greedy = torch.tensor([text.text.temperature == 0 for text in texts], device=device)
        rows, positions = places(batch, depth)
        outputs = list(rollout(head, frozen.embedding, batch, depth, rotation))
        for start in range(0, len(rows), PIECE):
            at = rows[start : start + PIECE], positions[start : start + PIECE]
            said = [head.norm(output[at[0], at[1] - 1]) for output in outputs]
            tally.add(*(found.cpu() for found in _agreement(frozen, batch, said, (*at, greedy))))
    return tally.measured()


def _agreement(
    frozen: Frozen, batch: Batch, said: Sequence[Tensor], at: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What ``Tally.add`` takes, at some places: ``said`` [n, h] for each depth, normed; ``at``: texts, positions, and
    which texts are greedy."""
    rows, positions, texts = at
    greedy, covered = texts[rows], frozen.law(batch, rows, positions).sum(-1)
    accepted, overlaps = [], []
    for step, normed in enumerate(said):
        p, log_q = frozen.law(batch, rows, positions + step), frozen.logits(normed).log_softmax(-1)
        share = overlap(log_q, p)
        same = frozen.ids[log_q.argmax(-1)] == batch.best[rows, positions + step]
        accepted.append(torch.where(greedy, same.float(), share))
        overlaps.append(share)
    return torch.stack(accepted, -1), torch.stack(overlaps, -1), greedy, covered


def places(batch: Batch, depth: int) -> tuple[Tensor, Tensor]:
    """The places of the answers behind which ``depth`` tokens follow, and before which there is one."""
    rows, positions = answers(batch)
    inside = (positions + depth < batch.end[rows]) & (positions > 0)
    return rows[inside], positions[inside]
