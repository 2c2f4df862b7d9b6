"""What a round tells of its draft: the rung of the ladder, the controller's reason, what was tried at each level; and
how a controller's wish is cut to what the engine and the text have room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foredraft.control import OFF
from foredraft.decode import _trials
from foredraft.drafters.model import ModelDrafter
from foredraft.engines.base import EngineInfo
from foredraft.engines.scripted import ScriptedEngine, blended, markov_table
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Rule, SamplingParams, Step, Trial, Verdict
from tests.support.gates import Counting
from tests.support.scripted import (
    VOCAB,
    Forced,
    Run,
    Says,
    always_right,
    generate,
    recalled,
    toy_engine,
    writes,
)

TABLE = markov_table(VOCAB, seed=9)
ENGINE = toy_engine(TABLE)
RUN = Run(ENGINE)
WARM = SamplingParams(temperature=0.8, top_p=0.95, seed=7)
FOUR = Budget.chain(4)


def shaped(parents: Sequence[int], source: str = "model", confidence: tuple[float, ...] | None = None) -> Draft:
    """Tokens are the nodes' numbers + 10."""
    tokens = np.arange(10, 10 + len(parents), dtype=np.int32)
    return Draft(tokens, np.array(parents, np.int32), None, source, None, confidence, 2)


@pytest.mark.parametrize(
    ("draft", "rung"),
    [
        (Draft.empty("ngram", "no earlier occurrence"), "off"),
        (shaped([-1]), "chain"),
        (shaped([-1, 0, 1]), "chain"),
        (shaped([-1, 0, 1], "ngram"), "ngram"),
        (shaped([-1, 0, 1], "ngram+model"), "chain"),
        (shaped([-1, -1]), "tree"),
        (shaped([-1, 0, 0]), "tree"),
        (shaped([-1, 0, -1, 2], "ngram"), "tree"),
        (shaped([-1, 0, -1], "ngram+model"), "tree"),
    ],
)
def test_rungs(draft: Draft, rung: str) -> None:
    """Tree, chain, n-gram, off: what was drafted, whoever asked for it."""
    step = generate(RUN.drafting(Says(lambda context, budget, sampler: draft), Budget(8, 4, 4))).rounds[0]
    assert (step.rung, step.drafter, step.drafted) == (rung, draft.source, len(draft))
    assert step.passes == draft.passes
    assert generate(RUN).rounds[0].rung == "off"


TREE = shaped([-1, -1, -1, 0, 1, 1, 5], "model", (0.7, 0.2, 0.1, 0.6, 0.5, 0.4, 0.9))
"""Three children of the root; the second has two, the second of which has one."""


@pytest.mark.parametrize(
    ("path", "trials"),
    [
        ((), [Trial(3, -1, 0.7)]),
        ((0,), [Trial(3, 0, 0.7), Trial(1, -1, 0.6)]),
        ((1,), [Trial(3, 1, 0.7), Trial(2, -1, 0.5)]),
        ((2,), [Trial(3, 2, 0.7)]),
        ((0, 3), [Trial(3, 0, 0.7), Trial(1, 0, 0.6)]),
        ((1, 5), [Trial(3, 1, 0.7), Trial(2, 1, 0.5), Trial(1, -1, 0.9)]),
        ((1, 5, 6), [Trial(3, 1, 0.7), Trial(2, 1, 0.5), Trial(1, 0, 0.9)]),
    ],
)
def test_trials_by_hand(path: tuple[int, ...], trials: list[Trial]) -> None:
    """A level counts where something was tried: with the number of siblings, and which one it was."""
    verdict = Verdict(path, 9, len(trials))
    assert _trials(TREE, verdict) == tuple(trials)
    silent = tuple(replace(trial, confidence=None) for trial in trials)
    assert _trials(replace(TREE, confidence=None), verdict) == silent
    assert _trials(Draft.empty(), Verdict((), 9, 0)) == ()


