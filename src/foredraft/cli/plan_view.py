"""Tables and the JSON document of ``foredraft plan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foredraft.cli.profile_view import console
from foredraft.memory import size
from foredraft.plan import Bound, Choice, Fleet, FleetView, Forecast, Planned, Question
from foredraft.plan.forecast import ASSUMED
from foredraft.plan.planner import sentence

_VERDICT = {True: "fits", False: "[red]does not fit[/red]", None: "[yellow]not known[/yellow]"}
_RULE = ("weights", "keys and values")


def head(question: Question) -> str:
    """What is planned, in one line."""
    target, setting = question.target, question.setting
    alike = setting.draft_kv_type in (None, setting.kv_type) or question.drafts[0].shape is None
    types = setting.kv_type if alike else f"{setting.kv_type}, draft {setting.draft_kv_type}"
    requests = f", {setting.sequences} requests at once" if setting.sequences > 1 else ""
    return (
        f"{target.name} ({size(target.weight_bytes)} of weights) with {question.drafts[0].name}, {setting.context} "
        f"tokens of context, keys and values as {types}{requests}, {setting.runtime}"
    )


def show_one(question: Question, planned: Planned, *, rule: bool) -> None:
    """Everything about one device."""
    out = console()
    out.print(f"[bold]{escape(planned.allowance.device)}[/bold]: {escape(head(question))}", soft_wrap=True)
    out.print(_lines_table(planned.asked))
    colour = {True: "green", False: "red", None: "yellow"}[planned.asked.fits]
    out.print(f"[bold {colour}]{escape(sentence(planned))}[/]", soft_wrap=True)
    for bound in planned.allowance.bounds:
        out.print(f"- {escape(_bound(bound))}", soft_wrap=True)
    mapped = planned.asked.plan.mapped
    if mapped and planned.asked.fits is False:
        out.print(
            f"- {size(mapped)} are mapped from a file: a system may count or drop them, and reading them again for "
            "every token is slow",
            soft_wrap=True,
        )
    if rule:
        out.print(escape(_rule_sentence(planned)), soft_wrap=True)
    if len(planned.choices) > 2 or planned.asked.forecast is not None:
        out.print(_choices_table(planned))
    for line in _advice(planned):
        out.print(f"- {escape(line)}", soft_wrap=True)
    _show_changes(out, planned)


def _lines_table(choice: Choice) -> Table:
    table = Table("part", "what", "size", "kind", "how", box=None, pad_edge=False, header_style="bold")
    table.columns[2].justify = "right"
    for line in choice.plan.lines:
        table.add_row(line.part, escape(line.name), size(line.nbytes), line.kind, f"[dim]{escape(line.formula)}[/dim]")
    table.add_row(
        "[bold]all[/bold]", "", f"[bold]{size(choice.plan.total)}[/bold]", "", f"{size(choice.plan.dirty)} dirty"
    )
    return table


def _bound(bound: Bound) -> str:
    return f"{bound.name}: {size(bound.nbytes)} ({bound.origin})"


def _rule_sentence(planned: Planned) -> str:
    short, bound = _rule_bytes(planned.asked), planned.binding
    verdict = "" if bound is None else ", which fits" if short <= bound.nbytes else ", which does not fit"
    differs = bound is not None and (short <= bound.nbytes) != planned.asked.fits
    return (
        f"rule of fit (weights and caches alone): {size(short)}{verdict}; all together it is "
        f"{size(planned.asked.plan.total)}" + (": the rule misleads here" if differs else "")
    )


def _rule_bytes(choice: Choice) -> int:
    return sum(choice.plan.of(name=name) for name in _RULE)


def _choices_table(planned: Planned) -> Table:
    table = Table("draft", "size", "all", "fits", "α", "pays from α", "speed-up", "tokens/s", box=None, pad_edge=False,
                  header_style="bold")  # fmt: skip
    for choice in planned.choices:
        name = escape(choice.candidate.name)
        nbytes = size(choice.plan.of(part="draft")) if choice.candidate.shape is not None else "–"
        verdict = "[yellow]other words[/yellow]" if choice.flaw else _VERDICT[choice.fits]
        table.add_row(name, nbytes, size(choice.plan.total), verdict, *_speed_cells(choice.forecast))
    return table


def _speed_cells(known: Forecast | None) -> tuple[str, str, str, str]:
    if known is None:
        return ("", "", "", "")
    alpha = "" if known.alpha is None else f"{known.alpha:.2f}" + (" assumed" if known.origin == "assumed" else "")
    pays = "never" if known.break_even is None and known.alpha is not None else ""
    pays = f"{known.break_even:.2f}" if known.break_even is not None else pays
    mark = " est." if known.estimated else ""
    gain = f"{known.speedup:.2f}×{mark}" if known.alpha is not None else ""
    return alpha, pays, gain, f"{known.tokens_per_second:.3g}{mark}"


def _advice(planned: Planned) -> Iterator[str]:
    """The largest draft that fits, the recommended one, and whether they differ."""
    largest, best = planned.largest, planned.recommended
    if largest is None or best is None or best.forecast is None:
        return
    if best.candidate.name == largest.candidate.name:
        yield f"{best.candidate.name} is the largest draft that fits, and the fastest known"
    else:
        yield (
            f"the largest draft that fits is {largest.candidate.name}; recommended is {best.candidate.name}: "
            f"{best.forecast.speedup:.2f}× predicted"
            + (f", {largest.forecast.speedup:.2f}× with the largest" if largest.forecast else "")
        )
    models = [
        each.forecast for each in planned.choices if each.candidate.shape is not None and each.forecast is not None
    ]
    if len(models) > 1 and all(each.origin == "assumed" for each in models):
        yield (
            f"α is assumed to be {ASSUMED:.2f} for every draft, which favours small ones: a larger one guesses better; "
            "measure with `foredraft profile` and give --profile or --alpha NAME=X"
        )


def _show_changes(out: Console, planned: Planned) -> None:
    if planned.changes:
        out.print("[bold]each of these alone makes it fit:[/bold]")
        for number, change in enumerate(planned.changes, 1):
            room = size(change.choice.room or 0)
            speed = change.choice.forecast
            words = f" ({speed.note})" if speed is not None and speed.note else ""
            note = "" if speed is None else f", {speed.tokens_per_second:.3g} tokens/s{words}"
            out.print(
                f"{number}. {escape(change.words)}: {size(change.choice.plan.total)}, {room} left{note}", soft_wrap=True
            )
    elif planned.enough:
        fits = planned.enough[-1].choice.fits
        words = (
            "no single change is enough; together:" if fits else "nothing is enough, the target is too large; at most:"
        )
        out.print(f"[bold]{words}[/bold]")
        for change in planned.enough:
            out.print(f"- {escape(change.words)}: {size(change.choice.plan.total)}", soft_wrap=True)


def show_devices(question: Question, planned: Sequence[Planned], *, rule: bool) -> None:
    """One row a device."""
    out = console()
    out.print(f"[bold]{escape(head(question))}[/bold]", soft_wrap=True)
    out.print(f"needs {size(planned[0].asked.plan.total)}, of which {size(planned[0].asked.plan.dirty)} are dirty")
    titles = [
        "device",
        "at most",
        "because of",
        "verdict",
        "left",
        "largest draft",
        "fastest",
        "tokens/s",
        "first change",
    ]
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    if rule:
        table.add_column("rule of fit")
    for each in planned:
        table.add_row(*_row(each), *([_rule_cell(each)] if rule else []))
    out.print(table)
    out.print("~: nobody measured it on this device; est.: estimated from the memory's bandwidth", style="dim")


def _rule_cell(planned: Planned) -> str:
    short, bound = _rule_bytes(planned.asked), planned.binding
    return size(short) + ("" if bound is None else " fits" if short <= bound.nbytes else " too much")


def _row(planned: Planned) -> tuple[str, ...]:
    bound, largest, best = planned.binding, planned.largest, planned.recommended
    change = planned.changes[0].words if planned.changes else "several" if planned.enough else ""
    if planned.enough and not planned.enough[-1].choice.fits:
        change = "none helps"
    speed = best.forecast if best is not None else None
    return (
        escape(planned.allowance.device),
        "" if bound is None else f"{'~' if bound.guess else ''}{size(bound.nbytes)}",
        "" if bound is None else bound.name,
        _VERDICT[planned.asked.fits],
        "" if planned.asked.room is None else size(planned.asked.room),
        "" if largest is None else escape(largest.candidate.name),
        "" if best is None else "no draft" if best.candidate.name == "none" else escape(best.candidate.name),
        "" if speed is None else f"{speed.tokens_per_second:.3g}{' est.' if speed.estimated else ''}",
        escape(change),
    )


def show_fleet(question: Question, fleet: Fleet, found: Sequence[Planned | None], seen: FleetView) -> None:
    """On how many users' devices it fits."""
    out = console()
    out.print(f"[bold]{escape(head(question))}[/bold]", soft_wrap=True)
    out.print(f"[bold]{escape(fleet_sentence(seen))}[/bold]", soft_wrap=True)
    table = Table("device", "share", "at most", "verdict", "left", box=None, pad_edge=False, header_style="bold")
    for (name, share), each in zip(fleet.shares, found, strict=True):
        if each is None:
            table.add_row(escape(name), f"{share:.1%}", "", "[yellow]unknown device[/yellow]", "")
        else:
            row = _row(each)
            table.add_row(row[0], f"{share:.1%}", row[1], row[3], row[4])
    out.print(table)


