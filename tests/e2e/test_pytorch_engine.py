"""The PyTorch engine: chains and trees against llama.cpp and plain attention, cache, settings, failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.control import OFF, Fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines import pytorch
from foredraft.engines.base import Session
from foredraft.engines.pytorch import TorchConfig, TorchEngine, TorchSession
from foredraft.errors import ContextFull, EngineFailure, InvalidValue, ModelFileError
from foredraft.models.decoder import Decoder
from foredraft.models.load import load_decoder
from foredraft.sampling import Sampler
from foredraft.trees import path_to
from foredraft.types import Budget, Logits, SamplingParams
from tests.support import tiny_models, tiny_torch
from tests.support.engine_cases import chain, distance, grow, ids, node_text, read
from tests.support.llama_float import float_engine

SAME = 1e-5
WRITERS: dict[str, tuple[Callable[[Path], Path], float]] = {
    "llama3": (tiny_models.write_llama3, 1e-4),
    "qwen2": (tiny_models.write_qwen2, 1e-4),
    "qwen3": (tiny_models.write_qwen3, 1e-4),
    "gemma2": (tiny_models.write_gemma2, 1e-3),
    "gemma3": (tiny_models.write_gemma3, 1e-3),
}
"""And how far llama.cpp may be: its GELU is a table of 16-bit floats."""
TEXT = np.random.default_rng(5).integers(0, tiny_models.VOCAB, 700).tolist()
TREE = [-1, 0, 0, 1, -1, 4, 2, 2, 3, 5, 9]


@pytest.fixture(scope="module", params=WRITERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    write, tolerance = WRITERS[request.param]
    return write(tmp_path_factory.mktemp("model") / f"{request.param}.gguf"), tolerance


@pytest.fixture(scope="module")
def decoder(model: tuple[Path, float]) -> Decoder:
    return load_decoder(model[0])


@pytest.fixture
def session(decoder: Decoder) -> Iterator[TorchSession]:
    engine = TorchEngine(decoder)
    session = engine.open()
    yield session
    session.close()
    engine.close()


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Windows of 8 tokens in five of six layers."""
    return tiny_models.write_gemma3(tmp_path_factory.mktemp("gemma") / "gemma3.gguf")


@pytest.fixture(scope="module")
def small(gemma: Path) -> Decoder:
    return load_decoder(gemma)


def far(got: Logits, want: Logits) -> float:
    return max(distance(one, other) for one, other in zip(got, want, strict=True))


def written_out(decoder: Decoder, text: list[int]) -> Logits:
    """The row after ``text``, without a cache."""
    row: Logits = tiny_torch.forward(decoder, text, 1)[0]
    return row


# --- the same rows as others -------------------------------------------------------------------------------


def test_chains_and_trees_agree_with_llama_cpp(model: tuple[Path, float], session: TorchSession) -> None:
    path, tolerance = model
    engine = float_engine(path, lines=16)
    other = engine.open()
    assert far(read(session, TEXT[:20], 20), read(other, TEXT[:20], 20)) < tolerance
    tokens = TEXT[50 : 50 + len(TREE)]
    assert far(grow(session, tokens, TREE, 11), grow(other, tokens, TREE, 11)) < tolerance
    for one in (session, other):
        one.keep(path_to(TREE, 10))
    assert session.length == other.length == 24
    assert far(read(session, TEXT[80:90], 10), read(other, TEXT[80:90], 10)) < tolerance
    for one in (session, other):
        assert one.rewind(13) == 13
    assert far(read(session, TEXT[90:95], 5), read(other, TEXT[90:95], 5)) < tolerance
    other.close()
    engine.close()


def test_all_rows_agree_with_attention_written_out(decoder: Decoder, session: TorchSession) -> None:
    rows = read(session, TEXT, len(TEXT))
    assert rows.shape == (700, tiny_models.VOCAB) and rows.dtype == np.float32
    assert far(rows, tiny_torch.forward(decoder, TEXT)) < SAME


