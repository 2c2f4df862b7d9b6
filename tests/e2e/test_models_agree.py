"""The decoders against llama.cpp on the same GGUF file, and against transformers on the same directory.

Distances are in units of a row's standard deviation. Float weights agree to rounding; llama.cpp's lookup table of GELU
holds 16-bit floats, which is what its Gemma models are off. Quantized files are compared as float copies: llama.cpp
rounds activations to 8 bits beside quantized weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.models.decoder import Decoder
from foredraft.models.load import load_decoder
from foredraft.types import Logits
from tests.support import tiny_models, tiny_torch
from tests.support.engine_cases import PROSE, REAL, distance, read
from tests.support.llama_float import float_engine, write_float_copy
from tests.support.models import ensure_model

EXACT, GELU = 1e-4, 1e-2
WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_models.write_llama,
    "llama3": tiny_models.write_llama3,
    "linear": tiny_models.write_linear,
    "qwen2": tiny_models.write_qwen2,
    "qwen3": tiny_models.write_qwen3,
    "gemma2": tiny_models.write_gemma2,
    "gemma3": tiny_models.write_gemma3,
}


def farthest(got: Logits, want: Logits) -> float:
    """The largest distance between rows of the same place."""
    assert got.shape == want.shape
    return max(distance(one, other) for one, other in zip(got, want, strict=True))


def middle(got: Logits, want: Logits) -> float:
    """The median distance between rows of the same place."""
    return float(np.median([distance(one, other) for one, other in zip(got, want, strict=True)]))


def by_llama(path: Path, tokens: list[int], rows: int) -> Logits:
    """The last rows."""
    engine = float_engine(path)
    session = engine.open()
    logits = read(session, tokens, rows)
    session.close()
    engine.close()
    return logits


@pytest.mark.parametrize("name", WRITERS)
def test_tiny_files_agree_with_llama_cpp(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "model.gguf")
    tokens = np.random.default_rng(2).integers(0, tiny_models.VOCAB, 40).tolist()
    decoder = load_decoder(path)
    got = tiny_torch.forward(decoder, tokens)
    tolerance = GELU / 10 if "gemma" in name else EXACT
    assert farthest(got, by_llama(path, tokens, len(tokens))) < tolerance
    wrong = tiny_torch.forward(decoder, [*tokens[:20], (tokens[20] + 1) % tiny_models.VOCAB, *tokens[21:]])
    assert distance(wrong[21], got[21]) > 20 * tolerance


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m"])
def copied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real model and its float copy, which is deleted afterwards."""
    copy = write_float_copy(ensure_model(request.param), tmp_path_factory.mktemp("copy") / "float.gguf")
    yield request.param, copy
    copy.unlink()


def text_ids(path: Path, count: int) -> list[int]:
    engine = float_engine(path, 256)
    ids = engine.tokenizer.encode(PROSE * 16, add_special=True, parse_special=False)[:count]
    engine.close()
    assert len(ids) == count
    return ids


def with_window(decoder: Decoder, window: int) -> Decoder:
    """The same weights with another sliding window."""
    with torch.device("meta"):
        other = Decoder(replace(decoder.config, window=window))
    other.load_state_dict(decoder.state_dict(), assign=True)
    return other


def test_real_files_agree_with_llama_cpp(copied: tuple[str, Path]) -> None:
    name, copy = copied
    tokens, rows = text_ids(copy, 620), 64
    decoder = load_decoder(ensure_model(name))
    got, want = tiny_torch.forward(decoder, tokens, rows), by_llama(copy, tokens, rows)
    assert farthest(got, want) < (GELU if "gemma" in name else EXACT)
    assert middle(got, want) < (GELU / 10 if "gemma" in name else EXACT)
    assert middle(got, by_llama(ensure_model(name), tokens, rows)) < REAL
    if decoder.config.window:  # 512: all rows are beyond it, and one token more or less is seen
        for window in (511, 513):
            other = tiny_torch.forward(with_window(decoder, window), tokens, rows)
            assert middle(other, want) > 2 * middle(got, want)


@pytest.mark.parametrize("name", tiny_torch.VARIANTS)
def test_directories_agree_with_transformers(name: str, tmp_path: Path) -> None:
    model = tiny_torch.save(name, tmp_path)
    tokens = (torch.arange(40) * 7 % tiny_torch.SIZES["vocab_size"]).tolist()
    with torch.inference_mode():
        want = model(torch.tensor([tokens])).logits[0].numpy()
    assert farthest(tiny_torch.forward(load_decoder(tmp_path), tokens), want) < EXACT


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_shards_and_half_precision(name: str, tmp_path: Path) -> None:
    model = tiny_torch.save(name, tmp_path / "one")
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    want = tiny_torch.forward(load_decoder(tmp_path / "one"), tokens)
    tiny_torch.save(name, tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    np.testing.assert_array_equal(tiny_torch.forward(load_decoder(tmp_path / "many"), tokens), want)
    half = load_decoder(tmp_path / "many", torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert 1e-4 < farthest(tiny_torch.forward(half, tokens), want) < 0.1
    model.to(torch.bfloat16)
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens])).logits[0].float().numpy()
    assert farthest(tiny_torch.forward(half, tokens), theirs) < 0.1
