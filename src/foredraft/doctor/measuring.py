"""The order of measuring: a quick look at everything, the numeric noise, then repetitions while time is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from statistics import median, quantiles

from foredraft import certify
from foredraft.devices.kept import Subject
from foredraft.devices.measured import DeviceProfile, DraftTimes, Noise, Rollback, Timing
from foredraft.doctor.settings import DoctorSettings, Loaded, Progress, silent
from foredraft.doctor.workbench import Behind, Workbench
from foredraft.trees import uniform_shape

WIDTHS = (1, 4, 8, 2, 16, 3, 6, 5, 7, 12, 9, 32, 24)
"""Measured widths, the most telling first: a slow machine does not get to the last ones."""
QUICK_WIDTHS = (1, 4, 8, 2, 16)
NODES = (1, 4)
"""Nodes of a draft's passes."""
_CHUNK = 64
"""Tokens of the text read at once."""
_CHAIN, _TREE = 4, 8
_CHAIN_PARENTS = tuple(range(-1, _CHAIN))
_NOISE_WIDTHS, _NOISE_ROWS, _NOISE_DEPTH = (2, 4, 8), (16, 8), 4
_NOISE_SHARE = 0.4
_MOST_RUNS, _QUICK_RUNS = 40, 3
_UNIT = 4
"""So many passes of other widths lie between two of width 1, by which all of them are divided."""


def measure(loaded: Loaded, about: Subject, settings: DoctorSettings, progress: Progress = silent) -> DeviceProfile:
    """Time passes of the target by width, passes of the drafts, and taking back; find the numeric noise.

    First a quick look at everything, then repetitions while time is left, the widths in turns and a draft's pass after
    each of the target's, so that both find the memory as in a real round. Ctrl-C ends it with nothing kept.
    """
    run = _Measuring(loaded, settings, progress)
    try:
        run.read_text()
        run.look()
        if not settings.quick:
            run.find_noise()
        run.repeat()
        return run.profile(about)
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class _Job:
    """One thing to time: a pass of ``model`` (0 = the target) over a tree, or taking it back but for its root."""

    model: int
    parents: tuple[int, ...]
    back: bool = False

    @property
    def width(self) -> int:
        return len(self.parents)


