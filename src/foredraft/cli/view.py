"""What a person sees: the text as it comes, then numbers. Text on standard output, all else on standard error."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foredraft.certify import Difference
from foredraft.cli.compare import Comparison
from foredraft.pipeline import Request
from foredraft.summary import Summary
from foredraft.tokens import TextStream, Tokenizer
from foredraft.types import RUNGS, Seconds, Step


class View:
    """``quiet``: the text only; ``as_json``: neither text nor numbers, the caller prints a document."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self.as_json = as_json
        self._silent = quiet or as_json
        self._console = Console(stderr=True, highlight=False)

    def status(self, words: str) -> AbstractContextManager[object]:
        """A spinner with ``words`` while something takes long."""
        if self._silent or not self._console.is_terminal:
            return nullcontext()
        return self._console.status(escape(words))

    def note(self, words: str) -> None:
        """One line the user should know before the text."""
        if not self._silent:
            self._console.print(f"[yellow]note:[/] {escape(words)}")

    def text(self, tokenizer: Tokenizer) -> Text:
        """A printer for one text."""
        return Text(tokenizer, silent=self.as_json)

    def summary(self, summary: Summary, request: Request, prompt_tokens: int) -> None:
        """The numbers of one run."""
        if self._silent:
            return
        self._console.print(_speed_line(summary, prompt_tokens))
        self._console.print(_draft_line(summary, request))
        self._console.print(f"time: {_shares(summary.seconds)}")
        for line in (*_rungs(summary), *_why_not(summary), *_seed(request), *_lossy(summary, request)):
            self._console.print(line)

    def comparison(self, result: Comparison, request: Request, prompt_tokens: int) -> None:
        """Both kinds side by side, the ratio, and whether the text is the same."""
        if self._silent:
            return
        if not result.plain_runs or not result.speculative_runs:
            self._console.print("interrupted before both kinds had run")
            if result.speculative.rounds:
                self.summary(result.speculative, request, prompt_tokens)
            return
        self._console.print(_table(result))
        self._console.print(_draft_line(result.speculative, request))
        runs = min(len(result.plain_runs), len(result.speculative_runs))
        speedup, verdict = result.speedup, ""
        if speedup is not None and speedup < 1.0 and result.speculative.drafted:
            verdict = " — drafting does not pay here; try --draft none"
        self._console.print(f"[bold]speed-up {_number(speedup)}×[/] ({_runs(runs)}, in turns){verdict}")
        self._console.print(_sameness(result, request))
        for line in (
            *_rungs(result.speculative),
            *_why_not(result.speculative),
            *_seed(request),
            *_lossy(result.speculative, request),
        ):
            self._console.print(line)


class Text:
    """Prints released tokens at once; on a terminal accepted drafts are green, and control characters harmless."""

    def __init__(self, tokenizer: Tokenizer, *, silent: bool) -> None:
        self._stream = TextStream(tokenizer)
        self._silent = silent
        self._terminal = sys.stdout.isatty()
        self._open = False

    def show(self, step: Step) -> None:
        """Print what this step released."""
        if self._silent:
            return
        last = len(step.emitted) - 1
        for index, token in enumerate(step.emitted):
            piece = self._stream.push([token.id], step.hidden_bytes if index == last else 0)
            self._write(piece, drafted=token.drafted)
        sys.stdout.flush()

    def end(self) -> None:
        """Print what was held back, and end the line. Idempotent."""
        if self._silent:
            return
        self._write(self._stream.finish(), drafted=False)
        if self._open:
            click.echo()
        self._open = False

    def _write(self, piece: str, *, drafted: bool) -> None:
        if not piece:
            return
        self._open = True
        if self._terminal:
            piece = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in piece)
            piece = click.style(piece, fg="green") if drafted else piece
        click.echo(piece, nl=False)


