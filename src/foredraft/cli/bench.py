"""``foredraft bench``: speed-up of every way to draft on many prompts, set against plain decoding in turns."""

from __future__ import annotations

import json
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from foredraft.bench.arms import Arm, check_models, default_arms, parse_arms
from foredraft.bench.lab import Target
from foredraft.bench.matrix import Means, Plan, measure, pending
from foredraft.bench.plot import check_plot, draw
from foredraft.bench.records import RawFile, Record
from foredraft.bench.report import TargetReport, report
from foredraft.catalogue import DEFAULT_TARGET
from foredraft.cli.bench_view import BenchView, show
from foredraft.cli.models import find_or_pull
from foredraft.cli.options import MODEL_OPTIONS, SAMPLING_OPTIONS, Choices, options
from foredraft.devices.kept import model_facts
from foredraft.devices.machine import busy, this_machine, versions
from foredraft.devices.measured import DeviceProfile, read_profile
from foredraft.engines.opening import AUTO, HEAD, Settings, engine_name, is_head_draft
from foredraft.errors import InvalidValue
from foredraft.pipeline import BUILT_IN, Setup
from foredraft.policy import COST_TREE
from foredraft.prompts import chosen, read_prompts

INTERRUPTED = 130
WIDE = 160
"""Columns of the tables where standard output is no terminal."""

