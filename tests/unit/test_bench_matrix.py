"""The measuring loop over the scripted engine: turns, controllers, texts, interruption, resuming. Rows are its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from foredraft.bench.arms import Arm, parse_arms
from foredraft.bench.lab import Lab, Target, measured_priors
from foredraft.bench.matrix import Means, Plan, measure
from foredraft.bench.records import RawFile
from foredraft.control import Controller, Priors, SourcePriors
from foredraft.devices.kept import model_facts
from foredraft.devices.machine import this_machine
from foredraft.devices.measured import DeviceProfile, DraftTimes, Rollback, Timing
from foredraft.drafters.base import Drafter
from foredraft.engines.base import EngineInfo, Session
from foredraft.engines.scripted import ScriptedEngine, markov_table
from foredraft.errors import PromptError
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.prompts import Prompt, read_prompts
from foredraft.types import Ids, Logits, SamplingParams, Scores
from tests.support.bench import ToyLab
from tests.support.scripted import TOY, VOCAB, always_right, always_wrong

TABLE = markov_table(VOCAB, order=2, seed=3)
DRAFTERS: dict[str, Drafter] = {"ngram": always_wrong(TABLE), "model": always_right(TABLE)}
ARMS = parse_arms(["model,ngram:fixed:3", "model:cost"])
TOKENS = 12


@dataclass
class Watcher:
    """Writes down what it is told; ``stops_at``: the run after which somebody presses Ctrl-C."""

    words: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    total: int = 0
    runs: int = 0
    stops_at: int | None = None

    def begins(self, runs: int) -> None:
        self.total = runs

    def says(self, words: str) -> None:
        self.words.append(words)

    def notes(self, words: str) -> None:
        self.words.append(f"note: {words}")

    def ran(self) -> None:
        self.runs += 1
        if self.runs == self.stops_at:
            raise KeyboardInterrupt

    def measured(self, records: Sequence[object]) -> None:
        self.kept.append(f"{len(records)}")


@dataclass
class Bench:
    """A benchmark of toy targets into a file; ``labs`` are those that were opened."""

    folder: Path
    plan: Plan
    toys: Sequence[ToyLab]
    labs: list[Lab] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def run(self, watch: Watcher | None = None, plan: Plan | None = None) -> RawFile:
        raw = RawFile.begin(self.folder / "b.json", {}, {}, resume=True)
        measure(plan or self.plan, raw, Means(self.open, self.slept.append), watch or Watcher())
        return raw

    def open(self, target: Target) -> Lab:
        (toy,) = [toy for toy in self.toys if toy.name == target.name]
        self.labs.append(toy.begin())
        return self.labs[-1]


def prompts(folder: Path, *texts: str) -> tuple[Prompt, ...]:
    path = folder / "p.jsonl"
    path.write_text("\n".join(f'{{"prompt": "{text}", "kind": "k{index % 2}"}}' for index, text in enumerate(texts)))
    return read_prompts(path).prompts


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    def make(*texts: str, arms: Sequence[Arm] = ARMS, targets: Sequence[str] = ("toy",), **more: object) -> Bench:
        toys = [ToyLab(TABLE, DRAFTERS, arms, name) for name in targets]
        sampling = SamplingParams(min_tokens=TOKENS)
        plan = Plan(tuple(toy.target for toy in toys), tuple(arms), prompts(tmp_path, *texts), sampling, TOKENS, 3)
        return Bench(tmp_path, replace(plan, **more), toys)  # type: ignore[arg-type]

    return make


def test_every_arm_runs_as_often_as_plain_and_writes_its_text(bench: MakeBench) -> None:
    watch = Watcher()
    raw = bench("ab", "the cat").run(watch)
    assert watch.total == watch.runs == 2 * 3 * 4
    for record in raw.records:
        assert list(record.arms) == ["plain", "model:fixed:3", "ngram:fixed:3", "model:cost"]
        for arm in record.arms.values():
            assert len(arm.runs) == 3 and not arm.differences
            assert all(run.same and run.generated == TOKENS for run in arm.runs)


def test_times_are_those_of_the_rounds(bench: MakeBench) -> None:
    """One second a row: plain scores one row a token, a chain of 3 four rows a round."""
    (record,) = bench("ab").run().records
    plain, right, wrong = (record.arms[name].runs[0] for name in ("plain", "model:fixed:3", "ngram:fixed:3"))
    assert plain.per_token == 1.0
    assert (right.rounds, right.seconds) == (TOKENS // 4, TOKENS)
    assert (wrong.rounds, wrong.seconds) == (TOKENS, 4 * 9 + 3 + 2 + 1), "shorter towards the end"
    assert plain.prompt_seconds == 0.0  # the table is not asked while the prompt is read
    assert right.rungs == {"chain": 3} and right.depths == ((3, 3),) * 3


def test_each_run_begins_elsewhere_in_the_cycle(bench: MakeBench) -> None:
    watch = Watcher()
    bench("ab").run(watch)
    order = [words.rpartition(": ")[2] for words in watch.words if ", run " in words]
    cycle = ["plain", "model:fixed:3", "ngram:fixed:3", "model:cost"]
    assert order == [*cycle, *cycle[1:], *cycle[:1], *cycle[2:], *cycle[:2]]


def test_a_controller_sees_every_prompt_once(bench: MakeBench) -> None:
    """One for each run of an arm, kept over the prompts like that of a program that stays open: it learns what the
    machine costs, and never from the same prompt twice."""
    made = bench("ab", "ha", "the cat")
    made.run()
    (lab,) = made.labs
    controllers = lab.stations[ARMS[2]].controllers
    assert sorted(controllers) == [0, 1, 2] and len(set(map(id, controllers.values()))) == 3


def test_ctrl_c_keeps_what_is_finished_and_resume_goes_on(bench: MakeBench) -> None:
    made = bench("ab", "ha", "the cat")
    with pytest.raises(KeyboardInterrupt):
        made.run(Watcher(stops_at=12 + 5))
    assert [record.line for record in RawFile.begin(made.folder / "b.json", {}, {}, resume=True).records] == [1]
    watch = Watcher()
    raw = made.run(watch)
    assert [record.line for record in raw.records] == [1, 2, 3]
    assert watch.total == watch.runs == 2 * 12
    assert any(words.startswith("prompt 2 of 3, k1, run 1 of 3") for words in watch.words)
    opened = len(made.labs)
    made.run(again := Watcher())
    assert (again.total, len(made.labs)) == (0, opened), "nothing is left to do, so nothing is loaded"


def test_a_prompt_that_was_changed_is_measured_again(bench: MakeBench) -> None:
    made = bench("ab", "ha")
    made.run()
    raw = made.run(plan=replace(made.plan, prompts=prompts(made.folder, "ab", "abc")))
    assert [record.line for record in raw.records] == [1, 2, 2]


def test_targets_come_one_after_another_or_in_turns(bench: MakeBench) -> None:
    arms = parse_arms(["model:fixed:3"])
    apart = bench("ab", "ha", arms=arms, targets=("one", "two"))
    assert [record.target for record in apart.run().records] == ["one", "one", "two", "two"]
    assert apart.slept == []
    (apart.folder / "b.json").unlink()
    turns = bench("ab", "ha", arms=arms, targets=("one", "two"), alternate=True)
    assert [record.target for record in turns.run().records] == ["one", "two", "one", "two"]
    assert len(turns.slept) >= 2 * 3, "a pause whenever another engine begins"


def test_a_prompt_that_does_not_fit_is_named_before_anything_runs(bench: MakeBench) -> None:
    made = bench("ab", "a" * 5000)
    watch = Watcher()
    with pytest.raises(PromptError, match="line 2: the prompt has"):
        made.run(watch)
    assert watch.runs == 0


def test_repeats_are_measured_and_flagged(bench: MakeBench) -> None:
    raw = bench("ab", "ha", "ab").run()
    assert [record.warm for record in raw.records] == [False, False, True]


# --- texts that differ ------------------------------------------------------------------------------------------------


@dataclass
class Rounding:
    """Of two nearly tied tokens, "a" and "b", wide passes raise "b" by ``shift``, ``left`` times, as kernels that round
    differently would."""

    inner: Session
    shift: float
    left: list[int]

    @property
    def length(self) -> int:
        return self.inner.length

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        logits = self.inner.extend(tokens, parents, rows).logits.copy()
        if len(tokens) > 1 and rows and self.left[0]:
            self.left[0] -= 1
            logits[:, TOY.id_of("b")] += np.float32(self.shift)
        return Scores(logits)

    def keep(self, path: Sequence[int]) -> None:
        self.inner.keep(path)

    def rewind(self, length: int) -> int:
        return self.inner.rewind(length)

    def close(self) -> None:
        self.inner.close()


@dataclass(frozen=True)
class RoundingEngine:
    inner: ScriptedEngine
    shift: float
    left: list[int] = field(default_factory=lambda: [10**9])

    @property
    def info(self) -> EngineInfo:
        return self.inner.info

    def open(self) -> Rounding:
        return Rounding(self.inner.open(), self.shift, self.left)

    def close(self) -> None:
        """Nothing to free."""


WARM_UP_PASSES = 3
"""Wide passes before the first run: 4 tokens, the last of which is never drafted for, with a draft that is wrong."""


def tied(text: tuple[int, ...]) -> Logits:
    row = np.zeros(VOCAB, np.float32)
    row[TOY.id_of("a")], row[TOY.id_of("b")] = 5.0, 4.9
    return row


def differing(engine: RoundingEngine, made: Bench) -> RawFile:
    station = ToyLab(tied, {"ngram": always_wrong(tied)}, ARMS[1:2]).begin().stations
    lab = Lab(made.plan.targets[0], Pipeline(engine, TOY), station)
    made.open = lambda target: lab  # type: ignore[method-assign]
    return made.run()


def test_a_near_tie_is_told_from_a_fault(bench: MakeBench) -> None:
    made = bench("ab", arms=ARMS[1:2])
    (record,) = differing(RoundingEngine(ScriptedEngine(tied, VOCAB), 0.2), made).records
    arm = record.arms["ngram:fixed:3"]
    assert not arm.runs[0].same and record.arms["plain"].runs[0].same
    (found,) = arm.differences
    assert (found.index, found.plain, found.other) == (0, TOY.id_of("a"), TOY.id_of("b"))
    assert found.gap == pytest.approx(0.1, abs=1e-3) and found.noise == pytest.approx(0.2) and found.near_tie


def test_a_fault_that_noise_cannot_excuse_is_kept_as_one(bench: MakeBench) -> None:
    """The first wide pass went wrong and no later one does: the engine's noise is measured as nothing."""
    made = bench("ab", arms=ARMS[1:2], runs=1)
    (record,) = differing(RoundingEngine(ScriptedEngine(tied, VOCAB), 0.2, [WARM_UP_PASSES + 1]), made).records
    (found,) = record.arms["ngram:fixed:3"].differences
    assert found.noise == 0.0 and not found.near_tie


