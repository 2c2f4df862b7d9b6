"""Profile summaries made by hand: realistic ones, whose numbers follow from the speed model, and ugly ones.

Every number is a function of the names and places, so that the same call gives the same summary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from foredraft.profile.report.load import draft_cost
from foredraft.profile.report.shape import (
    ALL,
    Acceptance,
    Decision,
    DeviceUsed,
    DraftUsed,
    Interval,
    Prediction,
    Rate,
    Sample,
    Summary,
    Tree,
    VerdictGiven,
)
from foredraft.speed import Costs, Curve, Share, expected_tokens
from foredraft.speed import break_even_alpha as pays_from
from foredraft.trees import Bounds, best_shape, expected_length
from tests.support.summary_devices import DEVICES, DIPS, DRAFTS, FAST, HERE, NPU, PHONE, STEEP, UNMEASURED

GUESSES: Mapping[str, float] = {"ngram": 0.46, "model": 0.79, "both": 0.83}
KINDS = ("code", "chat", "summary", "extraction")


@dataclass(frozen=True)
class Options:
    """What a summary is made of. ``luck`` is added to every acceptance."""

    kinds: tuple[str, ...] = KINDS
    drafts: tuple[DraftUsed, ...] = DRAFTS
    devices: tuple[DeviceUsed, ...] = DEVICES
    temperatures: tuple[float, ...] = (0.0, 0.4, 0.8, 1.2)
    rules: tuple[str, ...] = ("coupled", "residual")
    temperature: float = 0.0
    longest: int = 8
    texts: int = 12
    luck: float = 0.0
    target: str = "qwen2.5-coder-1.5b"
    redacted: bool = False

    @property
    def intervals(self) -> bool:
        """No interval from a single text."""
        return self.texts * len(self.kinds) > 1


def summary(options: Options | None = None) -> Summary:
    """A summary as the profile would write it."""
    made = options or Options()
    kinds = [*made.kinds, ALL]
    acceptance = [
        _acceptance(made, draft, kind, (rule, temperature))
        for draft in made.drafts
        for kind in kinds
        for rule in made.rules
        for temperature in made.temperatures
    ]
    predictions = [_prediction(made, draft, kind, on) for draft in made.drafts for kind in kinds for on in made.devices]
    verdicts = [_verdict(made, kind, on, predictions) for kind in kinds for on in made.devices]
    return {
        "format": "foredraft-profile",
        "schema": 1,
        "created": "2026-11-30T18:00:00Z",
        "version": "0.1.0",
        "settings": {
            "target": made.target,
            "temperature": made.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "rule": made.rules[0],
            "seed": 0,
            "max_tokens": 160,
            "threshold": 1.15,
            "redacted": made.redacted,
        },
        "texts": made.texts * len(made.kinds),
        "tokens": 158 * made.texts * len(made.kinds),
        "warm": 2,
        "kinds": [{"name": kind, "texts": made.texts, "tokens": 158 * made.texts} for kind in made.kinds],
        "drafts": list(copy.deepcopy(made.drafts)),
        "devices": list(copy.deepcopy(made.devices)),
        "temperatures": list(made.temperatures),
        "rules": list(made.rules),
        "longest": made.longest,
        "acceptance": acceptance,
        "predictions": predictions,
        "trees": [_tree(made, draft, kind, on) for draft in made.drafts for kind in kinds for on in made.devices],
        "verdicts": verdicts,
        "advice": [
            "Ship one setting for code and extraction and leave drafting off for chat: the controller can do that.",
            "The draft is right 4 points less often at temperature 0.8 than at 0; drafting at 0.6 wins 1 point back.",
        ],
        "quality": {
            "geometric": "Acceptance rises with depth (p = 0.003): a flat α would understate E(8) by 6 %.",
            "drift": "No drift over the prompts or within texts was found (p = 0.41).",
            "sample_size": f"α is known to ± {'?' if not made.intervals else '0.03'}; ± 0.02 needs 52 more prompts.",
            "live": "Real speculative decoding on 6 prompts gave α 0.81; the trace says 0.80 for the same prompts.",
        },
        "samples": [] if made.redacted else _samples(made),
    }


def _rate(options: Options, draft: DraftUsed, kind: str, at: tuple[str, float]) -> float:
    """α at the first depth: better for code, worse for the third kind, worse when hot, better under residual."""
    rule, temperature = at
    names = list(options.kinds)
    kind_effect = 0.0 if kind == ALL or len(names) == 1 else 0.09 * math.cos(2.0 * names.index(kind)) - 0.02
    heat = 0.12 * temperature * (0.6 if rule == "residual" else 1.0)
    name_effect = -0.12 if draft["name"].startswith("smol") else 0.0
    return min(0.97, max(0.02, GUESSES[draft["source"]] + kind_effect - heat + name_effect + options.luck))


def _depths(options: Options, draft: DraftUsed, kind: str, at: tuple[str, float]) -> list[float]:
    first = _rate(options, draft, kind, at)
    return [min(0.98, first + 0.012 * depth) for depth in range(options.longest)]


def _interval(options: Options, value: float, count: float) -> Rate:
    if not options.intervals:
        return {"value": value, "low": None, "high": None}
    found = Share(value * count, count).interval()
    return {"value": found.value, "low": found.low, "high": found.high}


def _passes(options: Options, draft: DraftUsed) -> list[float]:
    share = {"ngram": 0.0, "model": 1.0, "both": 0.6}[draft["source"]]
    return [share * length for length in range(1, options.longest + 1)]


def _widths(options: Options, draft: DraftUsed) -> list[list[float]]:
    """A model always drafts all it may; copies are often silent and sometimes short."""
    silent, short = (0.0, 0.0) if draft["source"] == "model" else (0.3, 0.2)
    rows = [[0.0] * (length + 1) for length in range(1, options.longest + 1)]
    for row in rows:
        row[0] += silent
        row[1] += short
        row[-1] += 1.0 - silent - short
    return rows


def round_cost(on: DeviceUsed, row: Acceptance, length: int) -> float:
    """What a round costs on average, in plain steps."""
    spent, shares = costs(on, row["draft"]), row["widths"][length - 1]
    verify = sum(share * spent.verify(width) for width, share in enumerate(shares, 1))
    return verify + spent.level(1) * row["model_passes"][length - 1] + spent.fixed * (1 - shares[0])


def _acceptance(options: Options, draft: DraftUsed, kind: str, at: tuple[str, float]) -> Acceptance:
    rates = _depths(options, draft, kind, at)
    count = 40.0 * options.texts
    reached = [math.prod(rates[:depth]) for depth in range(len(rates))]
    alpha = sum(map(math.prod, zip(rates, reached, strict=True))) / sum(reached)
    return {
        "draft": draft["name"],
        "kind": kind,
        "rule": at[0],
        "temperature": at[1],
        "alpha": _interval(options, alpha, count),
        "by_depth": [_interval(options, rate, count * share) for rate, share in zip(rates, reached, strict=True)],
        "expected": [expected_tokens(rates[: length + 1]) for length in range(options.longest)],
        "model_passes": _passes(options, draft),
        "widths": _widths(options, draft),
    }


def costs(on: DeviceUsed, draft: str) -> Costs:
    """The speed model's costs of a draft on a device."""
    found = draft_cost(on, draft)
    assert found is not None
    curve = Curve(tuple(on["verify"]["widths"]), tuple(on["verify"]["values"]))
    return Costs(curve, Curve((1,), (found,)) if found else None, on["fixed"])


