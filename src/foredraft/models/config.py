"""The shape of a decoder-only transformer, the same whichever file it came from. numpy and torch free.

Knows nothing about weights or caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
"""The names GGUF gives to the architectures of this family; SmolLM2 is a ``llama``."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (arXiv 2104.09864), halves rotated against each other ("NeoX" order).

    Frequency i is ``theta ** (-2i / head_dim) / divisors[i]``; ``divisors`` None = ones. Layers with a sliding window
    use ``local_theta`` without divisors where it is given.
    """

    theta: float
    divisors: tuple[float, ...] | None = None
    local_theta: float | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes in elements. ``window``: tokens a local layer sees, the token itself included; ``local``: which layers.

    ``qk_norm``: RMS norms on each head of q and k before the rotation. ``post_norms``: a second norm behind attention
    and feed-forward (Gemma). ``embed_scale`` multiplies embeddings, ``query_scale`` the products q·k.
    ``attention_softcap`` and ``final_softcap`` c: x -> c·tanh(x / c) (Gemma 2). ``tied``: the output matrix is the
    embedding. Norm weights are stored as they multiply (Gemma's "1 + w" is resolved by the loader).
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    context_length: int
    norm_eps: float
    rope: Rope
    tied: bool
    query_scale: float
    activation: Activation = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embed_scale: float = 1.0
    window: int | None = None
    local: tuple[bool, ...] = ()
    attention_softcap: float | None = None
    final_softcap: float | None = None

    @property
    def pass_size(self) -> int:
        """Weights that a pass of one token reads: all but the embedding."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = self.hidden_size * (2 * queries + 2 * keys + 3 * self.ffn_size)
        return self.layers * layer + self.vocab_size * self.hidden_size

    def is_local(self, layer: int) -> bool:
        """True if ``layer`` sees a sliding window only."""
        return bool(self.window) and bool(self.local) and self.local[layer]
