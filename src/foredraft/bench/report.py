"""From raw runs to what a reader wants to know: speed-up by arm and kind of prompt, and how well ``cost`` chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from foredraft.bench.arms import PLAIN, Arm
from foredraft.bench.records import ArmRuns, Record, Run
from foredraft.bench.stats import Ratio, mean_ratio
from foredraft.prompts import ALL


@dataclass
class Counts:
    """Sums over runs. ``depths``: accepted and evaluated tokens at depth 1, 2, …; ``texts``: prompts whose text is
    plain decoding's in every run, or leaves it at a near-tie, or in a way that rounding cannot explain."""

    generated: int = 0
    rounds: int = 0
    drafted: int = 0
    evaluated: int = 0
    accepted: int = 0
    depths: list[list[int]] = field(default_factory=list)
    rungs: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)

    def add(self, arm: ArmRuns) -> None:
        """Take the runs of one prompt in."""
        for run in arm.runs:
            self.generated += run.generated
            self.rounds += run.rounds
            self.drafted += run.drafted
            self.evaluated += run.evaluated
            self.accepted += run.accepted
            self.rungs.update(run.rungs)
            self.reasons.update(run.reasons)
            self.depths += [[0, 0] for _ in range(len(run.depths) - len(self.depths))]
            for depth, (accepted, evaluated) in enumerate(run.depths):
                self.depths[depth][0] += accepted
                self.depths[depth][1] += evaluated
        self.texts[_sameness(arm)] += 1

    @property
    def alpha(self) -> float | None:
        """Accepted ÷ evaluated drafted tokens."""
        return self.accepted / self.evaluated if self.evaluated else None

    def as_json(self) -> dict[str, Any]:
        """Rates and shares. ``emitted_per_round`` is the mean accepted length (bonus included, vLLM's definition),
        ``accepted_per_round`` is 1 less but for rounds that the text's end cut short."""
        rounds = max(1, self.rounds)
        return {
            "alpha": self.alpha,
            "alpha_by_depth": [accepted / evaluated for accepted, evaluated in self.depths if evaluated],
            "emitted_per_round": self.generated / rounds,
            "accepted_per_round": self.accepted / rounds,
            "drafted_per_round": self.drafted / rounds,
            "rounds": self.rounds,
            "rungs": {rung: count / rounds for rung, count in self.rungs.most_common()},
            "not_drafted": {reason: count / rounds for reason, count in self.reasons.most_common(8)},
            "texts": dict(self.texts),
        }


@dataclass(frozen=True)
class Cell:
    """One arm on one kind of prompts. ``speedup``: seconds per token, plain ÷ arm, reading the prompt not counted;
    ``whole``: the same with it; ``tokens_per_second``: median over prompts."""

    arm: str
    kind: str
    speedup: Ratio
    whole: Ratio
    tokens_per_second: float
    counts: Counts

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "arm": self.arm,
            "kind": self.kind,
            "speedup": self.speedup.as_json(),
            "speedup_with_prompt": self.whole.as_json(),
            "tokens_per_second": self.tokens_per_second,
            **self.counts.as_json(),
        }


@dataclass(frozen=True)
class Choice:
    """How well an arm that chooses by itself did on one kind. ``best``: the fixed setting that was fastest there, plain
    decoding included; ``share``: speed of the arm ÷ speed of that setting."""

    arm: str
    kind: str
    best: str
    share: Ratio

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return {"arm": self.arm, "kind": self.kind, "best_fixed": self.best, "share": self.share.as_json()}


@dataclass(frozen=True)
class TargetReport:
    """``kinds`` in the prompts' order, ``ALL`` last if there are several; ``arms`` begin with "plain". ``spread``: how
    much plain decoding's speed varied between the runs of a prompt, (largest - smallest) ÷ median, median over prompts
    (None of single runs). ``warm``: prompts that repeat an earlier one and are left out."""

    target: str
    kinds: tuple[str, ...]
    arms: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    choices: tuple[Choice, ...]
    spread: float | None
    warm: int

    @property
    def unexplained(self) -> int:
        """Texts, of any arm, that leave plain decoding's in a way that rounding cannot explain."""
        return sum(self.cells[arm, self.kinds[-1]].counts.texts["unexplained"] for arm in self.arms)

    def as_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "target": self.target,
            "kinds": list(self.kinds),
            "arms": list(self.arms),
            "cells": [cell.as_json() for cell in self.cells.values()],
            "choices": [choice.as_json() for choice in self.choices],
            "plain_spread": self.spread,
            "warm_prompts": self.warm,
        }


def report(records: Sequence[Record], arms: Sequence[Arm]) -> list[TargetReport]:
    """One report for each target that has records besides warm ones."""
    targets = dict.fromkeys(record.target for record in records if not record.warm)
    return [_target(name, [record for record in records if record.target == name], arms) for name in targets]


def _target(name: str, records: Sequence[Record], arms: Sequence[Arm]) -> TargetReport:
    cold = [record for record in records if not record.warm]
    kinds = list(dict.fromkeys(record.kind for record in cold))
    names = (PLAIN, *map(str, arms))
    groups = {kind: [[record for record in cold if record.kind == kind]] for kind in kinds}
    if len(kinds) > 1:
        groups[ALL] = [records for (records,) in groups.values()]
    cells = {(arm, kind): _cell(arm, kind, group) for kind, group in groups.items() for arm in names}
    fixed = [PLAIN, *(str(arm) for arm in arms if arm.controller == "fixed")]
    choices = [
        _choice(str(arm), kind, max(fixed, key=lambda each: cells[each, kind].speedup.value), groups[kind])
        for arm in arms
        if arm.controller == "cost"
        for kind in groups
    ]
    return TargetReport(name, tuple(groups), names, cells, tuple(choices), _spread(cold), len(records) - len(cold))


def _cell(arm: str, kind: str, groups: Sequence[Sequence[Record]]) -> Cell:
    counts = Counts()
    speeds = []
    for record in (record for group in groups for record in group):
        counts.add(record.arms[arm])
        speeds.append(1.0 / _median(record, arm, lambda run: run.per_token))
    speedup = _ratio(groups, PLAIN, arm, lambda run: run.per_token)
    whole = _ratio(groups, PLAIN, arm, lambda run: run.whole_per_token)
    return Cell(arm, kind, speedup, whole, median(speeds), counts)


def _choice(arm: str, kind: str, best: str, groups: Sequence[Sequence[Record]]) -> Choice:
    return Choice(arm, kind, best, _ratio(groups, best, arm, lambda run: run.per_token))


def _ratio(groups: Sequence[Sequence[Record]], slow: str, fast: str, seconds: Callable[[Run], float]) -> Ratio:
    """Seconds of ``slow`` ÷ seconds of ``fast``, medians over runs, geometric mean over prompts."""
    return mean_ratio(
        [[_median(record, slow, seconds) / _median(record, fast, seconds) for record in group] for group in groups]
    )


def _median(record: Record, arm: str, seconds: Callable[[Run], float]) -> float:
    return median(seconds(run) for run in record.arms[arm].runs)


def _spread(records: Sequence[Record]) -> float | None:
    found = []
    for record in records:
        times = [run.per_token for run in record.arms[PLAIN].runs]
        if len(times) > 1:
            found.append((max(times) - min(times)) / median(times))
    return median(found) if found else None


def _sameness(arm: ArmRuns) -> str:
    if all(run.same for run in arm.runs):
        return "identical"
    return "near_tie" if all(found.near_tie for found in arm.differences) else "unexplained"
