"""Walks through a drafted tree: what is accepted, what is counted, what is asked of the noise, what is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from foredraft.engines.scripted import markov_table
from foredraft.errors import EngineFailure, InvalidValue
from foredraft.noise import TARGET, GumbelNoise
from foredraft.sampling import History, Sampler
from foredraft.trees import path_to
from foredraft.types import Draft, Ids, Law, Logits, Rule, SamplingParams, Verdict
from foredraft.verify import check_max_tv, verify
from tests.law.reference import next_law

VOCAB = 6
GREEDY, SOFT = SamplingParams(), SamplingParams(temperature=1.0)
RULES: tuple[Rule, ...] = ("coupled", "residual", "relaxed")


def best(*tokens: int) -> Logits:
    """One row for each token, which is its clear winner."""
    rows = np.zeros((len(tokens), VOCAB), np.float32)
    rows[np.arange(len(tokens)), tokens] = 5.0
    return rows


def tree(tokens: Sequence[int], parents: Sequence[int], laws: tuple[Law, ...] | None = None) -> Draft:
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), laws, "test")


def law(*probs: float) -> Law:
    """Over the tokens 0, 1, 2, …; the impossible ones left out."""
    dense = np.array(probs)
    ids = np.flatnonzero(dense)
    return Law(ids.astype(np.int32), np.log(dense[ids]))


def row(*probs: float) -> Logits:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, np.float32), dtype=np.float32)


@dataclass
class ScriptedNoise:
    """Answers accept tests from a list, always picks the law's likeliest token, and writes down what was asked."""

    answers: list[bool] = field(default_factory=list)
    tests: list[tuple[float, int, int]] = field(default_factory=list)
    picks: list[tuple[Law, int, int]] = field(default_factory=list)

    def pick(self, law: Law, position: int, stream: int) -> int:
        self.picks.append((law, position, stream))
        return int(law.ids[law.scores.argmax()])

    def ranked(self, law: Law, position: int, k: int, stream: int) -> Ids:
        return law.ids[np.argsort(-law.scores)[:k]]

    def accept(self, probability: float, position: int, index: int) -> bool:
        self.tests.append((probability, position, index))
        return self.answers.pop(0)


def assert_tests(noise: ScriptedNoise, *expected: tuple[float, int, int]) -> None:
    """The accept tests made: (probability, position, index)."""
    assert [key[1:] for key in noise.tests] == [key[1:] for key in expected]
    probabilities = [key[0] for key in noise.tests]
    assert probabilities == pytest.approx([key[0] for key in expected], rel=1e-5, abs=1e-12)


def greedy(draft: Draft, logits: Logits, rule: Rule = "coupled") -> Verdict:
    return verify(draft, logits, Sampler(GREEDY, rule=rule), History([0]), 0.01 if rule == "relaxed" else 0.0)


class TestWalks:
    """Greedy: the target's choices are plain to see. Point-mass proposals give the exact rules the same walk."""

    @pytest.mark.parametrize("rule", ["coupled", "residual"])
    @pytest.mark.parametrize(
        ("drafted", "choices", "path", "token", "evaluated"),
        [
            ([1, 2, 3], [1, 2, 3, 4], (0, 1, 2), 4, 3),
            ([1, 2, 3], [1, 2, 5, 4], (0, 1), 5, 3),
            ([1, 2, 3], [1, 5, 3, 4], (0,), 5, 2),
            ([1, 2, 3], [5, 2, 3, 4], (), 5, 1),
            ([2, 2, 2], [2, 2, 2, 2], (0, 1, 2), 2, 3),
            ([1], [0, 4], (), 0, 1),
        ],
    )
    def test_chain(  # noqa: PLR0917  one column each
        self, drafted: list[int], choices: list[int], path: tuple[int, ...], token: int, evaluated: int, rule: Rule
    ) -> None:
        found = greedy(Draft.chain(drafted, "test"), best(*choices), rule)
        assert found == Verdict(path, token, evaluated, (0.0,) * (len(path) + 1))

    @pytest.mark.parametrize("rule", ["coupled", "residual"])
    @pytest.mark.parametrize(
        ("choices", "path", "token", "evaluated"),
        [
            ([2, 0, 4, 0, 3, 0], (1, 3), 3, 2),
            ([2, 0, 3, 0, 5, 0], (1,), 3, 2),
            ([1, 5, 0, 0, 0, 0], (0, 4), 0, 2),
            ([3, 0, 0, 0, 0, 0], (), 3, 1),
        ],
    )
    def test_tree(self, choices: list[int], path: tuple[int, ...], token: int, evaluated: int, rule: Rule) -> None:
        """Root: 1, 2; below 2: 5 and 4; below 1: 5. Row i + 1 belongs to node i, wherever its parent is."""
        draft = tree([1, 2, 5, 4, 5], [-1, -1, 1, 1, 0])
        found = greedy(draft, best(*choices), rule)
        assert (found.path, found.token, found.evaluated) == (path, token, evaluated)
        assert found.bias == (0.0,) * (len(path) + 1)

    @pytest.mark.parametrize("rule", RULES)
    def test_nothing_drafted(self, rule: Rule) -> None:
        assert greedy(Draft.empty(), best(3), rule) == Verdict((), 3, 0, (0.0,))

    @pytest.mark.parametrize("rule", ["coupled", "residual"])
    def test_duplicates_among_siblings(self, rule: Rule) -> None:
        """The first of them is taken; as a rejected one it does no harm."""
        draft = tree([4, 4, 2, 2, 3], [-1, -1, -1, -1, 2])
        assert greedy(draft, best(2, 0, 0, 3, 0, 5), rule) == Verdict((2, 4), 5, 2, (0.0,) * 3)
        assert greedy(draft, best(1, 0, 0, 3, 0, 5), rule) == Verdict((), 1, 1, (0.0,))

    def test_leaf_is_no_evaluated_level(self) -> None:
        """Nothing is tried below a leaf: its bonus token does not count as evaluated."""
        draft = tree([1, 2], [-1, -1])
        assert greedy(draft, best(2, 0, 5)) == Verdict((1,), 5, 1, (0.0, 0.0))


