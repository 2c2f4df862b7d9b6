"""Draws plans as one HTML file that needs nothing else: a stacked bar for each device, its bounds as lines."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from foredraft.memory import Plan, size
from foredraft.plan.planner import Planned, Question, sentence

_WIDTH, _BAR, _ROW, _LEFT, _TOP = 920, 26, 17, 10, 6
_KINDS = (
    ("target", "weights", "target: weights"),
    ("target", "keys and values", "target: keys and values"),
    ("target", None, "target: buffers"),
    ("draft", "weights", "draft: weights"),
    ("draft", "keys and values", "draft: keys and values"),
    ("draft", None, "draft: buffers"),
    ("app", None, "runtime and app"),
)
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #667; --miss: #b42318; --rule: #98a2b3;
  --c0: #3b5ba5; --c1: #7f9bd8; --c2: #b9c8ea; --c3: #b4690e; --c4: #e0a458; --c5: #f2d3a5; --c6: #8a8f98; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #14171a; --faint: #9aa4b2; --miss: #ff8577;
  --rule: #667085; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .2rem; } p { margin: .2rem 0; }
.miss { color: var(--miss); font-weight: 600; } .faint { color: var(--faint); font-size: .9rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 13px; }
svg line { stroke: var(--ink); stroke-width: 2; } svg .guess { stroke-dasharray: 4 3; }
ul.key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; }
ul.key span { display: inline-block; width: .9em; height: .9em; margin-right: .4em; vertical-align: -.1em; }
""" + "".join(f".c{index} {{ fill: var(--c{index}); background: var(--c{index}); }}\n" for index in range(7))


def picture(question: Question, planned: Sequence[Planned]) -> str:
    """The whole document: bars to one scale, so that devices can be compared."""
    target, setting = question.target, question.setting
    title = f"{target.name} with {question.drafts[0].name}, {setting.context} tokens of context"
    most = max((_extent(each) for each in planned), default=1)
    key = "".join(f'<li><span class="c{index}"></span>{words}</li>' for index, (_, _, words) in enumerate(_KINDS))
    parts = "".join(_section(each, most) for each in planned)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{html.escape(title)}</h1>\n"
        f'<p class="faint">{html.escape(setting.runtime)}, keys and values as {html.escape(setting.kv_type)}. '
        "A line is what the device allows; a broken line is a guess.</p>\n"
        f'<ul class="key">{key}</ul>\n{parts}</body></html>\n'
    )


def _extent(planned: Planned) -> int:
    return max([planned.asked.plan.total, *(bound.nbytes for bound in planned.allowance.bounds)])


def segments(plan: Plan) -> list[int]:
    """Bytes of each kind of the picture, in its order; their sum is the plan's."""
    found = [0] * len(_KINDS)
    for line in plan.lines:
        index = next(
            number
            for number, (part, name, _) in enumerate(_KINDS)
            if line.part.startswith(part) and name in (None, line.name)
        )
        found[index] += line.nbytes
    return found


def _section(planned: Planned, most: int) -> str:
    fits = planned.asked.fits
    changes = planned.changes[:3]
    advice = "".join(f"<li>{html.escape(change.words)}: {size(change.choice.plan.total)}</li>" for change in changes)
    listed = f'<p class="faint">Each of these alone makes it fit:</p><ul class="faint">{advice}</ul>' if advice else ""
    return (
        f"<section><h2>{html.escape(planned.allowance.device)}</h2>\n"
        f"<p{' class=miss' if fits is False else ''}>{html.escape(sentence(planned))}</p>\n"
        f"{_bar(planned, most)}{listed}</section>\n"
    )


def _bar(planned: Planned, most: int) -> str:
    words = "; ".join(
        f"{label} {size(nbytes)}"
        for (_, _, label), nbytes in zip(_KINDS, segments(planned.asked.plan), strict=True)
        if nbytes
    )
    shapes = "".join(_shapes(planned, most))
    height = _TOP + _BAR + 6 + _ROW * len(planned.allowance.bounds)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(words)}">{shapes}</svg>\n'


def _shapes(planned: Planned, most: int) -> Iterator[str]:
    scale, at = (_WIDTH - 2 * _LEFT) / most, float(_LEFT)
    for index, nbytes in enumerate(segments(planned.asked.plan)):
        if nbytes:
            label = html.escape(f"{_KINDS[index][2]} {size(nbytes)}")
            yield f'<rect class="c{index}" x="{at:.1f}" y="{_TOP}" width="{nbytes * scale:.1f}" height="{_BAR}">'
            yield f"<title>{label}</title></rect>"
            at += nbytes * scale
    for row, bound in enumerate(planned.allowance.bounds, 1):  # a row for each label: bounds may lie close together
        x, end = _LEFT + bound.nbytes * scale, _TOP + _BAR + _ROW * row
        anchor, aside = ("end", -5) if x > _WIDTH / 2 else ("start", 5)
        style = ' class="guess"' if bound.guess else ""
        yield f'<line{style} x1="{x:.1f}" x2="{x:.1f}" y1="1" y2="{end}"/>'
        label = html.escape(f"{bound.name} {size(bound.nbytes)}")
        yield f'<text x="{x + aside:.1f}" y="{end}" text-anchor="{anchor}">{label}</text>'
