"""``foredraft doctor``: what passes take on this machine, and where drafting pays. The page goes to standard output,
progress to standard error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from foredraft.cli.options import MODEL_OPTIONS, Choices, options
from foredraft.devices.machine import busy
from foredraft.devices.measured import DeviceProfile, write_profile
from foredraft.devices.verdict import Gain, Verdict, judge, milliseconds, sentences
from foredraft.doctor import DoctorSettings, Found, Loaded, load_or_measure, loaded_of, subject_of
from foredraft.pipeline import Pipeline, Setup
from foredraft.plan.guard import check_memory
from foredraft.whole_files import checked_output

DOCTOR_OPTIONS = (
    click.option(
        "--seconds", default=20.0, show_default=True, metavar="S", help="Time to measure, loading not counted."
    ),
    click.option("-o", "--output", metavar="FILE", help="Also write the profile here."),
    click.option("--refresh", is_flag=True, help="Measure again, even if a profile is kept that is not stale."),
    click.option("--json", "as_json", is_flag=True, help="Print the profile and the verdict as one JSON document."),
)


@click.command()
@options(MODEL_OPTIONS, DOCTOR_OPTIONS)
def doctor(**values: Any) -> None:
    """Measure TARGET and its drafts on this machine, and say where drafting pays.

    Times passes of 1 to 32 positions, the drafts' passes and taking drafts back; finds whether bits depend on the
    width. The profile is kept and used by `generate`; it is measured again after 30 days, or when models, machine,
    threads or versions change.
    """
    choices = Choices({"tree": "auto", "draft_temperature": None, **values})
    settings = DoctorSettings(seconds=choices.seconds, notes=tuple(filter(None, [busy()])))
    output = _checked_output(choices.output)
    setup = choices.setup()
    console = Console(stderr=True, highlight=False)
    found = _find(setup, settings, console, refresh=choices.refresh)
    if output is not None:
        write_profile(found.profile, output)
        console.print(f"profile written to {escape(str(output))}", soft_wrap=True)
    verdict = judge(found.profile)
    if choices.as_json:
        click.echo(json.dumps(_document(found, verdict), indent=2, ensure_ascii=False))
    else:
        _show(Console(highlight=False), found, verdict)


def _checked_output(name: str | None) -> Path | None:
    """Refused before anything is measured."""
    if name is None:
        return None
    checked_output("--output", Path(name))
    return Path(name)


def _find(setup: Setup, settings: DoctorSettings, console: Console, *, refresh: bool) -> Found:
    @contextmanager
    def opened() -> Iterator[Loaded]:
        for note in filter(None, [check_memory(setup)]):
            console.print(f"note: {escape(note)}", soft_wrap=True)
        with console.status(f"loading {escape(setup.target.name)}"):
            pipeline = Pipeline.open(setup)
        with pipeline:
            yield loaded_of(pipeline)

    with _progress(console, settings.seconds) as progress:
        return load_or_measure(subject_of(setup), opened, settings, progress, refresh=refresh)


@contextmanager
def _progress(console: Console, seconds: float) -> Iterator[Callable[[str, float], None]]:
    """A bar that appears once something is measured, and goes away; a line where there is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("measuring", total=1.0, start=False)

    def report(doing: str, share: float) -> None:
        if not bar.tasks[0].started:
            bar.start_task(task)
            if console.is_terminal:
                bar.start()
            else:
                console.print(f"measuring for about {seconds:g} s")
        bar.update(task, description=f"measuring: {doing}", completed=share)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


# --- the page ----------------------------------------------------------------------------------------------


def _show(console: Console, found: Found, verdict: Verdict) -> None:
    profile = found.profile
    for line in _head(found):
        console.print(escape(line), soft_wrap=True)
    console.print()
    for sentence in sentences(profile, verdict):
        console.print(f"[bold]{sentence.topic}:[/] {escape(sentence.words)}", soft_wrap=True)
    console.print()
    console.print(_curve_table(profile))
    if verdict.decided and any(draft.longest_chain or draft.largest_tree for draft in verdict.drafts):
        console.print()
        console.print("speed-up of the best chain (tokens) or tree (nodes), if a guess is right with α:")
        console.print(_gain_table(verdict))


def _head(found: Found) -> Iterator[str]:
    profile = found.profile
    machine, target = profile.machine, profile.target
    threads = f"{profile.threads} thread{'s' if profile.threads != 1 else ''}"
    yield f"{target.name}: {target.engine}, {threads}, behind {profile.context} tokens"
    yield f"{machine.processor}, {machine.cpus} usable CPUs, {machine.system} {machine.architecture}"
    when = profile.measured_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    kept = f"; kept in {found.path}" if found.path else "; the cache cannot be written, so it is not kept"
    if found.fresh:
        yield f"measured in {profile.took:.1f} s{kept}"
    else:
        days = max(0, (datetime.now(UTC) - profile.measured_at).days)
        ago = "today" if not days else "yesterday" if days == 1 else f"{days} days ago"
        yield f"measured {when} ({ago}), --refresh measures again{kept}"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right")
    return table


def _curve_table(profile: DeviceProfile) -> Table:
    table = _table("width", "ms", "v", "spread", "runs")
    rows = [(str(timing.width), timing) for timing in profile.curve]
    for index, draft in enumerate(profile.drafts):
        name = "draft" if len(profile.drafts) == 1 else f"draft {index + 1}"
        rows += [(f"{name}, {timing.width}", timing) for timing in draft.passes]
    for label, timing in rows:
        spread = f"{timing.spread:.1%}" if timing.runs > 1 else "–"
        ratio = f"{timing.seconds / profile.step_seconds:.2f}"
        table.add_row(label, milliseconds(timing.seconds), ratio, spread, str(timing.runs))
    return table


@dataclass(frozen=True)
class _Column:
    title: str
    gains: tuple[Gain, ...]


def _columns(verdict: Verdict) -> Iterator[_Column]:
    several = len(verdict.drafts) > 2
    for index, draft in enumerate(verdict.drafts):
        name = "n-gram" if draft.cost is None else f"model {index}" if several else "model"
        yield _Column(f"{name} chain", draft.chains)
        if draft.trees:
            yield _Column(f"{name} tree", draft.trees)


def _gain_table(verdict: Verdict) -> Table:
    columns = list(_columns(verdict))
    table = _table("α", *(column.title for column in columns))
    for row in zip(*(column.gains for column in columns), strict=True):
        table.add_row(f"{row[0].alpha}", *(f"{gain.speedup:.2f}× ({gain.size})" if gain.size else "–" for gain in row))
    return table


def _document(found: Found, verdict: Verdict) -> dict[str, Any]:
    words = [asdict(sentence) for sentence in sentences(found.profile, verdict)]
    judged = {**asdict(verdict), "decided": verdict.decided, "words": words}
    kept = str(found.path) if found.path else None
    return {**found.profile.as_json(), "verdict": judged, "kept": kept, "measured_now": found.fresh}
