"""A model of five gigabytes with 256 000 tokens: only its header is read, on disk and over the network."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foredraft import modelfile
from foredraft.gguf_header import HeaderReader
from foredraft.modelfile import ModelShape
from foredraft.shapes import read_shape
from tests.support.file_server import file_server
from tests.support.gguf_writer import RawTensor, gguf_bytes, tiny_metadata

SIZE = 5 * 10**9
TOKENS, HIDDEN = 256_000, 4096
MOST_READ, MOST_MEMORY = 20e6, 60e6


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sparse: it takes the disk space of its header."""
    metadata = tiny_metadata() | {
        "llama.embedding_length": HIDDEN,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.block_count": 32,
        "tokenizer.ggml.tokens": [f"▁token{i}" for i in range(TOKENS)],
        "tokenizer.ggml.scores": np.zeros(TOKENS, np.float32),
        "tokenizer.ggml.token_type": np.ones(TOKENS, np.int32),
        "tokenizer.ggml.merges": [f"tok en{i}" for i in range(150_000)],
    }
    table = HIDDEN * TOKENS * 34 // 32
    tensors = [RawTensor("token_embd.weight", (HIDDEN, TOKENS), 8, b"", 0)]
    tensors += [RawTensor("output.weight", (HIDDEN, TOKENS), 8, b"", table)]
    tensors += [RawTensor("blk.0.ffn_up.weight", (HIDDEN, 160_000), 1, b"", 2 * table)]
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    header = gguf_bytes(metadata, tensors)
    assert 9.5e6 < len(header) < 12e6
    path.write_bytes(header)
    os.truncate(path, SIZE)
    return path


def measured(read: Callable[[], ModelShape]) -> ModelShape:
    """What ``read`` returns, after checking it and the memory it took."""
    tracemalloc.start()
    shape = read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert (shape.vocab_size, shape.layers, shape.file_bytes) == (TOKENS, 32, SIZE)
    assert shape.embedding_bytes == shape.output_bytes == HIDDEN * TOKENS * 34 // 32
    assert shape.weight_bytes == 2 * shape.embedding_bytes + 2 * HIDDEN * 160_000
    return shape


def test_on_disk(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[HeaderReader] = []

    class Kept(HeaderReader):
        def read(self) -> modelfile.GGUFHeader:
            readers.append(self)
            return super().read()

    monkeypatch.setattr(modelfile, "HeaderReader", Kept)
    measured(lambda: read_shape(str(large)))
    assert len(readers[0].buffer) < MOST_READ


@pytest.mark.parametrize("ranges", [True, False])
def test_over_the_network(large: Path, ranges: bool) -> None:
    with file_server({"/large.gguf": large}, ranges) as site:
        measured(lambda: read_shape(f"{site.endpoint}/large.gguf"))
        assert len(site.asked) == (5 if ranges else 1)
    assert site.sent < MOST_READ