def _by_length(options: Options, draft: DraftUsed, kind: str, on: DeviceUsed) -> list[float]:
    row = _acceptance(options, draft, kind, (options.rules[0], options.temperature))
    return [row["expected"][length - 1] / round_cost(on, row, length) for length in range(1, options.longest + 1)]


def _prediction(options: Options, draft: DraftUsed, kind: str, on: DeviceUsed) -> Prediction:
    found = _by_length(options, draft, kind, on)
    speed = max(found)
    length = found.index(speed) + 1 if speed > 1 else 0
    speed = max(1.0, speed)
    even = pays_from(costs(on, draft["name"]), options.longest)
    return {
        "draft": draft["name"],
        "kind": kind,
        "device": on["name"],
        "rule": options.rules[0],
        "temperature": options.temperature,
        "by_length": found,
        "best": {
            "length": length,
            "speedup": _spread(options, speed if length else 1.0, 0.06 if length else 0.0),
            "tokens_per_second": speed / on["step_seconds"],
            "weight_bytes_per_token": (9.9e8 + draft["bytes"] * length) / (1 + length * 0.6),
        },
        "break_even_alpha": even,
    }


def _spread(options: Options, value: float, share: float) -> Interval:
    if not options.intervals:
        return {"value": value, "low": None, "high": None}
    return {"value": value, "low": value * (1 - share), "high": value * (1 + 1.1 * share)}