class _Measuring:
    """All models with the text in their caches, and the times seen so far."""

    def __init__(self, loaded: Loaded, settings: DoctorSettings, progress: Progress) -> None:
        self._settings, self._clock, self._progress = settings, settings.clock, progress
        self._start = settings.clock()
        self._free = settings.free_memory()
        self._benches: list[Workbench] = []
        self._seen: dict[_Job, list[float]] = {}
        self._noise: tuple[tuple[Noise, ...], tuple[Noise, ...]] = ((), ())
        self._notes = [*settings.notes]
        self._read_seconds = 0.0
        try:
            for engine in (loaded.target, *loaded.drafts):
                self._benches.append(Workbench(engine, loaded.text, settings))
        except BaseException:
            self.close()
            raise
        self._info = loaded.target.info

    def close(self) -> None:
        for bench in self._benches:
            bench.close()

    def _spent(self) -> float:
        return self._clock() - self._start

    def read_text(self) -> None:
        """Fill the caches; a slow machine stops at a quarter of the time."""
        target = self._benches[0]
        for bench in self._benches:
            context = min(bench.context, target.session.length) if bench is not target else bench.context
            while bench.session.length < context:
                self._progress("reading a text", self._share())
                bench.read(min(context, bench.session.length + _CHUNK))
                if self._spent() > self._settings.seconds / 4:
                    break
            bench.context = bench.session.length
        self._read_seconds = self._spent()

    def _share(self) -> float:
        return min(1.0, self._spent() / self._settings.seconds)

    def _widths(self) -> list[int]:
        """Those that the engine offers and its context holds; only single positions if nothing can be taken back."""
        if self._info.rollback == "none":
            return [1]
        wanted, offered = QUICK_WIDTHS if self._settings.quick else WIDTHS, self._info.widths
        room = self._benches[0].room
        return [width for width in wanted if width == 1 or (width <= room and (not offered or width in offered))]

    def _draft_jobs(self) -> list[_Job]:
        return [
            _Job(model, (-1,) * nodes if bench.info.tree else tuple(range(-1, nodes - 1)))
            for model, bench in enumerate(self._benches[1:], 1)
            for nodes in NODES
            if nodes <= bench.room
        ]

    def _back_jobs(self) -> list[_Job]:
        if self._info.rollback == "none" or self._benches[0].room <= _TREE:
            return []
        tree = (-1, *(int(parent) + 1 for parent in uniform_shape(_TREE, 2)))
        return [_Job(0, _CHAIN_PARENTS, back=True), *([_Job(0, tree, back=True)] if self._info.tree else [])]

    def look(self) -> None:
        """Everything once, within half of the time (quick: all of it): the first two widths and the drafts always, the
        rest while time is left."""
        drafts, todo = self._draft_jobs(), self._widths()
        until = self._settings.seconds * (1.0 if self._settings.quick else 0.5)
        for number, width in enumerate(todo):
            if number >= 2 and self._spent() > until:
                left_out = ", ".join(map(str, sorted(todo[number:])))
                self._notes.append(f"widths {left_out} were left out, there was no time; --seconds gives more")
                break
            self._take(_chain(width))
            if drafts:
                self._take(drafts[number % len(drafts)])
        for job in drafts:
            if job not in self._seen:
                self._take(job)
        for job in self._back_jobs():
            if self._spent() < self._settings.seconds:
                self._take(job)

    def repeat(self) -> None:
        """Again and again until the time is up or nothing would change any more."""
        most = _QUICK_RUNS if self._settings.quick else _MOST_RUNS
        for sweep in range(1, most):
            for job in self._sweep(sweep):
                if self._spent() + median(self._seen[job]) > self._settings.seconds:
                    return
                self._take(job)

    def _sweep(self, number: int) -> Iterator[_Job]:
        """Everything seen so far once, width 1 more often, in an order that changes from sweep to sweep."""
        widths = sorted(job.width for job in self._seen if job.model == 0 and not job.back)
        drafts = [job for job in self._seen if job.model]
        turn = number * 5 % len(widths)
        order = [*widths[turn:], *widths[:turn]][:: 1 if number % 2 else -1]
        for place, width in enumerate(order):
            yield _chain(width)
            if drafts:
                yield drafts[(number + place) % len(drafts)]
            if place % _UNIT == _UNIT - 1 and width != 1:
                yield _chain(1)
        yield from (job for job in self._seen if job.back)

    def _take(self, job: _Job) -> None:
        doing = f"the target, {job.width} at once" if job.model == 0 else f"a draft, {job.width} at once"
        self._progress(doing, self._share())
        bench = self._benches[job.model]
        seconds = bench.take_back(job.parents) if job.back else bench.forward(job.parents)
        self._seen.setdefault(job, []).append(seconds)

    def find_noise(self) -> None:
        """``certify``'s noise behind the text, if there is time and room for it."""
        bench, info = self._benches[0], self._info
        if info.rollback == "none":
            self._notes.append("nothing can be taken back, so nothing is drafted; only single positions were timed")
            return
        widths = [width for width in _NOISE_WIDTHS if _chain(width) in self._seen]
        rows = next((rows for rows in _NOISE_ROWS if self._noise_fits(rows, widths)), 0)
        if not rows or not widths:
            self._notes.append("numeric noise was not measured: no time or no room for it")
            return
        behind, text = Behind(bench), bench.text(bench.context, rows).tolist()
        found = []
        for width in widths:
            self._progress(f"numeric noise, {width} at once", self._share())
            found.append(Noise(width, certify.numeric_noise(behind, text, (width,))))
        trees: tuple[Noise, ...] = ()
        if info.tree:
            self._progress("numeric noise of trees", self._share())
            trees = (Noise(2 * _NOISE_DEPTH, certify.tree_noise(behind, text, depth=_NOISE_DEPTH)),)
        bench.restore()
        self._noise = (tuple(found), trees)

    def _noise_fits(self, rows: int, widths: Sequence[int]) -> bool:
        """Whether so many rows fit behind the text, and the passes over them into a share of the time: each comparison
        scores the rows one by one, and once more in fewer and wider passes."""
        bench, info = self._benches[0], self._info
        comparisons = len(widths) + info.tree
        refill = 0.0 if info.rollback == "trim" else 2 * self._read_seconds
        step = min(median(seen) for job, seen in self._seen.items() if job.model == 0 and not job.back)
        seconds = comparisons * (2.0 * rows * step + refill)
        return rows + 2 * _NOISE_DEPTH <= bench.room and seconds <= _NOISE_SHARE * self._settings.seconds

    def profile(self, about: Subject) -> DeviceProfile:
        """What was found."""
        info = self._info
        curve = sorted((job for job in self._seen if job.model == 0 and not job.back), key=lambda job: job.width)
        drafts = tuple(
            DraftTimes(facts, tuple(self._timing(job) for job in self._seen_of(model)))
            for model, facts in enumerate(about.drafts, 1)
        )
        if info.reason:
            self._notes.append(info.reason)
        return DeviceProfile(
            date=self._settings.now().astimezone(UTC).isoformat(timespec="seconds"),
            machine=about.machine,
            versions=about.versions,
            settings=about.settings,
            threads=about.threads,
            target=about.target,
            context=self._benches[0].context,
            curve=tuple(map(self._timing, curve)),
            drafts=drafts,
            rollback=self._rollback(),
            tree=info.tree,
            hidden=info.hidden_size is not None,
            width_noise=self._noise[0],
            tree_noise=self._noise[1],
            took=self._spent(),
            widths=info.widths,
            free_bytes=self._free,
            quick=self._settings.quick,
            notes=tuple(self._notes),
        )

    def _seen_of(self, model: int) -> list[_Job]:
        return sorted((job for job in self._seen if job.model == model), key=lambda job: job.width)

    def _timing(self, job: _Job) -> Timing:
        return timing(job.width, self._seen[job])

    def _rollback(self) -> Rollback:
        found = {job.width: median(times) for job, times in self._seen.items() if job.back}
        return Rollback(found.get(_CHAIN + 1), found.get(_TREE + 1))


def timing(width: int, seconds: Sequence[float]) -> Timing:
    """Median and relative half interquartile range of what was seen.

    >>> timing(4, [2.0, 1.0, 1.5, 2.5, 3.0])
    Timing(width=4, seconds=2.0, spread=0.25, runs=5)
    """
    middle = max(1e-9, median(seconds))  # a clock may be too coarse for a tiny model
    low, _, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (middle,) * 3
    return Timing(width, middle, (high - low) / 2 / middle, len(seconds))


def _chain(width: int) -> _Job:
    return _Job(0, tuple(range(-1, width - 1)))
