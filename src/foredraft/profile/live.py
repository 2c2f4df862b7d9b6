"""Real speculative decoding of a few of the recorded prompts, to see whether the trace tells the truth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from foredraft.control import fixed
from foredraft.drafters.base import Drafter
from foredraft.errors import TraceError
from foredraft.pipeline import Pipeline, Request
from foredraft.profile.trace import TextTrace, Trace
from foredraft.profile.what_if import Choice, play, recorded
from foredraft.prompts import Prompt
from foredraft.records import DamagedRecord, record
from foredraft.whole_files import write_whole

LIVE = "live.json"
LENGTH = 4
"""Tokens a round."""


@dataclass(frozen=True, slots=True)
class Compared:
    """α of one draft at K = ``LENGTH`` on the same ``texts``: accepted and evaluated tokens of ``live`` decoding and of
    the ``traced`` replay; ``same``: texts that came out token for token as recorded."""

    draft: str
    texts: int
    same: int
    live: tuple[float, float]
    traced: tuple[float, float]

    @property
    def difference(self) -> float | None:
        """α live - α traced, None if one of them evaluated nothing."""
        if not (self.live[1] and self.traced[1]):
            return None
        return self.live[0] / self.live[1] - self.traced[0] / self.traced[1]

    @property
    def sentence(self) -> str:
        """In words."""
        if self.difference is None:
            return f"{self.draft}: nothing was drafted on the {self.texts} texts decoded again"
        alphas = [f"{hits / tried:.2f}" for hits, tried in (self.live, self.traced)]
        rest = "" if self.same == self.texts else f" ({self.texts - self.same} texts differ from the recorded ones)"
        return f"{self.draft}: α {alphas[0]} in real decoding of {self.texts} texts, {alphas[1]} in the trace{rest}"


def spread(trace: Trace, count: int) -> list[int]:
    """Places in ``trace.texts`` of at most ``count`` texts, evenly over the file and so over its kinds."""
    places = [place for place, text in enumerate(trace.texts) if len(text)]
    count = min(count, len(places))
    return [places[round(step * (len(places) - 1) / max(1, count - 1))] for step in range(count)]


@dataclass(frozen=True)
class Again:
    """What is needed to write recorded texts again: the opened target, the trace, and the ``prompts`` it is of."""

    pipeline: Pipeline
    trace: Trace
    prompts: Sequence[Prompt]

    def decode(self, choice: Choice, drafter: Drafter, places: Sequence[int]) -> Compared:
        """The texts at ``places`` with one draft; seeds and settings are those of the trace."""
        before, self.pipeline.drafter = self.pipeline.drafter, drafter
        hits = trials = same = 0
        try:
            for place in places:
                text = self.trace.texts[place]
                found = self.pipeline.run(self._request(text)).summary
                hits, trials = hits + found.accepted, trials + found.evaluated
                same += text.ids is None or list(found.ids) == text.ids.tolist()
        finally:
            self.pipeline.drafter = before
        traced = self._traced(choice, places)
        return Compared(choice.name, len(places), same, (float(hits), float(trials)), traced)

    def _traced(self, choice: Choice, places: Sequence[int]) -> tuple[float, float]:
        chosen = Trace(self.trace.settings, tuple(self.trace.texts[place] for place in places))
        runs = play(chosen, choice, recorded(chosen)).runs
        row = LENGTH - 1
        return sum(float(run.hits[row].sum()) for run in runs), sum(float(run.trials[row].sum()) for run in runs)

    def _request(self, text: TextTrace) -> Request:
        settings = self.trace.settings
        params = settings.sampling.params()
        ids = self.prompts[text.facts.index].encoded(self.pipeline.tokenizer, raw=settings.raw).ids
        seeded = replace(params, seed=params.seed + text.facts.index)
        return Request(ids, seeded, fixed(LENGTH), max_tokens=text.facts.limit)


def write_live(directory: Path, found: Sequence[Compared]) -> None:
    """Keep the comparison beside the trace."""
    write_whole(directory / LIVE, json.dumps([asdict(one) for one in found], indent=1) + "\n")


def read_live(directory: Path) -> list[Compared]:
    """The comparison beside a trace; empty if there is none."""
    path = directory / LIVE
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text("utf-8"))
        return [record(Compared, row) for row in rows]
    except (OSError, ValueError, TypeError, RecursionError, DamagedRecord) as error:
        raise TraceError(f"{path}: is damaged ({error}); remove it, or profile again") from None
