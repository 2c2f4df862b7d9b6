"""Makes the page: one HTML file that needs nothing else, with the summary inside it.

What the page shows is made in the reader's browser from that summary by the scripts in ``assets``, which put text into
text nodes only. Three more locks stand behind that: the summary is written as JSON without <, > and &; a policy in the
page lets these scripts and styles run, known by their hashes, and nothing else, and forbids every request; readers
without JavaScript get the Markdown, escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from foredraft.profile.report.markdown import to_markdown
from foredraft.profile.report.shape import ALL, GATE_ALPHA, Summary
from foredraft.profile.report.words import DECISIONS, NO_LIVE, NO_SAMPLES, QUALITY, REDACTED, headline, whole_characters
from foredraft.whole_files import write_whole

SCRIPTS = ("model.js", "dom.js", "charts.js", "tree.js", "verdict.js", "figures.js", "samples.js", "main.js")
"""In the order in which they are run."""
_DIGITS = 7


def to_page(summary: Summary) -> str:
    """The whole HTML document. The summary must have passed ``check_summary``."""
    style = _asset("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "})();\n"
    words = {
        "all": ALL,
        "gateAlpha": GATE_ALPHA,
        "decisions": DECISIONS,
        "headline": headline(summary),
        "quality": QUALITY,
        "noLive": NO_LIVE,
        "noSamples": REDACTED if summary["settings"]["redacted"] else NO_SAMPLES,
    }
    policy = f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; base-uri 'none'"
    return _filled(
        _asset("page.html"),
        {
            "title": html.escape(whole_characters(f"Profile of {summary['settings']['target']}")),
            "policy": html.escape(policy),
            "style": style,
            "script": script,
            "data": as_data({"summary": summary, "words": words}),
            "markdown": html.escape(to_markdown(summary)),
        },
    )


def write_page(summary: Summary, path: Path) -> None:
    """Write the page; a file of that name is replaced at once or not at all."""
    write_whole(path, to_page(summary))


def write_report(summary: Summary, folder: Path) -> tuple[Path, Path, Path]:
    """Write `profile.json`, `report.html` and `report.md` into a directory that exists; returns their paths."""
    paths = (folder / "profile.json", folder / "report.html", folder / "report.md")
    texts = (json.dumps(summary, indent=1, allow_nan=False) + "\n", to_page(summary), to_markdown(summary))
    for path, text in zip(paths, texts, strict=True):
        write_whole(path, text)
    return paths


def as_data(value: object) -> str:
    """JSON that may stand in a script element whatever it holds, in ASCII; numbers with 7 digits.

    >>> as_data({"name": "</script>", "value": 1 / 3})
    '{"name":"\\\\u003c/script\\\\u003e","value":0.3333333}'
    """
    text = json.dumps(_short(value), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return value


def _asset(name: str) -> str:
    return files("foredraft.profile.report").joinpath("assets", name).read_text("utf-8")


def _hashed(text: str) -> str:
    """The source expression that allows an inline element of exactly this text (CSP level 2, §5.2)."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _filled(template: str, parts: Mapping[str, Any]) -> str:
    """The template with each ``{{name}}`` replaced, in one pass, so that what is inserted is never searched."""
    first, *rest = template.split("{{")
    result = [first]
    for piece in rest:
        name, _, after = piece.partition("}}")
        result += [parts[name], after]
    return "".join(result)
