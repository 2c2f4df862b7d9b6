"""The measuring: every arm on every prompt, in turns with plain decoding, the raw file written after every prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from foredraft.bench.arms import PLAIN, Arm
from foredraft.bench.lab import Lab, Target, Timed
from foredraft.bench.records import ArmRuns, RawFile, Record, Run
from foredraft.certify import Difference
from foredraft.pipeline import Request
from foredraft.prompts import Prompt
from foredraft.types import SamplingParams

PAUSE = 0.5
"""Seconds between two targets' runs: an engine's threads wait actively for a while and would disturb the next one."""


@dataclass(frozen=True)
class Plan:
    """``max_tokens``: of prompts that do not say; ``runs`` of every arm on every prompt; ``raw``: without the chat
    template. ``alternate``: all targets are loaded at once and take turns; else one after another."""

    targets: tuple[Target, ...]
    arms: tuple[Arm, ...]
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009  frozen
    max_tokens: int = 160
    runs: int = 3
    raw: bool = False
    alternate: bool = False

    @property
    def groups(self) -> list[tuple[Target, ...]]:
        """Targets that are loaded together."""
        return [self.targets] if self.alternate else [(target,) for target in self.targets]


class Watch(Protocol):
    """Is told how far the measuring is."""

    def begins(self, runs: int) -> None:
        """So many runs are ahead."""
        ...

    def says(self, words: str) -> None:
        """What is going on now."""
        ...

    def notes(self, words: str) -> None:
        """Something the reader of the numbers should know."""
        ...

    def ran(self) -> None:
        """One more run is done."""
        ...

    def measured(self, records: Sequence[Record]) -> None:
        """A prompt is finished and kept."""
        ...


@dataclass(frozen=True)
class Means:
    """What measuring needs from outside: ``open`` loads a target, ``sleep`` waits."""

    open: Callable[[Target], Lab]
    sleep: Callable[[float], None] = time.sleep

    @staticmethod
    def of(plan: Plan) -> Means:
        """The real ones."""
        return Means(lambda target: Lab.open(target, plan.arms))


def pending(plan: Plan, raw: RawFile, group: Sequence[Target]) -> list[Prompt]:
    """Prompts that are not finished on every target of ``group``."""
    return [prompt for prompt in plan.prompts if any(raw.find(target.name, prompt.key) is None for target in group)]


def measure(plan: Plan, raw: RawFile, means: Means, watch: Watch) -> None:
    """Run what is missing in ``raw`` and keep it there. An exception (Ctrl-C) loses the current prompt only."""
    todo = [(group, pending(plan, raw, group)) for group in plan.groups]
    watch.begins(sum(len(group) * len(prompts) for group, prompts in todo) * plan.runs * (1 + len(plan.arms)))
    for group, prompts in todo:
        if not prompts:
            continue
        with ExitStack() as stack:
            labs = []
            for target in group:
                watch.says(f"loading {target.name}")
                labs.append(stack.enter_context(means.open(target)))
            _measure_group(plan, raw, _Turns(plan, labs, means, watch), prompts)


def _measure_group(plan: Plan, raw: RawFile, turns: _Turns, prompts: Sequence[Prompt]) -> None:
    requests = [[turns.request(lab, prompt) for lab in turns.labs] for prompt in prompts]  # checks all of them
    for lab, request in zip(turns.labs, requests[0], strict=True):
        for words in lab.notes:
            turns.watch.notes(words)
        turns.watch.says(f"warming up {lab.target.name}")
        lab.warm_up(request)
    done = len(plan.prompts) - len(prompts)
    for number, (prompt, own) in enumerate(zip(prompts, requests, strict=True), done + 1):
        records = turns.take(prompt, own, f"prompt {number} of {len(plan.prompts)}, {prompt.kind}")
        raw.add(records)
        turns.watch.measured(records)


@dataclass
class _Turns:
    """Takes the arms of all labs in turns. Each run of the cycle begins at another place, so that no arm always comes
    after the same rest or the same neighbour's heat."""

    plan: Plan
    labs: list[Lab]
    means: Means
    watch: Watch
    _last: Lab | None = None

    def request(self, lab: Lab, prompt: Prompt) -> Request:
        return lab.request(prompt, self.plan.sampling, self.plan.max_tokens, raw=self.plan.raw)

    def take(self, prompt: Prompt, requests: Sequence[Request], where: str) -> list[Record]:
        """All runs of one prompt; one record for each lab."""
        cycle = [(index, arm) for index in range(len(self.labs)) for arm in (None, *self.plan.arms)]
        found: dict[tuple[int, Arm | None], list[Timed]] = {entry: [] for entry in cycle}
        for run in range(self.plan.runs):
            first = run * len(cycle) // self.plan.runs
            for index, arm in (*cycle[first:], *cycle[:first]):
                lab = self.labs[index]
                self.watch.says(f"{where}, run {run + 1} of {self.plan.runs}: {arm or PLAIN}")
                if self._last not in (None, lab):
                    self.means.sleep(PAUSE)
                self._last = lab
                found[index, arm].append(lab.run(requests[index], arm, run))
                self.watch.ran()
        self.watch.says(f"{where}: comparing texts")
        return [
            _record(lab, prompt, request, {arm: found[index, arm] for arm in (None, *self.plan.arms)})
            for index, (lab, request) in enumerate(zip(self.labs, requests, strict=True))
        ]


def _record(lab: Lab, prompt: Prompt, request: Request, found: dict[Arm | None, list[Timed]]) -> Record:
    plain = found[None][0].summary.written
    others = {tuple(one.summary.written) for timed in found.values() for one in timed} - {tuple(plain)}
    explained = {text: lab.explain(request, plain, text) for text in sorted(others)}
    arms = {str(arm or PLAIN): _arm_runs(timed, plain, explained) for arm, timed in found.items()}
    return Record(lab.target.name, prompt.key, prompt.line, prompt.kind, prompt.warm, len(request.ids), arms)


def _arm_runs(
    timed: Sequence[Timed], plain: Sequence[int], explained: Mapping[tuple[int, ...], Difference | None]
) -> ArmRuns:
    runs = [Run.of(one.summary, one.seconds, one.prompt_seconds, same=one.summary.written == plain) for one in timed]
    texts = dict.fromkeys(tuple(one.summary.written) for one in timed)
    return ArmRuns(tuple(runs), tuple(found for text in texts if (found := explained.get(text)) is not None))