def _runs(count: int) -> str:
    return "one run each" if count == 1 else f"medians of {count} runs each"


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _speed_line(summary: Summary, prompt_tokens: int) -> str:
    return (
        f"{summary.generated} tokens in {summary.seconds.total:.2f} s: "
        f"[bold]{_number(summary.tokens_per_second, '.1f')} tokens/s[/]; "
        f"prompt {prompt_tokens} tokens, {summary.prefill.total:.2f} s; ended: {summary.finish_reason}"
    )


def _draft_line(summary: Summary, request: Request) -> str:
    if not summary.drafted:
        return f"drafted: nothing, {summary.rounds} rounds"
    names = ", ".join(f"{escape(name)} {count}" for name, count in summary.sources.items())
    return (
        f"drafted by {names} of {summary.rounds} rounds, rule {request.rule}: "
        f"α {_number(summary.alpha)} ({summary.accepted} accepted of {summary.evaluated} evaluated, "
        f"{summary.drafted} drafted), mean accepted length {_number(summary.mean_accepted_length)}"
    )


def _shares(seconds: Seconds) -> str:
    total = seconds.total or 1.0
    parts = (("draft", seconds.draft), ("verify", seconds.verify), ("keep", seconds.keep), ("other", seconds.other))
    return ", ".join(f"{name} {part / total:.1%}" for name, part in parts)


def _rungs(summary: Summary) -> list[str]:
    """What the rounds drafted, and the controller's last word."""
    if not summary.rungs or summary.why is None:
        return []
    counts = ", ".join(f"{rung} {summary.rungs[rung]}" for rung in RUNGS if rung in summary.rungs)
    return [f"rounds: {counts}; last decision: {escape(summary.why)}"]


def _why_not(summary: Summary) -> list[str]:
    """The most frequent reason, if most rounds drafted nothing."""
    silent = sum(summary.reasons.values())
    if not summary.reasons or silent * 2 <= summary.rounds:
        return []
    reason = max(summary.reasons, key=lambda reason: summary.reasons[reason])
    return [f"nothing drafted in {silent} of {summary.rounds} rounds, mostly: {escape(reason)}"]


def _seed(request: Request) -> list[str]:
    return [] if request.sampling.greedy else [f"seed {request.sampling.seed}"]


def _lossy(summary: Summary, request: Request) -> list[str]:
    if request.rule != "relaxed":
        return []
    mean = summary.bias / summary.generated if summary.generated else 0.0
    words = (
        f"[yellow]lossy:[/] each token's law may differ from the target's by a total variation of {request.max_tv:g}; "
        f"spent on average {mean:.4f}"
    )
    return [words]


def _table(result: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "tokens/s", "rounds", "tokens/round", "α", "draft", "verify", "other"):
        table.add_column(title, justify="left" if not title else "right")
    for name, run, speed in zip(
        ("plain", "speculative"), (result.plain, result.speculative), result.speeds, strict=True
    ):
        total = run.seconds.total or 1.0
        rest = run.seconds.keep + run.seconds.other
        shares = (f"{part / total:.1%}" for part in (run.seconds.draft, run.seconds.verify, rest))
        lengths = (_number(run.mean_accepted_length), _number(run.alpha))
        table.add_row(name, _number(speed, ".1f"), str(run.rounds), *lengths, *shares)
    return table


def _sameness(result: Comparison, request: Request) -> str:
    if result.identical is None:
        return f"texts not compared: rule {request.rule} draws another sample"
    if result.identical:
        return f"[green]the text is identical[/] ({len(result.plain.ids)} tokens, every run)"
    if result.difference is None:
        return "[red]the text differs[/]"
    return _explanation(result.difference)


def _explanation(found: Difference) -> str:
    numbers = f"gap {found.gap:.4f}, the engine's numeric noise {found.noise:.4f} (logits)"
    if found.near_tie:
        return (
            f"[yellow]the text differs from token {found.index} on: a near-tie[/] ({numbers}): kernels round "
            "differently for one position and for several; --strict avoids it"
        )
    return (
        f"[red bold]the text differs from token {found.index} on, and rounding cannot explain it[/] ({numbers}); "
        "please report this"
    )
