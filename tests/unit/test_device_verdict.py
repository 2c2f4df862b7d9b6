"""What a device profile means for drafting: the numbers of the speed model, and words that keep to them."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from foredraft.devices import DeviceProfile, DraftTimes, Noise, verdict
from foredraft.devices.verdict import Verdict, judge, sentences
from foredraft.speed import best_chain, break_even_alpha
from tests.support.profiles import DRAFT, PROFILE, timings, with_curve


def words(profile: DeviceProfile) -> str:
    return "\n".join(f"{each.topic}: {each.words}" for each in sentences(profile, judge(profile)))


def judged(profile: DeviceProfile) -> Verdict:
    found = judge(profile)
    assert [draft.cost is None for draft in found.drafts] == [True, *(False for _ in profile.drafts)]
    return found


def test_the_numbers_are_those_of_the_speed_model() -> None:
    found = judged(PROFILE)
    for draft, index in zip(found.drafts, (None, 0), strict=True):
        costs = verdict.costs(PROFILE, index)
        assert costs.fixed == pytest.approx(0.01)
        assert draft.break_even == break_even_alpha(costs, 8)
        for gain in draft.chains:
            assert (gain.size, gain.speedup) == best_chain([gain.alpha] * 31, costs)
    assert found.drafts[1].cost == pytest.approx(0.22)


def test_a_flat_curve_pays() -> None:
    text = words(PROFILE)
    assert "certainty: v is good to ± 1% (95 %)" in text
    assert "draft.gguf costs 0.22 of a step; pays from α 0." in text
    assert "leave it on" in text
    assert "chains and trees gave the bits of single positions" in text
    assert "4.0 GB free beside the loaded models; the model files have 1.2 GB" in text
    assert "note: a note" in text


def test_two_positions_that_cost_five_do_not_pay() -> None:
    steep = with_curve({1: 1.0, 2: 5.0, 4: 9.0, 8: 17.0})
    found, text = judged(steep), words(steep)
    assert all(draft.break_even is None and draft.longest_chain == 0 for draft in found.drafts)
    assert all((gain.size, gain.speedup) == (0, 1.0) for draft in found.drafts for gain in draft.chains)
    assert "n-gram lookup; it does not pay, even if every guess were right" in text
    assert "chains: do not pay for any α up to 0.9: decode plainly" in text
    assert "a chain is about as fast for every α tried" in text


def test_a_draft_as_dear_as_its_target_does_not_pay() -> None:
    dear = replace(PROFILE, drafts=(DraftTimes(DRAFT, timings({1: 1.0, 4: 1.2})),))
    ngram, model = judged(dear).drafts
    assert model.break_even is None and ngram.break_even is not None
    assert "draft.gguf costs 1.00 of a step; it does not pay, even if every guess were right" in words(dear)


def test_trees_pay_where_width_is_free_and_guesses_are_poor() -> None:
    free = with_curve({1: 1.0, 32: 1.001})
    model = judged(free).drafts[1]
    poor = next(tree for tree in model.trees if tree.alpha == 0.3)
    chain = next(gain for gain in model.chains if gain.alpha == 0.3)
    assert poor.size > 8 and poor.speedup > 1.1 * chain.speedup
    assert f"draft.gguf: up to {model.largest_tree} nodes" in words(free)


def test_trees_are_not_judged_where_there_are_none() -> None:
    assert judged(replace(PROFILE, tree=False)).drafts[1].trees == ()
    assert "trees: this engine takes none here" in words(replace(PROFILE, tree=False))
    assert "none was given" in words(replace(PROFILE, drafts=()))


def test_only_offered_widths_are_recommended() -> None:
    tiled = replace(PROFILE, widths=(1, 8))
    for draft in judged(tiled).drafts:
        assert {gain.size for gain in (*draft.chains, *draft.trees)} <= {0, 7}


def test_noise_is_told() -> None:
    noisy = replace(PROFILE, width_noise=(Noise(2, 0.0), Noise(8, 0.25)), tree_noise=())
    assert judge(noisy).exact is False
    assert "not bit for bit: chains move logits by up to 0.25" in words(noisy)
    unknown = replace(PROFILE, width_noise=(), tree_noise=())
    assert judge(unknown).exact is None and "exactness: not measured" in words(unknown)


def test_a_noisy_curve_decides_nothing_and_says_so() -> None:
    noisy = with_curve({1: 1.0, 2: 1.4, 4: 1.9, 8: 3.0}, spread=0.2, runs=16)
    found, text = judged(noisy), words(noisy)
    assert not found.decided and found.uncertainty == pytest.approx(1.96 * 1.858 * 0.2 * 2**0.5 / 4, rel=1e-3)
    assert "too noisy to decide: v is good to ± 26% (95 %); single passes vary by up to 20%" in text
    late, early = found.drafts[1].between
    here = found.drafts[1].break_even
    assert early is not None and here is not None and early < here and (late is None or late > here)
    assert f"({early:.2f} to " in text


def test_three_runs_are_needed_to_know_a_spread() -> None:
    assert judge(with_curve({1: 1.0, 4: 1.2}, runs=2)).uncertainty is None
    assert "not decided: some widths were measured once or twice only" in words(with_curve({1: 1.0, 4: 1.2}, runs=2))
    assert judge(with_curve({1: 1.0, 4: 1.2}, runs=3)).uncertainty is not None


def test_tight_memory_is_told() -> None:
    assert "that is tight" in words(replace(PROFILE, free_bytes=200_000_000))
    assert "not known here" in words(replace(PROFILE, free_bytes=None))


def test_examples_in_the_docstrings() -> None:
    done = doctest.testmod(verdict)
    assert done.failed == 0 and done.attempted > 0


def test_wide_passes_cheaper_than_single_ones_decide_nothing() -> None:
    """Something else ran while width 1 was timed."""
    disturbed = with_curve({1: 1.0, 2: 0.5, 4: 0.6})
    assert not judge(disturbed).decided
    text = words(disturbed)
    assert "not decided: wide passes seemed cheaper than single ones" in text
    assert "draft: perhaps: n-gram lookup" in text and "chains: perhaps: " in text and "leave it on" not in text
    assert judge(with_curve({1: 1.0, 2: 0.95, 4: 1.1})).decided
