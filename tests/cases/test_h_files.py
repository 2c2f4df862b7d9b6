"""Cases H9, H13, H16: damaged files and broken drafts never take the target down; memory follows the rows needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foredraft.decode import Limits
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.scripted import markov_table
from foredraft.errors import ContextFull, EngineFailure, ModelFileError
from foredraft.types import Budget
from tests.support.gguf_writer import string
from tests.support.models import ensure_model
from tests.support.real import asks
from tests.support.scripted import (
    VOCAB,
    Breaks,
    RecordingEngine,
    Run,
    Says,
    always_right,
    generate,
    toy_engine,
)

FOUR = Budget.chain(4)
TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))


# --- H9 ---------------------------------------------------------------------------------------------------------------


def damaged(name: str) -> bytes:
    """The files of case H9."""
    if name.startswith("first "):
        with ensure_model("smollm2-135m").open("rb") as whole:
            return whole.read(int(name.removeprefix("first ")))
    head = b"GGUF" + np.array([3], "<u4").tobytes()
    empty_key = head + np.array([0, 1], "<u8").tobytes() + string("") + b"\0\0\0\0\7"
    dimension = np.array([2], "<u4").tobytes() + np.array([0, 4], "<u8").tobytes() + bytes(12)
    zero_dimension = head + np.array([1, 0], "<u8").tobytes() + string("w") + dimension
    files = {
        "empty": b"",
        "empty key": empty_key,
        "zero dimension": zero_dimension + bytes(88 - len(zero_dimension)),
        "random": np.random.default_rng(3).bytes(64),
    }
    assert len(empty_key) == 37
    return files[name]


@pytest.mark.parametrize(
    "name", ["first 1024", "first 50000", "first 50000000", "empty", "empty key", "zero dimension", "random"]
)
def test_h9_a_damaged_draft_is_refused_and_the_target_still_serves(
    name: str, tmp_path: Path, tiny_llama: LlamaEngine
) -> None:
    """Case H9: one clear line before native code sees the file; an open target answers as before."""
    run = asks(tiny_llama, [5, 6, 7], 20)
    before = generate(run).ids
    path = tmp_path / "draft.gguf"
    path.write_bytes(damaged(name))
    with pytest.raises(ModelFileError) as caught:
        LlamaEngine(path, LlamaConfig(context=256, threads=1))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert generate(run).ids == before


def test_h9_a_missing_draft_and_a_folder_are_refused_too(tmp_path: Path, tiny_llama: LlamaEngine) -> None:
    """Case H9."""
    run = asks(tiny_llama, [5, 6, 7], 20)
    before = generate(run).ids
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelFileError):
            LlamaEngine(path)
    assert generate(run).ids == before


# --- H13 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["begin", "propose", "observe"])
@pytest.mark.parametrize("number", [0, 3])
def test_h13_a_draft_that_raises_leaves_plain_decoding(where: str, number: int) -> None:
    """Case H13: any error of a draft, at any time: the answer is unaffected, the reason is reported."""
    answer = generate(RUN.drafting(Breaks(TABLE, where, number), FOUR))
    assert answer.ids == generate(RUN).ids
    assert answer.reasons[-2] == "breaks failed, drafting is off for this request: the draft broke"


@pytest.mark.parametrize("fails_at", range(12))
@pytest.mark.parametrize("failure", [EngineFailure("llama_decode returned -3"), ContextFull("no room")])
@pytest.mark.parametrize("budget", [FOUR, Budget(9, 4, 3)], ids=["chain", "tree"])
def test_h13_a_draft_engine_that_fails_in_any_pass(fails_at: int, failure: Exception, budget: Budget) -> None:
    """Case H13: native code of the draft reports an error: in its prefill, at the first or a later level."""
    engine = RecordingEngine(RUN.engine, fails_at=fails_at, failure=failure)
    answer = generate(RUN.drafting(ModelDrafter(engine), budget))
    assert answer.ids == generate(RUN).ids
    assert answer.reasons[-2] == f"model failed, drafting is off for this request: {failure}"
    assert len(engine.sessions[0].passes) == fails_at + 1, "never asked again in this request"


def test_h13_the_next_request_drafts_again() -> None:
    """Case H13: off for this request only."""
    drafter = Breaks(TABLE, "propose", 1)
    assert generate(RUN.drafting(drafter, FOUR)).reasons[-2] is not None
    again = Says(drafter.propose, "again")
    again.begin(RUN.prompt)
    healthy = generate(RUN.drafting(always_right(TABLE), FOUR))
    assert healthy.summary.accepted > 0
    engine = RecordingEngine(RUN.engine, fails_at=4, failure=EngineFailure("once"))
    model = ModelDrafter(engine)
    assert generate(RUN.drafting(model, FOUR)).summary.accepted == 0
    engine.fails_at = None
    assert generate(RUN.drafting(model, FOUR)).summary.alpha == 1.0


def test_h13_a_chain_of_drafters_goes_on_without_the_broken_one() -> None:
    """Case H13: the other drafters are not its fault."""
    engine = RecordingEngine(RUN.engine, fails_at=3, failure=EngineFailure("broken"))
    chain = ChainDrafter([ModelDrafter(engine), always_right(TABLE), NgramDrafter()])
    answer = generate(RUN.drafting(chain, FOUR))
    assert answer.ids == generate(RUN).ids
    assert answer.summary.alpha == 1.0
    assert set(answer.summary.sources) <= {"model", "right"} and answer.summary.sources["right"] >= 6


# --- H16 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [Budget(0, 0), FOUR, Budget(9, 4, 3)], ids=["off", "chain", "tree"])
def test_h16_only_the_rows_of_a_round_are_scored(budget: Budget) -> None:
    """Case H16: no row of the prompt but its last, and N + 1 rows for N drafted tokens."""
    run = replace(RUN, prompt=tuple(5 + index % 80 for index in range(1500)))
    answer = generate(run.drafting(ModelDrafter(run.engine), budget))
    prefill = len(answer.steps) - len(answer.rounds)
    assert [one.rows for one in answer.session.passes[:prefill]] == [0] * prefill
    assert [one.rows for one in answer.session.passes[prefill:]] == [step.drafted + 1 for step in answer.rounds]


def test_h16_llama_cpp_returns_only_the_rows_asked_for(smollm2_engine: LlamaEngine) -> None:
    """Case H16: none for a prompt; a view of K + 1 rows for a round."""
    session = smollm2_engine.open()
    ids = np.arange(300, 340, dtype=np.int32)
    chain = np.arange(-1, 39, dtype=np.int32)
    assert session.extend(ids, chain, 0).logits.shape == (0, 49152)
    session.keep(range(40))
    assert session.extend(ids[:5], chain[:5], 5).logits.shape == (5, 49152)
    session.close()


PEAK = """
import resource, sys
from pathlib import Path
from foredraft.decode import Limits, Parts, decode
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.drafters.ngram import NgramDrafter
from foredraft.control import fixed
from foredraft.sampling import Sampler
from foredraft.types import SamplingParams