def test_a_tree_is_its_paths(decoder: Decoder, session: TorchSession) -> None:
    tokens = TEXT[50 : 50 + len(TREE)]
    read(session, TEXT[:9])
    rows = grow(session, tokens, TREE, len(TREE))
    for node in range(len(TREE)):
        assert distance(rows[node], written_out(decoder, node_text(TEXT[:9], tokens, TREE, node))) < SAME
    straight = TorchEngine(decoder).open()
    read(straight, TEXT[:9])
    path = path_to(TREE, 10)
    assert distance(chain(straight, [tokens[node] for node in path], 1)[0], rows[10]) < SAME


@dataclass
class Walk:
    """Random calls beside the plain text that the session should hold."""

    session: Session
    decoder: Decoder
    random: np.random.Generator
    text: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def extend(self) -> None:
        count, size = int(self.random.integers(1, 7)), len(self.tokens)
        tokens = self.random.integers(0, tiny_models.VOCAB, count).tolist()
        parents = [int(self.random.integers(-1, size + index)) for index in range(count)]
        rows = int(self.random.integers(0, count + 1))
        scores = grow(self.session, tokens, parents, rows)
        self.tokens, self.parents = self.tokens + tokens, self.parents + parents
        for row, node in enumerate(range(len(self.tokens) - rows, len(self.tokens))):
            text = node_text(self.text, self.tokens, self.parents, node)
            assert distance(scores[row], written_out(self.decoder, text)) < SAME

    def keep(self) -> None:
        path = path_to(self.parents, int(self.random.integers(-1, len(self.tokens))))
        self.session.keep(path)
        self.settle(self.text + [self.tokens[node] for node in path])

    def rewind(self) -> None:
        length = int(self.random.integers(0, len(self.text) + 1))
        assert self.session.rewind(length) == length
        self.settle(self.text[:length])

    def settle(self, text: list[int]) -> None:
        self.text, self.tokens, self.parents = text, [], []
        assert self.session.length == len(text)


@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_calls(seed: int, small: Decoder) -> None:
    """Rows are those of the text alone, across windows of 8 tokens."""
    random = np.random.default_rng(seed)
    walk = Walk(TorchEngine(small).open(), small, random)
    for choice in random.integers(0, 7, 40):
        (walk.extend if choice < 4 else walk.keep if choice < 6 else walk.rewind)()
    walk.extend()


@pytest.mark.parametrize("piece", [1, 3, 16])
def test_pieces_of_a_prompt(piece: int, small: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch, "PIECE", piece)
    engine = TorchEngine(small, taps=[2])
    session = engine.open()
    want = tiny_torch.forward(small, TEXT[:30])
    for rows in (0, 1, 7, 30):
        scores = session.extend(ids(TEXT[:30]), ids(range(-1, 29)), rows)
        assert scores.logits.shape == (rows, tiny_models.VOCAB)
        assert scores.hidden is not None and scores.hidden.shape == (30, 32), "of all tokens, scored or not"
        assert rows == 0 or far(scores.logits, want[-rows:]) < SAME
        session.keep([])
    tokens = TEXT[50 : 50 + len(TREE)]
    tree = grow(session, tokens, TREE, 11)
    for node in range(11):
        assert distance(tree[node], written_out(small, node_text([], tokens, TREE, node))) < SAME


def test_sessions_are_independent(small: Decoder) -> None:
    engine = TorchEngine(small)
    one, other = engine.open(), engine.open()
    read(one, TEXT[:5])
    read(other, TEXT[20:40])
    one.close()
    assert distance(read(other, [3])[0], written_out(small, [*TEXT[20:40], 3])) < SAME