def _tree(options: Options, draft: DraftUsed, kind: str, on: DeviceUsed) -> Tree:
    rates = _depths(options, draft, kind, (options.rules[0], options.temperature))
    ranks = [[rate, (1 - rate) * 0.45, (1 - rate) * 0.2] for rate in rates]
    shape = best_shape(ranks, costs(on, draft["name"]).tree, Bounds(14, 6))
    assert shape is not None
    expected = expected_length(shape.parents, ranks)
    return {
        "draft": draft["name"],
        "kind": kind,
        "device": on["name"],
        "parents": list(shape.parents),
        "expected": expected,
        "speedup": shape.rate,
    }


def _verdict(options: Options, kind: str, on: DeviceUsed, predictions: Sequence[Prediction]) -> VerdictGiven:
    found = [row for row in predictions if row["kind"] == kind and row["device"] == on["name"]]
    best = max(found, key=lambda row: row["best"]["speedup"]["value"])
    speed, length = best["best"]["speedup"], best["best"]["length"]
    at = (options.rules[0], options.temperature)
    alpha = max(_acceptance(options, draft, kind, at)["alpha"]["value"] or 0.0 for draft in options.drafts)
    low = speed["low"] if speed["low"] is not None else speed["value"]
    kinds_differ = kind == ALL and len(options.kinds) > 1 and on["name"] == "this machine"
    decision: Decision = "off"
    if low >= 1.15:
        decision = "ship_by_kind" if kinds_differ else "ship"
    elif speed["value"] > 1.05:
        decision = "better_draft"
    pays = decision in ("ship", "ship_by_kind")
    return {
        "kind": kind,
        "device": on["name"],
        "decision": decision,
        "draft": best["draft"] if length else None,
        "setting": f"chain of {length}, {best['draft']}" if length else "off",
        "speedup": speed,
        "reason": REASONS[decision],
        "gate": {"alpha": alpha, "passes": alpha >= 0.55, "agrees": (alpha >= 0.55) == pays},
    }


REASONS: Mapping[Decision, str] = {
    "ship": "Even the low end of the interval is above the threshold of 1.15×.",
    "ship_by_kind": "It pays over all prompts, but chat answers would be slower: the controller turns it off for them.",
    "better_draft": "It is faster than plain decoding, but not by enough to be worth shipping.",
    "off": "Wide passes cost too much on this device: no draft reaches plain decoding’s speed.",
}

WORDS = ("def", "area", "(", "width", ",", "height", ")", ":", "\n", "return", "width", "*", "height", "\n", "#", "the",
         "size", "of", "a", "rectangle", ",", "in", "square", "metres")  # fmt: skip


def _samples(options: Options) -> list[Sample]:
    tokens = [
        (word if index == 0 or word == "\n" else f" {word}", _outcome(index)) for index, word in enumerate(WORDS * 4)
    ]
    return [
        {"kind": kind, "draft": draft["name"], "prompt": f"Write {kind} about rectangles.", "tokens": tokens}
        for draft in options.drafts
        for kind in options.kinds
    ]


def _outcome(index: int) -> int:
    return (1, 1, 2, 1, 0, 1, 1, 1, 0, 2, 1)[index * 7 % 11]


# --- ugly ones ---------------------------------------------------------------------------------------------

SCRIPT = "</script><script>document.title='pwned'</script>"
IMAGE = "<img src=x onerror=\"document.title='pwned'\">"
HOSTILE = (
    SCRIPT, IMAGE, "a\"quote' & | pipe `tick` *star* _x_", "👩‍👩‍👧 семья", "مرحبا بالعالم", "\u202eevil\u202c",
    "{{data}}", "a-very-long-name-" * 12, "line\nbreak", "\ud83d", "<!--", "]]>",
)  # fmt: skip
"""Twelve names that want to break out."""


