"""What a trace says about settings that were never run: any temperature, rule, draft, chain length and device.

Texts are replayed (see ``replay``), so that drafts, rounds and passes are those of the loop; only the text itself stays
the recorded one. Where the question is the recorded setting itself, the draft's recorded guesses answer it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foredraft.devices.device import Device
from foredraft.profile.counts import TextCounts, banded
from foredraft.profile.intervals import Estimate, ratio
from foredraft.profile.laws import Laws, processed
from foredraft.profile.replay import Replayed, Text, replay, replay_tree
from foredraft.profile.trace import Ask, TextTrace, Trace, accepted, accepted_by_rank
from foredraft.speed import Costs
from foredraft.trees import Bounds, Shape, best_shape
from foredraft.types import Floats, Ids, SamplingParams

LONGEST = 8
"""The longest chain that is weighed."""
LENGTHS = tuple(range(1, LONGEST + 1))
TREE = Bounds(31, 6)
"""The largest tree that is weighed."""
NGRAM = "ngram"
_WINDOW = 8
"""Tokens before a position that are weighed; from 8 on the answer hardly changed on recorded texts."""
_NEVER, _MOST = 20.0, 5.0
"""Bounds of the logarithm of a weight."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What drafts: n-gram lookup (``copies``), the draft model number ``model`` of the trace, or both, copies first."""

    name: str
    copies: bool
    model: int | None = None

    @property
    def source(self) -> str:
        """As a report calls it: ngram, model or both."""
        return "both" if self.copies and self.model is not None else ("ngram" if self.copies else "model")


def choices(trace: Trace) -> tuple[Choice, ...]:
    """Every draft that the trace knows, alone and behind n-gram lookup."""
    names = [draft.name for draft in trace.settings.drafts]
    alone = [Choice(name, False, number) for number, name in enumerate(names)]
    both = [Choice(f"{NGRAM}+{name}", True, number) for number, name in enumerate(names)]
    return (Choice(NGRAM, True), *alone, *both)


def recorded(trace: Trace) -> Ask:
    """The setting that the texts were written with."""
    return Ask(trace.settings.sampling.params(), "coupled", trace.settings.draft_temperature)


def chances(trace: Trace, text: TextTrace, draft: int, ask: Ask) -> Floats:
    """Probability, float64[P], that the token of draft number ``draft`` is accepted at each position of ``text``; 0 or
    1 for the recorded setting."""
    if ask == recorded(trace):
        return np.asarray(text.drafts[draft].rank == 0, np.float64)
    return accepted(text, draft, ask)


# --- replayed texts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """Texts of a trace replayed with one ``choice`` under one setting, every chain length of ``LENGTHS``."""

    choice: Choice
    texts: tuple[TextTrace, ...]
    runs: tuple[Replayed, ...]

    def of(self, kind: str | None) -> Played:
        """Only the texts of this kind (None: all)."""
        keep = [kind in (None, text.facts.kind) for text in self.texts]
        texts = tuple(text for text, kept in zip(self.texts, keep, strict=True) if kept)
        return Played(self.choice, texts, tuple(run for run, kept in zip(self.runs, keep, strict=True) if kept))

    def tokens(self, length: int) -> Floats:
        """Tokens of each text, float64[N]; weighted like all other numbers."""
        return np.array([run.tokens[length - 1] for run in self.runs], np.float64)

    def rounds(self, length: int) -> Floats:
        """Rounds of each text by width, float64[N, LONGEST + 1]: 1, 2, … positions."""
        return np.array([run.widths[length - 1, 1:] for run in self.runs])

    def passes(self, length: int) -> Floats:
        """Passes of the draft model for each text, float64[N]."""
        return np.array([run.passes[length - 1] for run in self.runs])

    def counts(self, length: int) -> list[TextCounts]:
        """What ``stats`` wants, of chains of ``length``."""
        return [
            _counts(text, run, length)
            for text, run in zip(self.texts, self.runs, strict=True)
            if run.trials[length - 1].any()
        ]

    def expected(self, length: int) -> float:
        """Tokens a round."""
        return float(self.tokens(length).sum() / self.rounds(length).sum())

    def seconds(self, length: int, costs: Costs) -> Floats:
        """Time of each text in plain steps, float64[N]; a round without a draft has no fixed cost of its own."""
        rounds = self.rounds(length)
        verify = rounds @ np.array([costs.verify(width) for width in range(1, rounds.shape[1] + 1)])
        return np.asarray(verify + costs.level(1) * self.passes(length) + costs.fixed * rounds[:, 1:].sum(axis=1))

    def speedup(self, length: int, costs: Costs) -> Estimate | None:
        """Plain time ÷ time, over all texts, with its interval over texts; None without texts."""
        return ratio(self.tokens(length), self.seconds(length, costs))


