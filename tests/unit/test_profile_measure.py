"""Recording a trace: what is in it, and that no kill and no interruption changes it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from foredraft.control import Fixed, fixed
from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import PromptError, TraceError
from foredraft.pipeline import Request
from foredraft.profile import live, measure, store
from foredraft.profile.laws import summarise
from foredraft.profile.replay import Text, replay_tree
from foredraft.profile.trace import Sampled, TextFacts, Trace
from foredraft.profile.what_if import choices, play, recorded
from foredraft.sampling import History, Sampler
from foredraft.types import Budget
from tests.support import toy_profile
from tests.support.toy_profile import BARRED, LIMIT, TOY, draft_table, pipeline, prompts, record, settings, target_table

SAMPLED = Sampled(0.9, top_p=0.95, seed=5)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[Sampled(), SAMPLED], ids=["greedy", "sampled"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("trace")
    record(folder, sampled=request.param)
    return store.read_trace(folder)


def test_the_texts_are_the_targets(made: Trace) -> None:
    with pipeline() as opened:
        for text in made.texts:
            prompt = prompts(4)[text.facts.index].encoded(TOY, raw=True).ids
            params = made.settings.sampling.params()
            request = Request(prompt, replace(params, seed=params.seed + text.facts.index), max_tokens=24)
            assert text.ids is not None and text.ids.tolist() == opened.run(request).summary.ids
    assert made.complete and [text.facts.kind for text in made.texts] == ["code", "chat", "code", "chat"]


def test_the_laws_are_those_of_single_positions(made: Trace) -> None:
    for text in made.texts:
        prompt = prompts(4)[text.facts.index].encoded(TOY, raw=True).ids
        assert text.ids is not None and text.target is not None
        whole = [*prompt, *text.ids.tolist()]
        for at in range(len(text)):
            before = tuple(whole[: len(prompt) + at])
            expected = summarise(target_table(before)[None])
            assert text.target.ids[at].tolist() == expected.ids[0].tolist()
            assert text.target.scores[at] == pytest.approx(expected.scores[0], abs=1e-5)


def test_a_drafts_ranks_are_its_own_guesses(made: Trace) -> None:
    """With the request's noise, and without what it may not propose."""
    for text in made.texts:
        prompt = prompts(4)[text.facts.index].encoded(TOY, raw=True).ids
        params = replace(made.settings.sampling.params(), seed=made.settings.sampling.seed + text.facts.index)
        sampler, context = Sampler(params, eog_ids=TOY.eog_ids).restricted({BARRED}), History(prompt)
        assert text.ids is not None
        for at, token in enumerate(text.ids.tolist()):
            guesses = sampler.children(draft_table(tuple(context.tokens))[:LIMIT], context, 4).ids.tolist()
            assert text.drafts[0].rank[at] == (guesses.index(token) if token in guesses else -1)
            context.push(token)


def test_real_decoding_agrees_with_the_trace(made: Trace) -> None:
    """Model and n-gram, every text: the same tokens accepted and evaluated."""
    with pipeline() as opened:
        again = live.Again(opened, made, prompts(4))
        for choice in choices(made)[:2]:
            drafter = NgramDrafter() if choice.copies else opened.model_drafter(0)
            found = again.decode(choice, drafter, range(4))
            assert found.same == found.texts == 4
            if not choice.copies:
                assert found.live == found.traced
            assert found.difference is None or abs(found.difference) <= 0.02


def test_replaying_is_decoding(made: Trace) -> None:
    """Round for round, for every chain length."""
    played = play(made, choices(made)[1], recorded(made))
    with pipeline() as opened:
        opened.drafter = opened.model_drafter(0)
        for text, run in zip(made.texts, played.runs, strict=True):
            prompt = prompts(4)[text.facts.index].encoded(TOY, raw=True).ids
            params = replace(made.settings.sampling.params(), seed=made.settings.sampling.seed + text.facts.index)
            for length in (1, 3, 8):
                summary = opened.run(Request(prompt, params, fixed(length), max_tokens=24)).summary
                assert run.rounds[length - 1] == summary.rounds
                assert run.hits[length - 1].sum() == summary.accepted
                assert run.trials[length - 1].sum() == summary.evaluated


def test_replaying_a_tree_is_decoding_it(made: Trace) -> None:
    """A bushy one: real rounds of the target with the draft's own children."""
    parents = (-1, -1, -1, 0, 0, 1, 3)
    tree = Budget(len(parents), 3, 3, shape=parents)
    with pipeline() as opened:
        opened.drafter = opened.model_drafter(0)
        for text in made.texts:
            prompt = prompts(4)[text.facts.index].encoded(TOY, raw=True).ids
            params = replace(made.settings.sampling.params(), seed=made.settings.sampling.seed + text.facts.index)
            summary = opened.run(Request(prompt, params, Fixed(tree), max_tokens=24)).summary
            rounds, accepted = replay_tree(Text(len(text), text.facts.limit), text.drafts[0].rank, parents)
            assert (rounds, sum(depth * count for depth, count in enumerate(accepted))) == (
                summary.rounds,
                summary.accepted,
            )


