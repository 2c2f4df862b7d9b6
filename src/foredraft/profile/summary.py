"""A trace and devices -> the profile summary, the one document from which page, Markdown and tables are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from foredraft import __version__
from foredraft.devices.device import Device
from foredraft.errors import UnknownName
from foredraft.profile import advice as samples_advice
from foredraft.profile import checks, stats
from foredraft.profile.hints import hints
from foredraft.profile.intervals import Estimate
from foredraft.profile.judge import Cell, Judged, judge
from foredraft.profile.live import Compared
from foredraft.profile.report import shape
from foredraft.profile.report.shape import ALL
from foredraft.profile.trace import GRID, Ask, TextTrace, Trace
from foredraft.profile.what_if import (
    LENGTHS,
    LONGEST,
    Choice,
    Played,
    Predicted,
    Sizes,
    best_tree,
    choices,
    play,
    predict,
    recorded,
    tree_tokens,
)
from foredraft.speed import break_even_alpha
from foredraft.types import Rule, SamplingParams

RULES: tuple[Rule, ...] = ("coupled", "residual")
_GRID = GRID
_SAMPLES = 2
"""Sample texts of each kind that the report shows."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``devices`` to predict for, the first one shown first; ``threshold``: the speed-up worth shipping."""

    devices: Sequence[Device]
    threshold: float = 1.15
    temperatures: tuple[float, ...] = _GRID
    live: Sequence[Compared] = field(default=())
    now: datetime | None = None


@dataclass(frozen=True)
class Profile:
    """Everything computed: by draft the texts replayed under the recorded setting, the cells and their verdicts."""

    trace: Trace
    played: tuple[Played, ...]
    cells: tuple[Cell, ...]
    verdicts: tuple[Judged, ...]


def evaluate(trace: Trace, wanted: Wanted) -> Profile:
    """Replay all drafts under the recorded setting and judge every kind on every device."""
    ask = recorded(trace)
    played = tuple(play(trace, choice, ask) for choice in choices(trace))
    kinds = (ALL, *trace.kinds) if len(trace.kinds) > 1 else (ALL,)
    cells, verdicts = list[Cell](), list[Judged]()
    for device in wanted.devices:
        mine = [_cell(trace, played, kind, device) for kind in kinds]
        cells += mine
        verdicts += judge(mine, wanted.threshold)
    return Profile(trace, played, tuple(cells), tuple(verdicts))


def _cell(trace: Trace, played: Sequence[Played], kind: str, device: Device) -> Cell:
    options = []
    for one in played:
        if _known(device, one.choice.name):
            mine = one.of(None if kind == ALL else kind)
            options.append((mine, predict(mine, device, sizes(trace, one.choice))))
    return Cell(kind, device, tuple(options))


def _known(device: Device, draft: str) -> bool:
    try:
        device.costs(draft)
    except UnknownName:
        return False
    return True


def sizes(trace: Trace, choice: Choice) -> Sizes:
    """Bytes that passes read."""
    draft = trace.settings.drafts[choice.model].bytes if choice.model is not None else 0
    return Sizes(trace.settings.target.bytes, draft)


# --- the document ------------------------------------------------------------------------------------------


def summary(profile: Profile, wanted: Wanted) -> shape.Summary:
    """The document; see ``report.shape``."""
    trace = profile.trace
    now = wanted.now or datetime.now(UTC)
    temperatures = _temperatures(trace, wanted)
    texts = trace.counted
    return {
        "format": shape.FORMAT,
        "schema": shape.SCHEMA,
        "created": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "version": __version__,
        "settings": _settings(trace, wanted),
        "texts": len(texts),
        "tokens": sum(map(len, texts)),
        "warm": trace.settings.repeats,
        "kinds": [_kind(kind, texts) for kind in trace.kinds],
        "drafts": [
            {"name": one.choice.name, "source": _source(one.choice), "bytes": int(sizes(trace, one.choice).draft)}
            for one in profile.played
        ],
        "devices": [_device(trace, profile.played, device) for device in wanted.devices],
        "temperatures": list(temperatures),
        "rules": list(RULES),
        "longest": LONGEST,
        "acceptance": list(_acceptance(profile, temperatures)),
        "predictions": [_prediction(trace, cell, *option) for cell in profile.cells for option in cell.options],
        "trees": list(_trees(profile)),
        "verdicts": [_verdict(one) for one in profile.verdicts],
        "advice": hints(profile.trace, profile.cells, wanted.threshold),
        "quality": _quality(profile, wanted),
        "samples": list(_samples(profile)),
    }