def play(trace: Trace, choice: Choice, ask: Ask) -> Played:
    """All texts of the trace under ``ask``."""
    return Played(choice, trace.counted, tuple(_run(trace, text, choice, ask) for text in trace.counted))


def _run(trace: Trace, text: TextTrace, choice: Choice, ask: Ask) -> Replayed:
    shape = Text(len(text), text.facts.limit, text.copies if choice.copies else None)
    weight = likeness(trace, text, ask)
    if choice.model is None:
        return replay(shape, None, LENGTHS, weight)
    one = chances(trace, text, choice.model, ask)
    return replay(shape, np.tile(one, (LONGEST, 1)), LENGTHS, weight)


def likeness(trace: Trace, text: TextTrace, ask: Ask) -> Floats | None:
    """How much each position of a recorded text counts for a cooler target, float64[P]: the last ``_WINDOW`` tokens'
    probability there ÷ their probability as recorded. None (all alike) for a target that is not cooler, and for a
    redacted text.

    Importance sampling of the text that a position stands behind, cut off to the last few tokens, because over whole
    texts hardly any weight would be left. A hotter target writes tokens that a cooler one's texts do not have, so there
    is nothing to weigh.
    """
    before = trace.settings.sampling.params()
    if text.target is None or text.ids is None or ask.params.temperature >= before.temperature:
        return None
    logs = _log_probs(text.target, text.ids, ask.params) - _log_probs(text.target, text.ids, before)
    sums = np.concatenate([[0.0], np.cumsum(logs)])
    at = np.arange(len(text))
    return np.asarray(np.exp(np.clip(sums[at] - sums[np.maximum(0, at - _WINDOW)], -_NEVER, _MOST)), np.float64)


def _log_probs(laws: Laws, ids: Ids, params: SamplingParams) -> Floats:
    """ln p of the text's tokens after processing, float64[P]; a token beyond the kept ones is taken as very
    unlikely."""
    law = processed(laws, params)
    probs = (law.probs * (law.ids == ids[:, None])).sum(axis=1)
    return np.asarray(np.log(np.maximum(probs, math.exp(-_NEVER))), np.float64)


def _counts(text: TextTrace, run: Replayed, length: int) -> TextCounts:
    return TextCounts(
        text=text.facts.key,
        kind=text.facts.kind,
        tokens=float(run.tokens[length - 1]),
        rounds=float(run.rounds[length - 1]),
        hits=tuple(run.hits[length - 1, :length].tolist()),
        trials=tuple(run.trials[length - 1, :length].tolist()),
        band_hits=banded(run.hit_at[length - 1]),
        band_trials=banded(run.tried_at[length - 1]),
    )


