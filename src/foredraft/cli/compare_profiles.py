"""``foredraft compare``: two profiles side by side, and a check that a build server can run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from foredraft.cli.profile_view import console
from foredraft.errors import InvalidValue
from foredraft.profile.report import Summary, read_summary
from foredraft.profile.report.shape import ALL, Rate


@click.command("compare")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--fail-below",
    type=float,
    metavar="X",
    help="Exit with 1 if the best predicted speed-up of B over all texts is below X on some device.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def compare_profiles(before: str, after: str, fail_below: float | None, as_json: bool) -> int:
    """Compare two profiles: A and B are what `foredraft profile -o` made, or their profile.json.

    Shows, for every device and kind that both have, the best predicted speed-up, and acceptance of every draft. A draft
    that only B has is set beside the one that it took the place of.
    """
    if fail_below is not None and not 0.0 < fail_below < 1000.0:
        raise InvalidValue("--fail-below", fail_below, "a speed-up such as 1.15")
    old, new = read_summary(_file(before)), read_summary(_file(after))
    speeds, alphas = list(_speeds(old, new)), list(_alphas(old, new))
    slow = [name for name, speed in _best(new) if fail_below is not None and speed < fail_below]
    if as_json:
        document = {"speedups": speeds, "acceptance": alphas, "warnings": list(_warnings(alphas)), "below": slow}
        click.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        _show(speeds, alphas)
        for name in slow:
            click.echo(f"{name}: below {fail_below:g}×")
    return 1 if slow else 0


def _file(name: str) -> Path:
    path = Path(name)
    return path / "profile.json" if path.is_dir() else path


def _best(summary: Summary) -> Iterator[tuple[str, float]]:
    """Every device with the best speed-up over all texts."""
    for device in summary["devices"]:
        rows = [row["best"]["speedup"]["value"] for row in summary["predictions"]
                if row["device"] == device["name"] and row["kind"] == ALL]  # fmt: skip
        yield device["name"], max(rows, default=1.0)


def _speeds(old: Summary, new: Summary) -> Iterator[dict[str, Any]]:
    left, right = _fastest(old), _fastest(new)
    for cell in left:
        if cell in right:
            yield {"device": cell[0], "kind": cell[1], "a": left[cell], "b": right[cell]}


def _fastest(summary: Summary) -> dict[tuple[str, str], dict[str, Any]]:
    """The best draft of every device and kind."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in summary["predictions"]:
        cell, speed = (row["device"], row["kind"]), row["best"]["speedup"]
        if cell not in found or speed["value"] > found[cell]["speedup"]["value"]:
            found[cell] = {"draft": row["draft"], "length": row["best"]["length"], "speedup": speed}
    return found


def _alphas(old: Summary, new: Summary) -> Iterator[dict[str, Any]]:
    """Drafts of one name; one that only A has beside the one that only B has in its place: the same draft, tuned."""
    left, right = _recorded(old), _recorded(new)
    for (name, kind), a in left.items():
        other = _partners(left, right).get(name, name)
        if (other, kind) in right:
            b = right[other, kind]
            yield {"draft": name, "becomes": other, "kind": kind, "a": a, "b": b, "change": _change(a, b)}


def _partners(left: Mapping[tuple[str, str], Any], right: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    ours, theirs = (list(dict.fromkeys(name for name, _ in side)) for side in (left, right))
    gone, come = ([n for n in a if n not in b] for a, b in ((ours, theirs), (theirs, ours)))
    return dict(zip(gone, come, strict=False))


def _recorded(summary: Summary) -> dict[tuple[str, str], Rate]:
    """α of every draft and kind at the profile's own setting."""
    settings = summary["settings"]
    return {
        (row["draft"], row["kind"]): row["alpha"]
        for row in summary["acceptance"]
        if (row["rule"], row["temperature"]) == (settings["rule"], settings["temperature"])
    }


def _change(a: Rate, b: Rate) -> Rate:
    """B - A with its 95 % interval, from those of both as if they were independent: on the same prompts, where both are
    high or low together, it is narrower in truth."""
    if a["value"] is None or b["value"] is None:
        return {"value": None, "low": None, "high": None}
    change = b["value"] - a["value"]
    if a["low"] is None or a["high"] is None or b["low"] is None or b["high"] is None:
        return {"value": change, "low": None, "high": None}
    below = math.hypot(b["value"] - b["low"], a["high"] - a["value"])
    above = math.hypot(b["high"] - b["value"], a["value"] - a["low"])
    return {"value": change, "low": change - below, "high": change + above}


def _warnings(alphas: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A draft that got better at some kinds and worse at others: it may have learnt its prompts by heart."""
    for name in dict.fromkeys(row["becomes"] for row in alphas):
        rows = [row for row in alphas if row["becomes"] == name and row["kind"] != ALL]
        better = [row["kind"] for row in rows if (row["change"]["low"] or 0.0) > 0.0]
        worse = [row["kind"] for row in rows if (row["change"]["high"] or 0.0) < 0.0]
        if better and worse:
            yield (
                f"{name}: better at {', '.join(better)}, worse at {', '.join(worse)}: it may be fitted to the kinds it "
                "was trained on; train it on prompts of all kinds"
            )


def _show(speeds: list[dict[str, Any]], alphas: list[dict[str, Any]]) -> None:
    out = console()
    table = Table("device", "kind", "A", "B", "B ÷ A", title="best predicted speed-up", title_justify="left")
    for row in speeds:
        a, b = row["a"]["speedup"]["value"], row["b"]["speedup"]["value"]
        table.add_row(escape(row["device"]), escape(row["kind"]), _cell(row["a"]), _cell(row["b"]), f"{b / a:.2f}")
    out.print(table)
    table = Table("draft", "kind", "A", "B", "B - A", title="acceptance α, 95 % intervals", title_justify="left")
    for row in alphas:
        name = row["draft"] if row["draft"] == row["becomes"] else f"{row['draft']} → {row['becomes']}"
        shown = [_rate(row["a"]), _rate(row["b"]), _rate(row["change"], "+.2f")]
        table.add_row(escape(name), escape(row["kind"]), *shown)
    out.print(table)
    for warning in _warnings(alphas):
        out.print(f"warning: {escape(warning)}", soft_wrap=True)


def _rate(rate: Rate, form: str = ".2f") -> str:
    if rate["value"] is None:
        return "unknown"
    if rate["low"] is None or rate["high"] is None:
        return f"{rate['value']:{form}}"
    return f"{rate['value']:{form}} ({rate['low']:{form}} to {rate['high']:{form}})"


def _cell(best: dict[str, Any]) -> str:
    what = f"{escape(best['draft'])}, {best['length']}" if best["length"] else "off"
    return f"{best['speedup']['value']:.2f}× ({what})"