def test_redacted(tmp_path: Path) -> None:
    """Neither ids nor text are in the file, and the answers are those of the whole trace on the grid."""
    record(tmp_path / "whole", sampled=Sampled(0.8))
    record(tmp_path / "redacted", sampled=Sampled(0.8), redacted=True)
    whole, hidden = store.read_trace(tmp_path / "whole"), store.read_trace(tmp_path / "redacted")
    columns = set(pq.read_schema(tmp_path / "redacted" / store.TRACE).names)
    assert not columns & {"token", "piece", "target_ids", "draft0_ids"}
    for text in whole.texts:
        assert text.facts.prompt.encode() not in (tmp_path / "redacted" / store.TRACE).read_bytes()
    for text in hidden.texts:
        assert text.ids is None and text.pieces is None and text.target is None and text.facts.prompt == ""
    for choice in choices(whole):
        left, right = (play(one, choice, recorded(one)) for one in (whole, hidden))
        assert left.expected(4) == right.expected(4)


class Stopped(Exception):
    """Thrown out of a run."""


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    record(tmp_path / "whole")
    job = measure.Job(settings(), prompts(4))
    seen: list[int] = []

    def stop(facts: TextFacts) -> None:
        seen.append(facts.index)
        if len(seen) == 2:
            raise Stopped

    with pipeline() as opened, pytest.raises(Stopped):
        measure.run(opened, job, tmp_path / "part", stop)
    part = store.read_trace(tmp_path / "part")
    assert not part.complete and len(part.texts) == 2
    with pipeline() as opened:
        measure.run(opened, job, tmp_path / "part", lambda facts: seen.append(facts.index))
    assert seen == [0, 1, 2, 3], "nothing twice"
    assert_same_rows(tmp_path / "whole", tmp_path / "part")
    assert not (tmp_path / "part" / store.PARTS).exists()


def assert_same_rows(left: Path, right: Path) -> None:

    assert pq.read_table(left / store.TRACE).equals(pq.read_table(right / store.TRACE))


def test_killed_at_ten_random_moments(tmp_path: Path) -> None:
    """Kill -9, again and again, until it is through: the rows are those of an undisturbed run."""
    command = [sys.executable, "-m", "tests.support.toy_profile"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    subprocess.run([*command, str(tmp_path / "whole")], check=True, cwd=ROOT, env=environment)
    draw, killed = random.Random(3), 0
    for _ in range(10):
        running = subprocess.Popen([*command, str(tmp_path / "killed")], cwd=ROOT, env=environment)
        begin = time.monotonic()
        while not (tmp_path / "killed").exists() and running.poll() is None and time.monotonic() - begin < 60:
            time.sleep(0.01)
        time.sleep(draw.random() * 0.15)
        running.send_signal(signal.SIGKILL)
        killed += running.wait() == -signal.SIGKILL
    assert killed >= 5, "the runs must be long enough to be caught"
    subprocess.run([*command, str(tmp_path / "killed")], check=True, cwd=ROOT, env=environment)
    assert_same_rows(tmp_path / "whole", tmp_path / "killed")


def test_other_settings_are_refused(tmp_path: Path) -> None:
    record(tmp_path)
    other = replace(settings(), sampling=Sampled(0.7), max_tokens=99)
    with pytest.raises(TraceError, match=r"other settings \(sampling, max tokens\)"):
        measure.remaining(measure.Job(other, prompts(4)), tmp_path)
    assert measure.remaining(measure.Job(settings(), prompts(4)), tmp_path) == []
    assert len(measure.remaining(measure.Job(other, prompts(4)), tmp_path, restart=True)) == 4
    assert not (tmp_path / store.TRACE).exists()


def test_repeats_are_run_once(tmp_path: Path) -> None:
    twice = [*prompts(2), replace(prompts(1)[0], line=9, warm=True)]
    job = measure.Job(replace(settings(), prompts=measure.prompts_hash(twice), repeats=1), twice)
    with pipeline() as opened:
        measure.run(opened, job, tmp_path)
    assert [text.facts.index for text in store.read_trace(tmp_path).texts] == [0, 1]


def test_a_prompt_that_does_not_fit_is_named_before_anything_runs(tmp_path: Path) -> None:
    long = replace(prompts(1)[0], messages=({"role": "user", "content": "x" * 10_000},), line=7)
    job = measure.Job(settings(), [*prompts(1), long])
    with pipeline() as opened, pytest.raises(PromptError, match="line 7"):
        measure.check_prompts(opened, job)


@pytest.mark.parametrize("damage", ["cut", "foreign", "schema", "empty"])
def test_damaged_traces(tmp_path: Path, damage: str) -> None:
    record(tmp_path)
    path = tmp_path / store.TRACE
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        rewrite(path, None if damage == "foreign" else b'{"format": "foredraft-trace", "schema": 7}')
    with pytest.raises(TraceError) as found:
        store.read_trace(tmp_path)
    assert str(path) in str(found.value) and "\n" not in str(found.value)


def rewrite(path: Path, about: bytes | None) -> None:
    """The same rows with other metadata."""

    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"foredraft": about} if about else {}), path)


def test_no_trace_at_all(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace"):
        store.read_trace(tmp_path)


def test_toy_drafts_are_neither_perfect_nor_useless() -> None:
    """So that these tests see both outcomes."""
    texts = [(1, 2, 3, number) for number in range(200)]
    agreed = np.mean([int(target_table(text).argmax()) == int(draft_table(text).argmax()) for text in texts])
    assert 0.4 < agreed < 0.95 and toy_profile.VOCAB > 64
