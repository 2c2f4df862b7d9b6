"""The llama.cpp engine as a whole: which files it refuses, its settings, failures, decoding, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from foredraft.control import OFF, Fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.llama_native import NativeContext
from foredraft.engines.llama_vocab import native_api
from foredraft.errors import EngineFailure, InvalidValue, ModelFileError
from foredraft.sampling import Sampler
from foredraft.types import Budget, SamplingParams, Step
from tests.support import tiny_models
from tests.support.engine_cases import chain, distance, grow, read
from tests.support.gguf_writer import gguf_bytes, tiny_metadata, tiny_tensors

TINY = LlamaConfig(context=256, threads=1, kv_type="f32", repack=False)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(tiny_models.write_llama(tmp_path_factory.mktemp("model") / "llama.gguf"), TINY)
    yield engine
    engine.close()


# --- files that are refused --------------------------------------------------------------------------------


def refusal(path: Path, config: LlamaConfig = TINY) -> str:
    """The one line that says why ``path`` is no model for this engine."""
    with pytest.raises(ModelFileError) as caught:
        LlamaEngine(path, config)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message.removeprefix(f"{path}: ")


def head(size: int) -> Callable[[Path], bytes]:
    def cut(model: Path) -> bytes:
        with model.open("rb") as file:
            return file.read(size)

    return cut


DAMAGED: dict[str, Callable[[Path], bytes]] = {
    "empty": head(0),
    "64 random bytes": lambda model: np.random.default_rng(0).bytes(64),
    "a text": lambda model: b"<!DOCTYPE html><html><body>404</body></html>",
    "1 KB": head(1 << 10),
    "50 KB": head(50 << 10),
    "50 MB": head(50 << 20),
    "one byte short": lambda model: model.read_bytes()[:-1],
    "zeros behind the magic": lambda model: b"GGUF" + bytes(2000),
    "a header full of ones": lambda model: b"GGUF" + b"\xff" * 2000,
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_never_reaches_native_code(
    what: str, smollm2: Path, llama: LlamaEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case H9; an engine that is open goes on."""

    def native(*arguments: object) -> NoReturn:
        raise AssertionError("native code saw the file")

    monkeypatch.setattr(native_api(), "llama_model_load_from_file", native)
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGED[what](smollm2))
    refusal(path)
    session = llama.open()
    assert read(session, [3, 4]).shape == (1, tiny_models.VOCAB)
    session.close()


def test_no_file_and_a_directory(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.gguf")
    assert "directory" in refusal(tmp_path)


@pytest.mark.parametrize("write", [tiny_models.write_t5_encoder, tiny_models.write_bert])
def test_an_encoder_is_refused(write: Callable[[Path], Path], tmp_path: Path) -> None:
    assert "encoder model" in refusal(write(tmp_path / "encoder.gguf"))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    metadata = {key.replace("llama.", "abacus."): value for key, value in tiny_metadata().items()}
    path.write_bytes(gguf_bytes(metadata | {"general.architecture": "abacus"}, tiny_tensors()))
    assert "unknown model architecture: 'abacus'" in refusal(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tensors = tiny_tensors()
    del tensors["blk.0.ffn_up.weight"]
    path.write_bytes(gguf_bytes(tiny_metadata(), tensors))
    assert "blk.0.ffn_up.weight" in refusal(path)


# --- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", -1),
        ("context", 1 << 25),
        ("threads", -1),
        ("threads", 2000),
        ("lines", 0),
        ("lines", 257),
        ("kv_type", "q3_k"),
    ],
)
def test_settings_out_of_range(name: str, value: int | str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} is {value!r}; allowed: "):
        replace(TINY, **{name: value})  # type: ignore[arg-type]


def test_the_context_comes_from_the_model(tmp_path: Path) -> None:
    engine = LlamaEngine(tiny_models.write_gpt2(tmp_path / "gpt2.gguf"), replace(TINY, context=0))
    assert (engine.trained_context, engine.info.max_context) == (300, 300)
    session = engine.open()
    assert read(session, [3] * 300).shape == (1, tiny_models.VOCAB)
    session.close()
    engine.close()
    engine.close()


def test_rotary_positions_may_go_beyond_the_trained_context(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "llama.gguf")
    engine = LlamaEngine(path, replace(TINY, context=tiny_models.CONTEXT + 256))
    assert engine.info.max_context == engine.trained_context + 256
    engine.close()