def _temperatures(trace: Trace, wanted: Wanted) -> list[float]:
    return sorted({*wanted.temperatures, trace.settings.sampling.temperature})


def _settings(trace: Trace, wanted: Wanted) -> shape.SettingsUsed:
    used = trace.settings
    return {
        "target": used.target.name,
        "temperature": used.sampling.temperature,
        "top_k": used.sampling.top_k,
        "top_p": used.sampling.top_p,
        "rule": "coupled",
        "seed": used.sampling.seed,
        "max_tokens": used.max_tokens,
        "threshold": wanted.threshold,
        "redacted": used.redacted,
    }


def _kind(kind: str, texts: Iterable[TextTrace]) -> shape.Kind:
    lengths = [len(text) for text in texts if text.facts.kind == kind]
    return {"name": kind, "texts": len(lengths), "tokens": sum(lengths)}


def _source(choice: Choice) -> shape.Source:
    return "both" if choice.source == "both" else ("ngram" if choice.source == "ngram" else "model")


def _device(trace: Trace, played: Sequence[Played], device: Device) -> shape.DeviceUsed:
    names = [one.choice.name for one in played if _known(device, one.choice.name)]
    costs = {name: device.costs(name) for name in names}
    curve = next(iter(costs.values())).verify
    return {
        "name": device.name,
        "estimated": device.estimated,
        "step_seconds": device.step_seconds,
        "verify": {"widths": list(curve.widths), "values": list(curve.values)},
        "draft_cost": {name: costs[name].level(1) for name in names},
        "fixed": next(iter(costs.values())).fixed,
        "note": device.note,
    }


def _acceptance(profile: Profile, temperatures: Sequence[float]) -> Iterable[shape.Acceptance]:
    trace, base = profile.trace, recorded(profile.trace)
    kinds = (None, *trace.kinds) if len(trace.kinds) > 1 else (None,)
    for number, choice in enumerate(choices(trace)):
        for rule in RULES:
            for temperature in temperatures:
                ask = _asked(base, rule, temperature)
                played = profile.played[number] if ask == base else play(trace, choice, ask)
                for kind in kinds:
                    yield _row(played.of(kind), kind or ALL, rule, temperature)


def _asked(base: Ask, rule: Rule, temperature: float) -> Ask:
    if rule == base.rule and temperature == base.params.temperature:
        return base
    params: SamplingParams = replace(base.params, temperature=temperature)
    return replace(base, params=params, rule=rule)


def _row(played: Played, kind: str, rule: str, temperature: float) -> shape.Acceptance:
    found = stats.summarise(played.counts(LONGEST))
    depths = [_rate(depth) for depth in found.by_depth[:LONGEST]]
    return {
        "draft": played.choice.name,
        "kind": kind,
        "rule": rule,
        "temperature": temperature,
        "alpha": _rate(found.alpha),
        "by_depth": depths,
        "expected": [played.expected(length) for length in LENGTHS],
        "model_passes": [float(played.passes(k).sum() / played.rounds(k).sum()) for k in LENGTHS],
        "widths": [_shares(played, length) for length in LENGTHS],
    }


def _shares(played: Played, length: int) -> list[float]:
    rounds = played.rounds(length).sum(axis=0)
    return [float(share) for share in (rounds / rounds.sum())[: length + 1]]


