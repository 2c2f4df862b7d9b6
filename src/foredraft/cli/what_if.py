"""``foredraft what-if``: ask a recorded trace about settings that were never run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from foredraft.cli.options import RULE_OPTION, Choices, options
from foredraft.cli.profile_devices import DEVICE_OPTIONS, find_devices
from foredraft.cli.profile_view import console, interval
from foredraft.devices.device import Device
from foredraft.errors import InvalidValue, TraceError
from foredraft.profile import stats, store
from foredraft.profile.intervals import Estimate
from foredraft.profile.recorded_device import RecordedDevice
from foredraft.profile.report import read_summary
from foredraft.profile.summary import sizes
from foredraft.profile.trace import Ask, Trace
from foredraft.profile.what_if import LENGTHS, Choice, Played, Predicted, choices, play, predict, recorded
from foredraft.types import SamplingParams
from foredraft.verify import check_max_tv

ASK_OPTIONS = (
    click.option("-t", "--temperature", type=float, help="0 is greedy decoding. [default: as recorded]"),
    click.option("--top-k", type=int, metavar="N", help="Keep the N likeliest tokens. [default: as recorded]"),
    click.option("--top-p", type=float, metavar="P", help="Likeliest tokens with mass P. [default: as recorded]"),
    click.option("--min-p", type=float, metavar="P", help="Tokens >= P × the likeliest one. [default: as recorded]"),
    click.option(
        "--draft-temperature", type=float, metavar="T", help="Temperature of the draft. [default: as recorded]"
    ),
    RULE_OPTION,
    click.option(
        "--max-tv",
        default=0.02,
        show_default=True,
        metavar="X",
        help="Rule relaxed: total variation each token's law may differ from the target's, on average.",
    ),
    click.option("--kind", metavar="KIND", help="Only texts of this kind. [default: all]"),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables."),
)


@click.command("what-if")
@click.argument("directory", metavar="DIR")
@options(ASK_OPTIONS, DEVICE_OPTIONS[:2])
def what_if(directory: str, **values: Any) -> int:
    """Predict acceptance and speed under other settings from the trace in DIR, without running any model.

    DIR is what `foredraft profile -o DIR` made. Without --device the devices of its report are asked. The texts stay
    the recorded ones; for a cooler target they are weighed, for a hotter one acceptance comes out too high.
    """
    given = Choices(values)
    folder = Path(directory)
    trace = store.read_trace(folder)
    if given.kind is not None and given.kind not in trace.kinds:
        raise InvalidValue("--kind", given.kind, ", ".join(trace.kinds))
    devices = find_devices(given, trace.settings) or _recorded_devices(folder)
    found = [_Answer.of(trace, choice, given) for choice in choices(trace)]
    if given.as_json:
        rows = [row for answer in found for row in answer.rows(trace, devices)]
        click.echo(json.dumps({"texts": len(found[0].played.texts), "rows": rows}, indent=1, ensure_ascii=False))
        return 0
    _show(trace, devices, found, given)
    return 0


def _recorded_devices(folder: Path) -> Sequence[Device]:
    path = folder / "profile.json"
    if not path.exists():
        raise TraceError(f"{folder}: holds no profile.json with devices; name one with --device")
    return [RecordedDevice(device) for device in read_summary(path)["devices"]]


def ask_of(trace: Trace, given: Choices) -> Ask:
    """The setting asked about: what is not named is as recorded."""
    base = recorded(trace)
    names = ("temperature", "top_k", "top_p", "min_p")
    named = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    params: SamplingParams = replace(base.params, **named)
    draft = given.draft_temperature if given.draft_temperature is not None else base.draft_temperature
    if draft is not None and not 0.0 < draft < float("inf"):
        raise InvalidValue("--draft-temperature", draft, "a positive number")
    return Ask(params, given.rule, draft)


@dataclass(frozen=True)
class _Answer:
    """One draft under the setting asked about; ``bias``: mean total variation a token (rule relaxed)."""

    played: Played
    ask: Ask
    bias: float = 0.0

    @staticmethod
    def of(trace: Trace, choice: Choice, given: Choices) -> _Answer:
        ask = ask_of(trace, given)
        if ask.rule != "relaxed" or choice.model is None:
            return _Answer(play(trace, choice, ask).of(given.kind), ask)
        check_max_tv(given.max_tv)
        exact = play(trace, choice, replace(ask, rule="residual")).of(given.kind)
        alpha = _alpha(exact)
        missed = 1.0 - (alpha.value if alpha is not None else 0.0)
        weight = max(0.0, 1.0 - given.max_tv / missed) if missed > given.max_tv else 0.0
        ask = replace(ask, weight=weight)
        return _Answer(play(trace, choice, ask).of(given.kind), ask, (1.0 - weight) * missed)

    def rows(self, trace: Trace, devices: Sequence[Device]) -> Iterator[dict[str, Any]]:
        """Plain types, one row for each device."""
        alpha = _alpha(self.played)
        for device, found in self.predictions(trace, devices):
            yield {
                "draft": self.played.choice.name,
                "device": device.name,
                "estimated": device.estimated,
                "rule": self.ask.rule,
                "temperature": self.ask.params.temperature,
                "draft_temperature": self.ask.draft_params.temperature,
                "alpha": None if alpha is None else alpha.as_json(),
                "expected": [self.played.expected(length) for length in LENGTHS],
                "by_length": list(found.by_length),
                "best_length": found.length,
                "speedup": found.speedup.as_json(),
                "tokens_per_second": found.tokens_per_second,
                "weight_bytes_per_token": found.weight_bytes,
                "mean_tv": self.bias,
            }

    def predictions(self, trace: Trace, devices: Sequence[Device]) -> Iterator[tuple[Device, Predicted]]:
        """For every device."""
        for device in devices:
            yield device, predict(self.played, device, sizes(trace, self.played.choice))


def _alpha(played: Played) -> Estimate | None:
    return stats.alpha(played.counts(LENGTHS[-1]))


def _show(trace: Trace, devices: Sequence[Device], found: Sequence[_Answer], given: Choices) -> None:
    out = console()
    ask = found[0].ask
    draft = ask.draft_params.temperature
    kind = f", texts of the kind {given.kind}" if given.kind else ""
    out.print(
        f"rule {ask.rule}, temperature {ask.params.temperature:g}, draft temperature {draft:g}{escape(kind)}; "
        f"recorded at {trace.settings.sampling.temperature:g}",
        soft_wrap=True,
    )
    if ask.params.temperature > trace.settings.sampling.temperature:
        out.print(
            "the texts were written by a cooler target and are easier to guess: real acceptance is lower",
            soft_wrap=True,
        )
    for answer in found:
        if answer.bias:
            name = escape(answer.played.choice.name)
            out.print(f"[yellow]{name}: not exact, total variation {answer.bias:.3f} a token[/yellow]")
    for device in devices:
        name = escape(device.name) + (" (estimated)" if device.estimated else "")
        table = Table(
            "draft", "α", "tokens/round at 4", "best", "speed-up", "tokens/s", title=name, title_justify="left"
        )
        for answer in found:
            alpha = _alpha(answer.played)
            [(_, best)] = answer.predictions(trace, [device])
            table.add_row(
                escape(answer.played.choice.name),
                "unknown" if alpha is None else interval({"value": alpha.value, "low": alpha.low, "high": alpha.high}),
                f"{answer.played.expected(4):.2f}",
                f"chain of {best.length}" if best.length else "off",
                interval({"value": best.speedup.value, "low": best.speedup.low, "high": best.speedup.high}, "×"),
                f"{best.tokens_per_second:.3g}",
            )
        out.print(table)
