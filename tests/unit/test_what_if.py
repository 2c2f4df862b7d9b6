"""Answers about settings that were never run, judged against running them on synthetic texts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from foredraft.devices.device import Device, MeasuredDevice
from foredraft.devices.estimate import Weights, estimate
from foredraft.devices.phones import catalogue
from foredraft.errors import InvalidValue, TraceError
from foredraft.profile.hints import hints
from foredraft.profile.judge import Cell, better_would_pay, gate_alpha, judge, pays
from foredraft.profile.laws import summarise
from foredraft.profile.live import Compared
from foredraft.profile.replay import Copies
from foredraft.profile.report import Summary, check_summary, to_page
from foredraft.profile.summary import Profile, Wanted, evaluate, sizes, summary
from foredraft.profile.trace import Ask, DraftTrace, Sampled, TextTrace, Trace, accepted, accepted_by_rank
from foredraft.profile.what_if import (
    LENGTHS,
    Sizes,
    best_draft_temperature,
    best_tree,
    choices,
    likeness,
    play,
    predict,
    recorded,
    tree_tokens,
)
from foredraft.speed import Costs, Curve, chain_speedup
from foredraft.trees import expected_length
from foredraft.types import SamplingParams
from tests.support.profiles import PROFILE
from tests.support.traces import DRAFT, TARGET, Made, make, redact

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def measured(cost: float = 0.22, curve: dict[int, float] | None = None) -> Device:
    """A profile of the synthetic pair."""
    step = PROFILE.step_seconds
    passes = tuple(replace(each, seconds=step * cost) for each in PROFILE.drafts[0].passes)
    timings = PROFILE.curve
    if curve is not None:
        timings = tuple(replace(PROFILE.curve[0], width=width, seconds=step * v) for width, v in curve.items())
    draft = replace(PROFILE.drafts[0], model=DRAFT, passes=passes)
    return MeasuredDevice(replace(PROFILE, target=TARGET, drafts=(draft,), curve=timings))


def actual(made: Made, temperature: float) -> float:
    """Acceptance when the same laws are really sampled at another temperature."""
    trace = make(replace(made, sampled=Sampled(temperature, seed=100), texts=40))
    return float(np.concatenate([text.drafts[0].rank == 0 for text in trace.texts]).mean())


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_acceptance_at_another_temperature(temperature: float) -> None:
    made = Made(texts=40, tokens=40, sampled=Sampled(0.8))
    trace = make(made)
    ask = Ask(SamplingParams(temperature=temperature))
    found = float(np.concatenate([accepted(text, 0, ask) for text in trace.texts]).mean())
    assert found == pytest.approx(actual(made, temperature), abs=0.03)


def test_the_recorded_setting_is_answered_by_what_was_recorded() -> None:
    trace = make(Made(sampled=Sampled(0.8)))
    played = play(trace, choices(trace)[1], recorded(trace))
    first = sum(float((text.drafts[0].rank == 0).sum()) for text in trace.texts)
    whole = sum(float(run.hits[0].sum()) for run in played.runs) + sum(float(run.rounds[0]) for run in played.runs)
    assert whole >= sum(map(len, trace.texts)), "tokens come from accepted drafts and from rounds"
    assert 0 < sum(float(run.hits[0].sum()) for run in played.runs) <= first


def follows(seed: int, count: int = 60) -> TextTrace:
    """A text of the two tokens 0 (.7) and 1 (.3), and a draft that is right behind a 0 and wrong behind a 1."""
    random = np.random.default_rng(seed)
    ids = (random.random(count) < 0.3).astype(np.int32)
    row = np.log(np.array([0.7, 0.3], np.float32))
    behind = np.concatenate([[0], ids[:-1]])
    draft = np.where(behind[:, None] == 0, row, row[::-1]).astype(np.float32)
    rank = np.where(behind == 0, ids, 1 - ids).astype(np.int8)
    base = make(Made(texts=1, tokens=count, sampled=Sampled(1.0))).texts[0]
    nothing = Copies(np.zeros(count, np.int16), np.zeros(count, np.int16))
    facts = replace(base.facts, index=seed, key=str(seed))
    drafts = (DraftTrace(rank, summarise(draft)),)
    pieces = tuple(b"ab"[token : token + 1] for token in ids.tolist())
    return TextTrace(facts, nothing, drafts, ids, pieces, summarise(np.tile(row, (count, 1))))


def test_a_cooler_target_stands_behind_likelier_text() -> None:
    """Greedily only 0 is ever written, behind which the draft is always right; three tenths of the recorded text is
    not."""
    base = make(Made(texts=1, tokens=60, sampled=Sampled(1.0)))
    trace = Trace(base.settings, tuple(map(follows, range(12))))
    cold = play(trace, choices(trace)[1], Ask(SamplingParams()))
    hits, trials = (sum(float(part[0].sum()) for part in parts) for parts in
                    ([run.hits for run in cold.runs], [run.trials for run in cold.runs]))  # fmt: skip
    assert hits / trials > 0.97
    unweighted = np.concatenate([accepted(text, 0, Ask(SamplingParams())) for text in trace.texts]).mean()
    assert unweighted < 0.8
    assert likeness(trace, trace.texts[0], Ask(SamplingParams(temperature=1.4))) is None
    assert likeness(trace, trace.texts[0], recorded(trace)) is None


def test_a_flat_draft_gets_the_speed_of_the_formula() -> None:
    """One kind of position everywhere: the replay is the textbook's chain."""
    trace = make(Made(texts=1, tokens=40, noise=0.0))
    played = play(trace, choices(trace)[1], recorded(trace))
    costs = Costs(Curve((1, 9), (1.0, 1.8)), Curve((1,), (0.2,)), 0.01)
    for length in (1, 3, 4):  # rounds of length + 1 tokens fill 40 tokens
        if 40 % (length + 1) == 0:
            found = played.speedup(length, costs)
            assert found is not None and found.value == pytest.approx(chain_speedup([1.0] * length, costs))


