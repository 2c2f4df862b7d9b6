"""A trained draft head on disk: ``head.json`` (sizes, whose head it is, how it was made) and ``head.safetensors``.

Weights are float16. Read only as far as they are checked: names, shapes, types and ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foredraft.errors import ModelFileError
from foredraft.models.config import DecoderConfig
from foredraft.models.head import DraftHead, HeadConfig
from foredraft.records import DamagedRecord, record
from foredraft.whole_files import replacing, write_whole

FORMAT, SCHEMA = "foredraft-head", 1
ABOUT, WEIGHTS, IDS = "head.json", "head.safetensors", "draft_ids"
_AGAIN = "train it again with `foredraft tune head`, or get another copy"


@dataclass(frozen=True, slots=True)
class HeadTarget:
    """Whose head it is: the model's ``name`` and the SHA-256 of its file."""

    name: str
    sha256: str


@dataclass(frozen=True)
class StoredHead:
    """``ids``: the draft vocabulary, ascending; ``card``: how it was made and what was measured, for people."""

    head: DraftHead
    ids: tuple[int, ...]
    target: HeadTarget
    card: Mapping[str, Any] = field(default_factory=dict)

    def check_target(self, config: DecoderConfig, name: str) -> None:
        """ModelFileError unless a model of this shape can be its target."""
        mine = self.head.config
        for what, own, theirs in (
            ("vocabulary", mine.vocab_size, config.vocab_size),
            ("hidden size", mine.hidden_size, config.hidden_size),
        ):
            if own != theirs:
                raise ModelFileError(
                    f"the head was trained for {self.target.name} ({what} {own}); {name} has {theirs}; "
                    "train one for it with `foredraft tune head`"
                )
        if mine.taps[-1] >= config.layers:
            raise ModelFileError(
                f"the head reads layer {mine.taps[-1]} of {self.target.name}; {name} has {config.layers} layers"
            )


def is_head(path: Path) -> bool:
    """Whether ``path`` is a directory with a trained head."""
    return (path / ABOUT).is_file()


def save_head(directory: Path, stored: StoredHead) -> None:
    """Write both files; each whole or not at all, the description last."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().half().cpu().contiguous() for name, weight in stored.head.state_dict().items()}
    tensors[IDS] = torch.tensor(stored.ids, dtype=torch.int32)
    with replacing(directory / WEIGHTS) as temporary:
        save_file(tensors, temporary)
    about = {
        "format": FORMAT,
        "schema": SCHEMA,
        "target": asdict(stored.target),
        "config": asdict(stored.head.config),
        "card": dict(stored.card),
    }
    write_whole(directory / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


@dataclass(frozen=True, slots=True)
class _About:
    target: HeadTarget
    config: HeadConfig


def read_about(directory: Path) -> tuple[HeadTarget, HeadConfig, Mapping[str, Any]]:
    """Whose head it is, its sizes and its card; ModelFileError, one line, for whatever is wrong."""
    path = directory / ABOUT
    try:
        data = json.loads(path.read_text("utf-8"))
        if not isinstance(data, dict) or (data.get("format"), data.get("schema")) != (FORMAT, SCHEMA):
            raise ModelFileError(f"{path}: is no head of this version; {_AGAIN}")
        about = record(_About, data)
        card = data.get("card", {})
    except FileNotFoundError:
        raise ModelFileError(f"{path}: no such file; name a directory made by `foredraft tune head`") from None
    except (OSError, ValueError, TypeError, RecursionError, DamagedRecord) as error:
        raise ModelFileError(f"{path}: is damaged ({str(error)[:120]}); {_AGAIN}") from None
    problem = _wrong_sizes(about.config)
    if problem:
        raise ModelFileError(f"{path}: is damaged ({problem}); {_AGAIN}")
    return about.target, about.config, card if isinstance(card, dict) else {}


def _wrong_sizes(config: HeadConfig) -> str | None:
    sizes = {
        "hidden_size": (config.hidden_size, 1 << 16),
        "ffn_size": (config.ffn_size, 1 << 18),
        "heads": (config.heads, 1 << 10),
        "kv_heads": (config.kv_heads, 1 << 10),
        "head_dim": (config.head_dim, 1 << 12),
        "vocab_size": (config.vocab_size, 1 << 24),
        "rows": (config.rows, config.vocab_size),
        "taps": (len(config.taps), 64),
    }
    for name, (value, most) in sizes.items():
        if not 0 < value <= most:
            return f"{name} is {value}, not 1 to {most}"
    if config.heads % config.kv_heads or config.head_dim % 2:
        return "heads are no multiple of KV heads, or the head size is odd"
    if list(config.taps) != sorted(set(config.taps)):
        return "taps are not ascending"
    return None if config.norm_eps > 0 and config.rope_theta > 0 and config.query_scale > 0 else "a number is 0"


def load_head(directory: Path) -> StoredHead:
    """A head with float32 weights; ModelFileError, one line, for whatever is wrong."""
    target, config, card = read_about(directory)
    path = directory / WEIGHTS
    with torch.device("meta"):
        head = DraftHead(config)
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"{path}: cannot be read ({str(error)[:120]}); {_AGAIN}") from None
    ids = _ids(path, tensors.pop(IDS, None), config)
    wanted = {name: tuple(weight.shape) for name, weight in head.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if wanted != found:
        names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise ModelFileError(f"{path}: tensor {names[0][:80]!r} is missing, unknown or of another shape; {_AGAIN}")
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    return StoredHead(head.requires_grad_(False).eval(), ids, target, card)


def _ids(path: Path, ids: Tensor | None, config: HeadConfig) -> tuple[int, ...]:
    listed: Sequence[int] = [] if ids is None or ids.dtype != torch.int32 or ids.dim() != 1 else ids.tolist()
    if (
        len(listed) != config.rows
        or list(listed) != sorted(set(listed))
        or not 0 <= listed[0] <= listed[-1] < config.vocab_size
    ):
        raise ModelFileError(
            f"{path}: must hold {config.rows} different ids below {config.vocab_size} in ascending order; {_AGAIN}"
        )
    return tuple(listed)
