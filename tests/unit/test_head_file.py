"""Trained heads on disk: a round trip, and one line for whatever is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft.errors import ModelFileError
from foredraft.models.head import DraftHead, HeadConfig, begin, default_taps
from foredraft.models.head_file import ABOUT, WEIGHTS, is_head, load_head
from foredraft.models.load import load_decoder
from tests.support import tiny_models
from tests.support.tiny_heads import IDS, head_of, write_head


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write_llama(tmp_path_factory.mktemp("model") / "llama.gguf")


@pytest.fixture
def stored(model: Path, tmp_path: Path) -> Path:
    return write_head(model, tmp_path / "head")


def test_a_round_trip(model: Path, stored: Path) -> None:
    found, made = load_head(stored), head_of(load_decoder(model))
    assert is_head(stored) and not is_head(stored.parent)
    assert found.ids == IDS and found.target.name == "llama.gguf" and found.card == {"test": {}}
    assert found.head.config == made.config
    for (name, one), other in zip(found.head.state_dict().items(), made.state_dict().values(), strict=True):
        assert torch.equal(one, other.half().float()), name


def test_another_target(model: Path, stored: Path) -> None:
    head, config = load_head(stored), load_decoder(model).config
    head.check_target(config, "it")
    for other, words in (
        (replace(config, vocab_size=25), r"\(vocabulary 24\); it has 25"),
        (replace(config, hidden_size=64), r"\(hidden size 32\); it has 64"),
        (replace(config, layers=1), "reads layer .* it has 1 layers"),
    ):
        with pytest.raises(ModelFileError, match=words):
            head.check_target(other, "it")


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / ABOUT).read_text())
        change(data)
        (folder / ABOUT).write_text(json.dumps(data))

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = load_file(folder / WEIGHTS)
        change(data)
        save_file(data, folder / WEIGHTS)

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no description": (lambda folder: (folder / ABOUT).unlink(), "no such file"),
    "no JSON": (lambda folder: (folder / ABOUT).write_text("{"), "is damaged"),
    "a list": (lambda folder: (folder / ABOUT).write_text("[]"), "is no head of this version"),
    "another format": (edited(lambda data: data.update(format="x")), "is no head of this version"),
    "a later schema": (edited(lambda data: data.update(schema=2)), "is no head of this version"),
    "no sizes": (edited(lambda data: data.pop("config")), "config is missing"),
    "a size as text": (edited(lambda data: data["config"].update(heads="4")), "config.heads is '4'"),
    "a size of 0": (edited(lambda data: data["config"].update(heads=0)), "heads is 0"),
    "an enormous size": (edited(lambda data: data["config"].update(ffn_size=1 << 40)), "ffn_size is"),
    "odd heads": (edited(lambda data: data["config"].update(kv_heads=3)), "no multiple of KV heads"),
    "taps in disorder": (edited(lambda data: data["config"].update(taps=[1, 0])), "taps are not ascending"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "cannot be read"),
    "cut weights": (
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:999]),
        "cannot be read",
    ),
    "a tensor less": (tensors(lambda data: data.pop("qkv.weight")), "'qkv.weight' is missing"),
    "a tensor more": (tensors(lambda data: data.update(extra=torch.zeros(1))), "'extra' is missing, unknown"),
    "another shape": (
        tensors(lambda data: data.update({"fuse.weight": torch.zeros(2, 2)})),
        "'fuse.weight' is missing",
    ),
    "no ids": (tensors(lambda data: data.pop("draft_ids")), "must hold 12 different ids"),
    "ids twice": (tensors(lambda data: data.update(draft_ids=torch.zeros(12, dtype=torch.int32))), "must hold 12"),
    "ids beyond": (
        tensors(lambda data: data.update(draft_ids=torch.arange(20, 32, dtype=torch.int32))),
        "different ids below 24",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line(name: str, stored: Path) -> None:
    damage, words = DAMAGES[name]
    damage(stored)
    with pytest.raises(ModelFileError) as caught:
        load_head(stored)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert str(stored) in str(caught.value)


def test_a_new_head_begins_as_the_targets_last_layer(model: Path) -> None:
    target = load_decoder(model)
    config = HeadConfig.of(target.config, default_taps(target.config.layers), 10)
    heads = [DraftHead(config) for _ in range(2)]
    for head in heads:
        begin(head, target, torch.Generator().manual_seed(3))
    for one, other in zip(heads[0].parameters(), heads[1].parameters(), strict=True):
        assert torch.equal(one, other), "one seed, one beginning"
    last = target.blocks[-1]
    assert torch.equal(heads[0].down.weight, last.ffn.down.weight)
    assert torch.equal(heads[0].qkv.weight[:, config.hidden_size :], last.attention.qkv.weight)
    assert config.taps[-1] == target.config.layers - 1


@pytest.mark.parametrize(("layers", "taps"), [(1, (0,)), (2, (1,)), (3, (1, 2)), (6, (2, 3, 5)), (28, (2, 14, 27))])
def test_default_taps(layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers) == taps
