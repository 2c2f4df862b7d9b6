"""Real engines for the cases, each loaded once. One thread: several wait for each other on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from tests.support import tiny_models
from tests.support.models import ensure_model

CONTEXT = 1280


def _open(path: Path, context: int = CONTEXT, strict: bool = False) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(path, LlamaConfig(context=context, threads=1, repack=False, strict=strict))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def smollm2_engine(smollm2: Path) -> Iterator[LlamaEngine]:
    """SmolLM2-135M-Instruct, its default engine."""
    yield from _open(smollm2)


@pytest.fixture(scope="session")
def smollm2_strict(smollm2: Path) -> Iterator[LlamaEngine]:
    """SmolLM2-135M-Instruct, bit for bit."""
    yield from _open(smollm2, strict=True)


@pytest.fixture(scope="session")
def gemma3_engine(gemma3: Path) -> Iterator[LlamaEngine]:
    """Gemma 3 270M: three quarters of its layers see the last 512 tokens."""
    yield from _open(gemma3)


@pytest.fixture(scope="module")
def qwen_target() -> Iterator[LlamaEngine]:
    """Qwen2.5-Coder 1.5B."""
    yield from _open(ensure_model("qwen2.5-coder-1.5b"))


@pytest.fixture(scope="module")
def qwen_draft() -> Iterator[LlamaEngine]:
    """Qwen2.5-Coder 0.5B."""
    yield from _open(ensure_model("qwen2.5-coder-0.5b"))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """Random weights of a few kilobytes, attention in every layer."""
    yield from _open(tiny_models.write_llama(tmp_path_factory.mktemp("cases") / "llama.gguf"))


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """The same with a sliding window of 8 tokens."""
    yield from _open(tiny_models.write_gemma3(tmp_path_factory.mktemp("cases") / "gemma3.gguf"))


@pytest.fixture(scope="session")
def tiny_mamba(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """The same with a running state in place of attention."""
    yield from _open(tiny_models.write_mamba(tmp_path_factory.mktemp("cases") / "mamba.gguf"))


@pytest.fixture(scope="session")
def tiny_jamba(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    """The same with both kinds of layers."""
    yield from _open(tiny_models.write_jamba(tmp_path_factory.mktemp("cases") / "jamba.gguf"))