TARGET_OPTIONS = (
    click.option(
        "--target",
        "targets",
        multiple=True,
        metavar="PATH|NAME",
        help=f"A model whose words you want; repeatable. [default: {DEFAULT_TARGET}]",
    ),
    click.option(
        "--draft",
        "drafts",
        multiple=True,
        metavar="PATH|NAME",
        help='A draft model of every --target: "model" in arms, a second one "model2". Or its head: "head" in arms.',
    ),
    click.option(
        "--pair",
        "pairs",
        nargs=2,
        multiple=True,
        metavar="TARGET DRAFT",
        help="A target with a draft model of its own; repeatable.",
    ),
    click.option(
        "--arm",
        "arms",
        multiple=True,
        metavar="DRAFTS:CONTROLLER[:K][:tree=N]",
        help="A way to draft, e.g. ngram:fixed:4 or ngram+model:cost; commas give several. Repeatable. "
        "[default: ngram,model:fixed:2,4,7 and ngram+model:cost]",
    ),
    click.option(
        "--profile",
        "profiles",
        multiple=True,
        metavar="FILE",
        help="What `foredraft doctor -o FILE` measured with a target, for cost to start from. Repeatable.",
    ),
)
RUN_OPTIONS = (
    click.option("--runs", default=3, show_default=True, metavar="N", help="Runs of every arm on every prompt."),
    click.option("--max-tokens", default=160, show_default=True, metavar="N", help="Most tokens of an answer."),
    click.option("--min-tokens", default=0, metavar="N", help="Do not end an answer before N tokens."),
    click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only prompts of this kind. Repeatable."),
    click.option("--limit", default=0, metavar="N", help="At most N prompts of each kind. [default: all]"),
    click.option("--raw", is_flag=True, help="Feed the prompts as they are, without the chat template."),
    click.option("--alternate", is_flag=True, help="Load all targets at once and let them take turns."),
)
REPORT_OPTIONS = (
    click.option(
        "-o", "--output", default="bench.json", show_default=True, metavar="FILE", help="Raw numbers of every run."
    ),
    click.option("--resume", is_flag=True, help="Go on with --output: skip the prompts that are finished there."),
    click.option("--plot", metavar="FILE", help="Also draw the speed-ups: .png, .svg or .pdf."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
)
SEED_OPTION = (click.option("--seed", default=0, show_default=True, metavar="N", help="Same seed, same texts."),)
ENGINE_OPTIONS = MODEL_OPTIONS[2:]  # all but --target and --draft
LAW_OPTIONS = SAMPLING_OPTIONS[:-1]  # all but --seed


@click.command()
@click.argument("prompts", metavar="PROMPTS")
@options(TARGET_OPTIONS, ENGINE_OPTIONS, RUN_OPTIONS, LAW_OPTIONS, SEED_OPTION, REPORT_OPTIONS)
def bench(prompts: str, **values: Any) -> int:
    """Measure how much faster each way of drafting is than plain decoding, on the prompts of a file.

    PROMPTS is a file of JSON objects, one a line, with "prompt" or "messages", and perhaps "kind", "system" and
    "max_tokens"; or a CSV or parquet file with such columns; or plain text with blank lines between prompts (if it has
    none: one prompt a line).

    All arms take turns with plain decoding on every prompt. Raw numbers are kept after every prompt, so that Ctrl-C
    loses one prompt at most and --resume goes on.
    """
    choices = Choices(values)
    plan = _plan(Path(prompts), choices)
    plot = Path(choices.plot) if choices.plot is not None else None
    if plot is not None:
        check_plot(plot)
    raw = RawFile.begin(Path(choices.output), _setup(plan, choices), {"date": _now()}, resume=choices.resume)
    raw.write()
    interrupted = not _measure(plan, raw, quiet=choices.quiet)
    reports = report(_current(plan, raw), plan.arms)
    if choices.as_json:
        click.echo(json.dumps(_document(raw, reports, interrupted), indent=2))
    else:
        show(reports, Console(highlight=False, width=None if sys.stdout.isatty() else WIDE))
    _say(_ends(plan, raw, reports, interrupted), quiet=choices.quiet)
    if plot is not None and reports:
        draw(reports, plot)
        _say([f"plot: {plot}"], quiet=choices.quiet)
    if interrupted:
        return INTERRUPTED
    return 1 if any(found.unexplained for found in reports) else 0


# --- from options to a plan ---------------------------------------------------------------------------------


def _plan(path: Path, choices: Choices) -> Plan:
    """What to run. Everything that can be wrong without loading a model is checked here."""
    for name, least, most in (
        ("--runs", 1, 1000),
        ("--max-tokens", 1, 1 << 20),
        ("--limit", 0, 1 << 20),
        ("--draft-ctx", 0, 1 << 24),
    ):
        value = getattr(choices, name.strip("-").replace("-", "_"))
        if not least <= value <= most:
            raise InvalidValue(name, value, f"{least} to {most}")
    found = read_prompts(path)
    _say([f"note: {note}" for note in found.notes], quiet=choices.quiet)
    wanted = _wanted(choices)
    arms = tuple(parse_arms(choices.arms) or _default_arms(wanted))
    targets = _profiled(list(_targets(wanted, choices, arms)), choices)
    return Plan(
        targets,
        arms,
        tuple(chosen(found.prompts, choices.kinds, choices.limit)),
        choices.sampling(),
        choices.max_tokens,
        choices.runs,
        choices.raw,
        choices.alternate and len(targets) > 1,
    )


def _default_arms(wanted: Sequence[tuple[str, tuple[str, ...]]]) -> list[Arm]:
    """For the drafts that all targets have."""
    heads = [sum(map(is_head_draft, drafts)) for _, drafts in wanted]
    models = min(len(drafts) - head for (_, drafts), head in zip(wanted, heads, strict=True))
    return default_arms(models, head=min(heads) > 0)


def _wanted(choices: Choices) -> list[tuple[str, tuple[str, ...]]]:
    """Every target with its draft models, as named."""
    for draft in choices.drafts:
        if draft in BUILT_IN and draft != HEAD:
            raise InvalidValue("--draft", draft, "a draft model or a head; n-gram lookup is an --arm: ngram:fixed:4")
    single = choices.targets or (() if choices.pairs else (DEFAULT_TARGET,))
    pairs = [(target, (draft,)) for target, draft in choices.pairs]
    return [*((target, tuple(choices.drafts)) for target in single), *pairs]


def _targets(wanted: Sequence[tuple[str, tuple[str, ...]]], choices: Choices, arms: Sequence[Arm]) -> Iterator[Target]:
    """Targets under names of their own; missing models of the catalogue are downloaded."""
    names: Counter[str] = Counter()
    for spec, drafts in wanted:
        name = Path(spec).name or spec
        heads = [draft for draft in drafts if is_head_draft(draft)]
        if len(heads) > 1:
            raise InvalidValue("--draft", heads[1], "one head for a target")
        models = [draft for draft in drafts if draft not in heads]
        check_models(arms, len(models), name, head=bool(heads))
        names[name] += 1
        unique = name if names[name] == 1 else f"{name} ({names[name]})"
        paths = tuple(map(find_or_pull, models))
        head = next(iter(heads), None)
        yield Target(unique, _model_setup(find_or_pull(spec), paths, choices, arms), head=head)


def _model_setup(target: Path, drafts: tuple[Path, ...], choices: Choices, arms: Sequence[Arm]) -> Setup:
    largest = max(COST_TREE, *(arm.tree or 0 for arm in arms))
    engine = Settings(
        context=choices.ctx,
        threads=choices.threads,
        lines=max(64, largest),  # a tree has no more leaves than nodes
        kv_type=choices.kv_type,
        strict=choices.strict,
    )
    return Setup(
        target, drafts, engine, choices.draft_ctx, choices.allow_differing, choices.engine, choices.draft_engine
    )


def _profiled(targets: Sequence[Target], choices: Choices) -> tuple[Target, ...]:
    """The targets, each with the device profile that was measured with it, if one is given."""
    found: dict[str, DeviceProfile] = {}
    for name in choices.profiles:
        profile = read_profile(Path(name))
        found[profile.target.fingerprint] = profile
        if profile.target.fingerprint not in {_facts(target, choices)[0]["fingerprint"] for target in targets}:
            raise InvalidValue("--profile", name, f"a profile of a target; this one is of {profile.target.name}")
    return tuple(replace(target, profile=found.get(_facts(target, choices)[0]["fingerprint"])) for target in targets)


def _facts(target: Target, choices: Choices) -> list[dict[str, Any]]:
    """What tells the target and its drafts apart from other models; no paths."""
    paths = [target.setup.target, *map(Path, target.setup.drafts)]
    engines = [choices.engine, *(choices.draft_engine for _ in target.setup.drafts)]
    names = [engine_name(path) if engine == AUTO else engine for path, engine in zip(paths, engines, strict=True)]
    return [asdict(model_facts(path, name)) for path, name in zip(paths, names, strict=True)]


def _setup(plan: Plan, choices: Choices) -> dict[str, Any]:
    """Everything that must be the same in all parts of one benchmark."""
    facts = {target.name: _facts(target, choices) for target in plan.targets}
    engines = dict.fromkeys(one["engine"] for models in facts.values() for one in models)
    return {
        "machine": asdict(this_machine()),
        "python": platform.python_version(),
        "versions": versions(*engines),
        "targets": {
            target.name: {
                "model": facts[target.name][0],
                "drafts": facts[target.name][1:],
                "head": None if target.head is None else str(Path(target.head).name),
                "profile": target.profile.date if target.profile is not None else None,
            }
            for target in plan.targets
        },
        "settings": asdict(plan.targets[0].setup.engine) | {"draft_context": choices.draft_ctx},
        "arms": [str(arm) for arm in plan.arms],
        "runs": plan.runs,
        "max_tokens": plan.max_tokens,
        "sampling": asdict(plan.sampling),
        "rule": "coupled",
        "raw": plan.raw,
        "alternate": plan.alternate,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- measuring and reporting --------------------------------------------------------------------------------


def _measure(plan: Plan, raw: RawFile, *, quiet: bool) -> bool:
    """Measure what is missing; False if Ctrl-C ended it."""
    if not any(pending(plan, raw, group) for group in plan.groups):
        return True
    load = busy()
    try:
        with BenchView(plan.arms, quiet=quiet) as view:
            if load is not None:
                view.notes(load)
            measure(plan, raw, Means.of(plan), view)
    except KeyboardInterrupt:
        return False
    return True


def _current(plan: Plan, raw: RawFile) -> list[Record]:
    """The records of this plan's prompts, in its order; others may be in the file from before."""
    found = (raw.find(target.name, prompt.key) for target in plan.targets for prompt in plan.prompts)
    return [record for record in found if record is not None]


def _document(raw: RawFile, reports: Sequence[TargetReport], interrupted: bool) -> dict[str, Any]:
    return {
        "raw": str(raw.path),
        "interrupted": interrupted,
        "about": dict(raw.about),
        "setup": dict(raw.setup),
        "targets": [found.as_json() for found in reports],
    }


def _ends(plan: Plan, raw: RawFile, reports: Sequence[TargetReport], interrupted: bool) -> Iterator[str]:
    done, wanted = len(_current(plan, raw)), len(plan.targets) * len(plan.prompts)
    if interrupted:
        yield f"interrupted: {done} of {wanted} prompts are kept; --resume goes on with them"
    if not reports and not interrupted:
        yield "every prompt repeats an earlier one; there is nothing to average"
    yield f"raw numbers: {raw.path}"


def _say(lines: Iterator[str] | Sequence[str], *, quiet: bool) -> None:
    for line in lines:
        if not quiet:
            click.echo(line, err=True)
