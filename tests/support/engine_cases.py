"""The engines of the contract suite, and how closely the rows of each agree.

Rows are compared as std(difference) / std(row): 0 where sums never depend on the width of a pass, ``STATE`` for float
weights and a running state, ``TINY`` for float weights and attention (which rounds by width), ``REAL`` for quantized
weights (activations are rounded by width too), ``FLOAT`` for float32 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from foredraft.engines.base import Engine, Rollback, Session
from foredraft.engines.executorch import ExecutorchConfig, ExecutorchEngine
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.llama_native import NativeContext
from foredraft.engines.llama_vocab import load_vocab
from foredraft.engines.pytorch import TorchConfig, TorchEngine
from foredraft.engines.scripted import ScriptedEngine
from foredraft.noise import hash_ids
from foredraft.tokens import Tokenizer
from foredraft.trees import path_to
from foredraft.types import Ids, Logits
from tests.support import tiny_models
from tests.support.exports import exported
from tests.support.models import ensure_model

CONTEXT = 700
STATE, TINY, REAL, FLOAT = 0.002, 0.02, 0.12, 0.0001
EXACT = ["executorch-llama", "executorch-gemma3", "executorch-smollm2"]
"""Engines whose rows never depend on how tokens are fed, quantized or not."""
TORCH = ["torch-llama", "torch-gemma3", "torch-smollm2"]
LARGE = ["smollm2", "gemma3", "torch-smollm2", "executorch-smollm2"]
TREES = ["scripted", "tiny-llama", "tiny-gemma3", "smollm2", "gemma3", *TORCH, *EXACT]
REPLAYS = ["tiny-mamba", "tiny-jamba"]
CHAINS = ["scripted-chain", *REPLAYS]
NONES = ["scripted-none", "tiny-mamba-none"]
FORGETS = TREES + CHAINS
ALL = FORGETS + NONES
QUICK = [name for name in ALL if name not in LARGE]
"""For the variants of a test that a large model would only repeat."""
PROSE = (
    "The old harbour was quiet in the morning. A keeper walked along the wall and counted the boats, as he had "
    "done every day since the storm of 1953: three red, two green and one without any paint. "
)


@dataclass
class Case:
    """An engine, how closely its rows agree, and a text of 650 ids that it can read."""

    engine: Engine
    tolerance: float
    text: list[int]
    fresh: dict[tuple[int, ...], Logits] = field(default_factory=dict)

    def row(self, text: Sequence[int]) -> Logits:
        """The logits after ``text`` in a session that never saw anything else, float32[V]."""
        key = tuple(text)
        if key not in self.fresh:
            session = self.engine.open()
            self.fresh[key] = chain(session, text, 1)[0]
            session.close()
        return self.fresh[key]

    def check(self, got: Logits, text: Sequence[int]) -> None:
        """``got`` is the row after ``text``."""
        self.compare(got, self.row(text), f"the row after {list(text)[-12:]}")

    def compare(self, got: Logits, want: Logits, what: str) -> None:
        """Two rows are the same but for rounding."""
        assert got.shape == want.shape == (self.engine.info.vocab_size,)
        off = distance(got, want)
        assert off <= self.tolerance, f"{what} is {off} off"


def distance(got: Logits, want: Logits) -> float:
    """Standard deviation of the difference in units of that of ``want``; a constant, which no law sees, is free."""
    return float(np.std(got - want) / np.std(want))


def ids(values: Sequence[int]) -> Ids:
    """int32."""
    return np.asarray(values, np.int32)


def grow(session: Session, tokens: Sequence[int], parents: Sequence[int], rows: int) -> Logits:
    """``extend`` with plain lists; the rows are a copy."""
    return session.extend(ids(tokens), ids(parents), rows).logits.copy()


def chain(session: Session, tokens: Sequence[int], rows: int) -> Logits:
    """``extend`` with a chain behind the last kept token."""
    return grow(session, tokens, range(-1, len(tokens) - 1), rows)


def read(session: Session, tokens: Sequence[int], rows: int = 1) -> Logits:
    """``chain``, all kept."""
    logits = chain(session, tokens, rows)
    session.keep(range(len(tokens)))
    return logits


def node_text(text: Sequence[int], tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
    """``text`` and the path of a tree down to ``node``."""
    return [*text, *(tokens[index] for index in path_to(parents, node))]


def scripted(tree: bool = True, rollback: Rollback = "trim") -> Case:
    """Logits that are a hash of the whole text."""

    def table(text: tuple[int, ...]) -> Logits:
        return (hash_ids(crc32(ids(text).tobytes()), np.arange(50)) >> np.uint64(40)).astype(np.float32)

    text = np.random.default_rng(1).integers(0, 50, 650).tolist()
    return Case(ScriptedEngine(table, 50, CONTEXT, tree, rollback), 0.0, text)


def tiny(path: Path, tolerance: float = TINY) -> Case:
    """A random model of float weights."""
    config = LlamaConfig(context=CONTEXT, threads=1, kv_type="f32", repack=False)
    text = np.random.default_rng(1).integers(0, tiny_models.VOCAB, 650).tolist()
    return Case(LlamaEngine(path, config), tolerance, text)


def tiny_without_checkpoints(path: Path) -> Case:
    """A recurrent model whose state llama.cpp does not hand out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeContext, "checkpoint", lambda self: None)
        return tiny(path, STATE)


