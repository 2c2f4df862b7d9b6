"""Reads a model file's header (GGUF) into the few numbers that planning and pairing need; loads no weights.

Everything native code would trust blindly is checked here first. It does not know engines, caches or names.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np

from foredraft.gguf_header import AGAIN, GGUFHeader, HeaderReader, StringArray, TensorInfo
from foredraft.gguf_types import fail, printable

__all__ = ["GGUFHeader", "ModelShape", "StringArray", "TensorInfo", "check_path", "model_shape", "read_gguf"]

MAX_LAYERS = 512
MAX_EXPERTS = 512
"""Limits of llama.cpp, which ends the process above them."""
SOURCES = ("gguf", "export", "safetensors", "description")
"""Where a shape can come from."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What memory planning and pairing need to know of a model; sizes in elements unless said otherwise.

    ``heads``, ``kv_heads`` and ``feed_forward_length`` are the largest over the layers;
    ``kv_heads_by_layer`` has one entry per layer (0 = the layer has no attention). ``quantization``:
    bytes of weights per tensor type, the largest first. ``recurrent``: some layers keep a state that cannot
    be trimmed token by token. ``parameters`` and ``feed_forward_length`` are 0 where the source does not say.

    ``windows``: for each layer the tokens it sees (None = all); empty = every layer sees all. A model that has a
    ``sliding_window`` but no rule known here for which layers use it counts as seeing all, so that nobody reserves
    too little. ``file_bytes``: the file or files; ``embedding_bytes``: the token embedding; ``output_bytes``: a
    separate output matrix (0 = the embedding serves, or the source does not say). ``state_bytes``: the recurrent
    state of one sequence in float32, as llama.cpp keeps it (None = of a kind whose size is not known here).
    ``source``: one of ``SOURCES``. Of an exported program: ``arena_bytes`` of planned memory, and the most tokens
    (``pass_width``) and scored rows (``pass_rows``) that one pass takes; None where that is not said.
    """

    architecture: str
    name: str
    vocab_size: int
    context_length: int
    layers: int
    heads: int
    kv_heads: int
    kv_heads_by_layer: tuple[int, ...]
    head_size_k: int
    head_size_v: int
    embedding_length: int
    feed_forward_length: int
    sliding_window: int | None
    parameters: int
    weight_bytes: int
    quantization: Mapping[str, int]
    chat_template: str | None
    recurrent: bool
    windows: tuple[int | None, ...] = ()
    file_bytes: int = 0
    embedding_bytes: int = 0
    output_bytes: int = 0
    state_bytes: int | None = 0
    source: str = "gguf"
    arena_bytes: int | None = None
    pass_width: int | None = None
    pass_rows: int | None = None


def check_path(path: Path) -> Path:
    """``path`` itself if it is a readable, regular, non-empty file; ModelFileError with the fix otherwise."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            fail(path, f"is a link to {printable(os.readlink(path))}, which does not exist; fetch the file")
        fail(path, "no such file; check the spelling, or see `foredraft models list` for known names")
    except PermissionError:
        fail(path, "no permission to look into its directory; give yourself access with `chmod`")
    except (OSError, ValueError) as error:
        reason = printable(getattr(error, "strerror", None) or str(error))
        fail(path, f"cannot be a file ({reason}); check the path")
    if stat.S_ISDIR(status.st_mode):
        fail(path, _directory_advice(path))
    if not stat.S_ISREG(status.st_mode):
        fail(path, "is not a regular file (a pipe, socket or device); give a GGUF file on disk")
    if status.st_size == 0:
        fail(path, f"is empty (0 bytes); {AGAIN}")
    if not os.access(path, os.R_OK):
        fail(path, "no permission to read it; run `chmod u+r` on it or use an account that may")
    return path


def _directory_advice(path: Path) -> str:
    try:
        found = sorted(entry.name for entry in path.glob("*.gguf"))[:3]
    except OSError:
        found = []
    names = f", such as {', '.join(printable(name) for name in found)}" if found else ""
    return f"is a directory; give a .gguf file{names}"


def read_gguf(path: Path) -> GGUFHeader:
    """Read and check the header of the GGUF file ``path``. Every fault is a ModelFileError, one line."""
    check_path(path)
    try:
        with path.open("rb") as file:
            return HeaderReader(path, file, os.fstat(file.fileno()).st_size).read()
    except OSError as error:
        reason = printable(error.strerror or str(error))
        fail(path, f"cannot be read ({reason}); check the disk or {AGAIN}")


