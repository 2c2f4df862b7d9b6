"""Plain and speculative decoding of one prompt in turns: speed ratio of medians, and whether the text is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from foredraft.certify import Difference
from foredraft.pipeline import Pipeline, Request
from foredraft.summary import Summary
from foredraft.types import Step

Status = Callable[[str], AbstractContextManager[object]]


@dataclass
class Comparison:
    """Finished runs of both kinds, in the order run. ``comparable``: the texts ought to be the same. ``shown``: the
    first speculative run, finished or not."""

    comparable: bool
    plain_runs: list[Summary] = field(default_factory=list)
    speculative_runs: list[Summary] = field(default_factory=list)
    difference: Difference | None = None
    interrupted: bool = False
    shown: Summary = field(default_factory=Summary)

    @property
    def plain(self) -> Summary:
        """The first plain run (an empty one if none was finished)."""
        return self.plain_runs[0] if self.plain_runs else Summary()

    @property
    def speculative(self) -> Summary:
        """The first speculative run, or what there is of it."""
        return self.shown

    @property
    def speeds(self) -> tuple[float | None, float | None]:
        """Median tokens/s of the plain and of the speculative runs."""
        return _median_speed(self.plain_runs), _median_speed(self.speculative_runs)

    @property
    def speedup(self) -> float | None:
        """Ratio of the two medians."""
        plain, speculative = self.speeds
        return speculative / plain if plain and speculative else None

    @property
    def identical(self) -> bool | None:
        """Whether every run gave the same ids; None where a rule draws another sample of the same law."""
        if not self.comparable or not self.plain_runs or not self.speculative_runs:
            return None
        return all(run.ids == self.plain.ids for run in (*self.plain_runs, *self.speculative_runs))

    def as_json(self) -> dict[str, Any]:
        """The keys that ``--compare`` adds; ``tokens_per_second`` becomes the median."""
        plain, speculative = self.speeds
        found = self.difference
        return {
            "tokens_per_second": speculative,
            "plain": {"tokens_per_second": plain, "ids": self.plain.ids, "rounds": self.plain.rounds},
            "speedup": self.speedup,
            "identical": self.identical,
            "first_difference": None
            if found is None
            else {
                "index": found.index,
                "plain": found.plain,
                "speculative": found.other,
                "gap": found.gap if math.isfinite(found.gap) else None,  # JSON has no infinity
                "noise": found.noise,
                "near_tie": found.near_tie,
            },
            "runs": {
                "plain": [run.tokens_per_second for run in self.plain_runs],
                "speculative": [run.tokens_per_second for run in self.speculative_runs],
            },
        }


def _median_speed(runs: list[Summary]) -> float | None:
    speeds = [run.tokens_per_second for run in runs if run.tokens_per_second]
    return median(speeds) if speeds else None


def compare(
    pipeline: Pipeline, request: Request, runs: int, shown: Callable[[Step], None], status: Status
) -> Comparison:
    """``runs`` runs of each kind, plain and speculative in turns; the first speculative one is passed to ``shown``.
    Ctrl-C keeps the finished runs and what was shown."""
    result = Comparison(request.rule == "coupled" or (request.rule == "residual" and request.sampling.greedy))
    try:
        for number in range(runs):
            with status(f"plain run {number + 1} of {runs}"):
                result.plain_runs.append(pipeline.run(request.plain).summary)
            if number == 0:
                for step in pipeline.stream(request):
                    result.shown.add(step)
                    shown(step)
                result.speculative_runs.append(result.shown)
                continue
            with status(f"speculative run {number + 1} of {runs}"):
                result.speculative_runs.append(pipeline.run(request).summary)
        if result.identical is False:
            with status("measuring the engine's numeric noise"):
                result.difference = _explained(pipeline, request, result)
    except KeyboardInterrupt:
        result.interrupted = True
        if not result.speculative_runs:
            result.shown.finish_reason = "cancelled"
    return result


def _explained(pipeline: Pipeline, request: Request, result: Comparison) -> Difference | None:
    plain = result.plain
    runs = (*result.plain_runs, *result.speculative_runs)
    other = next(run for run in runs if run.ids != plain.ids)
    return pipeline.explain(request, plain.written, other.written)
