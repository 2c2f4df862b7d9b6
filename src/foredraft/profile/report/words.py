"""The words and number formats that page and Markdown share."""

from __future__ import annotations

from collections.abc import Mapping

from foredraft.profile.report.shape import ALL, GATE_ALPHA, Decision, Gate, Interval, Rate, Summary, VerdictGiven

DECISIONS: Mapping[Decision, str] = {
    "ship": "Ship",
    "ship_by_kind": "Ship, off for some kinds",
    "better_draft": "Try a better draft",
    "off": "Leave it off",
}
"""What each decision is called."""
QUALITY: Mapping[str, str] = {
    "sample_size": "Enough prompts?",
    "geometric": "The same at every depth?",
    "drift": "Does it drift?",
    "live": "Confirmed by real decoding?",
}
"""Headings of the sentences on quality, in the order in which they are shown."""
NO_LIVE = "No live run was made, so the recorded acceptance was not checked against real speculative decoding."
REDACTED = "This profile is redacted: it keeps statistics only, no text and no tokens."
NO_SAMPLES = "This profile has no sample texts."


def overall(summary: Summary) -> list[VerdictGiven]:
    """One verdict for each device, in the devices' order: that over all kinds, else that of its first kind."""
    found: dict[str, VerdictGiven] = {}
    for verdict in summary["verdicts"]:
        if verdict["kind"] == ALL or verdict["device"] not in found:
            found[verdict["device"]] = verdict
    return [found[device["name"]] for device in summary["devices"]]


def headline(summary: Summary) -> str:
    """On how many devices drafting pays, in one sentence."""
    verdicts = overall(summary)
    pays = sum(verdict["decision"] in ("ship", "ship_by_kind") for verdict in verdicts)
    count = len(verdicts)
    if pays == 0:
        return f"Drafting does not pay on {'this device' if count == 1 else f'any of the {count} devices'}."
    if pays == count:
        return f"Drafting pays on {'this device' if count == 1 else f'all {count} devices'}."
    return f"Drafting pays on {pays} of {count} devices."


def gate_words(gate: Gate) -> str:
    """What the conventional gate says and whether the verdict says the same.

    >>> gate_words({"alpha": 0.612, "passes": True, "agrees": False})
    'α 0.61 passes, but the verdict is different'
    """
    if gate["alpha"] is None:
        return "α is unknown: nothing was drafted"
    said = "passes" if gate["passes"] else "fails"
    agrees = "as the verdict says" if gate["agrees"] else "but the verdict is different"
    return f"α {gate['alpha']:.2f} {said}, {agrees}"


def gate_name() -> str:
    """The gate as it is usually stated."""
    return f"α ≥ {GATE_ALPHA}"


def speedup_words(found: Interval) -> str:
    """
    >>> speedup_words({"value": 1.4234, "low": 1.31, "high": 1.5})
    '1.42× (1.31–1.50)'
    """
    return f"{found['value']:.2f}×" + interval_words(found)


def rate_words(found: Rate) -> str:
    """
    >>> rate_words({"value": None, "low": None, "high": None})
    'unknown'
    """
    return "unknown" if found["value"] is None else f"{found['value']:.2f}" + interval_words(found)


def whole_characters(text: str) -> str:
    """Text that UTF-8 can write: halves of characters become the replacement character.

    >>> whole_characters("a" + chr(0xD83D) + "b")
    'a�b'
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def interval_words(found: Interval | Rate) -> str:
    """The interval in brackets behind its value; nothing where there is none."""
    if found["low"] is None or found["high"] is None:
        return ""
    return f" ({found['low']:.2f}–{found['high']:.2f})"


def bytes_words(count: float) -> str:
    """Decimal units, three digits.

    >>> bytes_words(397_000_000), bytes_words(0), bytes_words(1.25e9)
    ('397 MB', '0', '1.25 GB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}" + (" B" if count else "")