# --- opening ----------------------------------------------------------------------------------------------------------


def test_arms_share_drafters_and_priors_know_them() -> None:
    lab = ToyLab(TABLE, DRAFTERS, ARMS).begin()
    assert lab.stations[ARMS[0]].drafter is lab.stations[ARMS[2]].drafter
    timed = lab.run(Request(tuple(TOY.ids_of("ab")), max_tokens=4), ARMS[0], 0)
    assert timed.summary.generated == 4
    controller: Controller = lab.stations[ARMS[0]].controllers[0]
    assert controller.budget(3).nodes == 3


def test_a_profile_replaces_what_was_believed_of_its_own_models(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("target", "first", "second")]
    for file in files:
        file.write_text(file.name)
    facts = [model_facts(file, "llama_cpp") for file in files]
    curve = tuple(Timing(width, seconds, 0.0, 3) for width, seconds in ((1, 0.02), (4, 0.03)))
    drafts = (DraftTimes(facts[1], (Timing(1, 0.005, 0.0, 3),)),)
    profile = DeviceProfile(
        "2026-01-01T00:00:00+00:00", this_machine(), {}, {}, 2, facts[0], 256, curve, drafts, Rollback(),
        tree=True, hidden=False, width_noise=(), tree_noise=(), took=1.0,
    )  # fmt: skip
    believed = Priors(sources={"ngram": SourcePriors(alpha=0.5), "model": SourcePriors(cost=0.9)})
    target = Target("t", Setup(files[0], tuple(files[1:])), profile)
    first, second, copies = parse_arms(["ngram+model:cost", "ngram+model2:cost", "ngram:cost"])
    found = measured_priors(target, first, believed)
    assert found.measured and found.step_seconds == 0.02 and found.curve(4) == pytest.approx(1.5)
    assert list(found.sources) == ["ngram", "model"] and found.sources["model"].cost == pytest.approx(0.25)
    assert measured_priors(target, second, believed).sources["model"].cost == 0.9, "not in the profile"
    assert measured_priors(target, copies, believed).curve(4) == pytest.approx(1.5)
    assert measured_priors(replace(target, profile=None), first, believed) is believed