# --- predictions -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Predicted:
    """On one device: ``by_length``: speed-ups of chains of 1..LONGEST; the best ``length`` (0: plain decoding) with its
    ``speedup`` (the interval holds what texts and the device leave open), ``tokens_per_second`` and
    ``weight_bytes`` that are read for a token."""

    by_length: tuple[float, ...]
    length: int
    speedup: Estimate
    tokens_per_second: float
    weight_bytes: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of weights that one pass reads."""

    target: float
    draft: float = 0.0


def predict(played: Played, device: Device, sizes: Sizes) -> Predicted:
    """The best chain for these texts on ``device``."""
    name, texts = played.choice.name, len(played.runs)
    costs = device.costs(name)
    found = [played.speedup(length, costs) for length in LENGTHS]
    values = [one.value if one is not None else 1.0 for one in found]
    length = int(np.argmax(values)) + 1
    best = found[length - 1]
    if best is None or best.value <= 1.0:
        plain = Estimate(1.0, 1.0, 1.0, texts) if texts > 1 else Estimate(1.0, None, None, texts)
        return Predicted(tuple(values), 0, plain, 1.0 / device.step_seconds, sizes.target)
    rounds, passes = float(played.rounds(length).sum()), float(played.passes(length).sum())
    read = (rounds * sizes.target + passes * sizes.draft) / float(played.tokens(length).sum())
    whole = widened(best, played, length, device)
    return Predicted(tuple(values), length, whole, best.value / device.step_seconds, read)


def widened(found: Estimate, played: Played, length: int, device: Device) -> Estimate:
    """The interval over texts, and what is not known of the device: both in quadrature on the logarithm."""
    if found.low is None or found.high is None:
        return found
    name = played.choice.name
    bad = played.speedup(length, device.pessimistic.costs(name))
    good = played.speedup(length, device.optimistic.costs(name))
    assert bad is not None and good is not None
    below = math.hypot(math.log(found.value / found.low), math.log(found.value / min(bad.value, found.value)))
    above = math.hypot(math.log(found.high / found.value), math.log(max(good.value, found.value) / found.value))
    return replace(found, low=found.value * math.exp(-below), high=found.value * math.exp(above))


def best_tree(trace: Trace, played: Played, ask: Ask, costs: Costs) -> Shape | None:
    """The tree of the draft model that promises most on these texts, None if there is no model or nothing was tried.

    Acceptance of first children by depth as replayed; what is left to later siblings as their ranks share it.
    """
    model = played.choice.model
    if model is None or not played.texts:
        return None
    trials = sum(run.trials[LONGEST - 1] for run in played.runs)
    hits = sum(run.hits[LONGEST - 1] for run in played.runs)
    assert isinstance(trials, np.ndarray) and isinstance(hits, np.ndarray)
    if not trials.any():
        return None
    ranks = np.concatenate([accepted_by_rank(text, model, ask) for text in played.texts]).mean(axis=0)
    later = ranks[1:] / max(1e-9, 1.0 - float(ranks[0]))
    table = list[list[float]]()
    for hit, tried in zip(hits.tolist(), trials.tolist(), strict=True):
        first = hit / tried if tried > 0 else table[-1][0]
        table.append([first, *((1.0 - first) * later).tolist()])
    return best_shape(table, costs.tree, TREE)


def tree_tokens(played: Played, parents: Sequence[int]) -> float:
    """Tokens a round with a tree of the draft model under the recorded setting: counted, not estimated."""
    model = played.choice.model
    assert model is not None, "copies have no second guesses"
    rounds = sum(
        replay_tree(Text(len(text), text.facts.limit), text.drafts[model].rank, parents)[0] for text in played.texts
    )
    return sum(map(len, played.texts)) / rounds


def best_draft_temperature(trace: Trace, draft: int, ask: Ask, among: Sequence[float]) -> tuple[float, float] | None:
    """The draft's temperature of ``among`` with the highest mean acceptance, and that; None for a greedy target, whose
    draft is greedy, and without texts."""
    if ask.params.greedy or not trace.counted:
        return None
    means = []
    for temperature in among:
        asked = replace(ask, draft_temperature=temperature)
        means.append(float(np.concatenate([accepted(text, draft, asked) for text in trace.counted]).mean()))
    best = int(np.argmax(means))
    return among[best], means[best]
