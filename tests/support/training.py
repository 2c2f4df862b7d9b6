"""Tiny targets, heads and texts for tests of training, and a head's rollout written out token by token.

The rollout follows its definition (EAGLE-3, arXiv 2503.01840, section 3.2) with plain float64 arithmetic and an
explicit cache; it shares no line with ``foredraft.train``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead, HeadConfig
from foredraft.models.load import read_config
from foredraft.train.batch import Rotation, causal, padded
from foredraft.train.texts import Split, Text
from foredraft.train.writing import Job, Written
from tests.support.tiny_torch import SIZES, VARIANTS

VOCAB: int = SIZES["vocab_size"]
LAYERS = {"gemma3": 6, "gemma3-linear": 6}
"""So many that one of them sees everything; of the other families three."""


def tiny_config(name: str, **changes: Any) -> DecoderConfig:
    """The shape of a variant of ``tiny_torch``; ``changes`` are keys of config.json."""
    family, own = VARIANTS[name]
    values = {
        "architectures": [f"{family}ForCausalLM"],
        **SIZES,
        "num_hidden_layers": LAYERS.get(name, 3),
        "rope_theta": 10000.0,
        **own,
        **changes,
    }
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values))
        return read_config(Path(folder))


def tiny_decoder(name: str = "llama", seed: int = 0, **changes: Any) -> Decoder:
    """Random, but always the same; weights so large that every token shows."""
    decoder: Decoder = Decoder(tiny_config(name, **changes)).eval().requires_grad_(False)
    scramble(decoder, seed)
    return decoder


def scramble(module: Any, seed: int) -> None:
    """Random weights; those of norms lie around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5, generator=generator)
            else:
                parameter.normal_(0.0 if name.endswith("bias") else 1.0, 0.1, generator=generator)


def tiny_head(target: Decoder, taps: Sequence[int], rows: int, seed: int = 1) -> DraftHead:
    """A head with random weights."""
    head = DraftHead(HeadConfig.of(target.config, tuple(taps), rows))
    scramble(head, seed)
    return head


def random_ids(count: int, seed: int, vocab: int = VOCAB) -> tuple[int, ...]:
    """``count`` ids."""
    return tuple(np.random.default_rng(seed).integers(0, vocab, count).tolist())


def text_of(
    number: int,
    ids: Sequence[int],
    prompt_tokens: int,
    split: Split = "train",
    temperature: float = 0.0,
) -> Text:
    """A finished text."""
    return Text(number, "own", split, temperature, prompt_tokens, tuple(ids), ended=True)


@dataclass
class Jobs:
    """A source of given jobs; what was written, by number, in the order in which it was finished."""

    waiting: deque[Job]
    written: dict[int, Written] = field(default_factory=dict)

    @staticmethod
    def of(jobs: Sequence[Job]) -> Jobs:
        """All of ``jobs``, in their order."""
        return Jobs(deque(jobs))

    def take(self) -> Job | None:
        """The next one."""
        return self.waiting.popleft() if self.waiting else None

    def done(self, written: Written) -> None:
        """Each number once."""
        assert written.job.number not in self.written
        self.written[written.job.number] = written


# --- a rollout, token by token -----------------------------------------------------------------------------


Entry = tuple[Tensor, Tensor]
"""Key and value [K, D] of one token."""


@dataclass(frozen=True)
class SlowHead:
    """A head's weights in float64, one token at a time. ``embedding`` [V, h] is the target's."""

    config: HeadConfig
    weights: Mapping[str, Tensor]
    embedding: Tensor

    @staticmethod
    def of(head: DraftHead, embedding: Tensor) -> SlowHead:
        """Copies of the weights."""
        weights = {name: weight.detach().double() for name, weight in head.state_dict().items()}
        return SlowHead(head.config, weights, embedding.detach().double())

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMS norm (arXiv 1910.07467) of x [h]."""
        return x / (x.pow(2).mean() + self.config.norm_eps).sqrt() * self.weights[f"{name}.weight"]

    def fused(self, state: Tensor) -> Tensor:
        """The target's states [T·h] of one token -> [h]."""
        size = self.config.hidden_size
        parts = [
            self.norm(f"state_norms.{number}", state[number * size : (number + 1) * size].double())
            for number in range(len(self.config.taps))
        ]
        return self.weights["fuse.weight"] @ torch.cat(parts)

    def step(self, token: int, state: Tensor, position: int, seen: Sequence[Entry]) -> tuple[Tensor, Entry]:
        """The output [h] for ``token``, and its own entry; it sees ``seen`` and itself."""
        c, w = self.config, self.weights
        embedded = self.embedding[token] * c.embed_scale
        both = torch.cat([self.norm("token_norm", embedded), self.norm("input_norm", state)])
        rows = (w["qkv.weight"] @ both).view(c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = rows.split([c.heads, c.kv_heads, c.kv_heads])
        q, k = self._rotated(q, position), self._rotated(k, position)
        entries = [*seen, (k, v)]
        mixed = [self._mixed(q[head], head * c.kv_heads // c.heads, entries) for head in range(c.heads)]
        x = state + w["out.weight"] @ torch.cat(mixed)
        gate, up = (w["gate_up.weight"] @ self.norm("ffn_norm", x)).chunk(2)
        return x + w["down.weight"] @ (gate * gate.sigmoid() * up), (k, v)

    def _mixed(self, q: Tensor, group: int, entries: Sequence[Entry]) -> Tensor:
        products = torch.stack([q @ key[group] for key, _ in entries]) * self.config.query_scale
        shares = products.exp() / products.exp().sum()
        return torch.stack([value[group] for _, value in entries]).T @ shares

    def _rotated(self, rows: Tensor, position: int) -> Tensor:
        """Pairs (i, i + D/2) turned by position · theta^(-2i/D) (arXiv 2104.09864)."""
        half = self.config.head_dim // 2
        angle = position * self.config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        left, right = rows[:, :half], rows[:, half:]
        return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=1)


def slow_rollout(head: SlowHead, ids: Sequence[int], states: Tensor, steps: int) -> Tensor:
    """Outputs float64[steps, N - 1, h] for a text of N tokens with ``states`` [N, T·h]; nan where the text has no token
    to be read.

    The stream's entry at t reads the states of token t and the embedding of token t + 1, at position t. From there the
    head goes on with its own output and token t + 2, t + 3, … at the positions t + 1, t + 2, …; these see the stream's
    entries up to t and each other, and are forgotten before the stream goes on.
    """
    stream: list[Entry] = []
    result = torch.full((steps, len(ids) - 1, head.config.hidden_size), torch.nan, dtype=torch.float64)
    for t in range(len(ids) - 1):
        output, entry = head.step(ids[t + 1], head.fused(states[t]), t, stream)
        stream.append(entry)
        result[0, t] = output
        own: list[Entry] = []
        for step in range(1, min(steps, len(ids) - 1 - t)):
            output, entry = head.step(ids[t + 1 + step], output, t + step, [*stream, *own])
            own.append(entry)
            result[step, t] = output
    return result


def states_and_logits(target: Decoder, texts: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
    """All layers' states [N, layers·h], side by side, and logits [N, V], of each text."""
    tokens = padded(texts)
    layers = range(target.config.layers)
    rotation = Rotation(target.config, target.embedding.weight, tokens.shape[1])
    *tapped, last = target.hidden(
        tokens, rotation.at(torch.arange(tokens.shape[1])[None]), causal(target.config), layers
    )
    states, logits = torch.cat(tapped, -1), target.logits(last)
    return [(states[row, : len(text)], logits[row, : len(text)]) for row, text in enumerate(texts)]