def test_predictions() -> None:
    trace = make(Made(texts=12))
    played = play(trace, choices(trace)[1], recorded(trace))
    found = predict(played, measured(), Sizes(1e9, 3e8))
    assert found.length == int(np.argmax(found.by_length)) + 1 and found.speedup.value == max(found.by_length)
    assert found.speedup.low is not None and found.speedup.low < found.speedup.value
    assert found.tokens_per_second == pytest.approx(found.speedup.value / PROFILE.step_seconds)
    rounds, passes = played.rounds(found.length).sum(), played.passes(found.length).sum()
    assert found.weight_bytes == pytest.approx((rounds * 1e9 + passes * 3e8) / played.tokens(found.length).sum())
    dear = predict(played, measured(curve={1: 1.0, 2: 5.0, 32: 40.0}), Sizes(1e9))
    assert dear.length == 0 and dear.speedup.value == 1.0 and dear.weight_bytes == 1e9


def test_an_estimated_device_is_less_certain() -> None:
    trace = make(Made(texts=12))
    played = play(trace, choices(trace)[1], recorded(trace))
    weights = Weights(TARGET.bytes, {DRAFT.name: DRAFT.bytes})
    guessed = estimate(catalogue(), "OnePlus 12", weights)
    found = played.speedup(4, guessed.costs(DRAFT.name))
    wide = predict(played, guessed, Sizes(1e9, 3e8)).speedup
    assert found is not None and found.low is not None and wide.low is not None
    assert wide.value / wide.low > found.value / found.low