SCRIPT_BEYOND = """
import sys
from pathlib import Path
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.errors import InvalidValue
from tests.support.engine_cases import read
try:
    engine = LlamaEngine(Path(sys.argv[1]), LlamaConfig(context=600, threads=1, repack=False))
    read(engine.open(), [3] * 600)
except InvalidValue as error:
    print(error)
"""


def child(script: str, *arguments: object) -> str:
    """Standard output of a Python process of its own, which must end well."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_learned_positions_end_at_the_trained_context(tmp_path: Path) -> None:
    """llama.cpp ends the process there."""
    output = child(SCRIPT_BEYOND, tiny_models.write_gpt2(tmp_path / "gpt2.gguf"))
    assert "context is 600" in output
    assert "300" in output


@pytest.mark.parametrize("context", [1, 2, 8])
def test_a_context_of_a_few_tokens(llama: LlamaEngine, context: int) -> None:
    engine = LlamaEngine(llama.path, replace(TINY, context=context))
    session = engine.open()
    rows = read(session, [3] * context, context)
    assert rows.shape == (context, tiny_models.VOCAB)
    session.close()
    engine.close()


def test_more_leaves_than_lines(llama: LlamaEngine) -> None:
    engine = LlamaEngine(llama.path, replace(TINY, lines=2))
    session = engine.open()
    read(session, [3, 4])
    with pytest.raises(InvalidValue, match="3 leaves"):
        grow(session, [5, 6, 7], [-1, -1, -1], 1)
    rows = grow(session, [5, 6], [-1, -1], 2)
    session.keep([1])
    assert distance(rows[1], fresh(llama, [3, 4, 6])) < 0.02
    session.close()
    engine.close()


def test_one_line_is_a_chain(llama: LlamaEngine) -> None:
    engine = LlamaEngine(llama.path, replace(TINY, lines=1))
    assert (engine.info.tree, engine.info.rollback) == (False, "trim")
    engine.close()


def test_a_cache_type_that_does_not_fit_the_model(llama: LlamaEngine) -> None:
    """Heads of 16 cannot be stored in blocks of 32."""
    with pytest.raises(EngineFailure, match="cannot make a context") as caught:
        LlamaEngine(llama.path, replace(TINY, kv_type="q8_0"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_quantized_cache(smollm2: Path, kv_type: str) -> None:
    rows = []
    for kind in ("f16", kv_type):
        engine = LlamaEngine(smollm2, LlamaConfig(context=256, threads=1, kv_type=kind, repack=False))
        session = engine.open()
        text = engine.tokenizer.encode("The capital of France is", add_special=True, parse_special=False)
        chain(session, [*text, 7, 8], 1)
        session.keep(range(len(text) - 1))
        rows.append(read(session, text[-1:])[0])
        session.close()
        engine.close()
    assert distance(rows[1], rows[0]) < 0.5
    assert rows[1].argmax() == rows[0].argmax()


# --- failures and a full cache -----------------------------------------------------------------------------


def fresh(engine: LlamaEngine, text: list[int]) -> Any:
    session = engine.open()
    row = read(session, text)[0]
    session.close()
    return row


def test_after_a_native_failure_only_close_is_legal(llama: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session, other = llama.open(), llama.open()
    read(session, [3, 4])

    def fail(*arguments: object) -> int:
        return -3

    with monkeypatch.context() as patch:
        patch.setattr(native_api(), "llama_decode", fail)
        with pytest.raises(EngineFailure, match="llama_decode returned -3"):
            chain(session, [5], 1)
    calls: list[Callable[[], object]] = [
        lambda: chain(session, [5], 1),
        lambda: session.keep([]),
        lambda: session.rewind(0),
    ]
    for call in calls:
        with pytest.raises(EngineFailure, match="failed"):
            call()
    session.close()
    session.close()
    assert distance(read(other, [3, 4])[0], fresh(llama, [3, 4])) < 0.02
    other.close()


@pytest.mark.parametrize("seed", range(4))
def test_no_place_of_a_full_cache_is_lost(llama: LlamaEngine, seed: int) -> None:
    """The context is exactly llama.cpp's cache of 256 cells; trees leave holes all over it."""
    random = np.random.default_rng(seed)
    session, text = llama.open(), list[int]()
    for _ in range(30):
        start = session.rewind(int(random.integers(max(0, len(text) - 60), min(len(text), 239) + 1)))
        text = text[:start]
        more = random.integers(0, tiny_models.VOCAB, 240 - start).tolist()
        read(session, more, 0)
        text += more
        tokens = random.integers(0, tiny_models.VOCAB, 16).tolist()
        parents = [int(random.integers(-1, node)) for node in range(16)]
        row = grow(session, tokens, parents, 1)[0]
        path = [15]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        session.keep(path)
        text += [tokens[node] for node in path]
        assert session.length == len(text)
    assert distance(row, fresh(llama, text)) < 0.02
    session.close()


