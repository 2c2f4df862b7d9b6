"""Sampler: logits to law to choice, against plain-Python definitions and cases from the field."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foredraft.errors import EngineFailure, InvalidValue
from foredraft.noise import DRAFT, TARGET, GumbelNoise
from foredraft.sampling import History, Sampler, log_softmax_at, top_logprobs
from foredraft.types import Law, Logits, SamplingParams
from tests.law.reference import edited_row, truncated

SOFT = SamplingParams(temperature=1.0)
LOGIT = st.floats(-20, 20, width=32) | st.integers(-4, 4).map(float) | st.just(-math.inf)
ROWS = st.lists(LOGIT, min_size=1, max_size=60).filter(lambda row: max(row) > -math.inf)


def logits(*values: float) -> Logits:
    return np.array(values, np.float32)


def dense(law: Law, size: int) -> list[float]:
    assert (np.diff(law.ids) > 0).all()
    result = np.zeros(size)
    result[law.ids] = law.probs()
    values: list[float] = result.tolist()
    return values


def found_law(row: Logits, params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    history = History(prompt, params.penalty_window)
    for token in output:
        history.push(token)
    return dense(Sampler(params).law(row, history), len(row))


def clear_of_the_bars(row: list[float], params: SamplingParams) -> bool:
    """False where rounding could decide whether a token survives top-p or min-p."""
    order = sorted((v for v in row if v > -math.inf), reverse=True)[: params.top_k or None]
    weights = [math.exp((value - order[0]) / params.temperature) for value in order]
    shares = np.cumsum(weights) / math.fsum(weights)
    return bool(
        (np.abs(shares[:-1] - params.top_p) > 1e-6).all()
        and all(abs(weight - params.min_p) > 1e-9 for weight in weights[1:])
    )


class TestTruncation:
    @settings(max_examples=400)
    @given(
        row=ROWS,
        temperature=st.floats(0.05, 5.0),
        top_k=st.integers(0, 70),
        top_p=st.floats(0.01, 1.0) | st.just(1.0),
        min_p=st.floats(0.0, 0.9) | st.just(0.0),
    )
    def test_equals_the_definition(
        self, row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
    ) -> None:
        params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        assume(clear_of_the_bars(row, params))
        assert found_law(logits(*row), params, [0], []) == pytest.approx(truncated(row, params), abs=1e-12)

    @pytest.mark.parametrize("top_p", [0.3, 0.8, 0.95, 0.9999])
    @pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
    def test_nucleus_of_a_vocabulary(self, spread: float, top_p: float) -> None:
        row = (np.random.default_rng(1).standard_normal(20_000) * spread).astype(np.float32)
        found = Sampler(SamplingParams(temperature=0.8, top_p=top_p)).law(row, History([0]))
        weights = np.exp((row.astype(np.float64) - row.max()) / 0.8)
        inside = weights[found.ids] / weights.sum()
        assert inside.sum() >= top_p - 1e-6  # the rest's mass is summed from float32 exponentials
        assert inside.sum() - inside.min() < top_p + 1e-6
        assert weights[found.ids].min() == np.sort(weights)[::-1][len(found.ids) - 1]

    def test_top_k_above_the_vocabulary_changes_nothing(self) -> None:
        row = logits(1.0, 0.6, 0.2, -0.5)
        for top_p in (0.4, 0.6, 0.9):
            plain = SamplingParams(temperature=1.0, top_p=top_p)
            wide = SamplingParams(temperature=1.0, top_p=top_p, top_k=4)
            assert found_law(row, wide, [0], []) == found_law(row, plain, [0], [])

    def test_ties_go_to_the_lower_id(self) -> None:
        row = logits(1.0, 2.0, 2.0, 2.0)
        assert found_law(row, SamplingParams(temperature=1.0, top_k=2), [0], []) == [0.0, 0.5, 0.5, 0.0]
        assert found_law(row, SamplingParams(temperature=1.0, top_p=0.4), [0], []) == [0.0, 0.5, 0.5, 0.0]
        assert Sampler(SamplingParams()).choose(row, History([0])) == 1
        assert found_law(row, SamplingParams(temperature=1.0, min_p=1.0), [0], []) == pytest.approx(
            [0.0, 1 / 3, 1 / 3, 1 / 3]
        )

    def test_impossible_tokens_never_survive(self) -> None:
        row = logits(-math.inf, 0.0, -math.inf)
        for params in (SOFT, SamplingParams(temperature=1.0, top_k=3), SamplingParams(temperature=1.0, top_p=0.99)):
            assert found_law(row, params, [0], []) == [0.0, 1.0, 0.0]

    @pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}])
    def test_extreme_temperatures(self, filters: dict[str, float]) -> None:
        """Near 0 the law is the best token; far up it is flat. Neither warns nor hangs."""
        row = logits(1.0, 3.0, 2.0)
        for cold in (1e-10, 1e-42, 1e-50, 5e-324):
            params = SamplingParams(temperature=cold, **filters)  # type: ignore[arg-type]
            assert found_law(row, params, [0], [])[1] == 1.0
        hot = found_law(row, SamplingParams(temperature=1e300, **filters), [0], [])  # type: ignore[arg-type]
        assert {round(p, 12) for p in hot if p} == {round(1 / sum(p > 0 for p in hot), 12)}

    def test_d4_every_token_of_the_law_appears(self) -> None:
        """Case D4: with filters on, 300 seeds show all three tokens."""
        row = logits(0.4, 0.0, -0.3)
        params = [SamplingParams(temperature=1.0, top_k=3, top_p=0.999, min_p=0.01, seed=s) for s in range(300)]
        assert {Sampler(each).choose(row, History([0])) for each in params} == {0, 1, 2}

    def test_d7_top_k_1_is_greedy(self) -> None:
        """Case D7."""
        rng = np.random.default_rng(5)
        for seed in range(50):
            row = rng.standard_normal(100).astype(np.float32)
            sampler = Sampler(SamplingParams(temperature=0.8, top_k=1, seed=seed))
            assert sampler.choose(row, History([0])) == int(row.argmax())

    def test_d7_never_outside_the_nucleus(self) -> None:
        """Case D7: top_p = .1 of a law with shares .08, .05, .03 … keeps the first two tokens only."""
        shares = np.array([0.08, 0.05, 0.03, *[0.84 / 40] * 40])
        row = np.log(shares).astype(np.float32)
        seen = {
            Sampler(SamplingParams(temperature=1.0, top_p=0.1, seed=seed)).choose(row, History([0]))
            for seed in range(300)
        }
        assert seen == {0, 1}


class TestEdits:
    @settings(max_examples=300)
    @given(
        row=st.lists(LOGIT, min_size=5, max_size=8).filter(lambda row: max(row) > -math.inf),
        prompt=st.lists(st.integers(0, 9), max_size=6),
        output=st.lists(st.integers(0, 9), max_size=6),
        penalties=st.tuples(st.floats(0.5, 2.0), st.floats(-2.0, 2.0), st.floats(-2.0, 2.0)),
        window=st.integers(0, 5),
    )
    def test_penalties_equal_the_definition(
        self,
        row: list[float],
        prompt: list[int],
        output: list[int],
        penalties: tuple[float, float, float],
        window: int,
    ) -> None:
        """Also with ids in the history that the row does not have."""
        repetition, presence, frequency = penalties
        params = SamplingParams(
            temperature=1.0,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            penalty_window=window,
            logit_bias={1: 0.5, 3: -1.0, 77: 4.0},
        )
        expected = truncated(edited_row(row, tuple(prompt), tuple(output), params), params)
        assert found_law(logits(*row), params, prompt, output) == pytest.approx(expected, abs=1e-12)

    def test_presence_and_frequency_ignore_the_prompt(self) -> None:
        params = SamplingParams(temperature=1.0, presence_penalty=1.0, frequency_penalty=1.0)
        assert found_law(logits(0.0, 0.0), params, [0, 0, 0], []) == [0.5, 0.5]

    def test_repetition_looks_at_the_prompt_and_at_the_sign(self) -> None:
        params = SamplingParams(temperature=1.0, repetition_penalty=2.0)
        law = Sampler(params).law(logits(1.0, -1.0, 0.5), History([0, 1]))
        assert law.scores.tolist() == [0.0, -2.5, 0.0]

    def test_e1_frequency_counts_every_token(self) -> None:
        """Case E1: seen four times at .5 each is 2.0, not .5."""
        history = History([9])
        for _ in range(4):
            history.push(1)
        sampler = Sampler(SamplingParams(temperature=1.0, frequency_penalty=0.5))
        law = sampler.law(logits(0.0, 0.0, 0.0), history)
        assert law.scores[1] - law.scores[0] == pytest.approx(-2.0, abs=1e-12)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_min_tokens_bars_the_end_until_they_are_there(self, temperature: float) -> None:
        sampler = Sampler(SamplingParams(temperature=temperature, min_tokens=2), eog_ids=[1, 50])
        history, row = History([0]), logits(0.0, 9.0, -1.0)
        for _ in range(2):
            assert sampler.law(row, history).prob(1) == 0.0
            assert sampler.choose(row, history) != 1
            history.push(0)
        assert sampler.law(row, history).prob(1) > 0.9

    def test_logit_bias(self) -> None:
        params = SamplingParams(logit_bias={2: 3.0, 0: -math.inf, 999: 50.0, -3: 50.0})
        assert Sampler(params).choose(logits(9.0, 1.0, 0.0), History([0])) == 2
        row = logits(9.0, 1.0, 0.0)
        Sampler(params).law(row, History([0]))
        assert row.tolist() == [9.0, 1.0, 0.0]

    def test_huge_bias(self) -> None:
        params = SamplingParams(temperature=1.0, top_p=0.9, logit_bias={1: 1e300})
        assert found_law(logits(9.0, 1.0, 0.0), params, [0], []) == [0.0, 1.0, 0.0]

    def test_bars_and_restriction(self) -> None:
        sampler = Sampler(SamplingParams(), bars=[2, 99])
        row = logits(0.0, 1.0, 2.0)
        assert sampler.choose(row, History([0])) == 1
        narrow = sampler.restricted([1])
        assert narrow.choose(row, History([0])) == 0
        assert (narrow.params, narrow.rule, narrow.noise) == (sampler.params, sampler.rule, sampler.noise)
        assert sampler.choose(row, History([0])) == 1

    def test_restriction_keeps_ends_and_rule(self) -> None:
        sampler = Sampler(SOFT, rule="residual", noise=GumbelNoise(3), eog_ids=[1]).restricted([0])
        assert sampler.ends(1) and not sampler.ends(0)
        assert sampler.draft_stream == DRAFT

    def test_restriction_may_change_the_temperature(self) -> None:
        params = SamplingParams(temperature=1.0, top_k=3, min_p=0.01, seed=8)
        sampler = Sampler(params, rule="residual", eog_ids=[1])
        warm = sampler.restricted([], 2.0)
        assert warm.params == replace(params, temperature=2.0)
        assert (warm.rule, warm.noise, warm.ends(1)) == ("residual", sampler.noise, True)
        assert sampler.restricted([]).params == params
        greedy = Sampler(SamplingParams()).restricted([], 2.0)
        assert greedy.params.greedy, "a greedy target is drafted for greedily"


class TestBadLogits:
    @pytest.mark.parametrize("params", [SamplingParams(), SOFT, SamplingParams(temperature=1.0, top_k=1, top_p=0.5)])
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nan_and_infinity_are_the_engines_fault(self, bad: float, params: SamplingParams) -> None:
        with pytest.raises(EngineFailure, match=rf"{bad} as the logit of token 1; the model file may be damaged"):
            Sampler(params).choose(logits(0.0, bad, 5.0), History([0]))

    @pytest.mark.parametrize(
        "params",
        [
            SamplingParams(),
            SOFT,
            SamplingParams(temperature=1.0, top_p=0.5),
            SamplingParams(temperature=1.0, top_k=1),
            SamplingParams(temperature=1.0, min_p=0.5),
        ],
    )
    def test_nothing_left_to_choose(self, params: SamplingParams) -> None:
        """A greedy argmax would silently take token 0."""
        with pytest.raises(InvalidValue, match="-inf for every token"):
            Sampler(params, bars=[0, 1]).choose(logits(0.0, 1.0), History([0]))


class TestChoices:
    @pytest.mark.parametrize("params", [SamplingParams(), SOFT, SamplingParams(temperature=0.7, top_p=0.9)])
    def test_first_coupled_child_is_the_choice(self, params: SamplingParams) -> None:
        sampler, history = Sampler(params), History([0])
        rng = np.random.default_rng(2)
        for _ in range(30):
            row = rng.standard_normal(40).astype(np.float32)
            ids, law, _ = sampler.children(row, history, 3)
            assert law is None
            assert len(set(ids.tolist())) == len(ids) == 3
            assert int(ids[0]) == sampler.choose(row, history)
            history.push(int(ids[0]))

    def test_greedy_children_are_the_best_tokens(self) -> None:
        ids, law, _ = Sampler(SamplingParams(), rule="residual").children(logits(1, 3, -math.inf, 2), History([0]), 9)
        assert (ids.tolist(), law) == ([1, 3, 0], None)

    def test_residual_children_come_with_their_law(self) -> None:
        noise = GumbelNoise(4)
        sampler = Sampler(SOFT, rule="residual", noise=noise)
        row, history = logits(0.0, 1.0, 0.5), History([0, 0])
        ids, law, _ = sampler.children(row, history, 2)
        assert law is not None
        assert dense(law, 3) == found_law(row, SOFT, [0, 0], [])
        assert ids.tolist() == noise.ranked(law, 2, 2, DRAFT).tolist()

    @pytest.mark.parametrize(("rule", "stream"), [("coupled", TARGET), ("residual", DRAFT), ("relaxed", DRAFT)])
    def test_streams(self, rule: str, stream: int) -> None:
        assert Sampler(SOFT, rule=rule).draft_stream == stream  # type: ignore[arg-type]

    def test_choice_is_keyed_by_position_and_seed(self) -> None:
        row = logits(*[0.0] * 100)
        by_position = [Sampler(SOFT).choose(row, History([0] * n)) for n in range(1, 30)]
        by_seed = [Sampler(SamplingParams(temperature=1.0, seed=n)).choose(row, History([0])) for n in range(30)]
        assert len(set(by_position)) > 20 and len(set(by_seed)) > 20
        assert by_position == [Sampler(SOFT).choose(row, History([1] * n)) for n in range(1, 30)]

    def test_the_choice_maximises_score_plus_noise(self) -> None:
        params = SamplingParams(temperature=0.9, top_k=20)
        sampler, history = Sampler(params), History([0])
        rng = np.random.default_rng(8)
        for _ in range(20):
            row = rng.standard_normal(50).astype(np.float32)
            law = sampler.law(row, history)
            keys = law.scores + GumbelNoise(params.seed).gumbel(law.ids, len(history))
            assert int(law.ids[keys.argmax()]) == sampler.choose(row, history)
            history.push(0)

    def test_a_draft_with_the_target_s_logits_is_the_target_s_choice(self) -> None:
        """Self-draft: α is 1 whatever the vocabulary and the law."""
        row = (np.random.default_rng(3).standard_normal(50_000) * 2).astype(np.float32)
        for params in (SamplingParams(temperature=1.5), SamplingParams(temperature=0.8, top_p=0.95)):
            sampler = Sampler(params)
            for position in range(1, 60):
                history = History([0] * position)
                assert int(sampler.children(row, history, 2)[0][0]) == sampler.choose(row, history)

    def test_greedy_law_is_a_point(self) -> None:
        law = Sampler(SamplingParams()).law(logits(0.0, 1.0), History([0]))
        assert (law.ids.tolist(), law.scores.tolist()) == ([1], [0.0])


class TestLogProbabilities:
    @settings(max_examples=100)
    @given(row=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=50), k=st.integers(1, 60))
    def test_equal_the_definition(self, row: list[float], k: int) -> None:
        peak = max(row)
        total = peak + math.log(math.fsum(math.exp(value - peak) for value in row))
        found = log_softmax_at(logits(*row), range(len(row)))
        assert found.tolist() == pytest.approx([value - total for value in row], abs=1e-5)
        best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:k]
        top = top_logprobs(logits(*row), k)
        assert [token for token, _ in top] == best
        assert [value for _, value in top] == pytest.approx([row[t] - total for t in best], abs=1e-5)

    def test_never_positive(self) -> None:
        row = np.full(151_936, -30.0, np.float32)
        row[5] = 0.0
        assert -1e-6 < log_softmax_at(row, [5])[0] <= 0.0

    def test_impossible_token(self) -> None:
        assert log_softmax_at(logits(0.0, -math.inf), [0, 1]).tolist() == [0.0, -math.inf]
        assert top_logprobs(logits(0.0, -math.inf), 5) == ((0, 0.0),)