@pytest.mark.parametrize("budget", [Budget.chain(4), Budget(12, 4, 3)])
def test_speculation_gives_the_plain_text(budget: Budget, smollm2: Path) -> None:
    engine = TorchEngine(smollm2, TorchConfig(context=256))
    prompt = [1, 504, 3575, 282, 4649, 314, 504, 3575, 282, 4649]

    def text(drafter: Drafter, nodes: Budget) -> tuple[list[int], int]:
        session = engine.open()
        parts = Parts(session, engine.info, Sampler(SamplingParams()), drafter, Fixed(nodes))
        steps = list(decode(parts, prompt, Limits(40)))
        session.close()
        return [id for step in steps for id in step.ids], sum(step.accepted for step in steps)

    plain, none = text(NullDrafter(), OFF)
    drafted, accepted = text(NgramDrafter(NgramConfig(min_n=1)), budget)
    assert drafted == plain and len(plain) == 40
    assert none == 0 and accepted > 0
    engine.close()


# --- hidden states -----------------------------------------------------------------------------------------


def test_taps_are_the_outputs_of_layers(small: Decoder) -> None:
    engine = TorchEngine(small, taps=[0, 3, 5])
    assert engine.info.hidden_size == 3 * 32
    session = engine.open()
    read(session, TEXT[:6])
    scores = session.extend(ids(TEXT[6:9]), ids([-1, 0, 1]), 2)
    assert scores.hidden is not None
    assert scores.hidden.shape == (3, 96) and scores.hidden.dtype == np.float32
    outputs: list[torch.Tensor] = []
    hooks = [small.blocks[layer].register_forward_hook(lambda *args: outputs.append(args[2])) for layer in (0, 3, 5)]
    tiny_torch.forward(small, TEXT[:9])
    for hook in hooks:
        hook.remove()
    want = torch.cat(outputs, -1)[-3:].numpy()
    np.testing.assert_allclose(scores.hidden, want, atol=1e-4)
    with torch.inference_mode():
        logits = small.logits(torch.from_numpy(scores.hidden[1:, 64:])).numpy()
    np.testing.assert_allclose(scores.logits, logits, atol=1e-4)
    assert TorchEngine(small).info.hidden_size is None
    assert TorchEngine(small).open().extend(ids([1]), ids([-1]), 1).hidden is None
    for taps in ([6], [-1]):
        with pytest.raises(InvalidValue, match=r"taps is .*; allowed: layers from 0 to 5"):
            TorchEngine(small, taps=taps)


# --- the cache ---------------------------------------------------------------------------------------------


def test_the_cache_grows_with_the_text(small: Decoder) -> None:
    engine = TorchEngine(small, TorchConfig(context=1500))
    session = engine.open()
    sizes = []
    for _ in range(15):
        read(session, TEXT[:100])
        assert session._cache is not None
        sizes.append(session._cache.capacity)
    assert sizes == [256] * 2 + [512] * 3 + [1024] * 5 + [1500] * 5
    text = TEXT[:100] * 15
    session.rewind(1499)
    assert distance(read(session, text[-1:])[0], written_out(small, text)) < SAME


def test_a_full_context(small: Decoder) -> None:
    session = TorchEngine(small, TorchConfig(context=20)).open()
    read(session, TEXT[:10])
    grow(session, TEXT[10:15], [-1, 0, 0, 1, 2], 1)
    with pytest.raises(ContextFull, match="21 tokens do not fit into a context of 20"):
        grow(session, TEXT[15:21], [4, 5, 6, 7, 8, 9], 1)
    assert session.length == 10
    row = grow(session, TEXT[15:20], [4, 5, 6, 7, 8], 1)[0]
    text = [*TEXT[:10], TEXT[10], TEXT[12], TEXT[14], *TEXT[15:20]]
    assert distance(row, written_out(small, text)) < SAME
    session.keep([0, 2, 4, 5, 6, 7, 8, 9])
    assert session.length == 18