def fleet_sentence(seen: FleetView) -> str:
    """The fleet's answer in one line.

    >>> fleet_sentence(FleetView(0.63, 0.30, 0.07, ((25, "Pixel 8"),), ()))
    'fits on 63 % of your users, not on 30 %, unknown for 7 %; p25 device is Pixel 8'
    """
    unknown = f", unknown for {100 * seen.unknown:.0f} %" if seen.unknown > 0.0005 else ""
    quartiles = "".join(f"; p{percent} device is {name}" for percent, name in seen.quartiles)
    return f"fits on {100 * seen.fits:.0f} % of your users, not on {100 * seen.misses:.0f} %{unknown}{quartiles}"


# --- JSON --------------------------------------------------------------------------------------------------


def document(
    question: Question, planned: Sequence[Planned], seen: FleetView | None, notes: Sequence[str]
) -> dict[str, Any]:
    """Plain types; sizes in bytes."""
    setting = question.setting
    found: dict[str, Any] = {
        "target": question.target.name,
        "draft": question.drafts[0].name,
        "context": setting.context,
        "runtime": setting.runtime,
        "kv_type": setting.kv_type,
        "draft_kv_type": setting.draft_kv_type or setting.kv_type,
        "devices": [_device(each) for each in planned],
        "notes": list(notes),
    }
    if seen is not None:
        quartiles = {f"p{percent}": name for percent, name in seen.quartiles}
        found["fleet"] = {"fits": seen.fits, "misses": seen.misses, "unknown": seen.unknown, **quartiles}
        found["fleet"]["unknown_devices"] = list(seen.unknown_devices)
    return found