class TestAcceptReject:
    """The numbers of the residual rule, asked for one by one."""

    def run(
        self, draft: Draft, logits: Logits, answers: list[bool], rule: Rule = "residual", max_tv: float = 0.0
    ) -> tuple[Verdict, ScriptedNoise]:
        noise = ScriptedNoise(answers)
        return verify(draft, logits, Sampler(SOFT, rule=rule, noise=noise), History([0, 0]), max_tv), noise

    def test_ratio_and_residual(self) -> None:
        p, q = (0.5, 0.3, 0.2), (0.2, 0.2, 0.6)
        found, noise = self.run(Draft.chain([2], "test", (law(*q),)), np.stack([row(*p)] * 2), [False])
        assert_tests(noise, (0.2 / 0.6, 2, 0))
        rest, position, stream = noise.picks[0]
        assert (position, stream) == (2, TARGET)
        assert rest.ids.tolist() == [0, 1]
        assert rest.probs().tolist() == pytest.approx([0.75, 0.25], abs=1e-6)
        assert found == Verdict((), 0, 1, (0.0,))

    def test_likelier_than_drafted_is_certain(self) -> None:
        _, noise = self.run(Draft.chain([0], "test", (law(0.2, 0.8),)), np.stack([row(0.9, 0.1)] * 2), [True])
        assert noise.tests == [(1.0, 2, 0)]
        assert noise.picks[0][1] == 3

    def test_siblings_without_replacement(self) -> None:
        p, q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
        draft = tree([3, 2], [-1, -1], (law(*q),) * 2)
        _, noise = self.run(draft, np.stack([row(*p)] * 3), [False, False])
        assert_tests(noise, (0.25, 2, 0), (0.0, 2, 1))  # token 2 is not in the residual
        rest = noise.picks[0][0]
        # p' = (.75, .25), q' = (1/6, 1/3, 1/2): the second residual holds token 0 alone
        assert (rest.ids.tolist(), rest.probs().tolist()) == ([0], [1.0])

    def test_second_sibling_accepted(self) -> None:
        p, q = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)
        draft = tree([3, 1, 2], [-1, -1, 1], (law(*q),) * 3)
        found, noise = self.run(draft, np.stack([row(*p)] * 4), [False, True, False])
        assert_tests(noise, (0.25, 2, 0), (0.75, 2, 1), (0.2 / 0.3, 3, 0))  # second: p' = .25, q' = .2 / .6
        assert (found.path, found.evaluated, len(found.bias)) == ((1,), 2, 2)

    def test_point_masses_are_accepted_with_p(self) -> None:
        draft = tree([1, 1, 0], [-1, -1, -1])
        _, noise = self.run(draft, np.stack([row(0.5, 0.3, 0.2)] * 4), [False, False, False])
        assert_tests(noise, (0.3, 2, 0), (0.0, 2, 1), (0.5 / 0.7, 2, 2))
        assert noise.picks[0][0].ids.tolist() == [2]

    def test_d8_tiny_probabilities_keep_their_ratio(self) -> None:
        """Case D8: q = 1e-9, p = 1e-12 is accepted with a probability of about .1 %, not always."""
        p, q = (1 - 1e-12, 1e-12), (1 - 1e-9, 1e-9)
        _, noise = self.run(Draft.chain([1], "test", (law(*q),)), np.stack([row(*p)] * 2), [False])
        assert_tests(noise, (1e-3, 2, 0))

    @pytest.mark.parametrize("token", [1, 5])
    def test_d8_token_the_draft_cannot_have_drawn_is_never_accepted(self, token: int) -> None:
        """Case D8: q = 0 is a broken drafter. The token is passed over, the others are judged as without it."""
        draft = tree([token, 0], [-1, -1], (law(0.6, 0.0, 0.4),) * 2)
        found, noise = self.run(draft, np.stack([row(0.3, 0.7)] * 3), [False])
        assert_tests(noise, (0.5, 2, 1))
        assert (found.path, found.token) == ((), 1)
        _, noise = self.run(Draft.chain([token], "test", draft.laws), np.stack([row(0.3, 0.7)] * 2), [])
        assert noise.tests == []
        assert noise.picks[0][0].probs().tolist() == pytest.approx([0.3, 0.7], abs=1e-6)

    def test_relaxed_mixes_the_proposal_in(self) -> None:
        p, q = (0.5, 0.3, 0.2), (0.2, 0.2, 0.6)  # total variation .4
        draft = Draft.chain([2], "test", (law(*q),))
        found, noise = self.run(draft, np.stack([row(*p)] * 2), [True], "relaxed", 0.1)
        w = 1 - 0.1 / 0.4
        assert_tests(noise, (1 - w + w * 0.2 / 0.6, 2, 0))
        assert found.bias == pytest.approx((0.1, 0.0), abs=1e-12)

    @pytest.mark.parametrize("answers", [[False], [True, False], [True, True, False], [True, True, True]])
    def test_bias_has_one_entry_for_each_emitted_token(self, answers: list[bool]) -> None:
        draft = Draft.chain([2, 2, 2], "test", (law(0.2, 0.2, 0.6),) * 3)
        found, _ = self.run(draft, np.stack([row(0.5, 0.3, 0.2)] * 4), list(answers), "relaxed", 0.1)
        spent = [0.1] * len(answers)
        if all(answers):
            spent.append(0.0)  # the bonus token is the target's own
        assert found.bias == pytest.approx(spent, abs=1e-12)
        assert len(found.bias) == len(found.path) + 1
        assert found.evaluated == len(answers)

    def test_zero_bound_is_the_exact_rule(self) -> None:
        draft = Draft.chain([2], "test", (law(0.2, 0.2, 0.6),))
        for rule in ("residual", "relaxed"):
            found, noise = self.run(draft, np.stack([row(0.5, 0.3, 0.2)] * 2), [True], rule, 0.0)
            assert_tests(noise, (1 / 3, 2, 0))
            assert found.bias == (0.0, 0.0)


