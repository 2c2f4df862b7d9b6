"""Measuring: the numbers are the machine's own, within the time allowed, and nothing is left open or half kept."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft import certify
from foredraft.devices import DeviceProfile, Noise, read_profile, write_profile
from foredraft.devices.kept import Subject
from foredraft.devices.verdict import judge
from foredraft.doctor import DoctorSettings, Loaded, load_or_measure, measure, measuring, subject
from foredraft.doctor.measuring import QUICK_WIDTHS, WIDTHS
from foredraft.engines.base import Engine
from foredraft.engines.opening import Settings
from foredraft.engines.scripted import ScriptedEngine, markov_table
from foredraft.errors import InvalidValue
from tests.support import tiny_models
from tests.support.profiles import DRAFT, HERE, NOW, TARGET
from tests.support.timed import Clock, Pass, ReplayEngine, RoundingEngine, TimedEngine

STEP = 0.02


def tiled(width: int) -> float:
    """Dear in tiles of 8."""
    return STEP * (1.0 + 0.1 * (width - 1) + 0.5 * ((width - 1) // 8))


def small(nodes: int) -> float:
    return STEP * (0.2 + 0.02 * (nodes - 1))


def scripted(context: int = 4096, **changes: Any) -> ScriptedEngine:
    return ScriptedEngine(markov_table(50), 50, context, **changes)


@dataclass
class Bench:
    """A target and perhaps a draft that share a clock and a log."""

    clock: Clock = field(default_factory=Clock)
    target_time: Callable[[int], float] = tiled
    draft_time: Callable[[int], float] = small
    inner: Engine = field(default_factory=scripted)
    draft_inner: Engine | None = field(default_factory=scripted)
    changes: dict[str, object] = field(default_factory=dict)
    seconds: float = 20.0
    context: int = 256
    quick: bool = False
    shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log: list[Pass] = []
        self.target = TimedEngine(self.inner, self.clock, self.target_time, 0.003, "target", self.log, self.changes)
        self.drafts: tuple[TimedEngine, ...] = ()
        if self.draft_inner is not None:
            self.drafts = (TimedEngine(self.draft_inner, self.clock, self.draft_time, 0.001, "draft", self.log),)

    @property
    def loaded(self) -> Loaded:
        return Loaded(self.target, self.drafts, tuple(range(50)))

    @property
    def settings(self) -> DoctorSettings:
        return DoctorSettings(
            self.seconds, self.context, self.quick, ("a note",), self.clock, lambda: NOW, lambda: 5_000_000_000
        )

    @property
    def about(self) -> Subject:
        return Subject(TARGET, (DRAFT,) if self.drafts else (), 3, {"strict": "no"}, {"foredraft": "1"}, HERE)

    def run(self) -> DeviceProfile:
        profile = measure(self.loaded, self.about, self.settings, lambda doing, share: self.shares.append(share))
        assert self.target.open_sessions == 0 and all(draft.open_sessions == 0 for draft in self.drafts)
        return profile

    @property
    def timed(self) -> list[Pass]:
        """The passes that score every token they feed."""
        return [one for one in self.log if one.rows]


def readable(profile: DeviceProfile, folder: Path) -> DeviceProfile:
    """What is measured can be written and read."""
    write_profile(profile, folder / "profile.json")
    assert read_profile(folder / "profile.json") == profile
    return profile


# --- what is found -----------------------------------------------------------------------------------------


def test_the_profile_holds_what_the_engines_take(tmp_path: Path) -> None:
    bench = Bench()
    profile = readable(bench.run(), tmp_path)
    assert [timing.width for timing in profile.curve] == sorted(WIDTHS)
    for timing in profile.curve:
        assert timing.seconds == pytest.approx(tiled(timing.width)) and timing.runs > 3
        assert timing.spread == pytest.approx(0.0, abs=1e-9)
    assert profile.step_seconds == pytest.approx(STEP)
    assert [timing.width for timing in profile.drafts[0].passes] == [1, 4]
    assert [timing.seconds for timing in profile.drafts[0].passes] == pytest.approx([small(1), small(4)])
    assert profile.cost() == pytest.approx(0.2)
    assert [profile.rollback.chain, profile.rollback.tree] == pytest.approx([0.003, 0.003])
    assert profile.width_noise == (Noise(2, 0.0), Noise(4, 0.0), Noise(8, 0.0))
    assert profile.tree_noise == (Noise(8, 0.0),)
    assert (profile.context, profile.threads, profile.date) == (256, 3, NOW.isoformat())
    assert (profile.tree, profile.hidden, profile.widths, profile.quick) == (True, False, None, False)
    assert (profile.free_bytes, profile.machine, profile.target) == (5_000_000_000, HERE, TARGET)
    assert profile.notes == ("a note",)
    assert profile.as_priors().curve(9) == pytest.approx(2.3)


def test_every_token_of_a_timed_pass_is_scored_behind_the_text() -> None:
    """As in a real round. Only reading the text scores nothing."""
    bench = Bench()
    bench.run()
    assert all(one.rows == one.width for one in bench.timed)
    read = [one for one in bench.log if not one.rows]
    assert {one.who: sum(each.width for each in read if each.who == one.who) for one in read} == {
        "target": 256,
        "draft": 256,
    }


def test_time_is_kept() -> None:
    bench = Bench(seconds=20.0)
    profile = bench.run()
    assert 19.0 < profile.took == bench.clock.time < 20.1
    assert bench.shares == sorted(bench.shares) and bench.shares[0] >= 0.0 and 0.9 < bench.shares[-1] <= 1.0


def test_it_ends_early_when_more_runs_would_not_help() -> None:
    bench = Bench(target_time=lambda width: tiled(width) / 1000, draft_time=lambda nodes: small(nodes) / 1000)
    profile = bench.run()
    assert profile.took < 5.0
    assert {timing.runs for timing in profile.curve if timing.width > 1} == {40}


def test_widths_come_in_turns_and_a_draft_pass_after_a_target_pass() -> None:
    bench = Bench()
    profile = bench.run()
    order = bench.timed
    assert all(left.who == "target" for left, right in pairwise(order) if right.who == "draft")
    widths = [one.width for one in order if one.who == "target"]
    again = [left for left, right in pairwise(widths) if left == right and left > 8]
    assert len(again) < 0.1 * sum(timing.runs for timing in profile.curve if timing.width > 8)
    assert profile.curve[0].runs > 3 * profile.curve[1].runs


def test_drift_and_single_disturbances_leave_the_curve_alone() -> None:
    """The machine becomes slower by half while it is measured, and stops for a moment now and then."""

    def speed(now: float) -> float:
        return 1.0 + now / 40 + (8.0 if int(now * 50) % 17 == 0 else 0.0)

    curve = Bench(clock=Clock(speed=speed), seconds=60.0).run().verify_curve()
    for width in sorted(WIDTHS):
        assert curve(width) == pytest.approx(tiled(width) / STEP, rel=0.06)


def test_the_spread_is_half_the_interquartile_range() -> None:
    """Passes take 1, 1.5, 2, … 5 times as long in turn."""
    bench = Bench(draft_inner=None, target_time=lambda width: STEP)
    turns = iter(range(10**6))
    bench.clock.speed = lambda now: 1.0 + 0.5 * (next(turns) % 9)
    spreads = [timing.spread for timing in bench.run().curve]
    assert 0.1 < np.median(spreads) < 0.6
    assert measuring.timing(1, [0.0, 0.0]).seconds > 0
    assert doctest.testmod(measuring).failed == 0


# --- machines and engines of all kinds ---------------------------------------------------------------------


def test_a_slow_machine_gets_to_the_widths_that_tell_most(tmp_path: Path) -> None:
    """A second a token: reading 256 tokens alone would take longer than allowed."""
    bench = Bench(target_time=lambda width: 50 * tiled(width), draft_time=lambda nodes: 50 * small(nodes))
    profile = readable(bench.run(), tmp_path)
    assert [timing.width for timing in profile.curve[:2]] == [1, 4] or profile.curve[1].width == 2
    assert profile.context < 256 and profile.took < 30.0
    assert any("were left out" in note and "32" in note for note in profile.notes)
    assert any("numeric noise was not measured" in note for note in profile.notes)
    assert profile.cost() == pytest.approx(0.2) and profile.verify_curve()(4) == pytest.approx(1.3)


def test_a_very_slow_machine_gives_one_look(tmp_path: Path) -> None:
    bench = Bench(target_time=lambda width: 1000 * tiled(width), draft_time=lambda nodes: 1000 * small(nodes))
    profile = readable(bench.run(), tmp_path)
    assert [timing.width for timing in profile.curve] == [1, 4]
    assert [timing.runs for timing in profile.curve] == [1, 1]
    assert profile.rollback.chain is None


def test_quick(tmp_path: Path) -> None:
    bench = Bench(quick=True, seconds=1.5, context=64)
    profile = readable(bench.run(), tmp_path)
    assert profile.quick and profile.context == 64 and profile.took <= 1.6
    assert [timing.width for timing in profile.curve] == sorted(QUICK_WIDTHS)
    assert max(timing.runs for timing in profile.curve if timing.width > 1) <= 3
    assert profile.width_noise == () and profile.tree_noise == () and profile.drafts[0].passes[0].runs >= 1
    assert profile.notes == ("a note",)


def test_without_trees_there_are_only_chains() -> None:
    bench = Bench(inner=scripted(tree=False), draft_inner=scripted(tree=False))
    profile = bench.run()
    assert not profile.tree and profile.tree_noise == () and profile.rollback.tree is None
    assert all(one.parents == tuple(range(-1, one.width - 1)) for one in bench.timed)
    assert [timing.width for timing in profile.drafts[0].passes] == [1, 4]


def test_an_engine_that_cannot_forget_is_timed_at_width_1() -> None:
    profile = Bench(inner=scripted(rollback="none"), draft_inner=None).run()
    assert [timing.width for timing in profile.curve] == [1] and profile.curve[0].runs > 3
    assert profile.rollback.chain is None and profile.width_noise == ()
    assert any("nothing can be taken back" in note for note in profile.notes)
    assert "this engine cannot forget tokens" in profile.notes


def test_a_cache_that_cannot_be_cut_is_read_again_seldom() -> None:
    engine = ReplayEngine(markov_table(50), 50, 4096, tree=False, rollback="replay")
    bench = Bench(inner=engine)
    profile = bench.run()
    assert [timing.width for timing in profile.curve] == sorted(WIDTHS)
    assert profile.width_noise == (Noise(2, 0.0), Noise(4, 0.0), Noise(8, 0.0))
    reads = sum(one.width for one in bench.log if one.who == "target" and not one.rows) / 256
    assert reads < 12


@pytest.mark.parametrize("context", [8, 9, 12, 20, 33, 64, 290])
def test_small_contexts(context: int, tmp_path: Path) -> None:
    bench = Bench(inner=scripted(context), draft_inner=scripted(context))
    profile = readable(bench.run(), tmp_path)
    assert profile.context == min(256, context // 2)
    assert profile.curve[0].width == 1 and profile.curve[-1].width < context - profile.context
    assert profile.drafts[0].passes[0].width == 1


def test_too_small_a_context_is_refused() -> None:
    bench = Bench(inner=scripted(7))
    with pytest.raises(InvalidValue, match="context is 7; allowed: at least 8"):
        bench.run()
    bench = Bench(draft_inner=scripted(7))
    with pytest.raises(InvalidValue, match="context is 7"):
        bench.run()
    assert bench.target.open_sessions == 0


def test_only_offered_widths_are_measured() -> None:
    bench = Bench(changes={"widths": (1, 8, 32), "hidden_size": 16, "reason": "fixed shapes"})
    profile = bench.run()
    assert [timing.width for timing in profile.curve] == [1, 8, 32]
    assert profile.widths == (1, 8, 32) and profile.hidden and "fixed shapes" in profile.notes


def test_texts_fit_every_vocabulary() -> None:
    inner = ScriptedEngine(markov_table(7), 7)
    bench = Bench(inner=inner, draft_inner=ScriptedEngine(markov_table(5), 5), seconds=3.0)
    assert bench.run().drafts[0].passes
    profile = measure(Loaded(bench.target), replace(bench.about, drafts=()), bench.settings)
    assert profile.drafts == () and profile.curve


def test_noise_is_certify_s_own() -> None:
    engine = RoundingEngine(markov_table(50), 50)
    bench = Bench(inner=engine)
    profile = bench.run()
    assert [(noise.width, round(noise.logits, 3)) for noise in profile.width_noise] == [(2, 0.0), (4, 0.0), (8, 0.25)]
    assert [(noise.width, round(noise.logits, 3)) for noise in profile.tree_noise] == [(8, 0.25)]
    text = [id % 50 for id in range(272)]
    assert profile.width_noise[2].logits == certify.numeric_noise(engine, text, (8,), 256)
    assert profile.tree_noise[0].logits == certify.tree_noise(engine, text, 256)


# --- keeping -----------------------------------------------------------------------------------------------


class Shelf:
    """Opens a bench's models and counts how often."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.opened = bench, 0

    @contextmanager
    def __call__(self) -> Iterator[Loaded]:
        self.opened += 1
        yield self.bench.loaded


