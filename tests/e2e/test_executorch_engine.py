"""Exported programs write plain decoding's text bit for bit, whatever is drafted and however the prompt is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from foredraft.control import Fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.engines import executorch
from foredraft.engines.executorch import ExecutorchConfig, ExecutorchEngine
from foredraft.engines.executorch_program import Pass
from foredraft.engines.pytorch import TorchEngine
from foredraft.engines.slots import Bools, Layout, Longs, Moves, Slots
from foredraft.errors import ContextFull, EngineFailure, InvalidValue, ModelFileError
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.sampling import Sampler
from foredraft.trees import path_to
from foredraft.types import Budget, SamplingParams
from tests.support import tiny_models
from tests.support.engine_cases import chain, distance, grow, ids, read
from tests.support.exports import ROWS, TAPS, exported, write_tiny
from tests.support.recorded import Guesser, Job, Written, differences

PROMPTS = (
    "List three colours: red, green, blue. Now list the three colours again: red, green,",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return",
    "Once upon a time, in a harbour town,",
)
COUNT = 60
LAWS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=11)}
BUDGETS = {
    **{f"chain {length}": Budget.chain(length) for length in range(1, 9)},
    "tree 4": Budget(4, 3, 2),
    "tree 8": Budget(8, 4, 3),
    "tree 16": Budget(16, 6, 4),
}
smol_export = pytest.mark.exports("smollm2-135m")


@pytest.fixture(scope="module")
def smol() -> Iterator[ExecutorchEngine]:
    engine = ExecutorchEngine(exported("smollm2-135m"), ExecutorchConfig(context=512))
    yield engine
    engine.close()


@dataclass
class Plain:
    """Plain decoding's texts, each written once."""

    engine: ExecutorchEngine
    known: dict[tuple[str, str], tuple[Job, Written]] = field(default_factory=dict)

    def __call__(self, prompt: str, law: str) -> tuple[Job, Written]:
        if (prompt, law) not in self.known:
            encoded = self.engine.tokenizer.encode(prompt, add_special=True, parse_special=False)
            job = Job(self.engine, encoded, LAWS[law], COUNT)
            self.known[prompt, law] = job, job.write()
        return self.known[prompt, law]


@pytest.fixture(scope="module")
def plain(smol: ExecutorchEngine) -> Plain:
    return Plain(smol)


# --- any draft, any law: the same bits ---------------------------------------------------------------------


@smol_export
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_drafts_right_and_wrong_change_no_bit(plain: Plain, budget: str, law: str) -> None:
    for prompt in PROMPTS:
        job, want = plain(prompt, law)
        assert len(want.ids) == COUNT
        drafter = Guesser([*job.prompt, *want.ids], job.engine.info.vocab_size)
        got = job.write(drafter, BUDGETS[budget])
        assert differences(want, got, job.prompt) == []
        assert COUNT // 5 < got.accepted < got.drafted


@smol_export
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("length", [1, 3, 8])
def test_ngram_changes_no_bit(plain: Plain, length: int, law: str) -> None:
    accepted = 0
    for prompt in PROMPTS:
        job, want = plain(prompt, law)
        got = job.write(NgramDrafter(NgramConfig(min_n=1)), Budget.chain(length))
        assert differences(want, got, job.prompt) == []
        accepted += got.accepted
    assert accepted > 0


@smol_export
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_the_prompt_change_no_bit(plain: Plain, chunk: int) -> None:
    """Those of 512 are what the others are compared with."""
    prompt = " ".join(PROMPTS) * 2
    job, want = plain(prompt, "greedy")
    assert 100 < len(job.prompt) < 200
    drafter = Guesser([*job.prompt, *want.ids], job.engine.info.vocab_size)
    assert differences(want, job.write(chunk=chunk), job.prompt) == []
    assert differences(want, job.write(drafter, BUDGETS["tree 8"], chunk), job.prompt) == []


