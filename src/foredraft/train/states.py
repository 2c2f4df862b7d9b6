"""What the target thinks of the training texts: hidden states of some layers, and how its law is normalised.

Read once and kept beside the texts, one file of states for each file of texts. The last layer's states give the
target's law through its output matrix, so laws are not stored. Shapes: T tokens of a file, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foredraft.errors import TrainingDataError
from foredraft.models.decoder import Decoder
from foredraft.train.batch import Rotation, causal, padded
from foredraft.train.texts import Text, part_files, read_part
from foredraft.whole_files import replacing

STATES = "states"
_TYPES = {"states": torch.float16, "log_totals": torch.float32, "best": torch.int32}
_AT_ONCE = 4096
"""Tokens, padding included, that are read in one pass."""
_LARGEST = 65504.0
"""Of float16, in which states are kept; a first token's may be larger, and mean nothing by it."""


@dataclass(frozen=True)
class TextStates:
    """One text with what the target thinks of it: ``states`` float16[T, taps·h]; ``log_totals`` float32[T]: log Σ exp
    of its logits; ``best`` int32[T]: its likeliest next token."""

    text: Text
    states: Tensor
    log_totals: Tensor
    best: Tensor


def missing(directory: Path, taps: Sequence[int]) -> list[Path]:
    """The files of texts whose states are not there. TrainingDataError if states of other layers are."""
    found = []
    for part in part_files(directory):
        path = states_file(part)
        if not path.exists():
            found.append(part)
        elif (kept := _taps(path)) != list(taps):
            raise TrainingDataError(
                f"{path}: holds states of layers {kept}, not of {list(taps)}; remove {path.parent} to read them again"
            )
    return found


def kept_taps(directory: Path) -> tuple[int, ...] | None:
    """The layers whose states are there; None if there are none yet."""
    path = next((states_file(part) for part in part_files(directory) if states_file(part).exists()), None)
    return None if path is None else tuple(_taps(path))


def states_file(part: Path) -> Path:
    """Where the states of a file of texts are."""
    return part.parent.parent / STATES / f"{part.stem}.safetensors"


def read_states(decoder: Decoder, taps: Sequence[int], parts: Sequence[Path], told: Callable[[int], None]) -> None:
    """Let the target read the texts of ``parts`` and keep what it thinks; ``told`` hears how many tokens each had."""
    rotations: dict[int, Rotation] = {}
    for part in parts:
        texts = [text for text in read_part(part) if not text.skipped]
        results: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for group in _groups(texts):
            longest = max(len(text) for text in group)
            rotation = rotations.setdefault(longest, Rotation(decoder.config, decoder.embedding.weight, longest))
            for text, result in zip(group, _read(decoder, taps, group, rotation), strict=True):
                results[text.number] = result
        size = len(taps) * decoder.config.hidden_size
        nothing = torch.empty(0, size, dtype=torch.float16), torch.empty(0), torch.empty(0, dtype=torch.int32)
        ordered = [nothing, *(results[text.number] for text in texts)]
        path = states_file(part)
        path.parent.mkdir(exist_ok=True)
        tensors = {
            name: torch.cat(list(values)) for name, values in zip(_TYPES, zip(*ordered, strict=True), strict=True)
        }
        with replacing(path) as temporary:
            save_file(tensors, temporary, {"taps": json.dumps(list(taps))})
        told(sum(len(text) for text in texts))


def _groups(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Texts of like length together, at most ``_AT_ONCE`` tokens with their padding."""
    group: list[Text] = []
    for text in sorted(texts, key=len, reverse=True):
        if group and (len(group) + 1) * len(group[0]) > _AT_ONCE:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


@torch.inference_mode()
def _read(
    decoder: Decoder, taps: Sequence[int], texts: Sequence[Text], rotation: Rotation
) -> list[tuple[Tensor, Tensor, Tensor]]:
    device = decoder.embedding.weight.device
    tokens = padded([text.ids for text in texts]).to(device)
    angles = rotation.at(torch.arange(tokens.shape[1], device=device)[None])
    *tapped, last = decoder.hidden(tokens, angles, causal(decoder.config), taps)
    states = torch.cat(tapped, -1).float().clamp(-_LARGEST, _LARGEST).half().cpu()
    results = []
    for row, text in enumerate(texts):
        logits = decoder.logits(last[row, : len(text)]).float()
        totals, best = logits.logsumexp(-1).cpu(), logits.argmax(-1).int().cpu()
        results.append((states[row, : len(text)].clone(), totals, best))
    return results


def texts_of(part: Path) -> list[TextStates]:
    """The texts of one file with their states, read when they are used. TrainingDataError if they do not fit."""
    texts = [text for text in read_part(part) if not text.skipped]
    path = states_file(part)
    tensors = _load(path)
    total, width = sum(len(text) for text in texts), tensors["states"].shape[-1:]
    shapes = {"states": (total, *width), "log_totals": (total,), "best": (total,)}
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    wanted = {name: (shapes[name], kind) for name, kind in _TYPES.items()}
    if found != wanted or width[0] % len(_taps(path)):
        raise TrainingDataError(f"{path}: does not fit the texts in {part.name}; remove it to read the states again")
    result, start = [], 0
    for text in texts:
        cut = slice(start, start + len(text))
        result.append(TextStates(text, *(tensors[name][cut] for name in _TYPES)))
        start += len(text)
    return result


def _load(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in _TYPES}
    except (OSError, SafetensorError) as error:
        raise TrainingDataError(f"{path}: cannot be read ({error}); remove it to read the states again") from None


def _taps(path: Path) -> list[int]:
    try:
        with safe_open(path, "pt") as file:
            taps = json.loads((file.metadata() or {}).get("taps", ""))
        if not isinstance(taps, list) or not taps or not all(type(tap) is int for tap in taps):
            raise ValueError("its list of layers is none")
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise TrainingDataError(f"{path}: cannot be read ({error}); remove it to read the states again") from None
    return taps