def test_models_are_opened_only_to_measure(empty_cache: Path) -> None:
    bench = Bench(seconds=6.0)
    shelf = Shelf(bench)
    first = load_or_measure(bench.about, shelf, bench.settings)
    assert first.fresh and first.path is not None and read_profile(first.path) == first.profile
    second = load_or_measure(bench.about, shelf, bench.settings)
    assert shelf.opened == 1 and not second.fresh and (second.profile, second.path) == (first.profile, first.path)
    assert load_or_measure(bench.about, shelf, bench.settings, refresh=True).fresh
    later = replace(bench.settings, now=lambda: NOW + timedelta(days=31))
    assert load_or_measure(bench.about, shelf, later).fresh
    assert load_or_measure(replace(bench.about, threads=1), shelf, bench.settings).fresh
    assert shelf.opened == 4


def test_a_full_profile_replaces_a_quick_one_and_serves_for_it(empty_cache: Path) -> None:
    bench = Bench(seconds=2.0)
    quick, shelf = replace(bench.settings, quick=True), Shelf(bench)
    assert load_or_measure(bench.about, shelf, quick).profile.quick
    assert not load_or_measure(bench.about, shelf, quick).fresh
    assert not load_or_measure(bench.about, shelf, bench.settings).profile.quick
    found = load_or_measure(bench.about, shelf, quick)
    assert not found.fresh and not found.profile.quick and shelf.opened == 2


