"""What a person sees of a benchmark: how far it is, on standard error; then tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from foredraft.bench.arms import PLAIN, Arm
from foredraft.bench.records import Record
from foredraft.bench.report import Cell, TargetReport, report
from foredraft.bench.stats import Ratio
from foredraft.types import RUNGS

_DEPTHS = 6
"""Acceptance is shown down to this depth."""


class BenchView:
    """Implements ``Watch``. A context manager: the progress bar lives as long."""

    def __init__(self, arms: Sequence[Arm], *, quiet: bool) -> None:
        self._arms = arms
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=quiet)
        self._task = self._bar.add_task("starting")

    def __enter__(self) -> BenchView:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begins(self, runs: int) -> None:
        """So many runs are ahead."""
        self._bar.update(self._task, total=runs, completed=0)

    def says(self, words: str) -> None:
        """What is going on now."""
        self._bar.update(self._task, description=escape(words))

    def notes(self, words: str) -> None:
        """Something the reader of the numbers should know."""
        self._console.print(f"[yellow]note:[/] {escape(words)}", soft_wrap=True)

    def ran(self) -> None:
        """One more run is done."""
        self._bar.advance(self._task)

    def measured(self, records: Sequence[Record]) -> None:
        """One line for each finished prompt."""
        for record in records:
            self._console.print(_prompt_line(record, self._arms), soft_wrap=True)


def _prompt_line(record: Record, arms: Sequence[Arm]) -> str:
    """How the prompt went: plain speed, the fastest arm, and those that choose by themselves."""
    plain = record.arms[PLAIN].runs[0]
    begin = f"{escape(record.target)} [bold]{escape(record.kind)}[/], line {record.line}: {record.prompt_tokens} tokens"
    begin += f" of prompt, {plain.generated} of answer"
    cold = Record(**{name: getattr(record, name) for name in Record.__slots__} | {"warm": False})
    (found,) = report([cold], arms)
    cells = [found.cells[str(arm), record.kind] for arm in arms]
    best = max(cells, key=lambda cell: cell.speedup.value)
    shown = {best.arm: f"best {escape(best.arm)} {best.speedup.value:.2f}×"}
    shown |= {
        cell.arm: f"{escape(cell.arm)} {cell.speedup.value:.2f}×"
        for arm, cell in zip(arms, cells, strict=True)
        if arm.controller == "cost" and cell.arm not in shown
    }
    speed = f"plain {found.cells[PLAIN, record.kind].tokens_per_second:.1f} tokens/s"
    end = " [yellow](warm: a repeated prompt, not averaged in)[/]" if record.warm else ""
    other = [arm for arm in arms if not all(run.same for run in record.arms[str(arm)].runs)]
    end += f" [yellow]{len(other)} of {len(arms)} arms wrote another text[/]" if other else ""
    return f"{begin}; {speed}, {', '.join(shown.values())}{end}"


def show(reports: Sequence[TargetReport], console: Console) -> None:
    """The tables of every target."""
    for found in reports:
        console.print(Group(*_target(found)))


def _target(found: TargetReport) -> Iterator[RenderableType]:
    yield f"\n[bold]{escape(found.target)}[/]: speed-up by kind of prompt, plain = 1 (95 % interval over prompts)"
    yield _speeds(found)
    if found.choices:
        yield "\nspeed of the cost-aware controller in units of the best fixed setting"
        yield _choices(found)
    yield f"\nwhat the rounds did, {found.kinds[-1]} prompts" if len(found.kinds) > 1 else "\nwhat the rounds did"
    yield _rounds(found)
    yield ""
    yield from _remarks(found)


def _speeds(found: TargetReport) -> Table:
    table = _table("arm", *(f"{kind} ({found.cells[PLAIN, kind].speedup.prompts})" for kind in found.kinds))
    speeds = (f"{found.cells[PLAIN, kind].tokens_per_second:.1f} tok/s" for kind in found.kinds)
    table.add_row("plain", *speeds, style="dim")
    for arm in found.arms[1:]:
        table.add_row(escape(arm), *(_ratio(found.cells[arm, kind].speedup) for kind in found.kinds))
    return table


def _ratio(ratio: Ratio) -> str:
    colour = "green" if (ratio.low or ratio.value) > 1.0 else "red" if (ratio.high or ratio.value) < 1.0 else "default"
    value = f"[{colour}]{ratio.value:.2f}[/]"
    return value if ratio.low is None or ratio.high is None else f"{value} [dim]{ratio.low:.2f}–{ratio.high:.2f}[/]"


def _choices(found: TargetReport) -> Table:
    table = _table("arm", *found.kinds)
    for arm in dict.fromkeys(choice.arm for choice in found.choices):
        own = {choice.kind: choice for choice in found.choices if choice.arm == arm}
        table.add_row(escape(arm), *(_share(own[kind].share) for kind in found.kinds))
        table.add_row("  best fixed", *(escape(own[kind].best) for kind in found.kinds), style="dim")
    return table


def _share(share: Ratio) -> str:
    value = f"{share.value:.1%}"
    return value if share.low is None or share.high is None else f"{value} [dim]{share.low:.0%}–{share.high:.0%}[/]"


def _rounds(found: TargetReport) -> Table:
    table = _table("arm", "α", "α by depth", "tokens/round", "rounds", "with prompt", "text as plain")
    for arm in found.arms[1:]:
        cell = found.cells[arm, found.kinds[-1]]
        counts = cell.counts
        depths = " ".join(f"{accepted / evaluated:.2f}" for accepted, evaluated in counts.depths[:_DEPTHS] if evaluated)
        table.add_row(
            escape(arm),
            "–" if counts.alpha is None else f"{counts.alpha:.2f}",
            depths + (" …" if len(counts.depths) > _DEPTHS else ""),
            f"{counts.generated / max(1, counts.rounds):.2f}",
            _rungs(cell),
            f"{cell.whole.value:.2f}×",
            f"{counts.texts['identical']} of {cell.speedup.prompts}",
        )
    return table


def _rungs(cell: Cell) -> str:
    total = max(1, cell.counts.rounds)
    shares = {rung: cell.counts.rungs[rung] / total for rung in RUNGS if cell.counts.rungs[rung]}
    return ", ".join(f"{rung} {share:.0%}" for rung, share in shares.items())


def _remarks(found: TargetReport) -> Iterator[str]:
    whole = found.kinds[-1]
    yield from _silence([found.cells[arm, whole] for arm in found.arms[1:]])
    ties = sum(found.cells[arm, whole].counts.texts["near_tie"] for arm in found.arms)
    if ties:
        yield (
            f"[yellow]{ties} texts leave plain decoding's at a near-tie[/]: there kernels round differently for one "
            "position and for several; --strict avoids it"
        )
    if found.unexplained:
        yield (
            f"[red bold]{found.unexplained} texts leave plain decoding's in a way that rounding cannot explain[/]; "
            "please report this"
        )
    if found.warm:
        yield f"{found.warm} repeated prompt{'s' * (found.warm > 1)} (warm): measured, not averaged in"
    if found.spread is not None:
        yield f"plain decoding varied by {found.spread:.1%} between the runs of a prompt (median over prompts)"


def _silence(cells: Sequence[Cell]) -> Iterator[str]:
    """For every reason that is an arm's most frequent one to draft nothing: the arms, and the share of their rounds."""
    arms: dict[str, list[str]] = {}
    for cell in cells:
        if 2 * cell.counts.rungs["off"] > cell.counts.rounds and cell.counts.reasons:
            ((reason, count),) = cell.counts.reasons.most_common(1)
            arms.setdefault(reason, []).append(f"{cell.arm} {count / cell.counts.rounds:.0%}")
    for reason, shares in arms.items():
        yield escape(f"rounds without a draft, {reason}: {', '.join(shares)}")


def _table(first: str, *titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table
