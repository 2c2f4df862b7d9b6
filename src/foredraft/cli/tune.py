"""``foredraft tune``: better drafts. Text that the target writes, and a head that learns from it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from foredraft.catalogue import DEFAULT_TARGET
from foredraft.cli.generate import INTERRUPTED
from foredraft.cli.models import find_or_pull
from foredraft.engines.executorch_program import captured_stderr
from foredraft.errors import InvalidValue, MissingExtra
from foredraft.prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from foredraft.train.loop import Event

OVERFITTED = 1.15
"""Accepted tokens on training texts ÷ those on held-out texts from which a warning is given."""
TARGET = click.option(
    "--target", default=DEFAULT_TARGET, show_default=True, metavar="PATH|NAME", help="The model to draft for."
)
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress.")
DEVICE = click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda", help="Where it runs.")
DTYPE = click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="Type of the target's weights. auto: bfloat16 where it is fast.",
)
THREADS = click.option("--threads", default=0, metavar="N", help="CPU threads. [default: as PyTorch is set]")
SEED = click.option("--seed", default=0, show_default=True, metavar="N", help="Same seed, same result.")


@click.group()
def tune() -> None:
    """Make a draft that knows the target, and your prompts."""


@tune.command()
@TARGET
@click.option("--prompts", metavar="FILE", help="Your prompts. [default: the target asks itself]")
@click.option("--exclude", multiple=True, metavar="FILE", help="Leave out these prompts, e.g. the profile's.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the texts are kept.")
@click.option("--questions", default=2000, show_default=True, metavar="N", help="Questions, without --prompts.")
@click.option("--samples", default=1, show_default=True, metavar="N", help="Answers to each of --prompts.")
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    type=float,
    default=(0.0, 0.8),
    show_default=True,
    metavar="T",
    help="Temperature of answers; several take turns.",
)
@click.option("--top-p", default=0.95, show_default=True, metavar="P", help="Nucleus of sampled answers.")
@click.option("--max-tokens", default=256, show_default=True, metavar="N", help="Most tokens of an answer.")
@click.option("--ctx", default=512, show_default=True, metavar="N", help="Most tokens of prompt and answer.")
@click.option("--rows", default=64, show_default=True, metavar="N", help="Texts written at once.")
@SEED
@DEVICE
@DTYPE
@THREADS
@QUIET
def data(**values: Any) -> int:
    """Let TARGET write the texts that a draft learns from.

    It answers your prompts or, without any, asks its own questions first: a chat model that is shown the beginning of a
    user's turn goes on as the user. Texts are split by prompt into training, validation and test.

    Ctrl-C loses the texts that are being written; the same command goes on.
    """
    room = _room(values["threads"])
    console = Console(stderr=True, quiet=values["quiet"], highlight=False)
    source = room.check_trainable(find_or_pull(values["target"]))
    prompts = _prompts(values["prompts"], values["exclude"])
    settings = _data_settings(room, source, prompts, values)
    machine = room.Machine.of(values["device"], values["dtype"])
    with console.status(f"loading {source.path.name}"):
        target = room.open_target(source, machine)
    asker = room.Asker(target.decoder, target.tokenizer, prompts)
    directory, started = Path(values["output"]), monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    with _bar(console, "texts") as bar:

        def told(progress: Any) -> None:
            speed = progress.tokens / max(1e-9, monotonic() - started)
            bar(progress.texts, progress.of, f"{progress.tokens} tokens, {speed:.0f}/s")

        try:
            done = room.make_texts(asker, settings, directory, values["rows"], told)
        except KeyboardInterrupt:
            console.print("interrupted; the same command goes on")
            return INTERRUPTED
    console.print(f"[bold]{directory}[/bold]: {done.texts - done.skipped} texts, {done.skipped} questions not used")
    return 0


def _data_settings(room: Any, source: Any, prompts: list[Prompt], values: dict[str, Any]) -> Any:
    for name, least, most in (
        ("questions", 1, 1 << 24),
        ("samples", 1, 1 << 16),
        ("max_tokens", 1, 1 << 16),
        ("rows", 1, 1024),
        ("seed", 0, (1 << 31) - 1),
    ):
        if not least <= values[name] <= most:
            raise InvalidValue(f"--{name.replace('_', '-')}", values[name], f"{least} to {most}")
    if values["prompts"] is not None and not prompts:
        raise InvalidValue("--prompts", values["prompts"], "at least one prompt that is not excluded")
    temperatures = tuple(values["temperatures"])
    for temperature in temperatures:
        room.SamplingParams(temperature=temperature, top_p=values["top_p"])  # refuses what cannot be
    return room.DataSettings(
        target=source.path.name,
        sha256=source.facts().sha256,
        prompts=room.prompts_hash(prompts),
        samples=values["samples"],
        questions=0 if prompts else values["questions"],
        temperatures=temperatures,
        top_p=values["top_p"],
        max_tokens=values["max_tokens"],
        context=values["ctx"],
        seed=values["seed"],
    )


def _prompts(path: str | None, excluded: tuple[str, ...]) -> list[Prompt]:
    """The prompts of a file, each once, without those of other files."""
    if path is None:
        if excluded:
            raise InvalidValue("--exclude", excluded[0], "only together with --prompts")
        return []
    barred = {prompt.key for name in excluded for prompt in read_prompts(Path(name)).prompts}
    return [one for one in read_prompts(Path(path)).prompts if not one.warm and one.key not in barred]


@tune.command()
@TARGET
@click.option("--data", required=True, metavar="DIR", help="Texts made with `foredraft tune data`.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the head is kept.")
@click.option("--loss", default="lk", show_default=True, type=click.Choice(["lk", "kl"]), help="What is made small.")
@click.option("--steps", default=3000, show_default=True, metavar="N", help="Steps of the optimizer.")
@click.option("--batch-tokens", default=4096, show_default=True, metavar="N", help="Tokens of a step.")
@click.option("--learning-rate", default=1e-3, show_default=True, metavar="R", help="At its highest.")
@click.option("--depth", default=5, show_default=True, metavar="N", help="Tokens guessed in a row while training.")
@click.option("--draft-vocabulary", default=0, metavar="N", help="Tokens it can say. [default: by coverage]")
@click.option("--layers", metavar="L,L,…", help="Target layers it sees. [default: a low, a middle and the last one]")
@click.option("--ffn", default=0, metavar="N", help="Feed-forward size. [default: the target's]")
@click.option("--from", "start", metavar="DIR", help="Go on with this head, e.g. on your own prompts.")
@click.option("--every", default=200, show_default=True, metavar="N", help="Steps between measurements.")
@click.option("--patience", default=5, show_default=True, metavar="N", help="Measurements without a better one.")
@click.option("--restart", is_flag=True, help="Forget what DIR holds, and begin again.")
@SEED
@DEVICE
@DTYPE
@THREADS
@QUIET
def head(**values: Any) -> int:
    """Train a head: one layer that drafts from TARGET's own hidden states and shares its embedding and output matrix.

    DIR gets head.json, head.safetensors (the best so far), log.jsonl and curve.png. Ctrl-C ends after the current step;
    the same command goes on to the same weights.
    """
    room = _room(values["threads"])
    console = Console(stderr=True, quiet=values["quiet"], highlight=False)
    source = room.check_trainable(find_or_pull(values["target"]))
    settings = room.TrainSettings(depth=values["depth"], **{name: values[name] for name in _LOOP})
    taps = _layers(values["layers"])
    directory = Path(values["output"])
    if values["restart"]:
        (directory / room.CHECKPOINT).unlink(missing_ok=True)
    start = None if values["start"] is None else Path(values["start"])
    if start is not None and (taps or values["draft_vocabulary"] or values["ffn"]):
        raise InvalidValue("--from", values["start"], "without --layers, --draft-vocabulary and --ffn, which it has")
    plan = room.HeadPlan(
        Path(values["data"]), directory, settings, taps, values["draft_vocabulary"], values["ffn"], start
    )
    room.read_about(plan.data)
    return _train(room.HeadRun, plan, _opened(room, source, values, console), console)


@tune.command("draft")
@TARGET
@click.option("--data", required=True, metavar="DIR", help="Texts made with `foredraft tune data`.")
@click.option("--draft", metavar="PATH|NAME", help="The model to begin with. [default: TARGET's own first layers]")
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the draft is kept.")
@click.option("--keep-layers", default=0, metavar="N", help="Keep N layers, chosen by measurement. [default: all]")
@click.option("--lora", default=0, metavar="RANK", help="Train adapters of this rank, not all weights of the layers.")
@click.option("--recompute", is_flag=True, help="Less memory for a third more work.")
@click.option("--draft-vocabulary", default=0, metavar="N", help="Train for N tokens only. [default: all]")
@click.option("--loss", default="lk", show_default=True, type=click.Choice(["lk", "kl"]), help="What is made small.")
@click.option("--steps", default=1000, show_default=True, metavar="N", help="Steps of the optimizer.")
@click.option("--batch-tokens", default=4096, show_default=True, metavar="N", help="Tokens of a step.")
@click.option("--learning-rate", default=1e-4, show_default=True, metavar="R", help="At its highest.")
@click.option("--every", default=100, show_default=True, metavar="N", help="Steps between measurements.")
@click.option("--patience", default=5, show_default=True, metavar="N", help="Measurements without a better one.")
@click.option("--restart", is_flag=True, help="Forget what DIR holds, and begin again.")
@SEED
@DEVICE
@DTYPE
@THREADS
@QUIET
def draft_command(**values: Any) -> int:
    """Train a small model to say what TARGET says, as a draft.

    --draft MODEL is fine-tuned, with --keep-layers N after dropping the layers it can do without; without --draft the
    first N layers of TARGET itself are. DIR/model is a Hugging Face directory for --draft of other commands, or for
    `foredraft export executorch`. Embedding and output matrix stay as they are.

    Ctrl-C ends after the current step; the same command goes on to the same weights.
    """
    room = _room(values["threads"])
    console = Console(stderr=True, quiet=values["quiet"], highlight=False)
    source = room.check_trainable(find_or_pull(values["target"]))
    settings = room.DraftSettings(
        rank=values["lora"], recompute=values["recompute"], **{name: values[name] for name in _LOOP}
    )
    directory = Path(values["output"])
    if values["restart"]:
        for name in (room.CHECKPOINT, room.LAYERS):
            (directory / name).unlink(missing_ok=True)
    draft = None if values["draft"] is None else room.check_trainable(find_or_pull(values["draft"])).path
    plan = room.DraftPlan(
        Path(values["data"]), directory, settings, draft, values["keep_layers"], values["draft_vocabulary"]
    )
    room.read_about(plan.data)
    return _train(room.DraftRun, plan, _opened(room, source, values, console), console)


_LOOP = ("loss", "steps", "batch_tokens", "learning_rate", "every", "patience", "seed")
"""Options that every training has."""


def _opened(room: Any, source: Any, values: dict[str, Any], console: Console) -> tuple[Any, Any, Any, Any]:
    """The target, where it runs, who hears of what, and the processes that train together."""
    team = room.joined()
    machine = room.Machine.of(values["device"], values["dtype"])
    if team.device is not None:
        machine = replace(machine, device=team.device)
    console.quiet = console.quiet or team.rank != 0
    with console.status(f"loading {source.path.name}"):
        target = room.open_target(source, machine)
    return target, machine, room.Told, team


def _train(kind: Any, plan: Any, opened: tuple[Any, Any, Any, Any], console: Console) -> int:
    target, machine, heard, team = opened
    with _interruptible() as stop, _bar(console, "steps") as bar:

        def told(event: Event) -> None:
            bar(event.step, plan.settings.steps, "" if event.loss is None else f"loss {event.loss:.3f}")
            if event.measured is not None:
                console.print(_sentence(event), soft_wrap=True)

        read = [0]

        def reading(tokens: int) -> None:
            read[0] += tokens
            bar(0, None, f"{read[0]} tokens read")

        run = kind(plan, target, machine, heard(console.print, reading, told, stop), team)
        trainer = run.prepare()
        console.print(
            f"{trainer.trained / 1e6:.2f} million weights are trained; {trainer.vocabulary} tokens in the draft "
            f"vocabulary cover {run.coverage:.1%} of held-out answers",
            soft_wrap=True,
        )
        run.train(trainer)
        if not trainer.finished:
            console.print("interrupted; the same command goes on")
            return INTERRUPTED
        if team.rank != 0:
            return 0
        card = run.finish(trainer)
    _show(card, console)
    console.print(f"[bold]{plan.directory}[/bold]: {run.result}, log and curve")
    return 0


def _show(card: Any, console: Console) -> None:
    if card.get("before"):
        console.print(_measured("before", card["before"]), soft_wrap=True)
    for split in ("train", "validation", "test"):
        if split in card:
            console.print(_measured(split, card[split]), soft_wrap=True)
    known, unseen = card["train"]["accepted"], card["validation"]["accepted"]
    if known > OVERFITTED * unseen:
        console.print(
            f"warning: {known / max(unseen, 1e-9):.2f} times as good on its training texts as on held-out ones; "
            "give it more texts",
            soft_wrap=True,
        )


def _measured(name: str, found: Any) -> str:
    shown = " ".join(f"{share:.2f}" for share in found["greedy"])
    return f"{name}: greedy acceptance by depth {shown}; {found['accepted']:.2f} tokens of a chain accepted"


def _sentence(event: Event) -> str:
    assert event.measured is not None
    return _measured(f"step {event.step}, {event.seconds / 60:.0f} min", event.measured.as_json())


def _layers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidValue("--layers", text, "numbers of layers, e.g. 2,15,29") from None


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks for an end after the current step; a second one ends at once."""
    asked: list[int] = []

    def handle(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar(console: Console, what: str) -> Iterator[Callable[[int, int | None, str], None]]:
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[more]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=console.quiet) as progress:
        task = progress.add_task(what, total=None, more="")

        def show(done: int, of: int | None, more: str) -> None:
            progress.update(task, completed=done, total=of, more=more)

        yield show


