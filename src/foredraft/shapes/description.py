"""Shapes of models that exist only as a description: ``params=7B,layers=32,hidden=4096,kv-heads=8,weights=int4``.

What is left out is derived:

heads
    hidden / head-size, or hidden / 128 where that is not given either.
kv-heads
    heads (no grouping).
head-size
    hidden / heads.
vocab
    32 000, as Llama 2's.
ffn
    with ``params``: what makes the tensors' count meet them; else Llama's rule (``FeedForward`` in Meta's llama
    model.py): two thirds of 4 × hidden, rounded up to a multiple of 256.
tied
    no: the output matrix is one of its own.
ctx
    131 072, the longest that today's small models state.
window
    none. ``512``: every layer sees 512 tokens; ``512/6``: but every sixth layer sees all.
weights
    q4_0.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NoReturn

from foredraft.errors import InvalidValue
from foredraft.gguf_types import printable
from foredraft.modelfile import MAX_LAYERS, ModelShape
from foredraft.shapes.assemble import Facts, assemble
from foredraft.shapes.weights import DEFAULT_WEIGHTS, Sizes, parameters, weights_named

_LIMITS = {
    "layers": MAX_LAYERS,
    "hidden": 1 << 20,
    "heads": 1 << 14,
    "kv-heads": 1 << 14,
    "head-size": 1 << 14,
    "ffn": 1 << 24,
    "vocab": 1 << 24,
    "ctx": 1 << 30,
}
"""The whole numbers and the largest value of each."""
KEYS = ("params", *_LIMITS, "tied", "window", "weights", "name")
_DESCRIPTION = re.compile(r"\s*[A-Za-z][A-Za-z_-]*\s*=")
_PARAMETERS = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,12})?)\s*([KMBT]?)")
_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MOST_PARAMETERS = 10**13
_WINDOW = re.compile(r"([0-9]{1,10})(?:/([0-9]{1,4}))?")
_HEAD_SIZE, _VOCAB, _CONTEXT = 128, 32_000, 131_072
_TOLERANCE = 10
"""Percent that the tensors' count may differ from ``params`` where both are given."""


def is_description(spec: str) -> bool:
    """True if ``spec`` begins as a description does: a word and an equals sign."""
    return _DESCRIPTION.match(spec) is not None


def described(spec: str) -> ModelShape:
    """The shape of the description ``spec``; see ``describe``."""
    values: dict[str, str] = {}
    for item in spec.split(","):
        key, equals, value = item.partition("=")
        name = _key(key)
        if not equals or name in values:
            what = "given twice" if equals else "without a value"
            raise InvalidValue("description", printable(item, 60), f"KEY=VALUE, each key once (this one is {what})")
        values[name] = value
    return describe(values)


def describe(values: Mapping[str, str]) -> ModelShape:
    """The shape of a model given by the ``KEYS``; the module says what happens to those left out.

    ``layers``, ``hidden`` and one of ``heads`` and ``kv-heads`` must be there. Tensors are counted like those of a
    Llama; given ``params``, weights are params × bits / 8 bytes. InvalidValue names what is wrong.
    """
    given = _Given({_key(key): value.strip() for key, value in values.items()})
    sizes, number = given.sizes()
    weights = weights_named(given.values.get("weights", DEFAULT_WEIGHTS))
    window, period = given.window()
    title = (
        printable(given.values.get("name", ""), 80) or f"{_short(number or parameters(sizes))} {weights.name.lower()}"
    )
    context = given.number("ctx", _CONTEXT)
    return assemble(sizes, weights, Facts(title, "llama", context, window, period, number))


