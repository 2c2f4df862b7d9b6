"""``foredraft compare``: two profiles side by side, and a check that a build server can run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from foredraft.cli.profile_view import console
from foredraft.errors import InvalidValue
from foredraft.profile.report import Summary, read_summary
from foredraft.profile.report.shape import ALL


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

    Shows, for every device and kind that both have, the best predicted speed-up, and acceptance of every draft.
    """
    if fail_below is not None and not 0.0 < fail_below < 1000.0:
        raise InvalidValue("--fail-below", fail_below, "a speed-up such as 1.15")
    old, new = read_summary(_file(before)), read_summary(_file(after))
    speeds, alphas = list(_speeds(old, new)), list(_alphas(old, new))
    slow = [name for name, speed in _best(new) if fail_below is not None and speed < fail_below]
    if as_json:
        click.echo(json.dumps({"speedups": speeds, "acceptance": alphas, "below": slow}, indent=1, ensure_ascii=False))
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
    left, right = _recorded(old), _recorded(new)
    for cell in left:
        if cell in right:
            yield {"draft": cell[0], "kind": cell[1], "a": left[cell], "b": right[cell]}


def _recorded(summary: Summary) -> dict[tuple[str, str], Any]:
    """α of every draft and kind at the profile's own setting."""
    settings = summary["settings"]
    return {
        (row["draft"], row["kind"]): row["alpha"]["value"]
        for row in summary["acceptance"]
        if (row["rule"], row["temperature"]) == (settings["rule"], settings["temperature"])
    }


def _show(speeds: list[dict[str, Any]], alphas: list[dict[str, Any]]) -> None:
    out = console()
    table = Table("device", "kind", "A", "B", "B ÷ A", title="best predicted speed-up", title_justify="left")
    for row in speeds:
        a, b = row["a"]["speedup"]["value"], row["b"]["speedup"]["value"]
        table.add_row(escape(row["device"]), escape(row["kind"]), _cell(row["a"]), _cell(row["b"]), f"{b / a:.2f}")
    out.print(table)
    table = Table("draft", "kind", "A", "B", "B - A", title="acceptance α", title_justify="left")
    for row in alphas:
        a, b = row["a"], row["b"]
        change = "unknown" if a is None or b is None else f"{b - a:+.2f}"
        shown = ["unknown" if value is None else f"{value:.2f}" for value in (a, b)]
        table.add_row(escape(row["draft"]), escape(row["kind"]), *shown, change)
    out.print(table)


def _cell(best: dict[str, Any]) -> str:
    what = f"{escape(best['draft'])}, {best['length']}" if best["length"] else "off"
    return f"{best['speedup']['value']:.2f}× ({what})"
