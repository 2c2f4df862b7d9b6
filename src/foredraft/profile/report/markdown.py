"""Makes the Markdown: the same facts as the page, as sentences and tables that read well unrendered too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from foredraft.profile.report.shape import ALL, Acceptance, Prediction, Summary, Tree, VerdictGiven
from foredraft.profile.report.words import (
    DECISIONS,
    NO_LIVE,
    QUALITY,
    bytes_words,
    gate_name,
    gate_words,
    headline,
    interval_words,
    overall,
    rate_words,
    speedup_words,
    whole_characters,
)

FORMULA = "speed-up(K) = E(K) / (v̄(K) + c·passes(K) + o·drafted(K))"


def to_markdown(summary: Summary) -> str:
    """The whole document (CommonMark with tables). The summary must have passed ``check_summary``."""
    parts = (_head, _verdicts, _by_kind, _acceptance, _depths, _lengths, _drafts, _trees, _advice, _quality, _method)
    return "\n\n".join(block for part in parts for block in part(summary)) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown, and HTML within it, takes literally, on one line.

    >>> escaped("a|b <i> *c*")
    'a\\\\|b &lt;i&gt; \\\\*c\\\\*'
    """
    text = re.sub(_BIDI, lambda found: f"\\u{ord(found[0]):04x}", whole_characters(text))
    text = " ".join("".join(each if each.isprintable() or each in _JOINERS else " " for each in text).split())
    text = re.sub(r"[\\`*_\[\]|~]", r"\\\g<0>", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_BIDI = "[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""Signs that turn the direction of what follows: shown as their numbers."""
_JOINERS = "\u200c\u200d"
"""Signs within words and emoji that must stay."""


def _item(text: str) -> str:
    """An item of a list, which begins a line, where a sign or a number could begin another list."""
    return "- " + re.sub(r"^[-+#=]|(?<=^\d)[.)]|(?<=^\d\d)[.)]", r"\\\g<0>", escaped(text))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int = 0) -> str:
    """``numbers``: how many columns at the right are numbers."""
    words = len(head) - numbers
    lines = [head, ["---"] * words + ["---:"] * numbers, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _head(summary: Summary) -> Iterator[str]:
    settings = summary["settings"]
    yield f"# Profile of {escaped(settings['target'])}"
    yield f"**{headline(summary)}**"
    warm = f", {summary['warm']} repeats left out" if summary["warm"] else ""
    yield (
        f"{summary['texts']} texts, {summary['tokens']} tokens{warm}. Temperature {settings['temperature']:g}, "
        f"rule {escaped(settings['rule'])}. Worth shipping from {settings['threshold']:g}× on. "
        "Intervals are 95 %; speed-ups are over plain decoding on the same device."
    )


def _device(summary: Summary, name: str) -> str:
    """The device's name, with a mark if its speed is computed and not measured."""
    (device,) = [device for device in summary["devices"] if device["name"] == name]
    return escaped(name) + (" *(estimated)*" if device["estimated"] else "")


def _verdicts(summary: Summary) -> Iterator[str]:
    yield "## Verdict"
    for verdict in overall(summary):
        decision = f"**{_device(summary, verdict['device'])}: {DECISIONS[verdict['decision']]}.**"
        lines = [
            f"- expected speed-up: {_gain(verdict)}",
            f"- setting to ship: {escaped(verdict['setting'])}",
            f"- conventional gate {gate_name()}: {gate_words(verdict['gate'])}",
        ]
        yield f"{decision} {escaped(verdict['reason'])}\n\n" + "\n".join(lines)


def _gain(verdict: VerdictGiven) -> str:
    if verdict["draft"] is None and verdict["speedup"]["value"] == 1:
        return "1.00×, plain decoding"
    return speedup_words(verdict["speedup"])


def _by_kind(summary: Summary) -> Iterator[str]:
    if len(summary["kinds"]) < 2:
        return
    found = {(verdict["kind"], verdict["device"]): verdict for verdict in summary["verdicts"]}
    devices = [device["name"] for device in summary["devices"]]
    rows = []
    for kind in summary["kinds"]:
        cells = [_cell(found.get((kind["name"], device))) for device in devices]
        rows.append([escaped(kind["name"]), str(kind["texts"]), *cells])
    yield "### By kind"
    yield _table(["kind", "texts", *(_device(summary, device) for device in devices)], rows)
    if any("≠" in cell for row in rows for cell in row):
        yield f"≠ the conventional gate ({gate_name()}) says something else."


def _cell(verdict: VerdictGiven | None) -> str:
    if verdict is None:
        return "–"
    mark = "" if verdict["gate"]["agrees"] else " ≠"
    return f"{DECISIONS[verdict['decision']]}, {verdict['speedup']['value']:.2f}×{mark}"


# --- acceptance --------------------------------------------------------------------------------------------


def _shipped(summary: Summary) -> list[Acceptance]:
    """Acceptance at the settings' rule and the recorded temperature nearest to the settings'."""
    at = (summary["settings"]["rule"], _nearest(summary))
    return [row for row in summary["acceptance"] if (row["rule"], row["temperature"]) == at]


def _nearest(summary: Summary) -> float:
    wanted = summary["settings"]["temperature"]
    return min(summary["temperatures"], key=lambda each: abs(each - wanted))


def _kinds(summary: Summary) -> list[str]:
    """The kinds recorded, that of all texts last; of a single kind only one of the two, which are the same."""
    recorded = {row["kind"] for row in summary["acceptance"]}
    found = [kind for kind in (*(kind["name"] for kind in summary["kinds"]), ALL) if kind in recorded]
    return found if len(summary["kinds"]) > 1 else found[-1:]


def _acceptance(summary: Summary) -> Iterator[str]:
    found = {(row["draft"], row["kind"]): row for row in _shipped(summary)}
    drafts = [draft["name"] for draft in summary["drafts"]]
    rows = []
    for kind in _kinds(summary):
        cells = [rate_words(found[draft, kind]["alpha"]) if (draft, kind) in found else "–" for draft in drafts]
        rows.append([f"**{ALL}**" if kind == ALL else escaped(kind), *cells])
    yield "## Acceptance"
    at = f"temperature {_nearest(summary):g}, rule {escaped(summary['settings']['rule'])}"
    yield f"α is accepted ÷ evaluated drafted tokens, here at {at}."
    yield _table(["kind", *map(escaped, drafts)], rows, len(drafts))


def _depths(summary: Summary) -> Iterator[str]:
    rows = []
    for row in _shipped(summary):
        if row["kind"] == _kinds(summary)[-1]:
            rates = row["by_depth"][: summary["longest"]]
            cells = [f"{rate['value']:.2f}" if rate["value"] is not None else "–" for rate in rates]
            rows.append([escaped(row["draft"]), *cells, *["–"] * (summary["longest"] - len(cells))])
    if rows:
        numbers = [str(depth) for depth in range(1, summary["longest"] + 1)]
        yield "### By depth"
        yield _table(["draft, at depth", *numbers], rows, len(numbers))


# --- speed -------------------------------------------------------------------------------------------------


def _overall_predictions(summary: Summary) -> list[Prediction]:
    return [row for row in summary["predictions"] if row["kind"] == _kinds(summary)[-1]]


def _lengths(summary: Summary) -> Iterator[str]:
    rows = [
        [escaped(row["draft"]), _device(summary, row["device"]), *(f"{value:.2f}" for value in row["by_length"])]
        for row in _overall_predictions(summary)
    ]
    if rows:
        numbers = [str(length) for length in range(1, summary["longest"] + 1)]
        yield "## Speed-up by chain length"
        yield _table(["draft", "device", *numbers], rows, len(numbers))


def _drafts(summary: Summary) -> Iterator[str]:
    sizes = {draft["name"]: draft["bytes"] for draft in summary["drafts"]}
    order = [device["name"] for device in summary["devices"]]
    found = sorted(
        _overall_predictions(summary), key=lambda row: (order.index(row["device"]), -row["best"]["speedup"]["value"])
    )
    rows = []
    for row in found:
        best = row["best"]
        speed, read, even = best["tokens_per_second"], best["weight_bytes_per_token"], row["break_even_alpha"]
        rows.append(
            [
                _device(summary, row["device"]),
                escaped(row["draft"]),
                f"chain of {best['length']}" if best["length"] else "off",
                f"{best['speedup']['value']:.2f}×{interval_words(best['speedup'])}",
                "–" if speed is None else f"{speed:.1f}",
                "never" if even is None else f"{even:.2f}",
                bytes_words(sizes[row["draft"]]),
                "–" if read is None else bytes_words(read),
            ]
        )
    if rows:
        head = ["device", "draft", "best", "speed-up", "tokens/s", "pays from α", "size", "weights read a token"]
        yield "## Drafts compared"
        yield _table(head, rows, 5)


def _trees(summary: Summary) -> Iterator[str]:
    trees = [tree for tree in summary["trees"] if tree["kind"] == _kinds(summary)[-1] and tree["parents"]]
    if trees:
        yield "## Best trees"
        rows = [
            [
                escaped(tree["draft"]),
                _device(summary, tree["device"]),
                " + ".join(map(str, levels(tree))),
                f"{tree['expected']:.2f}",
                f"{tree['speedup']:.2f}×",
            ]
            for tree in trees
        ]
        yield _table(["draft", "device", "nodes at depth 1, 2, …", "tokens a round", "speed-up"], rows, 2)


def levels(tree: Tree) -> list[int]:
    """How many nodes stand at depth 1, 2, …

    >>> levels({"draft": "", "kind": "", "device": "", "parents": [-1, -1, 0], "expected": 2.0, "speedup": 1.2})
    [2, 1]
    """
    depths: list[int] = []
    for parent in tree["parents"]:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return [depths.count(depth) for depth in range(1, max(depths, default=0) + 1)]


# --- the rest ----------------------------------------------------------------------------------------------


def _advice(summary: Summary) -> Iterator[str]:
    if summary["advice"]:
        yield "## Advice"
        yield "\n".join(map(_item, summary["advice"]))


def _quality(summary: Summary) -> Iterator[str]:
    yield "## How sure this is"
    sentences = {**summary["quality"], "live": summary["quality"]["live"] or NO_LIVE}
    yield "\n".join(f"- **{QUALITY[key]}** {escaped(str(sentences[key]))}" for key in QUALITY)


def _method(summary: Summary) -> Iterator[str]:
    rows = []
    for device in summary["devices"]:
        curve = zip(device["verify"]["widths"], device["verify"]["values"], strict=True)
        rows.append(
            [
                _device(summary, device["name"]),
                f"{device['step_seconds'] * 1e3:.3g} ms",
                ", ".join(f"v({width}) {value:.2f}" for width, value in curve),
                ", ".join(f"{escaped(name)} {cost:.2f}" for name, cost in device["draft_cost"].items()),
                f"{device['fixed']:.3f}",
                escaped(device["note"]),
            ]
        )
    yield "## Devices and method"
    yield _table(["device", "plain step", "verify curve", "draft pass c", "round o", "note"], rows)
    yield f"`{FORMULA}`, all times in plain steps; E(K) is the tokens that a round with a chain of K yields."
    settings = summary["settings"]
    yield (
        f"Made {escaped(summary['created'])} by foredraft {escaped(summary['version'])}: top-k {settings['top_k']}, "
        f"top-p {settings['top_p']:g}, seed {settings['seed']}, at most {settings['max_tokens']} tokens a text."
    )