def test_a_profile_that_decides_nothing_is_measured_again(empty_cache: Path) -> None:
    """Too slow a machine for three runs of each width; controllers may still start from it."""
    bench = Bench(seconds=2.0, target_time=lambda width: 20 * tiled(width))
    shelf = Shelf(bench)
    assert not judge(load_or_measure(bench.about, shelf, bench.settings).profile).decided
    assert not load_or_measure(bench.about, shelf, replace(bench.settings, quick=True)).fresh
    assert load_or_measure(bench.about, shelf, bench.settings).fresh and shelf.opened == 2


def test_a_quick_look_that_was_disturbed_is_not_kept(empty_cache: Path) -> None:
    bench = Bench(quick=True, seconds=1.5, target_time=lambda width: STEP / width)
    found = load_or_measure(bench.about, Shelf(bench), bench.settings)
    assert found.fresh and found.path is None and list(empty_cache.rglob("*.json")) == []


@pytest.mark.parametrize("when", [0.0, 0.5, 1.9])
def test_an_interrupt_keeps_nothing_and_closes_everything(when: float, empty_cache: Path) -> None:
    bench = Bench(clock=Clock(interrupt_at=when), seconds=2.0)
    with pytest.raises(KeyboardInterrupt):
        load_or_measure(bench.about, Shelf(bench), bench.settings)
    assert bench.target.open_sessions == 0 and bench.drafts[0].open_sessions == 0
    assert list(empty_cache.rglob("*")) == []


def test_subjects_of_files(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "llama.gguf")
    found = subject(path, [path], Settings(threads=3))
    assert (found.threads, found.target.engine, found.drafts) == (3, "llama_cpp", (found.target,))
    assert set(found.versions) == {"foredraft", "llama-cpp-python"}
    assert subject(path, [path], Settings(threads=3, context=4096)).key == found.key
    others = [
        subject(path, [], Settings(threads=3)),
        subject(path, [path], Settings(threads=2)),
        subject(path, [path], Settings(threads=3, strict=True)),
        subject(path, [path], Settings(threads=3, kv_type="q8_0")),
        subject(path, [path], Settings(threads=3, context=64)),
        subject(path, [path], Settings(threads=3), ("pytorch", "auto")),
        subject(path, [path], Settings(threads=3), ("auto", "pytorch")),
    ]
    assert len({found.key, *(other.key for other in others)}) == len(others) + 1
    assert subject(path, [], Settings()).threads >= 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 4000.0])
def test_impossible_budgets_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidValue, match=r"allowed: 0\.1 to 3600"):
        DoctorSettings(seconds=seconds)
