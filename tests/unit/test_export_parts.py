"""Parts of an export: the check of its bits, the measures of its quality, memory and disk, facts about sources."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from foredraft.engines.base import EngineInfo, Session
from foredraft.engines.scripted import ScriptedEngine
from foredraft.errors import ModelFileError
from foredraft.export import resources
from foredraft.export.resources import Needs, ShortOfResourcesError, check_resources, needs
from foredraft.export.selfcheck import CHUNKINGS, LENGTH, TREES, Difference, Evidence, check_exact
from foredraft.export.source import file_facts, open_source
from foredraft.models.config import DecoderConfig
from foredraft.models.load import load_decoder, read_config
from foredraft.noise import hash_ids
from foredraft.trees import path_to
from foredraft.types import Ids, Logits, Scores
from tests.support import tiny_models, tiny_torch
from tests.support.exporter import Program, ProgramSpec, lower, quality
from tests.support.exports import ROWS, TINY, write_tiny

VOCAB = 50


# --- the check of bits -------------------------------------------------------------------------------------


def table(text: tuple[int, ...]) -> Logits:
    """A hash of the whole text."""
    key = int.from_bytes(hashlib.sha256(bytes(text)).digest()[:4], "big")
    return (hash_ids(key, np.arange(VOCAB)) >> np.uint64(40)).astype(np.float32)


Fault = Callable[[int, Ids, int], bool]
"""(capacity, parents of one pass, tokens kept) -> are the rows of this pass wrong?"""


@dataclass
class Faulty:
    """A session whose rows are one unit in the last place off where ``fault`` says so."""

    inner: Session
    room: int
    fault: Fault

    @property
    def length(self) -> int:
        return self.inner.length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        scores = self.inner.extend(tokens, parents, rows)
        if self.fault(self.room, parents, self.inner.length):
            return Scores(np.nextafter(scores.logits, np.float32(np.inf)))
        return scores

    def keep(self, path: Sequence[int]) -> None:
        self.inner.keep(path)

    def rewind(self, length: int) -> int:
        return self.inner.rewind(length)

    def close(self) -> None:
        self.inner.close()


class FaultyEngine:
    """Opens sessions of a scripted engine, with a fault."""

    def __init__(self, fault: Fault) -> None:
        self.inner = ScriptedEngine(table, VOCAB, 4096)
        self.info: EngineInfo = self.inner.info
        self.fault = fault
        self.opened: list[int] = []

    def open(self, room: int = 0) -> Session:
        self.opened.append(room)
        return Faulty(self.inner.open(), room, self.fault)

    def close(self) -> None:
        self.inner.close()


def checked(fault: Fault, capacities: Sequence[int] = (320, 1024)) -> Evidence:
    engine = FaultyEngine(fault)
    return check_exact(engine, engine.open, capacities)


def is_chain(parents: Ids) -> bool:
    return bool((parents == np.arange(-1, len(parents) - 1)).all())


def found(evidence: Evidence) -> Difference:
    """The difference, which makes the evidence a bad one."""
    assert not evidence.exact and evidence.difference is not None
    return evidence.difference


def test_an_exact_engine_passes() -> None:
    engine = FaultyEngine(lambda room, parents, kept: False)
    evidence = check_exact(engine, engine.open, [320, 1024])
    trees = [(parents, start) for parents in TREES for start in (0, 1, 33)]
    rows = (len(CHUNKINGS) + 4) * LENGTH + sum(len(path_to(parents, len(parents) - 1)) + 4 for parents, _ in trees)
    assert evidence == Evidence(rows, len(CHUNKINGS) + 4 + len(trees), None)
    assert evidence.exact
    assert engine.opened.count(320) == engine.opened.count(1024) == 2
    assert len(engine.opened) == 1 + evidence.ways


@pytest.mark.parametrize("width", [2, 3, 8, 9, 16, 17, 33, 64])
def test_rows_that_depend_on_the_width(width: int) -> None:
    difference = found(checked(lambda room, parents, kept: len(parents) == width and is_chain(parents)))
    assert difference.what == f"passes of {width} tokens" and difference.position == 0
    assert difference.largest == 1.0  # one unit in the last place of numbers from 2**23 on
    assert str(difference) == f"passes of {width} tokens: the logits at position 0 differ by up to 1"


def test_rows_that_depend_on_the_width_behind_much_text() -> None:
    difference = found(checked(lambda room, parents, kept: len(parents) > 1 and kept >= 40))
    assert (difference.what, difference.position) == ("passes of 2 tokens", 40)


def test_rows_that_depend_on_an_odd_mixture() -> None:
    """Thirty at a time, which only the mixed chunks have."""
    difference = found(checked(lambda room, parents, kept: len(parents) == 30))
    assert (difference.what, difference.position) == ("passes of 1, 7, 2, 30 tokens", 10)


@pytest.mark.parametrize(("least", "what"), [(1, "one-token passes"), (2, "passes of 8 tokens")])
def test_rows_that_depend_on_the_capacity(least: int, what: str) -> None:
    difference = found(checked(lambda room, parents, kept: room == 1024 and len(parents) >= least))
    assert difference.what == f"{what} in a cache of 1024 slots"


def test_rows_that_depend_on_siblings() -> None:
    difference = found(checked(lambda room, parents, kept: not is_chain(parents) and kept > 1))
    assert difference.what == "a tree with parents [-1, -1, 0, 1] behind 33 tokens"
    assert difference.position == 33


def test_rows_that_depend_on_the_tree_that_was_kept() -> None:
    """What a path's tokens left in the cache shows only behind them."""
    after_tree = False

    def fault(room: int, parents: Ids, kept: int) -> bool:
        nonlocal after_tree
        after_tree = kept > 0 and (after_tree or not is_chain(parents))
        was_tree = not is_chain(parents)
        after_tree = after_tree or was_tree
        return after_tree and not was_tree

    difference = found(checked(fault))
    assert difference.what == "a tree with parents [-1, -1, 0, 1] behind 0 tokens"
    assert difference.position == 2