class _Room:
    """The training room's names, imported together."""

    def __init__(self) -> None:
        from foredraft.train import checkpoint, data, draft, draft_run, head, head_run, target, team, texts
        from foredraft.types import SamplingParams

        self.SamplingParams = SamplingParams
        self.CHECKPOINT = checkpoint.CHECKPOINT
        self.Asker, self.make_texts, self.prompts_hash = data.Asker, data.make_texts, data.prompts_hash
        self.TrainSettings = head.TrainSettings
        self.HeadPlan, self.HeadRun = head_run.HeadPlan, head_run.HeadRun
        self.DraftSettings, self.LAYERS = draft.DraftSettings, draft_run.LAYERS
        self.DraftPlan, self.DraftRun = draft_run.DraftPlan, draft_run.DraftRun
        self.Told, self.joined = head_run.Told, team.joined
        self.Machine, self.check_trainable = target.Machine, target.check_trainable
        self.open_target, self.use_threads = target.open_target, target.use_threads
        self.DataSettings, self.read_about = texts.DataSettings, texts.read_about


def _room(threads: int) -> _Room:
    if not 0 <= threads <= 1024:
        raise InvalidValue("--threads", threads, "0 (as PyTorch is set) to 1024")
    try:
        with captured_stderr():  # torch speaks about itself
            room = _Room()
    except ImportError as error:
        raise MissingExtra(
            f"training needs the package {error.name}; install it with: pip install 'foredraft[tune]'"
        ) from error
    room.use_threads(threads)
    return room
