"""Many texts side by side are what plain decoding writes of each alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from foredraft.decode import Limits, Parts, decode
from foredraft.engines.pytorch import TorchConfig, TorchEngine
from foredraft.errors import InvalidValue
from foredraft.models.decoder import Decoder
from foredraft.sampling import Sampler
from foredraft.train.batch import RowCaches
from foredraft.train.writing import Job, Shelf, Writer, Written
from foredraft.types import SamplingParams
from tests.support.tiny_torch import VARIANTS, forward
from tests.support.training import Jobs, random_ids, tiny_decoder

CONTEXT = 30
ENDS = frozenset({3, 17})
PARAMS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95),
    "everything": SamplingParams(
        temperature=1.3,
        top_k=30,
        min_p=0.01,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        penalty_window=7,
        min_tokens=4,
        logit_bias={5: 2.0},
    ),
}
PROMPTS = (3, 11, 1, 29, 6, 2, 17, 24, 9)
"""Lengths; behind the longest there is room for one token."""


def jobs_of(params: SamplingParams, prompts: Sequence[int] = PROMPTS, max_tokens: int = 16) -> list[Job]:
    """Each with its own seed; every third may write less."""
    return [
        Job(
            number,
            random_ids(length, 100 + number),
            replace(params, seed=1000 + number),
            max_tokens if number % 3 else max_tokens // 2,
        )
        for number, length in enumerate(prompts)
    ]


def written(decoder: Decoder, jobs: Sequence[Job], rows: int, ends: frozenset[int] = ENDS) -> dict[int, Written]:
    """By number; all of them."""
    source = Jobs.of(jobs)
    tokens = sum(Writer(decoder, ends, Shelf(rows, CONTEXT)).run(source))
    assert tokens == sum(len(one.ids) for one in source.written.values())
    assert source.written.keys() == {job.number for job in jobs}
    return source.written


def plain(engine: TorchEngine, job: Job, ends: frozenset[int] = ENDS) -> Written:
    """What ``decode`` writes without a draft."""
    parts = Parts(engine.open(), engine.info, Sampler(job.params, eog_ids=ends))
    steps = list(decode(parts, job.prompt, Limits(job.max_tokens, ends)))
    ids = tuple(id for step in steps for id in step.ids)
    return Written(job, ids, steps[-1].finish_reason == "stop")


@pytest.mark.parametrize("family", VARIANTS)
def test_every_text_is_plain_decodings(family: str) -> None:
    """Three rows, filled again and again; greedy and sampled texts side by side."""
    decoder = tiny_decoder(family)
    jobs = [
        replace(job, number=10 * order + job.number)
        for order, params in enumerate(PARAMS.values())
        for job in jobs_of(params, PROMPTS[order : order + 7])
    ]
    engine = TorchEngine(decoder, TorchConfig(context=CONTEXT))
    got = written(decoder, jobs, rows=3)
    for job in jobs:
        assert got[job.number] == plain(engine, job), job.number
    assert {one.ended for one in got.values()} == {True, False}
    assert {len(one.job.prompt) + len(one.ids) for one in got.values()} >= {CONTEXT}


@pytest.mark.parametrize("rows", [1, 2, 9, 16, 40])
def test_the_number_of_rows_does_not_matter(rows: int) -> None:
    """Fewer than the texts, as many, and more; from 16 on a single empty row waits for another one."""
    decoder = tiny_decoder("gemma2")
    jobs = jobs_of(PARAMS["sampled"], [*PROMPTS, *PROMPTS, *PROMPTS])
    engine = TorchEngine(decoder, TorchConfig(context=CONTEXT))
    got = written(decoder, jobs, rows)
    assert [got[job.number] for job in jobs] == [plain(engine, job) for job in jobs]


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_texts_of_one_token(rows: int) -> None:
    """All rows finish with their first tokens, again and again."""
    decoder = tiny_decoder()
    jobs = [replace(job, max_tokens=1) for job in jobs_of(PARAMS["greedy"])]
    engine = TorchEngine(decoder, TorchConfig(context=CONTEXT))
    got = written(decoder, jobs, rows)
    assert [got[job.number] for job in jobs] == [plain(engine, job) for job in jobs]


def test_a_source_that_has_more_when_a_text_is_finished() -> None:
    """One row; the next text is known when the one before is there, and the first of each two ends at once."""

    class Chain(Jobs):
        def done(self, written: Written) -> None:
            super().done(written)
            number = written.job.number + 1
            if number < 6:
                self.waiting.append(Job(number, (5, 6), SamplingParams(), 1 if number % 2 else 4))

    decoder = tiny_decoder()
    source = Chain(deque([Job(0, (5, 6), SamplingParams(), 4)]))
    list(Writer(decoder, frozenset(), Shelf(1, CONTEXT)).run(source))
    assert [len(source.written[number].ids) for number in sorted(source.written)] == [4, 1, 4, 1, 4, 1]


def test_end_tokens_end() -> None:
    """The token that ended a text is its last one; it may be the first."""
    decoder = tiny_decoder()
    free = written(decoder, jobs_of(SamplingParams(), PROMPTS[:3]), 2, frozenset())
    assert [(len(one.ids), one.ended) for one in free.values()] == [(8, False), (16, False), (16, False)]
    beside = Job(9, (5, 6), SamplingParams(logit_bias={8: 100.0}), 16)
    for number, one in free.items():
        for place in (0, 5):
            end = one.ids.index(one.ids[place]) + 1
            got = written(decoder, [one.job, beside], 2, frozenset({one.ids[place]}))
            assert got[number] == Written(one.job, one.ids[:end], ended=True)
            assert got[9] == Written(beside, (8,) * 16, ended=False)


def test_the_context_ends_a_text() -> None:
    decoder = tiny_decoder("gemma3")
    jobs = [Job(number, random_ids(length, number), SamplingParams(), 100) for number, length in enumerate((29, 1, 15))]
    got = written(decoder, jobs, 3, frozenset())
    assert [(len(got[number].ids), got[number].ended) for number in range(3)] == [(1, False), (29, False), (15, False)]


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 5])
def test_a_prompt_as_long_as_the_context_is_refused(length: int) -> None:
    source = Jobs.of([Job(0, random_ids(length, 0), SamplingParams(), 4)])
    with pytest.raises(InvalidValue, match=f"prompt tokens is {length}; allowed: less than the context, {CONTEXT}"):
        list(Writer(tiny_decoder(), ENDS, Shelf(2, CONTEXT)).run(source))


@pytest.mark.parametrize(("rows", "context"), [(0, 30), (1025, 30), (1, 15), (1, (1 << 17) + 1)])
def test_shelves_that_are_refused(rows: int, context: int) -> None:
    with pytest.raises(InvalidValue, match=r"allowed: (1 to 1024|16 to 131072 tokens)"):
        Shelf(rows, context)


# --- rows of caches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", VARIANTS)
def test_logits_of_rows_are_those_of_whole_texts(family: str) -> None:
    """Texts of other lengths stand beside each other, one begins when others are long, and windows are left behind."""
    decoder = tiny_decoder(family)
    caches = RowCaches(decoder, 3, CONTEXT)
    texts = [list(random_ids(length, 50 + length)) for length in (13, 4, 9)]

    def check(rows: Sequence[int], logits: torch.Tensor) -> None:
        for row, got in zip(rows, logits, strict=True):
            want = torch.from_numpy(forward(decoder, texts[row], 1)[0])
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    check([2, 0], caches.read([2, 0], [texts[2], texts[0]]))
    for step in range(12):
        if step == 5:
            check([1], caches.read([1], [texts[1]]))
        used = [0, 2] if step < 5 else [0, 1, 2]
        for row in used:
            texts[row].append(int(random_ids(1, 1000 * step + row)[0]))
        tokens = [texts[row][-1] if row in used else 0 for row in range(3)]
        positions = [len(texts[row]) - 1 if row in used else 0 for row in range(3)]
        check(used, caches.step(tokens, positions)[used])
    assert max(map(len, texts)) == 25


def test_a_row_forgets_the_text_before() -> None:
    decoder = tiny_decoder()
    caches, fresh = RowCaches(decoder, 2, CONTEXT), RowCaches(decoder, 2, CONTEXT)
    caches.read([0, 1], [random_ids(20, 1), random_ids(12, 2)])
    text = random_ids(4, 3)
    for cache in (caches, fresh):
        cache.read([0], [text])
    one, other = (cache.step([7, 8], [4, 0])[0] for cache in (caches, fresh))
    assert torch.equal(one, other)