# --- quality -----------------------------------------------------------------------------------------------

LAW = np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]])
OTHER = np.array([[0.25, 0.25, 0.25, 0.25], [0.125, 0.125, 0.25, 0.5]])
IDS = [3, 1, 0, 2]
"""Two tokens that are only read, then two with a row each; the token behind the first of these rows is IDS[3]."""


def logits(law: np.ndarray, shift: float) -> Logits:
    return np.asarray(np.log(law) + shift, np.float32)


def test_measures_of_two_laws() -> None:
    measured = quality.compare(logits(LAW, 3.0), logits(OTHER, -1.0), IDS, None)
    first = 0.5 * math.log(2) + 0.25 * math.log(1) + 0.25 * math.log(0.5)
    second = 0.5 * math.log(2) + 0.25 * math.log(1) + 0.25 * math.log(0.5)
    assert measured == pytest.approx(
        {"perplexity_source": 8.0, "perplexity": 4.0, "mean_kl": (first + second) / 2, "same_top": 0.5}, abs=2e-5
    )


def test_a_law_is_itself() -> None:
    measured = quality.compare(logits(LAW, 0.0), logits(LAW, 5.0), IDS, None)
    assert measured["mean_kl"] == pytest.approx(0, abs=1e-5) and measured["same_top"] == 1.0
    assert measured["perplexity"] == measured["perplexity_source"] == pytest.approx(8.0, abs=1e-4)


def test_measures_of_restricted_rows() -> None:
    """Both laws within ids 0 and 2: 4/5, 1/5 (mass 5/8) beside 1/2, 1/2, and 1/2, 1/2 (1/2) beside 1/3, 2/3."""
    rows = logits(OTHER, 2.0)
    rows[:, [1, 3]] = -np.inf
    measured = quality.compare(logits(LAW, 0.0), rows, IDS, (0, 2))
    first = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    second = 0.5 * math.log(0.5 / (1 / 3)) + 0.5 * math.log(0.5 / (2 / 3))
    assert measured == pytest.approx(
        {"perplexity_source": 8.0, "kept_mass": (5 / 8 + 1 / 2) / 2, "mean_kl": (first + second) / 2, "same_top": 0.5},
        abs=2e-5,
    )


def test_round_trip() -> None:
    eager = np.array([[0.0, 4.0], [0.0, 4.0]], np.float32)
    program = eager + np.array([[0.5, -0.5], [0.5, -0.5]], np.float32)
    assert quality.round_trip(eager, program) == {"round_trip_largest": 0.5, "round_trip_relative": 0.25}
    assert quality.round_trip(eager, eager) == {"round_trip_largest": 0.0, "round_trip_relative": 0.0}


def test_rows_that_are_scored() -> None:
    engine = ScriptedEngine(table, VOCAB, 4096)
    text = (np.arange(80) % VOCAB).tolist()
    rows = quality.scored_rows(engine, text)
    assert rows.shape == (80 - quality.PREFIX, VOCAB)
    assert (rows[-1] == table(tuple(text))).all() and (rows[0] == table(tuple(text[: quality.PREFIX + 1]))).all()
    assert quality.all_rows(engine, text).shape == (80, VOCAB)
    assert quality.scored_rows(engine, text[:10]).shape == (1, VOCAB)


@pytest.mark.parametrize("model", TINY)
def test_the_module_that_is_exported_is_the_model(model: str, tmp_path: Path) -> None:
    """Before anything is quantized: 40 tokens, windows of 8."""
    decoder = load_decoder(write_tiny(model, tmp_path))
    program = Program(decoder, ProgramSpec(context=64, embedding_bits=8))
    program.embedding = decoder.embedding
    text = np.random.default_rng(3).integers(0, tiny_models.VOCAB, 40).tolist()
    rows = quality.eager_rows(program, text)
    np.testing.assert_allclose(rows, tiny_torch.forward(decoder, text), rtol=1e-3, atol=1e-3)