def test_bfloat16(gemma: Path, small: Decoder) -> None:
    engine = TorchEngine(gemma, TorchConfig(dtype="bfloat16"))
    session = engine.open()
    rows = read(session, TEXT[:40], 40)
    assert rows.dtype == np.float32
    assert session._cache is not None and session._cache._rows[0][0].dtype == torch.bfloat16
    off = far(rows, tiny_torch.forward(small, TEXT[:40]))
    assert 1e-3 < off < 0.2
    tokens = TEXT[50 : 50 + len(TREE)]
    tree = grow(session, tokens, TREE, 11)
    session.keep([])
    assert far(tree[[10]], chain(session, [tokens[node] for node in path_to(TREE, 10)], 1)) < 0.1


# --- settings and failures ---------------------------------------------------------------------------------


def test_what_it_says_of_itself(gemma: Path, small: Decoder, smollm2: Path) -> None:
    info = TorchEngine(gemma).info
    assert (info.name, info.model, info.vocab_size, info.max_context) == ("pytorch", "gemma3.gguf", 24, 4096)
    assert (info.tree, info.rollback, info.widths, info.exact_width) == (True, "trim", None, None)
    info = TorchEngine(small, TorchConfig(context=100)).info
    assert (info.model, info.max_context) == ("gemma3", 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": -1}, "context is -1; allowed: 0"),
        ({"threads": -2}, "threads is -2; allowed: 0"),
        ({"dtype": "int4"}, "dtype is 'int4'; allowed: float32, bfloat16"),
    ],
)
def test_settings_out_of_range(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        TorchConfig(**settings)  # type: ignore[arg-type]


def test_devices(gemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for device in ("cuda", "mps", "tpu", "cuda:7"):
        with pytest.raises(InvalidValue, match=rf"device is '{device}'; allowed: cpu \(on this machine\)"):
            TorchEngine(gemma, TorchConfig(device=device))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pytorch.available_devices() == ["cpu", "cuda", "cuda:0", "cuda:1", "mps"]


def test_threads_are_set_only_if_asked_for(small: Decoder) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        TorchEngine(small)
        assert torch.get_num_threads() == 3
        TorchEngine(small, TorchConfig(threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        TorchEngine(tmp_path / "none.gguf")


def test_wrong_arguments_change_nothing(small: Decoder) -> None:
    session = TorchEngine(small).open()
    read(session, TEXT[:5])
    chain(session, TEXT[5:8], 0)
    for tokens, parents, rows in (
        ([1], [3], 1),
        ([1], [-2], 1),
        ([24], [2], 1),
        ([-1], [2], 1),
        ([1], [2], 2),
        ([], [], 0),
        ([1, 2], [2], 1),
    ):
        with pytest.raises(InvalidValue):
            grow(session, tokens, parents, rows)
    for path in ([1], [0, 2], [3], [-1]):
        with pytest.raises(InvalidValue, match="a root-first path"):
            session.keep(path)
    with pytest.raises(InvalidValue, match="length is 6; allowed: 0 to 5"):
        session.rewind(6)
    assert distance(grow(session, [7], [2], 1)[0], written_out(small, [*TEXT[:8], 7])) < SAME


def test_after_a_failure_only_close_is_legal(small: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(small)
    session, other = engine.open(), engine.open()
    read(session, TEXT[:5])

    def fail(*arguments: object) -> None:
        raise RuntimeError("can't allocate memory\nand a second line")

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "hidden", fail)
        with pytest.raises(EngineFailure, match=r"PyTorch failed: can't allocate memory$"):
            chain(session, [1], 1)
    calls: list[Callable[[], object]] = [
        lambda: chain(session, [1], 1),
        lambda: session.keep([]),
        lambda: session.rewind(0),
    ]
    for call in calls:
        with pytest.raises(EngineFailure, match="has failed"):
            call()
    session.close()
    session.close()
    for call in calls:
        with pytest.raises(EngineFailure, match="closed"):
            call()
    assert distance(read(other, TEXT[:3])[0], written_out(small, TEXT[:3])) < SAME
    engine.close()
    engine.close()
    with pytest.raises(EngineFailure, match="the engine is closed"):
        engine.open()