def test_the_best_tree() -> None:
    trace = make(Made(texts=12, noise=1.5))
    ask = recorded(trace)
    played = play(trace, choices(trace)[1], ask)
    flat = Costs(Curve((1, 32), (1.0, 1.1)), Curve((1,), (0.02,)))
    tree = best_tree(trace, played, ask, flat)
    assert tree is not None and len(tree.parents) > 8, "where width is nearly free, trees are wide"
    ranks = np.concatenate([accepted_by_rank(text, 0, ask) for text in trace.texts]).mean(axis=0)
    assert 1.0 < tree.tokens < expected_length(tree.parents, [[1.0, *([0.0] * 3)]]) and ranks[0] > ranks[1] > 0
    assert best_tree(trace, play(trace, choices(trace)[0], ask), ask, flat) is None, "copies have no second guesses"
    assert tree_tokens(played, tree.parents) == pytest.approx(tree.tokens, rel=0.1), "counted and estimated"
    for length in (1, 4, 8):
        assert tree_tokens(played, range(-1, length - 1)) == pytest.approx(played.expected(length)), "a chain is a tree"


def test_relaxed_acceptance_is_higher() -> None:
    trace = make(Made(sampled=Sampled(0.8)))
    params = SamplingParams(temperature=0.8)
    exact = play(trace, choices(trace)[1], Ask(params, "residual"))
    lossy = play(trace, choices(trace)[1], Ask(params, "relaxed", weight=0.7))
    assert lossy.expected(4) > exact.expected(4)


def test_the_drafts_own_temperature() -> None:
    """A draft that is too sure of itself should be heated."""
    trace = make(Made(texts=10, sampled=Sampled(1.0), sharp=2.0))
    ask = recorded(trace)
    found = best_draft_temperature(trace, 0, ask, (0.5, 1.0, 2.0))
    assert found is not None and found[0] == 1.0
    assert best_draft_temperature(make(), 0, recorded(make()), (1.0,)) is None, "greedy"


def test_redacted_traces_answer_on_the_grid_and_between() -> None:
    whole = make(Made(sampled=Sampled(0.8)))
    hidden = redact(whole)
    for temperature, near in ((0.0, 1e-6), (0.6, 1e-6), (0.7, 0.02), (1.15, 0.03)):
        for rule in ("coupled", "residual"):
            ask = Ask(SamplingParams(temperature=temperature), rule)
            left, right = (np.concatenate([accepted(text, 0, ask) for text in one.texts]) for one in (whole, hidden))
            assert left.mean() == pytest.approx(right.mean(), abs=near)
    with pytest.raises(TraceError, match="other draft temperatures"):
        accepted(hidden.texts[0], 0, Ask(SamplingParams(temperature=0.8), draft_temperature=0.5))
    with pytest.raises(InvalidValue, match=r"0 to 1\.3"):
        accepted(hidden.texts[0], 0, Ask(SamplingParams(temperature=1.9)))


# --- verdicts ----------------------------------------------------------------------------------------------


def cells(trace: Trace, device: Device) -> list[Cell]:
    return list(evaluate(trace, Wanted([device])).cells)


def silent(text: TextTrace) -> TextTrace:
    """The same text where n-gram lookup finds nothing."""
    nothing = np.zeros(len(text), np.int16)
    return replace(text, copies=Copies(nothing, nothing))


def test_a_good_cheap_draft_ships() -> None:
    found = judge(cells(make(Made(noise=0.3)), measured(0.1)), 1.15)
    assert {one.decision for one in found} == {"ship"} and all(one.draft and one.length > 0 for one in found)
    assert all(one.gate and one.agrees for one in found)


def test_an_expensive_curve_does_not_although_the_gate_says_so() -> None:
    found = judge(cells(make(Made(noise=0.3)), measured(0.1, {1: 1.0, 2: 9.0, 32: 90.0})), 1.15)
    assert {one.decision for one in found} == {"off"} and all(one.draft is None for one in found)
    assert all(one.gate and not one.agrees for one in found), "α ≥ .55, and yet it does not pay"
    assert all(one.setting == "plain decoding" for one in found)