def hostile() -> Summary:
    """Every text of the summary is something that a page or a table could trip over."""
    drafts: tuple[DraftUsed, ...] = (
        {"name": SCRIPT, "source": "ngram", "bytes": 0},
        {"name": HOSTILE[2], "source": "model", "bytes": 1},
    )
    bad_costs = {SCRIPT: 0.0, HOSTILE[2]: 0.2, "__proto__": 1.0, "constructor": 1.0}
    devices: tuple[DeviceUsed, ...] = tuple(
        {**base, "name": name, "note": IMAGE, "draft_cost": bad_costs}
        for base, name in zip((HERE, FAST, STEEP), (IMAGE, HOSTILE[4], HOSTILE[7]), strict=True)
    )
    made = summary(
        replace(Options(), kinds=HOSTILE, drafts=drafts, devices=devices, rules=(SCRIPT, "b"), target=SCRIPT)
    )
    made["advice"] = [*HOSTILE, "1. not a list", "# not a heading"]
    made["quality"] = {"geometric": SCRIPT, "drift": IMAGE, "sample_size": "", "live": None}
    made["created"], made["version"] = IMAGE, SCRIPT
    for verdict in made["verdicts"]:
        verdict["setting"] = verdict["reason"] = SCRIPT
    tokens = [
        (text, index % 3) for index, text in enumerate((*HOSTILE, "", "\ud83d", "\ude00", "\x00\x1b[31m", "\t", "\n\n"))
    ]
    made["samples"] = [{"kind": SCRIPT, "draft": draft["name"], "prompt": IMAGE, "tokens": tokens} for draft in drafts]
    return made


def unknown() -> Summary:
    """n-gram lookup never proposed anything: α is unknown."""
    made = summary(Options(kinds=("chat",), drafts=DRAFTS[:1], texts=1))
    nothing: Rate = {"value": None, "low": None, "high": None}
    for row in made["acceptance"]:
        row["alpha"], row["by_depth"], row["expected"] = nothing, [nothing] * 8, [1.0] * 8
    for found in made["predictions"]:
        found["by_length"] = [0.7] * 8
        found["best"] = {**found["best"], "length": 0, "speedup": {"value": 1.0, "low": None, "high": None}}
        found["break_even_alpha"] = None
        found["best"]["tokens_per_second"] = found["best"]["weight_bytes_per_token"] = None
    for verdict in made["verdicts"]:
        verdict["decision"], verdict["draft"], verdict["setting"] = "off", None, "off"
        verdict["speedup"] = {"value": 1.0, "low": None, "high": None}
        verdict["reason"] = "Lookup never found anything to propose."
        verdict["gate"] = {"alpha": None, "passes": False, "agrees": True}
    made["trees"], made["advice"] = [], []
    return made


def without_all() -> Summary:
    """A single kind, and nothing said of all kinds together."""
    made = summary(Options(kinds=("chat",), devices=DEVICES[:2], texts=2))
    made["acceptance"] = [row for row in made["acceptance"] if row["kind"] != ALL]
    made["predictions"] = [row for row in made["predictions"] if row["kind"] != ALL]
    made["trees"] = [row for row in made["trees"] if row["kind"] != ALL]
    made["verdicts"] = [row for row in made["verdicts"] if row["kind"] != ALL]
    return made


ONE_DRAFT = Options(
    kinds=("chat",), drafts=DRAFTS[1:2], devices=DEVICES[:1], temperatures=(0.7,), rules=("coupled",), temperature=0.7
)

UGLY: Mapping[str, Summary] = {
    "hostile": hostile(),
    "unknown": unknown(),
    "one of everything": summary(replace(ONE_DRAFT, longest=1, texts=1)),
    "without all": without_all(),
    "redacted": summary(Options(redacted=True)),
    "many": summary(
        Options(
            kinds=tuple(f"kind {n}" for n in range(12)),
            devices=(HERE, FAST, PHONE, STEEP, NPU),
            temperatures=(0.0, 0.8),
        )
    ),
    "off everywhere": summary(Options(luck=-0.5, devices=(STEEP,))),
    "long chains": summary(
        Options(
            longest=40, temperature=0.33, temperatures=(0.0, 1.0), kinds=KINDS[:2], devices=(*DEVICES, DIPS, UNMEASURED)
        )
    ),
}
"""Summaries that are right but awkward, by what is awkward about them."""
EVERYTHING: Mapping[str, Summary] = {"usual": summary(), **UGLY}