def _rate(found: Estimate | None) -> shape.Rate:
    if found is None:
        return {"value": None, "low": None, "high": None}
    return {"value": found.value, "low": found.low, "high": found.high}


def _interval(found: Estimate) -> shape.Interval:
    return {"value": found.value, "low": found.low, "high": found.high}


def _prediction(trace: Trace, cell: Cell, played: Played, found: Predicted) -> shape.Prediction:
    return {
        "draft": played.choice.name,
        "kind": cell.kind,
        "device": cell.device.name,
        "rule": "coupled",
        "temperature": trace.settings.sampling.temperature,
        "by_length": list(found.by_length),
        "best": {
            "length": found.length,
            "speedup": _interval(found.speedup),
            "tokens_per_second": found.tokens_per_second,
            "weight_bytes_per_token": found.weight_bytes,
        },
        "break_even_alpha": break_even_alpha(cell.device.costs(played.choice.name), LONGEST),
    }


def _trees(profile: Profile) -> Iterable[shape.Tree]:
    ask = recorded(profile.trace)
    for cell in profile.cells:
        for played, _ in cell.options:
            if played.choice.source != "model":
                continue
            tree = best_tree(profile.trace, played, ask, cell.device.costs(played.choice.name))
            if tree is not None:
                tokens = tree_tokens(played, tree.parents)
                yield {
                    "draft": played.choice.name,
                    "kind": cell.kind,
                    "device": cell.device.name,
                    "parents": list(tree.parents),
                    "expected": tokens,
                    "speedup": tokens / tree.time,
                }


def _verdict(found: Judged) -> shape.VerdictGiven:
    return {
        "kind": found.kind,
        "device": found.device,
        "decision": found.decision,
        "draft": found.draft,
        "setting": found.setting,
        "speedup": _interval(found.speedup),
        "reason": found.reason,
        "gate": {"alpha": found.alpha, "passes": found.gate, "agrees": found.agrees},
    }


def _quality(profile: Profile, wanted: Wanted) -> shape.Quality:
    """Of the draft model with the best acceptance, of n-gram lookup where there is no model."""
    models = [one for one in profile.played if one.choice.source == "model"] or list(profile.played[:1])
    best = max(models, key=lambda one: one.expected(LONGEST))
    counts = best.counts(LONGEST)
    name = best.choice.name
    return {
        "geometric": f"{name}: {checks.check_depths(counts).sentence}",
        "drift": f"{name}: {checks.check_drift(counts).sentence}",
        "sample_size": f"{name}: {samples_advice.sample_size(counts).sentence}",
        "live": "; ".join(one.sentence for one in wanted.live) or None,
    }


def _samples(profile: Profile) -> Iterable[shape.Sample]:
    """Some texts of every kind, with every draft."""
    for played in profile.played:
        taken: dict[str, int] = {}
        for text in played.texts:
            kind = text.facts.kind
            taken[kind] = taken.get(kind, 0) + 1
            if text.pieces is not None and taken[kind] <= _SAMPLES:
                yield {
                    "kind": kind,
                    "draft": played.choice.name,
                    "prompt": text.facts.prompt,
                    "tokens": _tokens(text, played.choice),
                }


def _tokens(text: TextTrace, choice: Choice) -> list[tuple[str, int]]:
    """Every token with what the draft would have done there, were it asked at each position."""
    assert text.pieces is not None
    rows = []
    for at, piece in enumerate(text.pieces):
        copied = choice.copies and text.copies.proposed[at] > 0
        if copied:
            state = shape.RIGHT if text.copies.matched[at] > 0 else shape.WRONG
        elif choice.model is None:
            state = shape.NOT_DRAFTED
        else:
            state = shape.RIGHT if text.drafts[choice.model].rank[at] == 0 else shape.WRONG
        rows.append((piece.decode("utf-8", "replace"), state))
    return rows
