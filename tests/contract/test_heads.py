"""One suite for every engine that runs draft heads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from foredraft.engines.base import Engine
from foredraft.engines.executorch import ExecutorchEngine
from foredraft.engines.head_base import HeadEngine, HeadScores, HeadSession
from foredraft.engines.pytorch import TorchEngine
from foredraft.engines.torch_head import TorchHead
from foredraft.errors import ContextFull, EngineFailure, InvalidValue
from foredraft.models.head_file import load_head
from foredraft.types import Ids, Logits
from tests.support.exports import exported, write_tiny
from tests.support.tiny_heads import IDS, write_head
from tests.support.tiny_models import VOCAB

NAMES = ("torch", "executorch")
CLOSE = {"torch": 1e-4, "executorch": 1e-3}
TEXT = np.random.default_rng(0).integers(0, VOCAB, 300).astype(np.int32)


class Pair:
    """A target and its head."""

    def __init__(self, target: Engine, head: HeadEngine, close: float) -> None:
        self.target, self.head, self.close = target, head, close

    def states(self, tokens: Ids) -> Logits:
        session = self.target.open()
        hidden = session.extend(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), 0).hidden
        session.close()
        assert hidden is not None
        return hidden


def opened(name: str, folder: Path) -> Pair:
    if name == "executorch":
        engine = ExecutorchEngine(exported("llama-head"))
        return Pair(engine, engine.head(), CLOSE[name])
    model = write_tiny("llama", folder)
    stored = load_head(write_head(model, folder / "head"))
    target = TorchEngine(model, taps=stored.head.config.taps)
    return Pair(target, TorchHead(stored.head, stored.ids, target.decoder, 512), CLOSE[name])


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.exports("llama-head")) for name in NAMES])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    found = opened(request.param, tmp_path)
    yield found
    found.head.close()
    found.target.close()


def copied(scores: HeadScores) -> tuple[Logits, Logits]:
    return scores.logits.copy(), scores.outputs.copy()


def same(one: tuple[Logits, Logits], other: tuple[Logits, Logits], close: float) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=close * max(1.0, float(np.abs(b).max())))


def begun(pair: Pair, count: int) -> tuple[HeadSession, Logits, Logits]:
    """A session that has read ``count`` entries, and what it says behind the last one."""
    session = pair.head.open()
    scores = session.read(pair.states(TEXT[:count]), TEXT[1 : count + 1], 1)
    return session, *copied(scores)


def ids(*tokens: int) -> Ids:
    return np.array(tokens, np.int32)


def test_what_it_says_of_itself(pair: Pair) -> None:
    info = pair.head.info
    assert info.ids.tolist() == list(IDS) and info.vocab_size == VOCAB
    assert info.state_size == pair.target.info.hidden_size and info.state_size % info.hidden_size == 0
    assert 0.0 < info.share < 1.0


def test_known_entries_in_pieces(pair: Pair) -> None:
    session, logits, outputs = begun(pair, 150)
    assert logits.shape == (1, len(IDS)) and outputs.shape == (1, pair.head.info.hidden_size)
    assert session.length == 150
    other, states = pair.head.open(), pair.states(TEXT[:150])
    for start, end in ((0, 1), (1, 70), (70, 149), (149, 150)):
        found = other.read(states[start:end], TEXT[start + 1 : end + 1], min(1, end - start))
    same((found.logits, found.outputs), (logits, outputs), pair.close)


def test_several_rows_are_those_of_single_ones(pair: Pair) -> None:
    session, states = pair.head.open(), pair.states(TEXT[:40])
    several = copied(session.read(states, TEXT[1:41], 5))
    single = pair.head.open()
    for index in range(40):
        row = single.read(states[index : index + 1], TEXT[index + 1 : index + 2], 1)
        if index >= 35:
            at = index - 35
            same(copied(row), (several[0][at : at + 1], several[1][at : at + 1]), pair.close)


def test_a_text_shows_in_what_it_says(pair: Pair) -> None:
    """Another token, other states, another entry before: each changes the output."""
    _, logits, _ = begun(pair, 20)
    states = pair.states(TEXT[:20])
    for changed, tokens in (
        (states, [*TEXT[1:20], (TEXT[20] + 1) % VOCAB]),
        (states[::-1], TEXT[1:21]),
        (states, [(TEXT[1] + 1) % VOCAB, *TEXT[2:21]]),
    ):
        found = pair.head.open().read(np.ascontiguousarray(changed), np.array(tokens, np.int32), 1)
        assert np.abs(found.logits - logits).max() > 20 * pair.close


def test_own_entries_see_their_ancestors_only(pair: Pair) -> None:
    session, _, output = begun(pair, 30)
    tree = session.extend(np.repeat(output, 2, 0), ids(3, 5), ids(-1, -1))
    logits, outputs = copied(tree)
    deep = copied(session.extend(outputs, ids(8, 9), ids(0, 1)))
    for branch, (first, second) in enumerate(((3, 8), (5, 9))):
        session.forget()
        alone = copied(session.extend(output, ids(first), ids(-1)))
        same(alone, (logits[branch : branch + 1], outputs[branch : branch + 1]), pair.close)
        below = copied(session.extend(alone[1], ids(second), ids(0)))
        same(below, (deep[0][branch : branch + 1], deep[1][branch : branch + 1]), pair.close)
    assert np.abs(deep[0][0] - deep[0][1]).max() > 20 * pair.close


def test_own_entries_leave_no_trace(pair: Pair) -> None:
    session, _, output = begun(pair, 30)
    more = pair.states(TEXT[:33])[30:]
    session.extend(output, ids(3), ids(-1))
    session.forget()
    found = copied(session.read(more, TEXT[31:34], 1))
    _, logits, outputs = begun(pair, 33)
    same(found, (logits, outputs), pair.close)
    assert session.length == 33
    session.rewind(30)
    same(copied(session.read(more, TEXT[31:34], 1)), (logits, outputs), pair.close)
    session.rewind(0)
    assert session.length == 0


def test_refusals_change_nothing(pair: Pair) -> None:
    session, _, output = begun(pair, 10)
    states = pair.states(TEXT[:12])[10:]
    with pytest.raises(InvalidValue, match="states"):
        session.read(states[:, :-1].copy(), TEXT[11:13], 1)
    with pytest.raises(InvalidValue, match="token id"):
        session.read(states, ids(1, VOCAB), 1)
    with pytest.raises(InvalidValue, match="outputs"):
        session.extend(output[:, :-1].copy(), ids(1), ids(-1))
    with pytest.raises(InvalidValue, match="parents"):
        session.extend(output, ids(1), ids(0))
    session.extend(output, ids(1), ids(-1))
    with pytest.raises(InvalidValue, match="own entries"):
        session.read(states, TEXT[11:13], 1)
    session.forget()
    found = copied(session.read(states, TEXT[11:13], 1))
    _, logits, outputs = begun(pair, 12)
    same(found, (logits, outputs), pair.close)


def test_the_context_is_a_bound(pair: Pair) -> None:
    most = pair.head.info.max_context
    session, states = pair.head.open(), np.tile(pair.states(TEXT[:8]), (most // 8 + 1, 1))
    session.read(states[: most - 1], np.resize(TEXT, most - 1).astype(np.int32), 0)
    output = np.zeros((1, pair.head.info.hidden_size), np.float32)
    session.extend(output, ids(1), ids(-1))
    with pytest.raises(ContextFull):
        session.extend(output, ids(1), ids(0))


def test_close_is_idempotent(pair: Pair) -> None:
    session, _, output = begun(pair, 5)
    session.close()
    session.close()
    with pytest.raises(EngineFailure, match="closed"):
        session.extend(output, ids(1), ids(-1))


@pytest.mark.exports("llama-head")
def test_both_engines_say_the_same(tmp_path: Path) -> None:
    """The exported head in float32 beside the torch module that it was made from."""
    found = []
    for name in NAMES:
        pair = opened(name, tmp_path)
        session, logits, outputs = begun(pair, 60)
        below = session.extend(outputs, ids(3), ids(-1))
        found.append((logits, below.logits.copy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=0.05 * float(np.abs(other).max()))
