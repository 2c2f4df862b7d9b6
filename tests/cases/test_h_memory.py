"""Cases H1, H3, H4, H6, H8: what a plan counts, what it refuses, and what goes first when memory runs short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.devices import pressure
from foredraft.devices.phones import catalogue
from foredraft.devices.pressure import MemoryWatch
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.droppable import DroppableDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.llama_cpp import LlamaConfig
from foredraft.engines.scripted import markov_table
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.plan import Candidate, Question, Setting, allowance, given_allowance, plan_device
from foredraft.plan.guard import OVERRIDE, ShortOfMemoryError, check_memory
from foredraft.plan.options import NONE, plan
from foredraft.plan.planner import sentence
from foredraft.policy import Policy
from foredraft.shapes import read_shape
from foredraft.types import Budget
from tests.support import tiny_models
from tests.support.scripted import VOCAB, RecordingEngine, Run, generate, toy_engine

MIB = 1 << 20
TARGET, DRAFT = read_shape("llama-3.2-3b@q4_k_m"), Candidate("1b", read_shape("llama-3.2-1b@q4_k_m"))
SETTING = Setting(4096)


def test_h1_the_draft_is_counted_and_never_less_than_the_files() -> None:
    """Case H1: weights, caches and buffers of both; at least the files' sizes."""
    both, alone = plan(TARGET, DRAFT, SETTING), plan(TARGET, Candidate(NONE), SETTING)
    assert DRAFT.shape is not None
    assert both.total - alone.total == both.of(part="draft")
    assert both.of(part="draft") > DRAFT.shape.weight_bytes + 128 * MIB
    assert both.total > TARGET.file_bytes + DRAFT.shape.file_bytes
    for part in ("target", "draft"):
        assert {"weights", "keys and values", "compute buffer", "logits"} <= {
            line.name for line in both.lines if line.part == part
        }


def test_h3_each_model_has_its_own_cache_type() -> None:
    """Case H3: a target at q8_0 beside a draft at f16 is planned as such, and the draft's type is a change of its
    own."""
    mixed = plan(TARGET, DRAFT, replace(SETTING, kv_type="q8_0", draft_kv_type="f16"))
    assert mixed.of(part="target", name="keys and values") == 448 * MIB * 34 // 64
    assert mixed.of(part="draft", name="keys and values") == 128 * MIB
    question = Question(TARGET, (DRAFT,), replace(SETTING, kv_type="q8_0", draft_kv_type="f16"))
    found = plan_device(question, given_allowance("phone", mixed.total - 10 * MIB), None)
    assert "the draft's keys and values as q8_0" in [change.words for change in found.changes]


def test_h4_the_drafts_compute_buffer_is_small_and_counted() -> None:
    """Case H4: a chunk of 2048 is the target's business; the draft reads 64 tokens at once."""
    made = plan(TARGET, DRAFT, replace(SETTING, chunk=2048))
    draft, target = (made.of(part=part, name="compute buffer") for part in ("draft", "target"))
    assert 0 < draft < 16 * MIB and target > 250 * MIB


def test_h6_what_would_bring_the_phone_down_is_refused() -> None:
    """Case H6: 4.8 GB of weights on an iPhone with 8 GiB, with the entitlement and a context of 262144."""
    target = read_shape("params=8.5B,layers=32,hidden=4096,heads=32,kv-heads=8,weights=q4_0,ctx=262144")
    assert target.weight_bytes == pytest.approx(4.8e9, rel=0.01)
    known = catalogue()
    allowed = allowance(known, known.phone("iPhone 15 Pro"), entitlement=True)
    for context, needs in ((4096, 12), (262144, None)):
        planned = plan_device(Question(target, (Candidate(NONE),), Setting(context)), allowed, None)
        assert planned.asked.fits is False
        assert planned.needs == needs
        assert ("; needs a device with 12 GiB" in sentence(planned)) == (needs == 12)


# --- H8: pressure while running ----------------------------------------------------------------------------

TABLE = markov_table(VOCAB, seed=9)
RUN = Run(toy_engine(TABLE))
FOUR = Budget.chain(4)


class Closing(RecordingEngine):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("calls", range(9))
def test_h8_the_draft_goes_first_and_the_answer_goes_on(calls: int) -> None:
    """Case H8: memory runs short before the prompt is read or at any later round; the text is unaffected."""
    engine, asked = Closing(RUN.engine), 0

    def short() -> bool:
        nonlocal asked
        asked += 1
        return asked > calls

    drafter = DroppableDrafter(ModelDrafter(engine), short, engine.close)
    answer = generate(RUN.drafting(drafter, FOUR))
    assert answer.ids == generate(RUN).ids
    assert answer.reasons[-2] == "model: memory is short, the draft was dropped"
    assert drafter.dropped and engine.closed == 1
    passes = sum(len(session.passes) for session in engine.sessions)
    again = generate(RUN.drafting(drafter, FOUR))
    assert again.ids == answer.ids and again.summary.drafted == 0
    assert sum(len(session.passes) for session in engine.sessions) == passes, "a freed engine is never asked again"
    drafter.close()
    assert engine.closed == 1