def _key(key: str) -> str:
    name = key.strip().lower().replace("_", "-")
    if name in KEYS:
        return name
    near = difflib.get_close_matches(name, KEYS, 1, 0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidValue("description key", printable(key.strip(), 40), f"{hint}{', '.join(KEYS)}")


def _short(number: int) -> str:
    """``number`` as articles write it."""
    for letter in ("T", "B", "M", "K"):
        if number >= _SCALES[letter]:
            return f"{number / _SCALES[letter]:.3g}{letter}"
    return str(number)


@dataclass(frozen=True, slots=True)
class _Given:
    """Typed access to the values of a description."""

    values: Mapping[str, str]

    def wrong(self, key: str, allowed: str) -> NoReturn:
        raise InvalidValue(key, printable(self.values.get(key, "missing"), 40), allowed)

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to the key's limit; ``default`` None = must be there."""
        text = self.values.get(key)
        if text is None and default is not None:
            return default
        if text is None or not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) <= _LIMITS[key]:
            self.wrong(key, f"a whole number from 1 to {_LIMITS[key]}")
        return int(text)

    def params(self) -> int | None:
        """``params``, which may end in K, M, B or T."""
        text = self.values.get("params")
        if text is None:
            return None
        match = _PARAMETERS.fullmatch(text.upper())
        value = Decimal(match[1]) * _SCALES[match[2]] if match else Decimal(0)
        if not 1 <= value <= _MOST_PARAMETERS:
            self.wrong("params", f"a number up to {_short(_MOST_PARAMETERS)}, such as 7B, 135M or 1235814400")
        return int(value.to_integral_value())

    def tied(self) -> bool:
        """``tied``: yes or no."""
        text = self.values.get("tied", "no").lower()
        if text not in ("yes", "no", "true", "false"):
            self.wrong("tied", "yes (the embedding is the output matrix too) or no")
        return text in ("yes", "true")

    def window(self) -> tuple[int | None, int]:
        """``window``: its size, and which layers see all (every n-th; 0 = none)."""
        text = self.values.get("window", "none")
        if text.lower() == "none":
            return None, 0
        match = _WINDOW.fullmatch(text)
        if not match or not 0 < int(match[1]) < 1 << 31 or match[2] in ("0", "1"):
            self.wrong("window", "none, the tokens a layer sees (4096), or 512/6: every sixth layer sees all")
        return int(match[1]), int(match[2] or 0)

    def sizes(self) -> tuple[Sizes, int | None]:
        """All sizes, and ``params`` if given."""
        layers, hidden, number = self.number("layers"), self.number("hidden"), self.params()
        heads, kv_heads = self.heads(hidden)
        if "head-size" not in self.values and hidden % heads:
            self.wrong("head-size", f"must be given where hidden, {hidden}, is no multiple of {heads} heads")
        head_size = self.number("head-size", max(1, hidden // heads))
        vocab = self.number("vocab", _VOCAB)
        sizes = Sizes(layers, hidden, heads, kv_heads, head_size, 0, vocab, self.tied())
        if "ffn" not in self.values and number is not None:
            return replace(sizes, ffn=self.solved(sizes, number)), number
        llama = -(-(8 * hidden // 3) // 256) * 256
        sizes = replace(sizes, ffn=self.number("ffn", llama))
        self.check(sizes, number)
        return sizes, number

    def heads(self, hidden: int) -> tuple[int, int]:
        """Heads of queries and of keys."""
        if "heads" in self.values:
            heads = self.number("heads")
        elif "kv-heads" not in self.values:
            self.wrong("kv-heads", f"a whole number from 1 to {_LIMITS['kv-heads']} (or give heads)")
        else:
            size = self.number("head-size", _HEAD_SIZE)
            heads = hidden // size
            if hidden % size or not 0 < heads <= _LIMITS["heads"]:
                self.wrong("heads", f"must be given where hidden, {hidden}, is no multiple of heads of {size}")
        kv_heads = self.number("kv-heads", heads)
        if heads % kv_heads:
            self.wrong("kv-heads", f"a divisor of the {heads} query heads")
        return heads, kv_heads

    def solved(self, sizes: Sizes, number: int) -> int:
        """The feed-forward size with which the model has ``number`` parameters, to the nearest whole one."""
        rest = parameters(sizes)
        ffn = round((number - rest) / (3 * sizes.hidden * sizes.layers))
        if not 0 < ffn <= _LIMITS["ffn"]:
            what = f"more than the {_short(rest)} that attention, norms and embeddings have"
            allowed = what if ffn <= 0 else f"fewer (the feed-forward would be {ffn} wide), or give ffn"
            self.wrong("params", f"{allowed} with {sizes.layers} layers, hidden {sizes.hidden}, vocab {sizes.vocab}")
        return ffn

    def check(self, sizes: Sizes, number: int | None) -> None:
        """Refuse ``params`` that the tensors contradict; without a vocabulary in the description they cannot."""
        if number is None or "vocab" not in self.values:
            return
        counted = parameters(sizes)
        if 100 * abs(counted - number) > _TOLERANCE * number:
            self.wrong("params", f"about the {_short(counted)} that the given layers, sizes and vocab have")
