"""The report in real Chromium computes what Python computes, for every setting of its controls."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from foredraft.profile.report import Summary
from foredraft.profile.report.shape import ALL
from tests.support.chromium import Open, Opened
from tests.support.summaries import EVERYTHING, Options, round_cost, summary

USUAL = EVERYTHING["usual"]


@dataclass(frozen=True)
class State:
    device: str
    draft: str
    kind: str
    rule: str
    temperature: float
    length: int


def python_speedup(made: Summary, state: State) -> float:
    """E(K) ÷ what a round costs with ``foredraft.speed``'s curve; E and rounds straight between temperatures."""
    (device,) = [device for device in made["devices"] if device["name"] == state.device]
    rows = [row for row in made["acceptance"] if (row["draft"], row["kind"], row["rule"]) ==
            (state.draft, state.kind, state.rule)]  # fmt: skip
    heats = [row["temperature"] for row in rows]
    tokens = [row["expected"][state.length - 1] for row in rows]
    times = [round_cost(device, row, state.length) for row in rows]
    return float(np.interp(state.temperature, heats, tokens) / np.interp(state.temperature, heats, times))


def choose(page: Opened, state: State, before: State | None) -> None:
    """Set the controls as a user does, those that differ."""
    for name in ("device", "draft", "kind", "rule"):
        if before is None or getattr(before, name) != getattr(state, name):
            page.page.locator(f"#{name}").select_option(getattr(state, name))
    for name in ("temperature", "length"):
        if before is None or getattr(before, name) != getattr(state, name):
            page.page.locator(f"#{name}").fill(str(getattr(state, name)))


def states(made: Summary, count: int) -> list[State]:
    """Settings drawn from all there are, temperatures on and between the recorded ones, lengths beyond the curve."""
    draw = random.Random(7)
    recorded = {row["kind"] for row in made["acceptance"]}
    kinds = [kind for kind in (ALL, *(kind["name"] for kind in made["kinds"])) if kind in recorded]
    kinds = kinds if len(made["kinds"]) > 1 else kinds[:1]
    low, high = made["temperatures"][0], made["temperatures"][-1]
    return [
        State(
            draw.choice(made["devices"])["name"],
            draw.choice(made["drafts"])["name"],
            draw.choice(kinds),
            draw.choice(made["rules"]),
            draw.choice([round(draw.uniform(low, high), 2), draw.choice(made["temperatures"])]),
            draw.randint(1, made["longest"]),
        )
        for _ in range(count)
    ]


def agrees(value: float, shown: str, wanted: float) -> bool:
    """To 1 %, and as shown to two digits behind the point."""
    return value == pytest.approx(wanted, rel=0.01) and shown == f"{wanted:.2f}×"


def test_the_controls_predict_what_python_predicts(open_page: Open) -> None:
    page, before = open_page(USUAL), None
    for state in states(USUAL, 12):
        choose(page, state, before)
        assert agrees(page.value(), page.text("#speedup"), python_speedup(USUAL, state)), state
        before = state


DRIVE = """(states) => states.map((state) => {
  for (const [name, value] of Object.entries(state)) document.getElementById(name).value = String(value);
  document.getElementById('controls').dispatchEvent(new Event('input'));
  const shown = document.getElementById('speedup');
  return [Number(shown.dataset.value), shown.textContent];
})"""


@pytest.mark.parametrize("name", ["usual", "long chains", "many", "one of everything", "without all", "hostile"])
def test_many_settings_predict_what_python_predicts(open_page: Open, name: str) -> None:
    made = EVERYTHING[name]
    page = open_page(made)
    drawn = states(made, 150)
    found = page.page.evaluate(DRIVE, [vars(state) for state in drawn])
    for state, (value, shown) in zip(drawn, found, strict=True):
        assert agrees(value, shown, python_speedup(made, state)), (state, value, shown, python_speedup(made, state))
    assert page.faults == []


def test_every_prediction_of_the_summary_comes_out_again(open_page: Open) -> None:
    made = EVERYTHING["usual"]
    page, before = open_page(made), None
    for row in made["predictions"]:
        if row["kind"] != ALL:
            continue
        state = State(row["device"], row["draft"], row["kind"], row["rule"], row["temperature"], 3)
        choose(page, state, before)
        page.settle()
        cells = page.page.locator("figure:has(h3:text-is('Speed-up against K')) tbody tr").evaluate_all(
            "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        (found,) = [cells[1:] for cells in cells if cells[0].removesuffix(" estimated") == row["device"]]
        assert found == [f"{value:.2f}×" for value in row["by_length"]]
        best = row["best"]
        words = dict(
            page.page.locator("#facts > div").evaluate_all(
                "(all) => all.map((each) => [...each.children].map((part) => part.textContent))"
            )
        )
        assert words["Best K here"].startswith(f"{best['length']}, with" if best["length"] else "off: "), row
        before = state


def test_the_controls_start_at_what_is_to_be_shipped(open_page: Open) -> None:
    page = open_page(USUAL)
    verdict = next(row for row in USUAL["verdicts"] if row["kind"] == ALL)
    assert page.value() == pytest.approx(verdict["speedup"]["value"], rel=1e-4)
    low, high = verdict["speedup"]["low"], verdict["speedup"]["high"]
    assert f"95 % interval {low:.2f}–{high:.2f}" in page.text("#meaning")
    page.page.locator("#temperature").fill("0.8")
    assert "interval" not in page.text("#meaning"), "none was computed for this temperature"
    page.page.locator("#length").fill("1")
    page.page.get_by_role("button", name="Best K here").click()
    best = page.page.locator("#length").input_value()
    assert dict(pairwise(page.text("#facts").split("\n")))["Best K here"].startswith(f"{best}, with")
    page.page.get_by_role("button", name="Reset").click()
    assert page.page.locator("#temperature").input_value() == "0"
    assert page.value() == pytest.approx(verdict["speedup"]["value"], rel=1e-4)


def test_a_draft_not_considered_on_a_device_is_said_so(open_page: Open) -> None:
    """The larger draft does not fit into one phone's memory, and one kind was not scored under another rule."""
    made = summary(Options(kinds=("code", "chat")))
    phone = made["devices"][1]
    phone["draft_cost"] = {"ngram": 0.0}
    kept = {(device["name"], "ngram") for device in made["devices"]} | {("this machine", "qwen-0.5b")}
    made["predictions"] = [row for row in made["predictions"] if (row["device"], row["draft"]) in kept]
    made["trees"] = []
    made["acceptance"] = [row for row in made["acceptance"] if (row["kind"], row["rule"]) != ("chat", "residual")]
    page = open_page(made)
    page.page.locator("#draft").select_option("qwen-0.5b")
    page.page.locator("#device").select_option(phone["name"])
    assert page.text("#speedup") == "no prediction" and "not considered on this device" in page.text("#meaning")
    page.page.locator("#device").select_option("this machine")
    page.page.locator("#kind").select_option("chat")
    page.page.locator("#rule").select_option("residual")
    assert "Acceptance was not recorded" in page.text("#meaning")
    assert page.faults == []