@smol_export
def test_rows_of_a_prompt_read_in_chunks(smol: ExecutorchEngine) -> None:
    """512 tokens, in passes of 1, 7, 64 and 512 that score every token."""
    text = smol.tokenizer.encode("\n".join(PROMPTS) * 9, add_special=True, parse_special=False)[:512]
    rows = {}
    for size in (1, 7, 64, 512):
        session = smol.open()
        chunks = [read(session, text[at : at + size], len(text[at : at + size])) for at in range(0, 512, size)]
        session.close()
        rows[size] = np.concatenate(chunks)
        assert rows[size].shape == (512, smol.info.vocab_size)
        assert rows[size].tobytes() == rows[1].tobytes(), size


# --- the check sees what it should -------------------------------------------------------------------------


class Unmoved(Slots):
    """Forgets to move kept tokens to their places."""

    def keep(self, path: Sequence[int]) -> Moves:
        super().keep(path)
        return Moves(np.empty(0, np.int64), np.empty(0, np.int64))


class Swapped(Slots):
    """Tokens 3 and 4 change places, in slots, masks and moves alike: nothing but the order of sums is different."""

    @staticmethod
    def _swap(slots: Longs) -> Longs:
        return np.where(slots == 3, 4, np.where(slots == 4, 3, slots))

    def add(self, parents: Sequence[int]) -> Layout:
        layout = super().add(parents)
        return Layout(self._swap(layout.slots), layout.positions)

    def visible(self, first: int, count: int, columns: int, window: int | None = None) -> Bools:
        columns_of = self._swap(np.arange(columns))
        return np.ascontiguousarray(super().visible(first, count, columns, window)[:, columns_of])

    def keep(self, path: Sequence[int]) -> Moves:
        moves = super().keep(path)
        return Moves(self._swap(moves.sources), self._swap(moves.targets))


