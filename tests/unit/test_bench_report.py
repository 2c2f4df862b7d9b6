"""From raw runs to a report: speed-ups, the best fixed setting, counts, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from foredraft.bench.arms import parse_arms
from foredraft.bench.records import ArmRuns, Record
from foredraft.bench.report import TargetReport, report
from foredraft.certify import Difference
from tests.support.bench import record, run

ARMS = parse_arms(["ngram:fixed:2,4", "ngram:cost"])


def one(key: str, kind: str, *seconds: float, warm: bool = False) -> Record:
    """A prompt with single runs: plain, fixed:2, fixed:4, cost."""
    names = ("plain", "ngram:fixed:2", "ngram:fixed:4", "ngram:cost")
    return record(key, kind, {name: [each] for name, each in zip(names, seconds, strict=True)}, warm=warm)


def only(*records: Record) -> TargetReport:
    (found,) = report(records, ARMS)
    return found


def test_speedup_is_plain_over_arm_by_kind_and_over_all() -> None:
    found = only(
        one("a", "code", 8.0, 4.0, 2.0, 2.0), one("b", "code", 8.0, 4.0, 8.0, 4.0), one("c", "chat", 1, 2, 4, 1)
    )
    assert found.kinds == ("code", "chat", "all") and found.arms[0] == "plain"
    speed = {key: cell.speedup.value for key, cell in found.cells.items()}
    assert speed["plain", "code"] == 1.0
    assert speed["ngram:fixed:2", "code"] == pytest.approx(2.0)
    assert speed["ngram:fixed:4", "code"] == pytest.approx(2.0)  # 4 and 1
    assert speed["ngram:cost", "chat"] == pytest.approx(1.0)
    assert speed["ngram:fixed:2", "all"] == pytest.approx((2 * 2 * 0.5) ** (1 / 3))
    assert found.cells["plain", "code"].tokens_per_second == pytest.approx(10 / 8)


def test_medians_over_runs_come_before_the_mean_over_prompts() -> None:
    times: dict[str, list[float]] = {
        "plain": [3.0, 1.0, 100.0],
        "ngram:fixed:2": [1.0, 1.5, 0.1],
        "ngram:fixed:4": [1] * 3,
        "ngram:cost": [1] * 3,
    }
    found = only(record("a", "code", times))
    assert found.cells["ngram:fixed:2", "code"].speedup.value == pytest.approx(3.0)
    assert found.spread == pytest.approx(99 / 3)
    assert only(one("a", "code", 1, 1, 1, 1)).spread is None


def test_speed_is_per_token() -> None:
    """An arm whose text left plain's at a near-tie may have ended elsewhere."""
    arms = {name: ArmRuns((run(4.0, 10),)) for name in ("plain", "ngram:fixed:4", "ngram:cost")}
    arms["ngram:fixed:2"] = ArmRuns((run(4.0, 20, same=False),))
    assert only(Record("toy", "a", 1, "x", False, 3, arms)).cells["ngram:fixed:2", "x"].speedup.value == pytest.approx(
        2
    )


def test_reading_the_prompt_counts_in_the_second_ratio_only() -> None:
    arms = {name: ArmRuns((run(6.0, prompt_seconds=2.0),)) for name in ("plain", "ngram:fixed:2", "ngram:cost")}
    arms["ngram:fixed:4"] = ArmRuns((run(2.0, prompt_seconds=6.0),))
    cell = only(Record("toy", "a", 1, "x", False, 3, arms)).cells["ngram:fixed:4", "x"]
    assert cell.speedup.value == pytest.approx(3.0) and cell.whole.value == pytest.approx(1.0)


def test_a_single_kind_is_its_own_total() -> None:
    assert only(one("a", "code", 2, 1, 1, 1)).kinds == ("code",)