def test_the_module_with_some_output_rows(tmp_path: Path) -> None:
    decoder = load_decoder(write_tiny("llama", tmp_path))
    whole, part = (Program(decoder, ProgramSpec(64, rows=rows, embedding_bits=8)) for rows in (None, ROWS))
    np.testing.assert_array_equal(quality.eager_rows(part, [1, 2, 3]), quality.eager_rows(whole, [1, 2, 3])[:, ROWS])


# --- memory and disk ---------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> DecoderConfig:
    return read_config(tiny_models.write_llama(tmp_path / "llama.gguf"))


def test_needs(config: DecoderConfig) -> None:
    """Two layers of 32 × 32 q and o, 16 × 32 k and v, three of 64 × 32; an embedding of 24 × 32, tied."""
    inner, table_size = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32), 24 * 32
    found = needs(config, "int4", "int8")
    assert found.parameters == inner + table_size
    assert found.disk == int(inner * 4.5 / 8 + table_size * (1 + 5 / 8))
    assert found.memory > 1e9 + 5 * inner
    assert needs(config, "float32", "float32").disk > 4 * inner
    assert needs(replace(config, tied=False), "int4", "int4").parameters == inner + 2 * table_size


def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: 2_900_000_000)
    check_resources(Needs(1, 2_900_000_000, 1), tmp_path / "out")
    with pytest.raises(ShortOfResourcesError, match=r"needs about 3\.1 GB of memory, 2\.9 GB are available; close"):
        check_resources(Needs(1, 3_100_000_000, 1), tmp_path / "out")
    monkeypatch.setattr(resources, "free_memory", lambda: None)
    check_resources(Needs(1, 1 << 60, 1), tmp_path / "out")


def test_too_little_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000_000 if path == tmp_path else 0)
    )
    check_resources(Needs(1, 1, 900_000_000), tmp_path / "not" / "there" / "out")
    with pytest.raises(ShortOfResourcesError) as caught:
        check_resources(Needs(1, 1, 1_000_000_000), tmp_path / "not" / "there" / "out")
    assert str(caught.value) == (
        f"this export needs about 1.1 GB of disk, {tmp_path} has 1.0 GB; free some, or choose another --output"
    )


# --- sources and operators ---------------------------------------------------------------------------------


def test_facts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "weights π.gguf"
    data = b"x" * 5_000_000
    path.write_bytes(data)
    facts = file_facts(path)
    assert (facts.file, facts.bytes, facts.sha256) == (path.name, len(data), hashlib.sha256(data).hexdigest())


def test_a_gguf_source(tmp_path: Path) -> None:
    source = open_source(tiny_models.write_llama(tmp_path / "some.gguf"))
    assert (source.name, source.files, source.config.architecture) == ("tiny-llama", (source.path,), "llama")
    assert source.facts() == file_facts(source.path)
    assert source.tokenizer().facts.vocab_size == tiny_models.VOCAB


def test_a_directory_as_source(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_torch.save("llama", folder, max_shard_size="50KB")
    source = open_source(folder)
    weights = sorted(folder.glob("*.safetensors"))
    assert len(weights) > 1 and source.files == (folder / "config.json", *weights)
    whole = b"".join(path.read_bytes() for path in source.files)
    facts = source.facts()
    assert (facts.file, facts.bytes, facts.sha256) == ("model", len(whole), hashlib.sha256(whole).hexdigest())
    assert source.name == "model" and source.bytes == len(whole)
    (folder / "notes.txt").write_text("not a weight")
    assert open_source(folder).facts() == facts
    weights[0].write_bytes(weights[0].read_bytes()[:-1] + b"?")
    assert source.facts().sha256 != facts.sha256


def test_a_source_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        open_source(tmp_path / "none.gguf")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MixtralForCausalLM"]}))
    with pytest.raises(ModelFileError, match=r"MixtralForCausalLM.*allowed: LlamaForCausalLM, Qwen2ForCausalLM"):
        open_source(tmp_path)
    with pytest.raises(ModelFileError, match=r"mamba.*llama, qwen2, qwen3, gemma2, gemma3"):
        open_source(tiny_models.write_mamba(tmp_path / "mamba.gguf"))


def test_names_of_operators() -> None:
    listed = [("aten::mul", "out"), ("aten::bmm", "out"), ("prim::size", ""), ("aten::mul", "out")]
    plan = SimpleNamespace(operators=[SimpleNamespace(name=name, overload=overload) for name, overload in listed])
    manager = SimpleNamespace(executorch_program=SimpleNamespace(execution_plan=[plan]))
    assert lower.operators(manager) == ("aten::bmm.out", "aten::mul.out", "prim::size")