engine = LlamaEngine(Path(sys.argv[1]), LlamaConfig(context=8192, threads=1, repack=False))
parts = Parts(engine.open(), engine.info, Sampler(SamplingParams()), NgramDrafter(), fixed(4))
ids = engine.tokenizer.encode("one two three four " * 60, add_special=True, parse_special=False)
steps = list(decode(parts, ids, Limits(12)))
if sys.platform == "darwin":
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
else:  # there ru_maxrss starts with the parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
print(peak, engine.info.max_context, engine.info.vocab_size, sum(step.generated for step in steps))
"""


def test_h16_no_array_of_context_times_vocabulary(smollm2: Path) -> None:
    """Case H16: 8192 × 49152 scores would be 1.6 GB; weights, cache (189 MB) and buffers are far less."""
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, str(smollm2)], capture_output=True, text=True, check=True, timeout=120
    )
    peak, context, vocabulary, generated = (int(word) for word in ran.stdout.split())
    assert (context, vocabulary, generated) == (8192, 49152, 12)
    weights, cache = smollm2.stat().st_size, context * 30 * 2 * 192 * 2
    assert peak < weights + cache + 400e6 < context * vocabulary * 4


def test_h16_limits_never_ask_for_more_rows(smollm2_engine: LlamaEngine) -> None:
    """Case H16: log-probabilities take the rows that are there."""
    run = asks(smollm2_engine, "one two three one two", 8)
    answer = generate(replace(run, limits=Limits(8, run.limits.eog_ids, logprobs=5)).drafting(NgramDrafter(), FOUR))
    assert max(one.rows for one in answer.session.passes) == max(step.drafted for step in answer.rounds) + 1 <= 5