def target_rows(draft: Draft, prompt: tuple[int, ...]) -> Logits:
    table = markov_table(VOCAB, seed=3)
    texts = [prompt]
    texts += [(*prompt, *(int(draft.tokens[up]) for up in path_to(draft.parents, node))) for node in range(len(draft))]
    return np.stack([table(text) for text in texts])


class Recording(Sampler):
    """Writes down the law of every row it is asked about; fails at the ``fail_at``-th."""

    fail_at = 99

    def __init__(self, params: SamplingParams, rule: Rule) -> None:
        super().__init__(params, rule=rule, noise=GumbelNoise(1))
        self.laws: list[list[float]] = []

    def _record(self, logits: Logits, history: History) -> None:
        if len(self.laws) == self.fail_at:
            raise EngineFailure("NaN")
        dense = np.zeros(len(logits))
        law = super().law(logits, history)
        dense[law.ids] = law.probs()
        self.laws.append(dense.tolist())

    def choose(self, logits: Logits, history: History) -> int:
        self._record(logits, history)
        return super().choose(logits, history)

    def law(self, logits: Logits, history: History) -> Law:
        self._record(logits, history)
        return super().law(logits, history)


PROMPT = (0, 1, 2)


def fully_accepted(params: SamplingParams, length: int) -> Draft:
    """The target's own next ``length`` tokens under the recording sampler's noise."""
    table, history = markov_table(VOCAB, seed=3), History(PROMPT, params.penalty_window)
    sampler = Sampler(params, noise=GumbelNoise(1))
    for _ in range(length):
        history.push(sampler.choose(table(tuple(history.tokens)), history))
    return Draft.chain(history.tokens[len(PROMPT) :], "test")


