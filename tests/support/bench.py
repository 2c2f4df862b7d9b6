"""Benchmarks that cost nothing: records made by hand, and labs over the scripted engine whose clock counts rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from foredraft.bench.arms import PLAIN, Arm
from foredraft.bench.lab import Lab, Station, Target
from foredraft.bench.records import ArmRuns, Record, Run
from foredraft.control import Priors
from foredraft.drafters.base import Drafter
from foredraft.engines.base import Engine
from foredraft.engines.scripted import ScriptedEngine, Table
from foredraft.pipeline import Pipeline, Setup
from foredraft.types import Logits
from tests.support.scripted import TOY, VOCAB


def run(seconds: float, generated: int = 10, *, same: bool = True, prompt_seconds: float = 0.0) -> Run:
    """A run of ``generated`` tokens that drafted two tokens a round and had half of them accepted."""
    return Run(
        generated=generated,
        rounds=5,
        seconds=seconds,
        prompt_seconds=prompt_seconds,
        drafted=10,
        evaluated=8,
        accepted=5,
        depths=((4, 5), (1, 3)),
        rungs={"ngram": 4, "off": 1},
        reasons={"nothing to say": 1},
        parts={"draft": 0.0, "verify": seconds, "keep": 0.0, "other": 0.0},
        same=same,
        finish="length",
    )


def record(key: str, kind: str, seconds: Mapping[str, Sequence[float]], *, warm: bool = False) -> Record:
    """A prompt on the target "toy" with the seconds of every run of every arm."""
    arms = {arm: ArmRuns(tuple(map(run, times))) for arm, times in seconds.items()}
    assert PLAIN in arms
    return Record("toy", key, 1, kind, warm, 7, arms)


@dataclass
class Rows:
    """A clock: one second for every row that the target scored."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ToyLab:
    """A lab over ``table``: ``begin`` opens it, ``clock`` is its time, ``drafters`` by name of the draft."""

    table: Table
    drafters: Mapping[str, Drafter]
    arms: Sequence[Arm]
    name: str = "toy"
    clock: Rows = field(default_factory=Rows)

    def begin(self) -> Lab:
        """A fresh lab."""
        engine = self.engine()
        stations = {arm: Station(self.drafters["+".join(arm.drafts)], Priors()) for arm in self.arms}
        return Lab(self.target, Pipeline(engine, TOY), stations, self.clock)

    def engine(self) -> Engine:
        """The target, on the clock."""

        def timed(text: tuple[int, ...]) -> Logits:
            self.clock.now += 1.0
            return self.table(text)

        return ScriptedEngine(timed, VOCAB)

    @property
    def target(self) -> Target:
        """What the plan calls it; nothing is loaded."""
        return Target(self.name, Setup(Path(f"{self.name}.gguf"), ("none",)))
