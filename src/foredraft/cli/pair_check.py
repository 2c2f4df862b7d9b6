"""``foredraft pair-check``: may this draft propose tokens to this target? Reads vocabularies, loads no
weights."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foredraft.pair import PairReport, check_pair, real_size
from foredraft.tokens import Tokenizer

_MAX_SPANS = 6


@click.command("pair-check")
@click.argument("target")
@click.argument("draft")
@click.option(
    "--allow-differing",
    is_flag=True,
    help="Accept ids whose texts differ if neither model uses them for text; drafts never propose them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def pair_check(target: str, draft: str, allow_differing: bool, as_json: bool) -> None:
    """Say whether DRAFT can draft for TARGET (known names, GGUF files, exports or Hugging Face directories).

    Exit code 0: compatible, 1: not compatible, 2: a model cannot be read.
    """
    from foredraft.catalogue import resolve
    from foredraft.engines.opening import open_vocabulary

    with open_vocabulary(resolve(target)) as ours, open_vocabulary(resolve(draft)) as theirs:
        report = check_pair(ours, theirs, allow_differing=allow_differing)
        if as_json:
            click.echo(json.dumps(_as_json(target, draft, (ours, theirs), report), indent=2))
        else:
            _show(Console(), (target, draft), (ours, theirs), report)
    sys.exit(0 if report.ok else 1)


def _summary(name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """What is compared, for one model."""
    return {
        "name": name,
        "type": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "real_size": real_size(tokenizer),
        "bos_id": tokenizer.bos_id,
        "eos_id": tokenizer.eos_id,
        "add_bos": tokenizer.add_bos,
        "add_eos": tokenizer.add_eos,
        "end_ids": sorted(tokenizer.eog_ids),
        "chat_template": tokenizer.chat_template is not None,
    }


def _as_json(target: str, draft: str, pair: tuple[Tokenizer, Tokenizer], report: PairReport) -> dict[str, Any]:
    """The verdict as plain data; barred ids as half-open ranges."""
    return {
        "compatible": report.ok,
        "target": _summary(target, pair[0]),
        "draft": _summary(draft, pair[1]),
        "same_chat_template": pair[0].chat_template == pair[1].chat_template,
        "shared_size": report.shared_size,
        "barred": _ranges(report.barred),
        "problems": [asdict(problem) for problem in report.problems],
        "warnings": [asdict(warning) for warning in report.warnings],
    }


def _show(console: Console, names: tuple[str, str], pair: tuple[Tokenizer, Tokenizer], report: PairReport) -> None:
    """Verdict first, then its reasons, then the values side by side."""
    verdict = "[green]compatible[/green]" if report.ok else "[red]not compatible[/red]"
    console.print(f"{escape(names[1])} as draft for {escape(names[0])}: {verdict}", soft_wrap=True)
    for problem in report.problems:
        console.print(f"  problem: {escape(str(problem))}", highlight=False, soft_wrap=True)
    for warning in report.warnings:
        console.print(f"  note: {escape(str(warning))}", highlight=False, soft_wrap=True)
    ours, theirs = _summary(names[0], pair[0]), _summary(names[1], pair[1])
    table = Table("", "target", "draft", box=None, pad_edge=False)
    for key in ours:
        table.add_row(key.replace("_", " "), escape(_cell(ours[key])), escape(_cell(theirs[key])))
    console.print(table)
    same = "yes" if pair[0].chat_template == pair[1].chat_template else "no"
    barred = _spans(_ranges(report.barred))
    console.print(f"same chat template: {same}", highlight=False, soft_wrap=True)
    console.print(f"shared tokens: {report.shared_size}; barred from drafts: {barred}", highlight=False, soft_wrap=True)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(str(item) for item in value) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _spans(ranges: list[tuple[int, int]]) -> str:
    """The first ranges in words, and how many ids the others hold."""
    shown, rest = ranges[:_MAX_SPANS], ranges[_MAX_SPANS:]
    words = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in shown]
    if rest:
        words.append(f"and {sum(stop - start for start, stop in rest)} more")
    return ", ".join(words) or "none"


def _ranges(ids: frozenset[int]) -> list[tuple[int, int]]:
    """Ascending half-open ranges that cover exactly ``ids``."""
    ranges: list[tuple[int, int]] = []
    for id in sorted(ids):
        if ranges and ranges[-1][1] == id:
            ranges[-1] = (ranges[-1][0], id + 1)
        else:
            ranges.append((id, id + 1))
    return ranges