def real(name: str) -> Case:
    """A catalogue model that reads English."""
    engine = LlamaEngine(ensure_model(name), LlamaConfig(context=CONTEXT, threads=1, repack=False))
    return Case(engine, REAL, read_english(engine.tokenizer))


def torch_tiny(path: Path) -> Case:
    """A random model of float weights in torch."""
    engine = TorchEngine(path, TorchConfig(context=CONTEXT))
    text = np.random.default_rng(1).integers(0, tiny_models.VOCAB, 650).tolist()
    return Case(engine, FLOAT, text)


def torch_real(name: str) -> Case:
    """A catalogue model in torch, its weights as float32."""
    path = ensure_model(name)
    text = read_english(load_vocab(path))
    return Case(TorchEngine(path, TorchConfig(context=CONTEXT)), FLOAT, text)


def executorch(path: Path) -> Case:
    """An export: every row must be the same to the last bit."""
    engine = ExecutorchEngine(path, ExecutorchConfig(context=CONTEXT))
    size = engine.info.vocab_size
    text = np.random.default_rng(1).integers(0, size, 650).tolist()
    return Case(engine, 0.0, read_english(engine.tokenizer) if size > 1000 else text)


def read_english(tokenizer: Tokenizer) -> list[int]:
    """650 ids of English."""
    text = tokenizer.encode(PROSE * 16, add_special=True, parse_special=False)[:650]
    assert len(text) == 650
    return text


def makers(folder: Path) -> dict[str, Callable[[], Case]]:
    """How to make each of ``ALL``; tiny models are written into ``folder``."""
    return {
        "scripted": scripted,
        "scripted-chain": lambda: scripted(tree=False),
        "scripted-none": lambda: scripted(rollback="none"),
        "tiny-llama": lambda: tiny(tiny_models.write_llama(folder / "llama.gguf")),
        "tiny-gemma3": lambda: tiny(tiny_models.write_gemma3(folder / "gemma3.gguf")),
        "tiny-mamba": lambda: tiny(tiny_models.write_mamba(folder / "mamba.gguf"), STATE),
        "tiny-jamba": lambda: tiny(tiny_models.write_jamba(folder / "jamba.gguf")),
        "tiny-mamba-none": lambda: tiny_without_checkpoints(tiny_models.write_mamba(folder / "none.gguf")),
        "smollm2": lambda: real("smollm2-135m"),
        "gemma3": lambda: real("gemma3-270m"),
        "torch-llama": lambda: torch_tiny(tiny_models.write_llama(folder / "torch-llama.gguf")),
        "torch-gemma3": lambda: torch_tiny(tiny_models.write_gemma3(folder / "torch-gemma3.gguf")),
        "torch-smollm2": lambda: torch_real("smollm2-135m"),
        "executorch-llama": lambda: executorch(exported("llama")),
        "executorch-gemma3": lambda: executorch(exported("gemma3")),
        "executorch-smollm2": lambda: executorch(exported("smollm2-135m")),
    }