def model_shape(header: GGUFHeader) -> ModelShape:
    """What the model in ``header`` looks like; ModelFileError if a key native code relies on is wrong."""
    keys = _Keys(header)
    recurrent = keys.recurrent()
    layers = keys.number("block_count", most=MAX_LAYERS)
    embedding = keys.number("embedding_length")
    least = 0 if recurrent else 1
    heads = keys.by_layer("attention.head_count", layers, least)
    kv_heads = keys.by_layer("attention.head_count_kv", layers, least, heads)
    if any(kv and count % kv for count, kv in zip(heads, kv_heads, strict=True)):
        allowed = f"a divisor of {max(heads)} query heads"
        keys.wrong(f"{keys.architecture}.attention.head_count_kv", max(kv_heads), allowed)
    share = embedding // max(heads) if max(heads) else 0
    vocab_size = keys.tokens()
    keys.check_experts()
    _check_embedding(header, embedding, vocab_size)
    stored = {tensor.name: tensor.nbytes for tensor in header.tensors}
    states = _state_layers(stored)
    return ModelShape(
        architecture=keys.architecture,
        name=keys.text("general.name") or header.path.stem,
        vocab_size=vocab_size,
        context_length=keys.number("context_length"),
        layers=layers,
        heads=max(heads),
        kv_heads=max(kv_heads),
        kv_heads_by_layer=tuple(
            0 if layer in states and f"blk.{layer}.attn_k.weight" not in stored else count
            for layer, count in enumerate(kv_heads)
        ),
        head_size_k=keys.number("attention.key_length", share, least),
        head_size_v=keys.number("attention.value_length", share, least),
        embedding_length=embedding,
        feed_forward_length=max(keys.by_layer("feed_forward_length", layers, 0, (0,) * layers)),
        sliding_window=keys.window() or None,
        parameters=sum(tensor.elements for tensor in header.tensors),
        weight_bytes=sum(stored.values()),
        quantization=_bytes_by_type(header.tensors),
        chat_template=keys.text("tokenizer.chat_template"),
        recurrent=recurrent,
        windows=keys.windows(layers),
        file_bytes=header.file_size,
        embedding_bytes=stored.get("token_embd.weight", 0),
        output_bytes=stored.get("output.weight", 0),
        state_bytes=keys.state_bytes(len(states), embedding) if recurrent else 0,
    )


def _state_layers(names: Iterable[str]) -> set[int]:
    """The layers that have tensors of a recurrent kind, by their number."""
    found = (_LAYER.match(name) for name in names if any(part in name for part in _RECURRENT_TENSORS))
    return {int(match[1]) for match in found if match}


def _bytes_by_type(tensors: tuple[TensorInfo, ...]) -> Mapping[str, int]:
    total: dict[str, int] = {}
    for tensor in tensors:
        total[tensor.type_name] = total.get(tensor.type_name, 0) + tensor.nbytes
    return MappingProxyType(dict(sorted(total.items(), key=lambda item: -item[1])))


def _check_embedding(header: GGUFHeader, embedding: int, vocab_size: int) -> None:
    if not header.tensors:
        fail(header.path, "holds no tensors (a vocabulary without a model); give the model's own file")
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight" and tensor.shape != (embedding, vocab_size):
            shape = f"{tensor.shape}, not {(embedding, vocab_size)}"
            fail(header.path, f"header is damaged: token_embd.weight has shape {shape}; {AGAIN}")


_RECURRENT_KEYS = (
    ".ssm.",
    ".wkv.",
    ".rwkv.",
    ".kda.",
    ".shortconv.",
    ".linear_attn",
    "rescale_every_n_layers",
)
_RECURRENT_TENSORS = (".ssm_", ".time_mix_", ".channel_mix_", ".shortconv.", ".linear_attn")
_LAYER = re.compile(r"blk\.([0-9]{1,4})\.")
_PERIODS = {"gemma2": 2, "gemma3": 6}
"""Every n-th layer of these architectures sees all, where the file does not say otherwise."""
_GEMMA2_WINDOW = 4096