def _device(planned: Planned) -> dict[str, Any]:
    largest, best = planned.largest, planned.recommended
    return {
        "device": planned.allowance.device,
        "sentence": sentence(planned),
        "bounds": [_bound_json(bound) for bound in planned.allowance.bounds],
        "binding": None if planned.binding is None else planned.binding.name,
        "needs_gib": planned.needs if planned.asked.fits is False else None,
        "plan": planned.asked.plan.as_json(),
        "choices": [_choice(choice) for choice in planned.choices],
        "largest": None if largest is None else largest.candidate.name,
        "recommended": None if best is None else best.candidate.name,
        "changes": [{"change": change.words, **_choice(change.choice)} for change in planned.changes],
        "together": [{"change": change.words, **_choice(change.choice)} for change in planned.enough],
    }


def _bound_json(bound: Bound) -> dict[str, Any]:
    return {"name": bound.name, "bytes": bound.nbytes, "origin": bound.origin, "guess": bound.guess}


def _choice(choice: Choice) -> dict[str, Any]:
    known = choice.forecast
    speed = None
    if known is not None:
        speed = {
            "tokens_per_second": known.tokens_per_second,
            "speedup": known.speedup,
            "chain": known.length,
            "alpha": known.alpha,
            "alpha_origin": known.origin,
            "break_even_alpha": known.break_even,
            "estimated": known.estimated,
        }
    plan = choice.plan
    sizes = {"total": plan.total, "dirty": plan.dirty, "draft_bytes": plan.of(part="draft")}
    return {"draft": choice.candidate.name, **sizes, "room": choice.room, "fits": choice.fits, "forecast": speed}