@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("budget", [FOUR, Budget(9, 3, 3), Budget(9, 4, 3, dynamic=True)])
def test_trials_of_a_request_agree_with_its_counts(budget: Budget, rule: Rule, params: SamplingParams) -> None:
    draft = ModelDrafter(toy_engine(blended(TABLE, markov_table(VOCAB, seed=10), 0.15)))
    answer = generate(replace(RUN.sampled(params).upto(60), rule=rule).drafting(draft, budget))
    ranks: set[int] = set()
    for step in answer.rounds:
        assert len(step.trials) == step.evaluated
        assert sum(trial.rank >= 0 for trial in step.trials) == step.accepted
        assert all(trial.rank < trial.tried <= max(1, budget.branches) for trial in step.trials)
        assert all(trial.rank >= 0 for trial in step.trials[:-1]), "the walk ends at a rejection"
        assert all(trial.confidence is not None for trial in step.trials)
        assert step.drafted == 0 or 1 <= step.passes <= budget.depth
        ranks |= {trial.rank for trial in step.trials}
    assert {-1, 0} <= ranks if budget.branches == 1 else {0, 1} <= ranks, "the counts are about something"


def test_nothing_behind_the_end_of_the_text_is_tried() -> None:
    """The text ends at the second of four accepted tokens."""
    table = writes([60, 4, 62, 63, 64], 3)
    deaf = Forced(recalled([1, 60, 70, 60, 4, 4, 4, 4]))
    step = generate(replace(RUN, engine=toy_engine(table)).drafting(deaf, FOUR)).rounds[0]
    assert (step.accepted, step.evaluated, step.generated) == (2, 2, 2)
    assert step.trials == (Trial(1, 0), Trial(1, 0))


def test_the_controller_s_reason_is_in_every_step() -> None:
    reasons = iter(["first", "second", None, "off: it does not pay", None])

    class Talking:
        def begin(self) -> None:
            """Nothing to forget."""

        def budget(self, length: int) -> Budget:
            why = next(reasons)
            return replace(OFF if why is None or why.startswith("off") else Budget.chain(1), why=why)

        def observe(self, step: Step) -> None:
            """Nothing to learn."""

    answer = generate(replace(RUN, controller=Talking(), drafter=always_right(TABLE)).upto(7))
    found = [(step.drafted, step.why, step.reason) for step in answer.rounds]
    assert found == [
        (1, "first", None),
        (1, "second", None),
        (0, None, "budget 0"),
        (0, "off: it does not pay", "off: it does not pay"),
        (0, None, "budget 0"),
    ]


def test_a_draft_that_has_no_room_is_not_the_controller_s_choice() -> None:
    """The last token of all: the controller's words would be about a draft that was never made."""
    wish = replace(FOUR, why="a chain of 4 pays")
    last = generate(RUN.upto(6).drafting(always_right(TABLE), wish)).rounds[-1]
    assert (last.drafted, last.rung, last.reason, last.why) == (0, "off", "budget 0", None)


@pytest.mark.parametrize(("widths", "most"), [((1, 2, 4), 3), ((1,), 0), ((8,), 7), (None, 12)])
def test_no_pass_is_wider_than_the_engine_s(widths: tuple[int, ...] | None, most: int) -> None:
    """The last committed token is fed with the draft."""

    class Narrow(ScriptedEngine):
        @property
        def info(self) -> EngineInfo:
            return replace(super().info, widths=widths)

    asked: list[int] = []

    def nothing(context: History, budget: Budget, sampler: Sampler) -> Draft:
        asked.append(budget.nodes)
        return Draft.empty()

    run = replace(RUN, engine=Narrow(TABLE, VOCAB)).upto(20)
    generate(run.drafting(Says(nothing), Budget(12, 3, 3)))
    assert set(asked) == ({most} if most else set())
    answer = generate(run.drafting(ModelDrafter(ENGINE), Budget.chain(12)))
    assert answer.ids == generate(run).ids
    assert max(answer.session.widths[1:]) == (most or 0) + 1


def test_a_drafter_alone_gets_its_own_part_of_a_budget() -> None:
    """Budgets by source are for whoever drafts, not only for several in a row."""
    joint = Budget(6, 6, 1, sources={"ngram": Budget.chain(6), "model": Budget(6, 6, 1, gate=Counting(3, 2))})
    steps = generate(RUN.drafting(ModelDrafter(ENGINE), joint)).rounds
    assert {(step.drafted, step.passes) for step in steps[:-3]} == {(2, 3)}
    silent = generate(RUN.drafting(ModelDrafter(ENGINE, name="other"), joint))
    assert {step.drafted for step in silent.rounds} == {0}
    assert silent.reasons[0] == "other: budget 0"
