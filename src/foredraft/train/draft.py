"""Trains a whole small model on the target's texts and laws, so that it guesses what the target says.

It reads the same ids as the target and predicts the token behind every place of the answers. All its layers and norms
change, or low-rank adapters beside its matrices; embedding and output matrix stay as they are. Shapes: B texts, T
tokens, n places, h hidden size of the draft, V' draft vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foredraft.errors import InvalidValue, TrainingDataError
from foredraft.models.decoder import Decoder
from foredraft.train.batch import Rotation, causal
from foredraft.train.batches import Corpus, collated
from foredraft.train.frozen import Frozen
from foredraft.train.loop import Event, Loop, LoopSettings
from foredraft.train.lora import add_adapters, merge_adapters
from foredraft.train.losses import PIECE, Guesses, overlap, rollout_loss
from foredraft.train.measures import Measured, Tally, places
from foredraft.train.prune import draft_rows, embedded
from foredraft.train.rollout import Batch, answers
from foredraft.train.states import TextStates
from foredraft.train.team import Alone, Team
from foredraft.whole_files import replacing

BEST = "best.pt"


@dataclass(frozen=True, slots=True)
class DraftSettings(LoopSettings):
    """``rank`` of low-rank adapters, which count ``scale`` times; 0: all layers and norms are trained. ``recompute``:
    forget what is inside a layer and compute it again on the way back, a third more work for a fraction of the memory.
    """

    learning_rate: float = 1e-4
    rank: int = 0
    scale: float = 2.0
    recompute: bool = False

    def __post_init__(self) -> None:
        LoopSettings.__post_init__(self)  # super() does not know a class with slots
        if not 0 <= self.rank <= 1024:
            raise InvalidValue("rank", self.rank, "0 (no adapters) to 1024")
        if not 0 < self.scale <= 1024:
            raise InvalidValue("scale", self.scale, "a number above 0, up to 1024")


class Draft:
    """A decoder while it is trained: see ``loop.Trainee``. Changes ``decoder`` itself, whose layers become float32;
    embedding and output matrix stay of their type.

    ``target`` says the law and the draft vocabulary; ``length``: tokens of the longest text.
    """

    def __init__(self, decoder: Decoder, target: Frozen, settings: DraftSettings, length: int) -> None:
        self.decoder, self.target, self.settings = decoder, target, settings
        self._rows = draft_rows(decoder, target.ids)
        for module in (decoder.blocks, decoder.norm):
            module.float()
        self._rotation = Rotation(decoder.config, decoder.norm.weight, length)
        self._attend = causal(decoder.config)
        decoder.requires_grad_(False)
        if settings.rank:
            add_adapters(decoder, settings.rank, settings.scale, settings.seed)
        else:
            for module in (decoder.blocks, decoder.norm):
                module.requires_grad_(True)

    @property
    def device(self) -> torch.device:
        """Where the decoder is."""
        device: torch.device = self.decoder.embedding.weight.device
        return device

    def trained(self) -> dict[str, nn.Parameter]:
        """The weights that change, by their names in the decoder."""
        return {name: weight for name, weight in self.decoder.named_parameters() if weight.requires_grad}

    def loss(self, texts: Sequence[TextStates]) -> Tensor:
        """The mean loss over the places of the answers."""
        batch = collated(texts, self.device, torch.float32)
        rows, positions = answers(batch)
        normed = self.decoder.norm(self._last(batch.ids)[rows, positions])
        weights = torch.full((1, len(rows)), 1 / len(rows), device=self.device)

        def law(piece: slice) -> Tensor:
            return self.target.law(batch, rows[piece], positions[piece])

        return rollout_loss(self.settings.loss, Guesses(normed[None], weights, law, self._rows))

    def _last(self, tokens: Tensor) -> Tensor:
        """tokens int64[B, T] -> the last residual stream [B, T, h]."""
        angles = self._rotation.at(torch.arange(tokens.shape[1], device=tokens.device)[None])
        x = embedded(self.decoder, tokens).float()
        for block in self.decoder.blocks:
            if self.settings.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, angles, self._attend, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, angles, self._attend)
        return x

    def measured(self, groups: Iterable[Sequence[TextStates]]) -> Measured:
        """See ``Measured``. At depth d the draft has read the text's own tokens, as if those had been accepted."""
        tally = Tally(self.settings.depth)
        with torch.no_grad():
            for texts in groups:
                self._tally(texts, tally)
        return tally.measured()

    def _tally(self, texts: Sequence[TextStates], tally: Tally) -> None:
        batch, depth = collated(texts, self.device, torch.float32), self.settings.depth
        greedy = torch.tensor([text.text.temperature == 0 for text in texts], device=self.device)
        accepted, overlaps, covered = self._agreement(batch, greedy)
        rows, positions = places(batch, depth)
        at = rows[:, None], positions[:, None] + torch.arange(depth, device=self.device)
        found = accepted[at], overlaps[at], greedy[rows], covered[rows, positions]
        tally.add(*(tensor.cpu() for tensor in found))

    def _agreement(self, batch: Batch, greedy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """float32[B, T] each, at the places of the answers: the chance that the draft's token is accepted, Σ min(p, q),
        and the probability that the target gives to the draft vocabulary."""
        rows, positions = answers(batch)
        normed = self.decoder.norm(self._last(batch.ids)[rows, positions])
        results = [torch.zeros(batch.ids.shape, device=self.device) for _ in range(3)]
        for start in range(0, len(rows), PIECE):
            piece = slice(start, start + PIECE)
            at = rows[piece], positions[piece]
            p, log_q = self.target.law(batch, *at), self._rows.logits(normed[piece]).log_softmax(-1)
            share = overlap(log_q, p)
            same = self.target.ids[log_q.argmax(-1)] == batch.best[at]
            for result, values in zip(
                results, (torch.where(greedy[at[0]], same.float(), share), share, p.sum(-1)), strict=True
            ):
                result[at] = values
        return results[0], results[1], results[2]


@dataclass
class DraftTrainer:
    """One run in ``directory``: a checkpoint to go on from, and the best weights so far. ``decoder``, which may be
    pruned, is trained in place.

    Memory beside texts and activations: 16 bytes for each weight that is trained, 4 for each other one of a layer.
    TrainingDataError if a text holds a token that the draft does not know.
    """

    decoder: Decoder
    target: Frozen
    corpus: Corpus
    settings: DraftSettings
    directory: Path
    precision: torch.dtype = torch.float32
    team: Team = field(default_factory=Alone)

    def __post_init__(self) -> None:
        texts = [text.text for texts in self.corpus.texts.values() for text in texts]
        highest, size = max(max(text.ids) for text in texts), self.decoder.config.vocab_size
        if highest >= size:
            raise TrainingDataError(f"the texts hold token {highest}, the draft knows {size}; train another draft")
        about = {
            "draft_model": _fingerprint(self.decoder),
            "draft_vocabulary": hashlib.sha256(self.target.ids.cpu().numpy().tobytes()).hexdigest()[:16],
        }
        self._draft = Draft(self.decoder, self.target, self.settings, max(len(text) for text in texts))
        self.loop = Loop(self._draft, self.corpus, self.settings, self.directory, self.precision, about, self.team)

    @property
    def trained(self) -> int:
        """Weights that change."""
        return sum(weight.numel() for weight in self.loop.weights().values())

    @property
    def vocabulary(self) -> int:
        """Tokens it is trained for."""
        return len(self.target.ids)

    @property
    def finished(self) -> bool:
        """Whether the steps are done, or nothing got better for too long."""
        return self.loop.finished

    def resume(self) -> bool:
        """Go on from the checkpoint in ``directory``, if there is one; TrainingDataError if it is of another run."""
        return self.loop.resume()

    def run(self, told: Callable[[Event], None], stop: Callable[[], bool] = lambda: False) -> None:
        """Measure the draft as it came, then train it until it is finished or ``stop`` says so. See ``Loop.run``."""
        if self.loop.best is None:
            self.loop.measure(told, self._keep_best)
        self.loop.run(told, self._keep_best, stop)

    def best_decoder(self) -> Decoder:
        """The decoder with its best weights, adapters merged into them; it is not trained further. These may be the
        ones it came with. TrainingDataError if there are none, or the file is damaged."""
        self.loop.load(_read_best(self.directory / BEST))
        merge_adapters(self.decoder)
        self.decoder.requires_grad_(False)
        return self.decoder

    def _keep_best(self, found: Measured) -> None:
        with replacing(self.directory / BEST) as temporary:
            torch.save({"weights": self.loop.weights(), "measured": asdict(found)}, temporary)


def _read_best(path: Path) -> Mapping[str, Tensor]:
    try:
        data: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        weights: Mapping[str, Tensor] = data["weights"]
    except FileNotFoundError:
        raise TrainingDataError(f"{path}: no such file; the draft was not measured yet, train it first") from None
    except (OSError, RuntimeError, EOFError, TypeError, KeyError, ValueError, UnpicklingError) as error:
        raise TrainingDataError(f"{path}: is damaged ({str(error)[:80]}); train the draft again") from None
    return weights


def _fingerprint(decoder: Decoder) -> str:
    """Of the shape and of some elements of every weight."""
    digest = hashlib.sha256(repr(decoder.config).encode())
    for weight in decoder.parameters():
        values = weight.detach().flatten()
        digest.update(values[:: max(1, len(values) // 256)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