@smol_export
def test_tokens_that_stay_out_of_place_are_seen(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    job, want = plain(PROMPTS[0], "greedy")
    monkeypatch.setattr(executorch, "Slots", Unmoved)
    drafter = Guesser([*job.prompt, *want.ids], job.engine.info.vocab_size)
    assert differences(want, job.write(drafter, BUDGETS["tree 8"]), job.prompt)


@smol_export
def test_two_tokens_in_each_others_slots_are_seen(plain: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    job, want = plain(PROMPTS[0], "greedy")
    monkeypatch.setattr(executorch, "Slots", Swapped)
    got = job.write()
    assert differences(want, got, job.prompt)
    first = len(job.prompt) - 1
    assert 0 < distance(got.rows[first], want.rows[first]) < 0.2  # it is the same text, summed in another order


# --- a session ---------------------------------------------------------------------------------------------

TEXT = np.random.default_rng(3).integers(3, tiny_models.VOCAB, 200).tolist()
TREE = [-1, 0, 0, 1, -1, 4, 2, 2, 3, 5, 9]


@pytest.mark.exports("gemma3")
def test_a_full_context_changes_nothing() -> None:
    engine = ExecutorchEngine(exported("gemma3"), ExecutorchConfig(context=40))
    session = engine.open()
    other = engine.open(room=40)
    read(session, TEXT[:30])
    read(other, TEXT[:30])
    grow(session, TEXT[100:104], [-1, 0, -1, 2], 4)
    grow(other, TEXT[100:104], [-1, 0, -1, 2], 4)
    caches = session._caches
    assert caches is not None
    before = [array.tobytes() for array in caches.arrays]
    with pytest.raises(ContextFull, match="41 tokens do not fit into a context of 40"):
        grow(session, TEXT[:7], [3, *range(4, 10)], 1)
    assert [array.tobytes() for array in caches.arrays] == before
    assert session.length == 30
    assert (
        grow(session, TEXT[:6], [3, *range(4, 9)], 6).tobytes() == grow(other, TEXT[:6], [3, *range(4, 9)], 6).tobytes()
    )
    for one in (session, other):
        one.keep([2, 3, 4, 5])
    assert read(session, TEXT[50:55], 5).tobytes() == read(other, TEXT[50:55], 5).tobytes()
    engine.close()


@pytest.mark.exports("llama")
def test_decoding_ends_where_the_context_does() -> None:
    engine = ExecutorchEngine(exported("llama"), ExecutorchConfig(context=30))
    drafter = NgramDrafter(NgramConfig(min_n=1))
    texts = []
    for parts in (
        Parts(engine.open(), engine.info, Sampler(SamplingParams())),
        Parts(engine.open(), engine.info, Sampler(SamplingParams()), drafter, Fixed(Budget.chain(8))),
    ):
        steps = list(decode(parts, TEXT[:10], Limits(100)))
        assert steps[-1].finish_reason == "length"
        texts.append([id for step in steps for id in step.ids])
    assert len(texts[0]) == 20 and texts[0] == texts[1]
    engine.close()


@pytest.mark.exports("llama")
def test_beyond_the_bounds_of_the_program() -> None:
    engine = ExecutorchEngine(exported("llama"))
    program, session = engine._program, engine.open(room=128)
    caches = session._caches
    assert caches is not None and caches.capacity == 128
    bounds = engine.manifest.bounds

    def step(width: int, rows: int) -> Pass:
        numbers = np.arange(width, dtype=np.int64)
        mask = np.zeros((width, caches.capacity), np.float32)
        return Pass(numbers * 0, numbers, numbers, np.arange(rows, dtype=np.int64), (mask,))

    for width, rows, message in (
        (bounds.width + 1, 1, f"width is {bounds.width + 1}; allowed: 1 to {bounds.width}, the bound"),
        (0, 1, f"width is 0; allowed: 1 to {bounds.width}"),
        (bounds.width, bounds.rows + 1, f"rows is {bounds.rows + 1}; allowed: 1 to {bounds.rows}"),
        (4, 0, "rows is 0; allowed"),
    ):
        with pytest.raises(InvalidValue, match=message):
            program.run(step(width, rows), caches)
    assert program.run(step(bounds.width, bounds.rows), caches)[0].shape == (bounds.rows, tiny_models.VOCAB)
    engine.close()
    with pytest.raises(EngineFailure, match="the engine is closed"):
        chain(session, [1], 1)
    session.close()


@pytest.mark.exports("llama")
def test_a_failed_pass_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ExecutorchEngine(exported("llama"))
    session, other = engine.open(), engine.open()
    read(session, TEXT[:5])

    def fail(*arguments: object) -> None:
        raise RuntimeError("0x12 out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._program, "_method", type("Method", (), {"call": fail})())
        with pytest.raises(EngineFailure, match="ExecuTorch failed: 0x12 out of memory"):
            chain(session, [1], 1)
    with pytest.raises(EngineFailure, match="the session has failed"):
        chain(session, [1], 1)
    session.close()
    assert read(other, TEXT[:5]).shape == (1, tiny_models.VOCAB)
    engine.close()


# --- hidden states and restricted rows ---------------------------------------------------------------------


@pytest.mark.exports("gemma3-taps")
def test_hidden_states_are_those_of_torch(tmp_path: Path) -> None:
    engine = ExecutorchEngine(exported("gemma3-taps"))
    torch = TorchEngine(write_tiny("gemma3", tmp_path), taps=TAPS)
    assert engine.info.hidden_size == torch.info.hidden_size == 2 * 32
    ours, theirs = engine.open(), torch.open()
    for session in (ours, theirs):
        read(session, TEXT[:90], 0)
    tokens, parents = ids(TEXT[100 : 100 + len(TREE)]), ids(TREE)
    for rows in (len(TREE), 3):
        got, want = (session.extend(tokens, parents, rows) for session in (ours, theirs))
        assert got.hidden is not None and want.hidden is not None
        assert got.hidden.shape == want.hidden.shape == (len(TREE), 64) and got.hidden.dtype == np.float32
        for one, other in ((got.hidden, want.hidden), (got.logits, want.logits)):
            for row in range(len(one)):
                assert distance(one[row], other[row]) < 0.05
        for session in (ours, theirs):
            session.keep([])
    engine.close()
    torch.close()


@pytest.mark.exports("gemma3-taps")
def test_hidden_states_of_several_passes() -> None:
    """More tokens than a pass takes, more rows than a pass scores; not a bit depends on that either."""
    engine = ExecutorchEngine(exported("gemma3-taps"))
    session, other = engine.open(), engine.open()
    scores = session.extend(ids(TEXT[:150]), ids(range(-1, 149)), 80)
    assert scores.hidden is not None and scores.hidden.shape == (150, 64)
    hidden = scores.hidden[70:].copy()
    read(other, TEXT[:70], 0)
    for index in range(80):
        single = other.extend(ids(TEXT[70 + index : 71 + index]), ids([-1]), 1)
        assert single.hidden is not None and single.hidden.tobytes() == hidden[index].tobytes()
        other.keep([0])
    engine.close()


@pytest.mark.exports("llama", "llama-rows")
def test_restricted_rows_are_the_whole_programs() -> None:
    whole, part = ExecutorchEngine(exported("llama")), ExecutorchEngine(exported("llama-rows"))
    assert part.info.restricted and not whole.info.restricted
    assert part.info.vocab_size == whole.info.vocab_size == tiny_models.VOCAB
    ours, theirs = part.open(), whole.open()
    others = [id for id in range(tiny_models.VOCAB) if id not in ROWS]
    for session in (ours, theirs):
        read(session, TEXT[:20], 0)
    for count in (11, 4):
        tokens, parents = TEXT[40 : 40 + count], TREE[:count]
        got, want = (grow(session, tokens, parents, count) for session in (ours, theirs))
        assert np.isneginf(got[:, others]).all()
        assert got[:, list(ROWS)].tobytes() == want[:, list(ROWS)].tobytes()
        for session in (ours, theirs):
            session.keep(path_to(parents, count - 1))
    part.close()
    whole.close()


@pytest.mark.exports("llama-rows")
def test_a_restricted_program_is_no_target() -> None:
    with pytest.raises(ModelFileError, match=r"^llama-rows: has restricted output rows, so it can only be a --draft"):
        Pipeline.open(Setup(exported("llama-rows")))


@pytest.mark.exports("llama", "llama-rows")
@pytest.mark.parametrize("law", [SamplingParams(min_tokens=80), SamplingParams(temperature=1.0, min_tokens=80, seed=5)])
def test_a_restricted_program_drafts(law: SamplingParams) -> None:
    setup = Setup(exported("llama"), (exported("llama-rows"),))
    with Pipeline.open(setup) as pipeline:
        assert pipeline.pairs[0].warnings == ()
        request = Request(tuple(TEXT[:12]), law, Fixed(Budget.chain(4)), max_tokens=80)
        drafted, plain = pipeline.run(request), pipeline.run(request.plain)
        assert drafted.summary.ids == plain.summary.ids
        assert len(plain.summary.ids) == 80 and drafted.summary.accepted > 10


@smol_export
@pytest.mark.usefixtures("all_processors")
def test_two_threads_write_the_bits_of_one(smol: ExecutorchEngine) -> None:
    """The pool is the process's, so the threads change for one engine after the other."""
    before, rows = smol.threads, []
    tokens = smol.tokenizer.encode(PROMPTS[1], add_special=True, parse_special=False)
    for threads in (1, 2, before):
        engine = ExecutorchEngine(exported("smollm2-135m"), ExecutorchConfig(context=512, threads=threads))
        assert engine.threads == threads
        session = engine.open()
        wide = read(session, tokens, len(tokens)).copy()
        single = chain(session, [11], 1).copy()
        rows.append((wide, single, grow(session, [12, 13, 14], [-1, 0, 0], 3).copy()))
        session.close()
        engine.close()
    for others in rows[1:]:
        assert all(np.array_equal(one, other) for one, other in zip(rows[0], others, strict=True))
