"""Real vocabularies, loaded once a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foredraft.engines.llama_vocab import LoadedVocab, load_vocab
from tests.support.models import ensure_model


@pytest.fixture(scope="module")
def smol() -> Iterator[LoadedVocab]:
    with load_vocab(ensure_model("smollm2-135m")) as vocab:
        yield vocab


@pytest.fixture(scope="module")
def gemma() -> Iterator[LoadedVocab]:
    with load_vocab(ensure_model("gemma3-270m")) as vocab:
        yield vocab


@pytest.fixture(scope="module")
def qwen_pair() -> Iterator[tuple[LoadedVocab, LoadedVocab]]:
    target, draft = ensure_model("qwen2.5-coder-1.5b"), ensure_model("qwen2.5-coder-0.5b")
    with load_vocab(target) as ours, load_vocab(draft) as theirs:
        yield ours, theirs
