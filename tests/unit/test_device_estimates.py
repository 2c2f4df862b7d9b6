"""Estimated and measured devices: the same questions, estimates held against what the catalogue has measured."""

from __future__ import annotations

import doctest
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.devices import ModelFacts, Rollback, device, estimate, verdict
from foredraft.devices.device import Device, MeasuredDevice
from foredraft.devices.estimate import DRAFT, FIXED, SHARE, VERIFY, Assumptions, Weights, checks
from foredraft.devices.estimate import estimate as estimated
from foredraft.devices.phones import Catalogue, Decode, catalogue
from foredraft.errors import InvalidValue, UnknownName, UsageError
from foredraft.speed import Curve, chain_speedup
from tests.support.profiles import DRAFT as DRAFT_FACTS
from tests.support.profiles import PROFILE, with_curve

PHONES = catalogue()
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
WEIGHTS = Weights(2435 * 2**20, {"1b": 1083 * 2**20})
PHONE = estimated(PHONES, "OnePlus 12", WEIGHTS)


def dense(catalogue_checks: Sequence[estimate.Check]) -> list[estimate.Check]:
    return [each for each in catalogue_checks if each.row.processor == "CPU" and "Gemma 4" not in each.row.model]


# --- against measurements ----------------------------------------------------------------------------------


def test_measured_speeds_of_dense_models_lie_in_the_predicted_range() -> None:
    rows = dense(checks(PHONES))
    assert len(rows) == 19
    assert [each.row for each in rows if not each.within] == []
    ratios = [each.ratio for each in rows]
    assert (round(min(ratios), 2), round(max(ratios), 2)) == (0.91, 1.23)  # as the docstring of checks says
    assert sum(ratio > 1 for ratio in ratios) == 14


def test_the_known_misses_are_those_that_read_a_part_of_their_file() -> None:
    missed = [each for each in checks(PHONES) if not each.within]
    assert {(each.row.device, each.row.model) for each in missed} == {("Galaxy S26 Ultra", "Gemma 4 E2B")}
    assert sorted(round(each.ratio, 2) for each in missed) == [0.44, 0.49]


def test_the_share_was_made_from_these_rows() -> None:
    shares = [SHARE.expected / each.ratio for each in dense(checks(PHONES))]
    assert SHARE.pessimistic == pytest.approx(min(shares), abs=0.005)
    assert SHARE.optimistic == pytest.approx(max(shares), abs=0.01)
    assert statistics.median(shares) == pytest.approx(0.64, abs=0.005)


def pairs() -> list[tuple[Decode, Decode]]:
    """(1B, 3B) of the same phone, runtime and quantization."""
    rows = {(row.device, row.runtime, row.model): row for row in PHONES.decode if row.file_bytes is not None}
    found = [(row, rows.get((row.device, row.runtime, row.model.replace("1B", "3B")))) for row in rows.values()]
    return [(small, large) for small, large in found if large is not None and large is not small]


def test_a_smaller_model_takes_its_part_of_the_time() -> None:
    factors = []
    for small, large in pairs():
        assert small.file_bytes and large.file_bytes
        time = large.tokens_per_second / small.tokens_per_second
        factors.append(time / (small.file_bytes / large.file_bytes))
    assert len(factors) == 11
    assert DRAFT.optimistic == pytest.approx(min(factors), abs=0.01)
    assert max(factors) == pytest.approx(1.10, abs=0.01) and max(factors) < DRAFT.pessimistic


def measured_curve(name: str, engine: str, context: int) -> dict[int, float]:
    rows = json.loads((RESULTS / name).read_text())["rows"]
    times = {
        row["width"]: statistics.median(row["ms"])
        for row in rows
        if row["engine"] == engine and row["context"] == context
    }
    return {width: time / times[1] for width, time in times.items()}


@pytest.mark.parametrize(
    ("curve", "source"),
    [
        (VERIFY.expected, ("mobile-curve-repacked.json", "executorch", 256)),
        (VERIFY.pessimistic, ("mobile-curve-repacked.json", "llama.cpp", 2048)),
        (VERIFY.optimistic, ("mobile-curve.json", "executorch", 256)),
    ],
)
def test_the_assumed_curves_are_those_that_were_measured(curve: Curve, source: tuple[str, str, int]) -> None:
    found = measured_curve(*source)
    assert [round(found[width], 2) for width in curve.widths] == list(curve.values)


# --- the arithmetic ----------------------------------------------------------------------------------------


def test_a_step_takes_the_bytes_through_a_share_of_the_bandwidth() -> None:
    assert PHONE.step_seconds == pytest.approx(2435 * 2**20 / (0.70 * 76.8e9))
    assert PHONE.estimated and PHONE.name == "OnePlus 12"
    assert PHONE.optimistic.step_seconds < PHONE.step_seconds < PHONE.pessimistic.step_seconds