def test_a_poor_draft_should_be_replaced() -> None:
    poor = make(Made(noise=9.0, kinds=("code",)))
    found = judge(cells(Trace(poor.settings, tuple(map(silent, poor.texts))), measured(0.1)), 1.3)
    assert {one.decision for one in found} == {"better_draft"}


def test_some_kinds_pay() -> None:
    good, bad = make(Made(noise=0.2, kinds=("code",))), make(Made(noise=20.0, kinds=("story",), seed=9))
    texts = [silent(text) for text in (*good.texts, *bad.texts)]
    both = Trace(good.settings, tuple(replace(text, facts=replace(text.facts, index=at, key=str(at)))
                                      for at, text in enumerate(texts)))  # fmt: skip
    found = {one.kind: one for one in judge(cells(both, measured(0.25)), 1.15)}
    assert found["code"].decision == "ship_by_kind"
    assert found["story"].decision in ("off", "better_draft")
    assert "story" in " ".join(hints(both, cells(both, measured(0.25)), 1.15))


def test_a_cell_that_may_lose_does_not_pay() -> None:
    (cell, *_) = cells(make(Made(noise=0.3)), measured(0.1))
    assert pays(cell, 1.15) and not pays(cell, 50.0)
    assert better_would_pay(cell, 1.15) and gate_alpha(cell) is not None


# --- the summary -------------------------------------------------------------------------------------------


def made_summary(trace: Trace, devices: list[Device] | None = None) -> tuple[Summary, Profile]:
    wanted = Wanted(devices or [measured()], live=[Compared("small.gguf", 3, 3, (8.0, 10.0), (8.0, 10.0))], now=NOW)
    profile = evaluate(trace, wanted)
    return summary(profile, wanted), profile


@pytest.mark.parametrize(
    "trace",
    [
        make(),
        make(Made(sampled=Sampled(0.8))),
        make(Made(texts=1, kinds=("code",))),
        make(Made(drafts=2)),
        make(Made(drafts=0)),
        redact(make(Made(sampled=Sampled(0.8)))),
    ],
    ids=["greedy", "sampled", "one text", "two drafts", "no model", "redacted"],
)
def test_summaries_are_whole(trace: Trace) -> None:
    device: Device = measured()
    if len(trace.settings.drafts) > 1:
        weights = Weights(TARGET.bytes, {draft.name: draft.bytes for draft in trace.settings.drafts})
        device = estimate(catalogue(), "OnePlus 12", weights)
    found, _ = made_summary(trace, [device])
    check_summary(json.loads(json.dumps(found)))
    assert found["texts"] == len(trace.texts)
    assert bool(found["samples"]) == (not trace.settings.redacted)
    assert "</html>" in to_page(found)


def test_the_summary_holds_what_the_page_computes() -> None:
    """E, passes and widths give the predicted speed-ups back."""
    found, _ = made_summary(make(Made(texts=8)))
    device = measured()
    for row in found["predictions"]:
        cell = [row[name] for name in ("draft", "kind", "rule", "temperature")]
        (acceptance,) = [
            one for one in found["acceptance"] if [one["draft"], one["kind"], one["rule"], one["temperature"]] == cell
        ]
        costs = device.costs(row["draft"])
        for length in LENGTHS:
            shares = acceptance["widths"][length - 1]
            spent = sum(share * costs.verify(width) for width, share in enumerate(shares, 1))
            spent += costs.level(1) * acceptance["model_passes"][length - 1] + costs.fixed * (1 - shares[0])
            assert acceptance["expected"][length - 1] / spent == pytest.approx(row["by_length"][length - 1])
            assert sum(shares) == pytest.approx(1.0)


def test_sizes_are_those_of_the_files() -> None:
    trace = make()
    assert [sizes(trace, choice) for choice in choices(trace)] == [
        Sizes(1e9, 0), Sizes(1e9, 3e8), Sizes(1e9, 3e8)
    ]  # fmt: skip
