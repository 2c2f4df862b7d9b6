"""``foredraft profile``: record what target and drafts do on the user's prompts, and report whether to ship."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foredraft import __version__
from foredraft.cli.generate import INTERRUPTED
from foredraft.cli.options import LAW_OPTIONS, MODEL_OPTIONS, Choices, options
from foredraft.cli.profile_devices import DEVICE_OPTIONS, find_devices
from foredraft.cli.profile_view import show_summary
from foredraft.devices.device import Device, MeasuredDevice
from foredraft.devices.kept import model_facts
from foredraft.doctor import DoctorSettings, load_or_measure, loaded_of, subject_of
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.opening import AUTO, engine_name, is_head_draft
from foredraft.errors import InvalidValue
from foredraft.pipeline import Pipeline, Setup
from foredraft.plan.guard import check_memory
from foredraft.profile import live, measure, store
from foredraft.profile.report import Summary, check_summary, write_report
from foredraft.profile.summary import Wanted, evaluate, summary
from foredraft.profile.trace import Sampled, Trace, TraceSettings
from foredraft.profile.what_if import Choice, choices
from foredraft.prompts import Prompt, chosen, read_prompts

PROFILE_OPTIONS = (
    click.option("--prompts", required=True, metavar="FILE", help="Your prompts: JSONL, CSV, plain text or parquet."),
    click.option("-o", "--output", required=True, metavar="DIR", help="Where trace and report are kept."),
    click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only prompts of this kind. Repeatable."),
    click.option("--limit", default=0, metavar="N", help="At most N prompts of each kind. [default: all]"),
    click.option("--max-tokens", default=160, show_default=True, metavar="N", help="Most tokens of an answer."),
    *LAW_OPTIONS,
    click.option("--seed", default=0, show_default=True, metavar="N", help="Same seed, same texts."),
    click.option(
        "--draft-temperature", type=float, metavar="T", help="Temperature of a draft model. [default: the target's]"
    ),
    click.option("--raw", is_flag=True, help="Feed the prompts as they are, without the chat template."),
    click.option("--redact", is_flag=True, help="Keep no token and no text, only statistics."),
    click.option("--restart", is_flag=True, help="Forget what DIR holds, and begin again."),
    click.option(
        "--live", default=3, show_default=True, metavar="N", help="Texts decoded again with drafts, to check the trace."
    ),
    click.option(
        "--threshold", default=1.15, show_default=True, metavar="X", help="Speed-up from which shipping is worth it."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of tables."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
)


@click.command()
@options(MODEL_OPTIONS, PROFILE_OPTIONS, DEVICE_OPTIONS)
def profile(**values: Any) -> int:
    """Find out before shipping whether drafting pays on your prompts, and on which devices.

    TARGET answers every prompt of FILE; then it and every draft score the answers. From that trace acceptance, the
    speed on each device and a verdict are computed: profile.json, report.html and report.md in DIR. N-gram lookup is
    always among the drafts.

    Ctrl-C loses one prompt at most; the same command goes on. `foredraft what-if DIR` asks the trace about other
    settings, without any model.
    """
    given = Choices({"tree": "off", **values})
    _check(given)
    directory = Path(given.output)
    console = Console(stderr=True, highlight=False, quiet=given.quiet)
    found = read_prompts(Path(given.prompts))
    for note in found.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    prompts = chosen(found.prompts, given.kinds, given.limit)
    heads = [draft for draft in given.drafts if is_head_draft(draft)]
    if heads:
        allowed = (
            "draft models: a head guesses differently at every depth, which a trace does not hold; `foredraft bench`"
        )
        raise InvalidValue("--draft", heads[0], f"{allowed} measures it")
    setup = _models_only(given.setup())
    job = measure.Job(_settings(setup, given, prompts), prompts)
    todo = len(measure.remaining(job, directory, restart=given.restart))
    if given.restart:
        (directory / live.LIVE).unlink(missing_ok=True)
    devices = find_devices(given, job.settings)
    with _opened(setup, console) as pipeline:
        measure.check_prompts(pipeline, job)
        if not _record(pipeline, job, directory, (todo, console)):
            console.print(f"interrupted; the same command goes on behind {len(job.fresh) - todo} texts", soft_wrap=True)
            return INTERRUPTED
        trace = store.read_trace(directory)
        with console.status("decoding some answers again"):
            _check_live(pipeline, trace, job, directory, given)
        if given.here:
            devices = [_this_machine(pipeline, setup, console), *devices]
    return _report(trace, directory, Wanted(devices, given.threshold, live=live.read_live(directory)), given)


def _check(given: Choices) -> None:
    for name, least, most in (
        ("--limit", 0, 1 << 20),
        ("--max-tokens", 1, 1 << 20),
        ("--live", 0, 1000),
        ("--seed", 0, 1 << 48),
    ):
        value = getattr(given, name.strip("-").replace("-", "_"))
        if not least <= value <= most:
            raise InvalidValue(name, value, f"{least} to {most}")
    if not 1.0 <= given.threshold <= 100.0:
        raise InvalidValue("--threshold", given.threshold, "a speed-up of at least 1, e.g. 1.15")
    path = Path(given.output)
    if path.exists() and not path.is_dir():
        raise InvalidValue("--output", given.output, "a directory, or a name that is not taken")
    if given.max_tokens == 1:
        raise InvalidValue("--max-tokens", 1, "at least 2: nothing can be drafted for a single token")


def _models_only(setup: Setup) -> Setup:
    """N-gram lookup needs no loading, and "none" means that there is no model."""
    return replace(setup, drafts=tuple(draft for draft in setup.drafts if isinstance(draft, Path)) or ("none",))


def _settings(setup: Setup, given: Choices, prompts: Sequence[Prompt]) -> TraceSettings:
    sampled = Sampled(given.temperature, given.top_k, given.top_p, given.min_p, given.seed)
    sampled.params()  # refuses what cannot be
    target = engine_name(setup.target) if setup.engine_name == AUTO else setup.engine_name
    models = [Path(draft) for draft in setup.drafts if draft != "none"]
    engines = [engine_name(draft) if setup.draft_engine == AUTO else setup.draft_engine for draft in models]
    return TraceSettings(
        model_facts(setup.target, target),
        tuple(model_facts(draft, engine) for draft, engine in zip(models, engines, strict=True)),
        measure.prompts_hash(prompts),
        sum(prompt.warm for prompt in prompts),
        sampled,
        given.draft_temperature,
        given.max_tokens,
        given.raw,
        given.redact,
        __version__,
    )


@contextmanager
def _opened(setup: Setup, console: Console) -> Iterator[Pipeline]:
    for note in filter(None, [check_memory(setup)]):
        console.print(f"note: {escape(note)}", soft_wrap=True)
    with console.status(f"loading {escape(setup.target.name)}"):
        pipeline = Pipeline.open(setup)
    with pipeline:
        for pair in pipeline.pairs:
            for warning in pair.warnings:
                console.print(f"note: {escape(str(warning))}", soft_wrap=True)
        yield pipeline


def _record(pipeline: Pipeline, job: measure.Job, directory: Path, shown: tuple[int, Console]) -> bool:
    """Record what is missing, with a bar; False if Ctrl-C ended it."""
    todo, console = shown
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("answering and scoring", total=len(job.fresh), completed=len(job.fresh) - todo)
        try:
            measure.run(pipeline, job, directory, lambda facts: bar.advance(task))
        except KeyboardInterrupt:
            return False
    return True


def _check_live(pipeline: Pipeline, trace: Trace, job: measure.Job, directory: Path, given: Choices) -> None:
    """Decode a few texts again, unless that was done."""
    if not given.live or live.read_live(directory):
        return
    again = live.Again(pipeline, trace, job.prompts)
    places = live.spread(trace, given.live)
    alone = [choice for choice in choices(trace) if choice.source != "both"]
    found = [again.decode(choice, _drafter(pipeline, choice, given), places) for choice in alone]
    live.write_live(directory, found)


def _drafter(pipeline: Pipeline, choice: Choice, given: Choices) -> Drafter:
    parts: list[Drafter] = [NgramDrafter()] if choice.copies else []
    if choice.model is not None:
        parts.append(pipeline.model_drafter(choice.model, given.draft_temperature))
    return parts[0] if len(parts) == 1 else ChainDrafter(parts)


def _this_machine(pipeline: Pipeline, setup: Setup, console: Console) -> Device:
    """Measured by `doctor`, now or before."""
    with console.status("measuring passes on this machine"):
        found = load_or_measure(subject_of(setup), lambda: nullcontext(loaded_of(pipeline)), DoctorSettings())
    return MeasuredDevice(found.profile)


@dataclass(frozen=True)
class _Written:
    """The report's files."""

    summary: Summary
    paths: tuple[Path, Path, Path]


def _report(trace: Trace, directory: Path, wanted: Wanted, given: Choices) -> int:
    if not wanted.devices:
        raise InvalidValue("--device", "none", "this machine, a phone or a profile of `foredraft doctor -o`")
    made = check_summary(summary(evaluate(trace, wanted), wanted))
    written = _Written(made, write_report(made, directory))
    if given.as_json:
        click.echo(json.dumps(made, indent=1, ensure_ascii=False))
        return 0
    show_summary(made)
    click.echo(f"report: {written.paths[1]}")
    return 0