def test_a_drafts_cost_follows_from_its_bytes() -> None:
    costs = PHONE.costs("1b")
    assert costs.draft is not None and costs.draft(1) == pytest.approx(1083 / 2435)
    assert costs.draft(8) == pytest.approx(1083 / 2435 * VERIFY.expected(8))
    assert costs.verify == VERIFY.expected and costs.fixed == FIXED.expected
    assert PHONE.costs("ngram+1b") == costs
    for case, factor in ((PHONE.pessimistic, DRAFT.pessimistic), (PHONE.optimistic, DRAFT.optimistic)):
        assert case.costs("1b").level(1) == pytest.approx(1083 / 2435 * factor)


def test_copies_cost_the_fixed_part_only() -> None:
    costs = PHONE.costs("ngram")
    assert costs.draft is None and costs.level(1) == 0.0 and costs.chain(0) == 1.0 + FIXED.expected


def test_an_unknown_draft_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"the cost of the draft '3b' on OnePlus 12 is not known; known: ngram, 1b"):
        PHONE.costs("3b")


@given(
    alpha=st.floats(0, 1),
    length=st.integers(1, 12),
    draft=st.sampled_from(["ngram", "1b", "ngram+1b"]),
    name=st.sampled_from([phone.name for phone in PHONES.phones if PHONES.bandwidth(phone)]),
)
def test_the_interval_holds_the_expected_speedup(alpha: float, length: int, draft: str, name: str) -> None:
    here = estimated(PHONES, name, WEIGHTS)
    low, middle, high = (
        chain_speedup([alpha] * length, each.costs(draft)) for each in (here.pessimistic, here, here.optimistic)
    )
    assert 0 < low < middle < high


def test_the_note_says_what_was_assumed() -> None:
    note = PHONE.note
    assert note.startswith("estimated, not measured: memory of at most 76.8 GB/s (published, gist.github.com/")
    assert "70% (57% to 78%)" in note and "1.59 steps (1.44 to 3.11" in note and "1.00 (0.88 to 1.45)" in note
    assert "\n" not in note