def test_the_best_fixed_setting_may_be_plain_decoding() -> None:
    found = only(one("a", "code", 8.0, 4.0, 2.0, 4.0), one("b", "chat", 1.0, 2.0, 2.0, 1.25))
    assert [(choice.kind, choice.best) for choice in found.choices] == [
        ("code", "ngram:fixed:4"),
        ("chat", "plain"),
        ("all", "ngram:fixed:4"),
    ]
    assert [choice.share.value for choice in found.choices[:2]] == pytest.approx([0.5, 0.8])


def test_a_warm_prompt_is_counted_but_not_averaged_in() -> None:
    """Case G7: a repeat that is ten times faster changes no number."""
    cold = [one("a", "code", 2.0, 1.0, 1.0, 1.0), one("b", "code", 2.0, 1.0, 1.0, 1.0)]
    found = only(*cold, one("a/repeat 1", "code", 2.0, 0.1, 0.1, 0.1, warm=True))
    assert found.cells == only(*cold).cells and found.choices == only(*cold).choices
    assert (found.warm, only(*cold).warm) == (1, 0)
    assert report([one("a", "code", 1, 1, 1, 1, warm=True)], ARMS) == []


def test_counts_are_sums_over_runs_and_prompts() -> None:
    times = {name: [1.0, 1.0] for name in ("plain", "ngram:fixed:2", "ngram:fixed:4", "ngram:cost")}
    counts = only(record("a", "x", times), record("b", "x", times)).cells["ngram:cost", "x"].counts
    assert (counts.generated, counts.rounds, counts.accepted, counts.evaluated) == (40, 20, 20, 32)
    found = counts.as_json()
    assert found["alpha"] == pytest.approx(5 / 8) and found["alpha_by_depth"] == pytest.approx([4 / 5, 1 / 3])
    assert found["emitted_per_round"] == 2.0 and found["accepted_per_round"] == 1.0  # case G11: both, one apart
    assert found["rungs"] == {"ngram": pytest.approx(0.8), "off": pytest.approx(0.2)}
    assert found["not_drafted"] == {"nothing to say": pytest.approx(0.2)}


def test_depths_of_different_length_add_up() -> None:
    runs = (replace(run(1.0), depths=((1, 2),)), replace(run(1.0), depths=((1, 1), (0, 1))))
    arms = {name: ArmRuns(runs) for name in ("plain", "ngram:fixed:2", "ngram:fixed:4", "ngram:cost")}
    assert only(Record("toy", "a", 1, "x", False, 3, arms)).cells["ngram:cost", "x"].counts.depths == [[2, 3], [0, 1]]


def test_texts_that_differ_are_told_apart() -> None:
    cold = one("a", "x", 1.0, 1.0, 1.0, 1.0)
    tie, bug = Difference(3, 1, 2, 0.1, 0.5), Difference(3, 1, 2, 0.9, 0.5)
    changes = {
        "ngram:fixed:2": ArmRuns((run(1.0, same=False), run(1.0)), (tie,)),
        "ngram:cost": ArmRuns((run(1.0, same=False), run(1.0, same=False)), (tie, bug)),
    }
    found = only(replace(cold, arms={**cold.arms, **changes}))
    texts = {arm: dict(found.cells[arm, "x"].counts.texts) for arm in found.arms}
    assert texts == {
        "plain": {"identical": 1},
        "ngram:fixed:2": {"near_tie": 1},
        "ngram:fixed:4": {"identical": 1},
        "ngram:cost": {"unexplained": 1},
    }
    assert found.unexplained == 1


def test_targets_are_reported_apart_and_as_json() -> None:
    other = replace(one("a", "x", 3.0, 1.0, 1.0, 1.0), target="second")
    found = report([one("a", "x", 2.0, 1.0, 1.0, 1.0), other], ARMS)
    assert [each.target for each in found] == ["toy", "second"]
    document = json.loads(json.dumps([each.as_json() for each in found], allow_nan=False))
    (cell,) = [cell for cell in document[1]["cells"] if cell["arm"] == "ngram:cost"]
    assert cell["speedup"] == {"value": pytest.approx(3.0), "low": None, "high": None, "prompts": 1}
    assert document[1]["choices"][0]["best_fixed"] == "ngram:fixed:2"