def test_h8_other_drafts_stay() -> None:
    """Case H8: copies from the text take no memory."""
    engine = Closing(RUN.engine)
    drafter = ChainDrafter([DroppableDrafter(ModelDrafter(engine), lambda: True, engine.close), NgramDrafter()])
    run = Run(RUN.engine, (1, 60, 70, 61, 71, 60, 70, 61), drafter, FOUR)
    answer = generate(run)
    assert answer.ids == generate(Run(RUN.engine, run.prompt)).ids
    assert set(answer.summary.sources) <= {"ngram"} and engine.closed == 1


def test_h8_a_pipeline_drops_its_draft(tmp_path: Path) -> None:
    """Case H8, with real models: the draft's weights are freed in the middle of an answer."""
    path = tiny_models.write_llama(tmp_path / "m.gguf")
    setup = Setup(path, (path,), LlamaConfig(context=256, threads=1))
    readings = iter([False] * 3 + [True] * 100)
    with Pipeline.open(setup) as pipeline:
        pipeline.short = lambda: next(readings)
        pipeline.drafter = pipeline.model_drafter(0)
        controller = Policy("fixed", 3, 0).make(pipeline.engine.info, pipeline.priors())
        request = Request((1, 5, 6, 7), controller=controller, max_tokens=40)
        plain = pipeline.run(request.plain).summary.ids
        steps = list(pipeline.stream(request))
        assert [token.id for step in steps for token in step.emitted] == plain
        reasons = [step.reason for step in steps]
        assert "model: memory is short, the draft was dropped" in reasons
        assert any(step.drafted for step in steps)
        assert pipeline.run(request).summary.ids == plain


def test_the_watch_reads_seldom_and_knows_its_bound() -> None:
    now, readings = [0.0], [500 * MIB, 50 * MIB]
    watch = MemoryWatch(100 * MIB, lambda: readings.pop(0), lambda: now[0])
    assert [watch(), watch(), watch()] == [False] * 3 and len(readings) == 1
    now[0] = 0.3
    assert watch() and watch() and readings == []
    assert not MemoryWatch(100 * MIB, lambda: None)()
    assert MemoryWatch().least >= pressure.LEAST


# --- before anything is loaded -----------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_loading_with_the_fix(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "m.gguf")
    setup = Setup(path, (path, "ngram"), LlamaConfig(context=8192, threads=1))
    assert check_memory(setup, 1 << 40) is None
    shape = read_shape(str(path))
    needed = plan(shape, Candidate("m.gguf", shape), Setting(8192, rows=64, reserve=0, here=True)).dirty
    check_memory(setup, needed)
    with pytest.raises(ShortOfMemoryError) as caught:
        check_memory(setup, needed - 1)
    text = str(caught.value)
    assert text.startswith("m.gguf with m.gguf needs about ") and " are free; what would do: " in text
    assert "a context of 7936 tokens instead of 8192 (--ctx)" in text and "no draft (--draft none)" in text
    assert "\n" not in text
    with pytest.raises(ShortOfMemoryError, match="a smaller model, or a machine with more memory"):
        check_memory(setup, 5 * MIB)


def test_the_check_can_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(tiny_models.write_llama(tmp_path / "m.gguf"))
    monkeypatch.setenv(OVERRIDE, "1")
    assert check_memory(setup, 1) is None


def test_a_damaged_model_is_left_to_loading(tmp_path: Path) -> None:
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    good = tiny_models.write_llama(tmp_path / "good.gguf")
    for setup in (Setup(tmp_path / "damaged.gguf"), Setup(good, (tmp_path / "damaged.gguf",)), Setup(tmp_path)):
        assert check_memory(setup, 1) is None


def test_mapped_weights_that_do_not_stay_are_a_note(smollm2: Path) -> None:
    setup = Setup(smollm2, engine=LlamaConfig(context=512, threads=1))
    needed = plan(read_shape(str(smollm2)), Candidate(NONE), Setting(512, rows=64, reserve=0, here=True))
    note = check_memory(setup, needed.total - MIB)
    assert note is not None and "weights will be read from disk again and again" in note
    assert check_memory(setup, needed.total + MIB) is None
