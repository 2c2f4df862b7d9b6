"""One loaded target and what drafts for it: every arm of a benchmark runs on the same weights and the same cache."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType

from foredraft import registry
from foredraft.bench.arms import HEAD, Arm
from foredraft.certify import Difference
from foredraft.control import Controller, Priors, fixed
from foredraft.devices.kept import fingerprint
from foredraft.devices.measured import MODEL, DeviceProfile
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.errors import PromptError
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.prompts import Prompt
from foredraft.summary import Summary
from foredraft.types import SamplingParams

_WARM_UP = 4
"""Tokens generated with every drafter before anything is measured."""


@dataclass(frozen=True, slots=True)
class Target:
    """``name``: how it is called in tables. ``setup``: its file and settings; its ``drafts`` are the draft models.
    ``profile``: what ``cost`` starts from (None: what the sizes of the files suggest). ``head``: its draft head."""

    name: str
    setup: Setup
    profile: DeviceProfile | None = None
    head: str | Path | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """A finished request; ``prompt_seconds``: wall time before the first round, ``seconds``: of all rounds."""

    summary: Summary
    seconds: float
    prompt_seconds: float


@dataclass
class Station:
    """What an arm works with. ``controllers`` by run: the one of run r sees every prompt once, in order, like that of a
    program that stays open; it never sees a prompt twice."""

    drafter: Drafter
    priors: Priors
    controllers: dict[int, Controller] = field(default_factory=dict)


@dataclass
class Lab:
    """``stations``: of every arm. ``clock``: seconds that only grow."""

    target: Target
    pipeline: Pipeline
    stations: dict[Arm, Station]
    clock: Callable[[], float] = perf_counter
    _resources: ExitStack = field(default_factory=ExitStack)

    @staticmethod
    def open(target: Target, arms: Sequence[Arm]) -> Lab:
        """Load the target once, and every draft model that an arm needs once."""
        with ExitStack() as stack:
            first = target.head if target.head is not None and any(arm.head for arm in arms) else "none"
            pipeline = stack.enter_context(Pipeline.open(replace(target.setup, drafts=(first,))))
            models = {}
            for index in sorted({arm.model for arm in arms if arm.model is not None}):
                part = stack.enter_context(Pipeline(pipeline.engine, pipeline.tokenizer))
                part.drafter = part.open_draft(target.setup, target.setup.drafts[index])
                models[index] = part
                pipeline.pairs += part.pairs
            stations = {arm: _station(target, arm, pipeline, models) for arm in arms}
            return Lab(target, pipeline, stations, _resources=stack.pop_all())

    @property
    def notes(self) -> list[str]:
        """What the engine or a pair has to say about itself."""
        info = self.pipeline.engine.info
        warnings = [str(warning) for pair in self.pipeline.pairs for warning in pair.warnings]
        return [f"{self.target.name}: {words}" for words in (*([info.reason] if info.reason else []), *warnings)]

    def request(self, prompt: Prompt, sampling: SamplingParams, most: int, *, raw: bool) -> Request:
        """The plain request of a prompt; PromptError names its place in the file if it does not fit this target."""
        encoded = prompt.encoded(self.pipeline.tokenizer, raw=raw)
        request = Request(encoded.ids, sampling, max_tokens=prompt.max_tokens or most)
        try:
            self.pipeline.check(request)
        except PromptError as error:
            raise PromptError(f"{prompt.where}: {error}") from error
        return request

    def warm_up(self, request: Request) -> None:
        """Let every drafter work once, so that nobody's first run pays for pages that were never touched."""
        short = replace(request, max_tokens=_WARM_UP)
        self._run(short)
        for station in _distinct(self.stations.values()):
            self.pipeline.drafter = station.drafter
            self._run(replace(short, controller=fixed(2)))

    def run(self, request: Request, arm: Arm | None, number: int) -> Timed:
        """Run ``number`` of an arm (None: plain decoding)."""
        if arm is None:
            return self._run(request)
        station = self.stations[arm]
        if number not in station.controllers:
            station.controllers[number] = arm.policy.make(self.pipeline.engine.info, station.priors)
        self.pipeline.drafter = station.drafter
        return self._run(replace(request, controller=station.controllers[number]))

    def _run(self, request: Request) -> Timed:
        gc.collect()
        summary = Summary()
        start = begun = self.clock()
        for step in self.pipeline.stream(request):
            summary.add(step)
            if not summary.rounds:
                begun = self.clock()
        return Timed(summary, self.clock() - begun, begun - start)

    def explain(self, request: Request, plain: Sequence[int], other: Sequence[int]) -> Difference | None:
        """Where ``other`` leaves plain decoding's text, and whether rounding can explain it."""
        return self.pipeline.explain(request, plain, other)

    def close(self) -> None:
        """Free the weights of the target and its drafts."""
        self.pipeline.close()
        self._resources.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _station(target: Target, arm: Arm, pipeline: Pipeline, models: dict[int, Pipeline]) -> Station:
    """The arm's drafters as one, and what is believed of them before anything is measured."""
    drafters, owner = [], pipeline
    for name in arm.drafts:
        if name == "ngram":
            drafters.append(registry.load("drafters", "ngram")())
        elif name == HEAD:
            drafters.append(registry.load("drafters", "head")(pipeline.head))
        else:
            assert arm.model is not None
            owner = models[arm.model]
            drafters.append(owner.drafter)
    drafter = drafters[0] if len(drafters) == 1 else ChainDrafter(drafters)
    return Station(drafter, measured_priors(target, arm, replace(owner, drafter=drafter).priors()))


def measured_priors(target: Target, arm: Arm, believed: Priors) -> Priors:
    """``believed``, with what the target's profile says about this machine in its place."""
    profile, sources = target.profile, dict(believed.sources)
    if profile is None:
        return believed
    if arm.model is not None:
        own = fingerprint(Path(target.setup.drafts[arm.model]))
        known = [index for index, draft in enumerate(profile.drafts) if draft.model.fingerprint == own]
        if known:
            sources[MODEL] = replace(sources[MODEL], cost=profile.cost(known[0]))
    return Priors(profile.verify_curve(), True, profile.step_seconds, sources)


def _distinct(stations: Iterable[Station]) -> list[Station]:
    """One station of each drafter kind: arms that differ in their controller only need no warm-up of their own."""
    return list({station.drafter.name: station for station in stations}.values())
