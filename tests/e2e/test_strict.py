"""``strict``: a row has the same bits in a pass of its own and in any other pass, on several threads too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine, LlamaSession
from foredraft.types import Logits

LENGTH = 300
"""Behind 256 cells llama.cpp takes another path for single rows."""
pytestmark = pytest.mark.usefixtures("all_processors")


def scored(session: LlamaSession, tokens: list[int]) -> Logits:
    ids = np.array(tokens, np.int32)
    rows = session.extend(ids, np.arange(-1, len(ids) - 1, dtype=np.int32), len(ids)).logits.copy()
    session.keep(range(len(ids)))
    return rows


@pytest.mark.parametrize("threads", [1, 2])
def test_single_rows_and_chains_have_the_same_bits(smollm2: Path, threads: int) -> None:
    engine = LlamaEngine(smollm2, LlamaConfig(context=512, threads=threads, strict=True))
    assert engine.info.exact_width is not None and engine.info.exact_width >= 2
    assert not engine.info.tree
    session = engine.open()
    text = [(37 * index) % 4000 + 100 for index in range(LENGTH + 10)]
    session.extend(np.array(text[:LENGTH], np.int32), np.arange(-1, LENGTH - 1, dtype=np.int32), 0)
    session.keep(range(LENGTH))
    alone = np.concatenate([scored(session, [token]) for token in text[LENGTH:]])
    for width in (2, 5, 10):
        session.rewind(LENGTH)
        together = [
            scored(session, text[start : min(start + width, len(text))]) for start in range(LENGTH, len(text), width)
        ]
        assert np.array_equal(np.concatenate(together), alone), width
    session.close()
    engine.close()


def test_the_last_cell_of_the_context_can_be_scored_alone(smollm2: Path) -> None:
    engine = LlamaEngine(smollm2, LlamaConfig(context=256, threads=2, strict=True))
    session = engine.open()
    for start in range(0, 255, 51):
        session.extend(np.arange(51, dtype=np.int32) + 100, np.arange(-1, 50, dtype=np.int32), 0)
        session.keep(range(51))
        assert session.length == start + 51
    assert scored(session, [100]).shape == (1, engine.info.vocab_size)
    assert session.length == 256
    session.close()
    engine.close()
