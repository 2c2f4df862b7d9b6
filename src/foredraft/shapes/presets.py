"""Shapes of common models by name, without a file: the sizes of their config.json, weights in a type of your choice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from foredraft.modelfile import ModelShape
from foredraft.records import record
from foredraft.shapes.assemble import Facts, assemble
from foredraft.shapes.weights import DEFAULT_WEIGHTS, Sizes, weights_named


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's sizes as in its config.json; ``source``: where that was read. ``period`` n: every n-th layer sees all,
    the others ``window`` tokens. ``aliases``: other models of the same sizes."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    tied: bool
    context: int
    source: str
    window: int | None = None
    period: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    aliases: tuple[str, ...] = ()
    note: str | None = None

    def sizes(self) -> Sizes:
        """Its sizes alone."""
        return Sizes(
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_size,
            self.ffn,
            self.vocab,
            self.tied,
            self.qkv_bias,
            self.qk_norm,
            self.post_norms,
        )


@dataclass(frozen=True, slots=True)
class _File:
    presets: tuple[Preset, ...]


@lru_cache(maxsize=1)
def presets() -> dict[str, Preset]:
    """All presets by name and by alias."""
    text = (resources.files("foredraft.shapes") / "presets.json").read_text("utf-8")
    found = record(_File, json.loads(text)).presets
    return {name: preset for preset in found for name in (preset.name, *preset.aliases)}


def preset_names() -> tuple[str, ...]:
    """The names that ``read_shape`` knows without a file."""
    return tuple(sorted(presets()))


def preset_shape(spec: str) -> ModelShape | None:
    """The shape of ``NAME`` or ``NAME@WEIGHTS``, None if there is no such preset; InvalidValue for unknown weights."""
    name, _, chosen = spec.partition("@")
    preset = presets().get(name.strip().lower())
    if preset is None:
        return None
    weights = weights_named(chosen or DEFAULT_WEIGHTS)
    title = f"{name.strip().lower()} {weights.name.lower()}"
    facts = Facts(title, preset.architecture, preset.context, preset.window, preset.period)
    return assemble(preset.sizes(), weights, facts)