class TestHistory:
    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(temperature=1.0, repetition_penalty=1.3),
            SamplingParams(temperature=1.0, repetition_penalty=1.3, penalty_window=2),
            SamplingParams(temperature=1.0, presence_penalty=0.7, frequency_penalty=0.5),
        ],
        ids=["repetition", "window", "presence, frequency"],
    )
    def test_e4_every_position_has_the_plain_law(self, params: SamplingParams) -> None:
        """Case E4: the law at each verified position is the one plain decoding has there."""
        draft = fully_accepted(params, 6)
        sampler = Recording(params, "coupled")
        history = History(PROMPT, params.penalty_window)
        found = verify(draft, target_rows(draft, PROMPT), sampler, history)
        assert len(found.path) == 6 and len(sampler.laws) == 7
        for depth, law in enumerate(sampler.laws):
            output = tuple(draft.tokens[:depth].tolist())
            assert law == pytest.approx(next_law(markov_table(VOCAB, seed=3), PROMPT, output, params), abs=1e-12)

    def test_e1_four_accepted_tokens_weigh_four_times(self) -> None:
        """Case E1: the same token four times in one round, at .5 each: 2.0 at the bonus position."""
        params = SamplingParams(temperature=1.0, frequency_penalty=0.5)
        sampler = Recording(params, "residual")
        sampler.noise = ScriptedNoise([True] * 4)
        verify(Draft.chain([1] * 4, "test"), np.zeros((5, VOCAB), np.float32), sampler, History([0]))
        shifts = [np.log(law[0] / law[1]) for law in sampler.laws]
        assert shifts == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0], abs=1e-12)

    def test_min_tokens_counts_tokens_of_a_round(self) -> None:
        """Case E1: with two tokens accepted before it, the third position may already end the text."""
        sampler = Sampler(SamplingParams(min_tokens=2), eog_ids=[5])
        rows = best(5, 5, 5)
        rows[:, 1] = 3.0
        assert verify(Draft.chain([1, 1], "test"), rows, sampler, History([0])) == Verdict((0, 1), 5, 2, (0.0,) * 3)

    @pytest.mark.parametrize("rule", RULES)
    @pytest.mark.parametrize("window", [0, 2])
    def test_is_left_as_found(self, window: int, rule: Rule) -> None:
        params = SamplingParams(temperature=1.0, repetition_penalty=1.3, penalty_window=window)
        draft = fully_accepted(params, 4)
        history = History(PROMPT, window)
        history.push(4)
        before = list(history.tokens), dict(history.seen), dict(history.output)
        verify(draft, target_rows(draft, (*PROMPT, 4)), Recording(params, rule), history, 0.5)
        assert (list(history.tokens), history.seen, history.output) == before

    @pytest.mark.parametrize("rule", ["coupled", "residual"])
    @pytest.mark.parametrize("fail_at", [0, 1, 2])
    def test_is_left_as_found_after_an_error(self, fail_at: int, rule: Rule) -> None:
        draft = Draft.chain([1, 2, 3], "test")
        sampler = Recording(GREEDY, rule)
        sampler.fail_at = fail_at
        history = History(PROMPT)
        with pytest.raises(EngineFailure, match="NaN"):
            verify(draft, best(1, 2, 3, 4), sampler, history)
        assert len(sampler.laws) == fail_at
        assert (list(history.tokens), history.seen, history.output) == ([0, 1, 2], {0: 1, 1: 1, 2: 1}, {})


@pytest.mark.parametrize("seed", range(5))
def test_coupled_text_does_not_depend_on_the_draft(seed: int) -> None:
    """The shipped noise: every random tree gives a prefix of the plain text, and its next token."""
    rng = np.random.default_rng(seed)
    params = SamplingParams(temperature=0.8, seed=seed)
    plain = fully_accepted(params, 8).tokens.tolist()
    for _ in range(40):
        parents = [int(rng.integers(-1, node)) if node else -1 for node in range(int(rng.integers(1, 12)))]
        draft = tree(rng.integers(0, VOCAB, len(parents)).tolist(), parents)
        sampler = Sampler(params, noise=GumbelNoise(1))
        found = verify(draft, target_rows(draft, PROMPT), sampler, History(PROMPT))
        text = [*draft.tokens[list(found.path)].tolist(), found.token]
        assert text == plain[: len(text)]


@pytest.mark.parametrize("value", [0.0, -0.1, 1.0, 2.0, float("nan")])
def test_bounds_that_are_refused(value: float) -> None:
    with pytest.raises(InvalidValue, match=r"^max_tv is .*; allowed: a number in \(0, 1\).*use rule coupled$"):
        check_max_tv(value)


def test_bounds_that_are_allowed() -> None:
    assert [check_max_tv(value) for value in (1e-9, 0.02, 0.999)] == [1e-9, 0.02, 0.999]