# --- decoding ----------------------------------------------------------------------------------------------

WRITERS: dict[str, Callable[..., Path]] = {
    "llama": tiny_models.write_llama,
    "gemma3": tiny_models.write_gemma3,
    "mamba": tiny_models.write_mamba,
    "jamba": tiny_models.write_jamba,
}


def generate(engine: LlamaEngine, drafter: Drafter, budget: Budget, count: int = 120) -> list[Step]:
    session = engine.open()
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3))
    parts = Parts(session, engine.info, sampler, drafter, Fixed(budget))
    steps = list(decode(parts, [3, 4, 5, 6, 7], Limits(count)))
    session.close()
    drafter.close()
    return steps


def text_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.ids]


@pytest.mark.parametrize("budget", [Budget.chain(1), Budget.chain(5), Budget(8, 4, 3)])
@pytest.mark.parametrize("name", WRITERS)
def test_drafting_changes_no_token(name: str, budget: Budget, tmp_path: Path) -> None:
    """Cases B1 (a window of 8, far exceeded), B6 (recurrent and mixed layers), A7 (a self-draft is always right)."""
    engine = LlamaEngine(WRITERS[name](tmp_path / "model.gguf"), TINY)
    plain = text_of(generate(engine, NullDrafter(), OFF))
    assert len(plain) == 120
    self_draft = generate(engine, ModelDrafter(engine), budget)
    assert text_of(self_draft) == plain
    assert all(step.accepted == step.evaluated > 0 for step in self_draft[1:-1])
    ngram = generate(engine, NgramDrafter(NgramConfig(min_n=1)), budget)
    assert text_of(ngram) == plain
    assert sum(step.drafted for step in ngram) > sum(step.accepted for step in ngram) > 0
    engine.close()


def test_without_checkpoints_decoding_is_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B5."""
    path = tiny_models.write_mamba(tmp_path / "mamba.gguf")
    whole = LlamaEngine(path, TINY)
    plain = text_of(generate(whole, NullDrafter(), OFF))
    whole.close()
    monkeypatch.setattr(NativeContext, "checkpoint", lambda self: None)
    engine = LlamaEngine(path, TINY)
    steps = generate(engine, NgramDrafter(NgramConfig(min_n=1)), Budget.chain(4))
    assert text_of(steps) == plain
    assert {step.reason for step in steps[1:]} == {f"rollback: none, plain decoding ({engine.info.reason})"}
    engine.close()


# --- memory ------------------------------------------------------------------------------------------------

SCRIPT_MEMORY = """
import json, resource, sys
from pathlib import Path
import numpy as np
from foredraft.control import Fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.llama_vocab import load_vocab
from foredraft.sampling import Sampler
from foredraft.types import Budget, SamplingParams

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

with load_vocab(Path(sys.argv[1])) as vocab:
    text = "one two three four five six seven eight nine ten. " * 60
    prompt = vocab.encode(text, add_special=True, parse_special=False)
before = peak()
engine = LlamaEngine(Path(sys.argv[1]), LlamaConfig(context=2048, threads=1, repack=False))
session = engine.open()
parts = Parts(session, engine.info, Sampler(SamplingParams()), NgramDrafter(), Fixed(Budget(12, 6, 2)))
opened = peak()
tokens = sum(step.generated for step in decode(parts, prompt, Limits(200)))
json.dump({"tokens": tokens, "prompt": len(prompt), "loaded": opened - before, "all": peak() - before}, sys.stdout)
"""


def test_memory_of_a_generation(smollm2: Path) -> None:
    """Case H16: weights, KV cache and 200 MB; an array of context × vocabulary would be 403 MB."""
    layers, kv_heads, head_size, context, vocab_size = 30, 3, 64, 2048, 49152
    kv_bytes = layers * 2 * kv_heads * head_size * context * 2
    assert context * vocab_size * 4 > 400e6
    used = json.loads(child(SCRIPT_MEMORY, smollm2))
    assert used["tokens"] == 200
    assert used["prompt"] > 600
    assert used["all"] < smollm2.stat().st_size + kv_bytes + 200e6