# --- what is not known -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iPhone 17", "Tensor G4", "Galaxy S24"])
def test_an_unknown_bandwidth_is_said_with_the_ways_out(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        estimated(PHONES, name, WEIGHTS)
    line = str(caught.value)
    assert line.startswith(f"the memory bandwidth of {name}") and "is not known" in line
    assert "a number of bytes/s" in line and '"bandwidth" in a device file' in line and "\n" not in line


def test_a_bandwidth_given_by_hand_wins() -> None:
    given_one = estimated(PHONES, "iphone 17", WEIGHTS, 68.3e9)
    assert given_one.name == "iPhone 17" and given_one.step_seconds == pytest.approx(2435 * 2**20 / (0.7 * 68.3e9))
    assert "68.3 GB/s (as given)" in given_one.note
    assert estimated(PHONES, "OnePlus 12", WEIGHTS, 50e9).bandwidth == 50e9
    assert estimated(PHONES, "our prototype", WEIGHTS, 50e9).name == "our prototype"


@pytest.mark.parametrize("bandwidth", [76.8, 0, -1e10, float("nan"), float("inf"), 1e15])
def test_gigabytes_instead_of_bytes_are_noticed(bandwidth: float) -> None:
    with pytest.raises(InvalidValue, match=r"bandwidth is .*; allowed: bytes/s .*76\.8 GB/s is 76\.8e9"):
        estimated(PHONES, "OnePlus 12", WEIGHTS, bandwidth)


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_bytes_are_positive(size: float) -> None:
    with pytest.raises(InvalidValue, match="bytes of target"):
        Weights(size)
    with pytest.raises(InvalidValue, match="bytes of small"):
        Weights(1e9, {"small": size})


def test_an_unknown_phone_is_not_estimated() -> None:
    with pytest.raises(UnknownName, match="did you mean 'OnePlus 12'"):
        estimated(PHONES, "oneplus12", WEIGHTS)


def test_a_users_phone_is_estimated_like_any(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    fact = {"value": 6e10, "mark": "measured", "source": "our bench", "date": "2026-11"}
    path.write_text(
        json.dumps({"format": "foredraft-devices", "schema": 1, "phones": [{"name": "Mine", "bandwidth": fact}]})
    )
    mine = estimated(catalogue(path), "mine", WEIGHTS)
    assert "60.0 GB/s (measured, our bench, 2026-11)" in mine.note


def test_own_assumptions_are_used() -> None:
    flat = replace(VERIFY, expected=Curve((1,), (1.0,)))
    here = estimated(PHONES, "OnePlus 12", WEIGHTS, assumptions=Assumptions(verify=flat))
    assert here.costs("ngram").chain(7) == pytest.approx(1.0 + FIXED.expected)


# --- measured devices --------------------------------------------------------------------------------------

MEASURED = MeasuredDevice(PROFILE)


def test_both_kinds_answer_the_same_questions() -> None:
    here: Device
    for here, draft in ((MEASURED, "draft"), (PHONE, "1b")):
        assert here.name and here.note and here.step_seconds > 0
        low, middle, high = (each.costs(draft).chain(4) for each in (here.optimistic, here, here.pessimistic))
        assert low < middle < high
        assert here.costs("ngram").level(1) == 0.0
    assert (MEASURED.estimated, PHONE.estimated) == (False, True)


@pytest.mark.parametrize("name", ["draft.gguf", "draft", "DRAFT.GGUF", "ends-2", "ngram+draft"])
def test_a_draft_is_known_by_its_file_or_its_fingerprint(name: str) -> None:
    assert MEASURED.costs(name) == verdict.costs(PROFILE, 0)


def test_measured_costs_are_those_of_the_profile() -> None:
    assert MEASURED.costs("ngram") == verdict.costs(PROFILE, None)
    assert MEASURED.costs("ngram").fixed == pytest.approx(0.01)
    assert MEASURED.step_seconds == 0.02
    assert MeasuredDevice(replace(PROFILE, rollback=Rollback())).costs("ngram").fixed == 0.0


def test_a_draft_that_was_not_measured_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"'large' on this machine is not known; known: ngram, draft\.gguf"):
        MEASURED.costs("large")


def test_two_drafts_of_one_name_need_a_fingerprint() -> None:
    other = ModelFacts("Draft.pte", "ends-3", "executorch", 1)
    twice = MeasuredDevice(replace(PROFILE, drafts=(*PROFILE.drafts, replace(PROFILE.drafts[0], model=other))))
    with pytest.raises(UnknownName, match="means 2 drafts of this machine; use a fingerprint: ends-2, ends-3"):
        twice.costs("draft")
    assert twice.costs("ends-3") == twice.costs(DRAFT_FACTS.fingerprint)


def test_a_name_with_dots_keeps_its_end() -> None:
    """ "qwen-0.5b" is a directory: ".5b" is no ending."""
    model = replace(DRAFT_FACTS, name="qwen-0.5b")
    here = MeasuredDevice(replace(PROFILE, drafts=(replace(PROFILE.drafts[0], model=model),)))
    assert here.costs("Qwen-0.5B").draft is not None
    with pytest.raises(UnknownName):
        here.costs("qwen-0")


def test_the_interval_is_the_curves_uncertainty() -> None:
    known = verdict.uncertainty(PROFILE.curve)
    assert known is not None
    assert MEASURED.pessimistic.costs("ngram").verify(8) == pytest.approx(1.6 * (1 + known))
    assert MEASURED.optimistic.costs("ngram").verify(8) == pytest.approx(1.6 * (1 - known))
    assert MEASURED.optimistic.costs("ngram").verify(1) == MEASURED.pessimistic.costs("ngram").verify(1) == 1.0
    assert MEASURED.pessimistic.optimistic == MEASURED.optimistic


def test_a_curve_of_single_passes_is_not_taken_for_exact() -> None:
    quick = MeasuredDevice(with_curve({1: 1.0, 4: 1.6}, runs=1))
    assert quick.pessimistic.costs("ngram").verify(4) == pytest.approx(2.0)
    assert "too few passes to know how good v is, ± 25% is a guess" in quick.note


def test_the_note_of_a_measured_device() -> None:
    assert MEASURED.note.startswith(
        "measured 2026-03-01 with target.gguf on llama_cpp, 4 threads, behind 256 tokens; v"
    )


@pytest.mark.parametrize("module", [device, estimate])
def test_examples_in_the_docstrings(module: Any) -> None:
    done = doctest.testmod(module)
    assert done.failed == 0 and done.attempted > 0


def test_any_catalogue_row_is_estimated_or_refused() -> None:
    def estimable(found: Catalogue, name: str) -> bool:
        try:
            here = estimated(found, name, WEIGHTS)
        except UsageError:
            return False
        return here.step_seconds > 0

    names = [phone.name for phone in PHONES.phones]
    known = [name for name in names if estimable(PHONES, name)]
    assert known == [name for name in names if PHONES.bandwidth(PHONES.phone(name)) is not None] and len(known) > 15