class _Keys:
    """Typed access to a header's keys; those of the architecture are written without its name."""

    def __init__(self, header: GGUFHeader) -> None:
        self.header, self.metadata = header, header.metadata
        architecture = self.text("general.architecture")
        if not architecture:
            self.wrong("general.architecture", "missing", "the name of an architecture")
        self.architecture = architecture

    def wrong(self, key: str, value: object, allowed: str) -> NoReturn:
        shown = printable(str(value), 60)
        fail(self.header.path, f"key {printable(key, 80)} is {shown}; allowed: {allowed}; get another copy")

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        self.wrong(key, value, "a text")

    def integers(self, key: str, least: int, most: int) -> tuple[int, ...] | None:
        """The key's value as a tuple: one number for all layers, or one per layer; None if absent."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return None
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and 1 <= len(value) <= MAX_LAYERS:
            numbers = tuple(int(item) for item in value)
            within = min(numbers) >= 0 and least <= max(numbers) <= most
            if within:
                return numbers
        elif isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return (value,)
        self.wrong(f"{self.architecture}.{key}", value, f"an integer from {least} to {most}")

    def number(self, key: str, default: int | None = None, least: int = 1, most: int = 2**31 - 1) -> int:
        """The key's value, the largest one if it is given per layer; ``default`` None = must be there."""
        numbers = self.integers(key, least, most)
        if numbers is not None:
            return max(numbers)
        if default is None or default < least:
            self.wrong(f"{self.architecture}.{key}", "missing", f"an integer from {least} to {most}")
        return default

    def by_layer(self, key: str, layers: int, least: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The key's value for each layer."""
        numbers = self.integers(key, least, 2**31 - 1)
        if numbers is None:
            if default is None and least:
                self.wrong(f"{self.architecture}.{key}", "missing", "a positive integer")
            return default or (0,) * layers
        if len(numbers) == 1:
            return numbers * layers
        if len(numbers) != layers:
            shown = f"a list of {len(numbers)} numbers"
            self.wrong(f"{self.architecture}.{key}", shown, f"one number, or one for each of {layers} layers")
        return numbers

    def window(self) -> int:
        """Tokens that a layer with a sliding window sees; 0 = the model has none."""
        return self.number("attention.sliding_window", _GEMMA2_WINDOW if self.architecture == "gemma2" else 0, 0)

    def windows(self, layers: int) -> tuple[int | None, ...]:
        """``ModelShape.windows``. The pattern in the file is one truth value per layer, or a period n: every n-th
        layer sees all (llama.cpp's ``set_swa_pattern``). Without one it is Gemma's; other architectures see all."""
        window = self.window()
        pattern = self.metadata.get(f"{self.architecture}.attention.sliding_window_pattern")
        local: tuple[bool, ...] = ()
        if isinstance(pattern, np.ndarray):
            local = tuple(bool(value) for value in pattern) if len(pattern) == layers else ()
        else:
            period = pattern if isinstance(pattern, int | float) else _PERIODS.get(self.architecture, 0)
            if 1 < period <= MAX_LAYERS:
                local = tuple(layer % int(period) < int(period) - 1 for layer in range(layers))
        return tuple(window if one else None for one in local) if window and any(local) else ()

    def state_bytes(self, layers: int, embedding: int) -> int | None:
        """Bytes of the state of one sequence in ``layers`` recurrent layers, four per element; None if not known.

        Per layer, as in llama.cpp's ``n_embd_r`` and ``n_embd_s``: Mamba keeps the last d_conv − 1 inputs of its
        convolution over d_inner + 2·groups·d_state channels, and d_state numbers for each of d_inner channels;
        RWKV the last tokens' embeddings and a matrix per head; a short convolution its last inputs.
        """
        conv, inner, state, groups = (
            self.count(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size", "group_count")
        )
        shifts, head, short = (self.count(key) for key in ("token_shift_count", "wkv.head_size", "shortconv.l_cache"))
        if head and shifts:
            elements = embedding * (shifts + head)
        elif short:
            elements = embedding * (short - 1)
        elif conv and inner and state and not self.count("kda.head_dim"):
            elements = (conv - 1) * (inner + 2 * groups * state) + state * inner
        else:
            return None
        return 4 * layers * elements if layers else None

    def count(self, key: str) -> int:
        """The key's value if it is one sensible number, else 0."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) and 0 < value < 1 << 31 else 0

    def recurrent(self) -> bool:
        """True if there are keys or tensors of state-space, RWKV, short-convolution or linear attention."""
        names = (tensor.name for tensor in self.header.tensors)
        return any(part in key for key in self.metadata for part in _RECURRENT_KEYS) or any(
            part in name for name in names for part in _RECURRENT_TENSORS
        )

    def tokens(self) -> int:
        """Size of the vocabulary, after checking the arrays that native code reads by token id."""
        if not self.text("tokenizer.ggml.model"):
            self.wrong("tokenizer.ggml.model", "missing", "the name of a tokenizer")
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, StringArray) or not len(tokens):
            self.wrong("tokenizer.ggml.tokens", "missing" if tokens is None else tokens, "an array of strings")
        self.check_vocabulary(len(tokens))
        return len(tokens)

    def check_vocabulary(self, size: int) -> None:
        """Native code reads these arrays by token id and by type, without looking at their length."""
        for key, kinds in (("scores", "f"), ("token_type", "iu")):
            values = self.metadata.get(f"tokenizer.ggml.{key}")
            if values is not None and _numbers(values, kinds, 4) != size:
                self.wrong(f"tokenizer.ggml.{key}", values, f"{size} 32-bit numbers, one per token")
        merges = self.metadata.get("tokenizer.ggml.merges")
        if merges is not None and not isinstance(merges, StringArray):
            self.wrong("tokenizer.ggml.merges", merges, "an array of strings")
        charsmap = self.metadata.get("tokenizer.ggml.precompiled_charsmap")
        if charsmap is not None and _numbers(charsmap, "iu", 1) is None:
            self.wrong("tokenizer.ggml.precompiled_charsmap", charsmap, "an array of bytes")

    def check_experts(self) -> None:
        experts = self.number("expert_count", 0, 0, MAX_EXPERTS)
        self.number("expert_used_count", 0, 0, experts)


def _numbers(values: object, kinds: str, itemsize: int) -> int | None:
    """Length of ``values`` if it is a numeric array of one of ``kinds`` and of ``itemsize`` bytes an item."""
    if isinstance(values, np.ndarray) and values.dtype.kind in kinds and values.dtype.itemsize == itemsize:
        return len(values)
    return None
