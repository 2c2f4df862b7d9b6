"""Tables of a profile on standard output."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from foredraft.profile.report.shape import ALL, Interval, Rate, Summary
from foredraft.profile.report.words import DECISIONS, gate_words, headline

WIDE = 200
"""Columns where standard output is no terminal: rows are not to be broken there."""


def console() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def show_summary(summary: Summary) -> None:
    """Verdicts, acceptance and advice; all of it, and pictures, are in the report."""
    out = console()
    out.print(f"[bold]{escape(headline(summary))}[/bold]  ({summary['texts']} texts, {summary['tokens']} tokens)")
    for device in summary["devices"]:
        name = escape(device["name"]) + (" [italic](estimated)[/italic]" if device["estimated"] else "")
        table = Table("kind", "verdict", "speed-up", "setting", "conventional gate", title=name, title_justify="left")
        for row in summary["verdicts"]:
            if row["device"] == device["name"]:
                table.add_row(
                    escape(row["kind"]),
                    DECISIONS[row["decision"]],
                    interval(row["speedup"], "×"),
                    escape(row["setting"]),
                    gate_words(row["gate"]),
                )
        out.print(table)
    out.print(_acceptance(summary))
    for sentence in summary["advice"]:
        out.print(f"- {escape(sentence)}", soft_wrap=True)
    for line in summary["quality"].values():
        if isinstance(line, str):
            out.print(f"- {escape(line)}", soft_wrap=True)


def _acceptance(summary: Summary) -> Table:
    settings = summary["settings"]
    title = f"acceptance at temperature {settings['temperature']:g}, and tokens a round with up to 4 drafted"
    table = Table("draft", "kind", "α", "tokens/round", title=title, title_justify="left")
    for row in summary["acceptance"]:
        if (row["rule"], row["temperature"]) != (settings["rule"], settings["temperature"]):
            continue
        if row["kind"] == ALL or len(summary["kinds"]) > 1:
            table.add_row(
                escape(row["draft"]), escape(row["kind"]), interval(row["alpha"]), f"{row['expected'][3]:.2f}"
            )
    return table


def interval(found: Interval | Rate, unit: str = "") -> str:
    """1.42× (1.31 to 1.50)"""
    if found["value"] is None:
        return "unknown"
    ends = "" if found["low"] is None or found["high"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"
    return f"{found['value']:.2f}{unit}{ends}"
