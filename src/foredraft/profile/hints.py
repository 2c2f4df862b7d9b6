"""What would make drafting better, in sentences: each follows from numbers of the trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foredraft.profile.judge import Cell, better_would_pay, pays
from foredraft.profile.report.shape import ALL
from foredraft.profile.trace import Trace, accepted_by_rank
from foredraft.profile.what_if import best_draft_temperature, chances, recorded

_SHARES = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5)
"""Draft temperatures that are tried, as shares of the target's."""
_GAIN = 0.01
"""Acceptance that another draft temperature must add to be worth a word."""
_CLOSE = 1.03
"""A model behind n-gram lookup must be this much faster to be worth its memory."""
_SECOND = 0.10
"""How often a draft's second guess must be right for a tree, or for training, to have something to win."""


def hints(trace: Trace, cells: Sequence[Cell], threshold: float) -> list[str]:
    """The advice of a report; empty where there is nothing to say."""
    if not trace.counted:
        return []
    whole = [cell for cell in cells if cell.kind == ALL]
    found = [*_ranking(whole), *_copies_only(whole), *_temperature(trace), *_second_guesses(trace, whole, threshold)]
    return [*found, *_off_kinds(cells, threshold)]


def _ranking(cells: Sequence[Cell]) -> list[str]:
    """Candidate models in the order of predicted speed, where there are several."""
    found = []
    for cell in cells:
        models = [(played.choice.name, predicted.speedup.value) for played, predicted in cell.options
                  if played.choice.source == "model"]  # fmt: skip
        if len(models) > 1:
            ranked = sorted(models, key=lambda pair: -pair[1])
            words = ", ".join(f"{name} {speed:.2f}×" for name, speed in ranked)
            found.append(f"On {cell.device.name} the drafts rank: {words}.")
    return found


def _copies_only(cells: Sequence[Cell]) -> list[str]:
    found = []
    for cell in cells:
        speeds = {played.choice.source: predicted.speedup.value for played, predicted in cell.options}
        if "model" not in speeds or speeds["ngram"] <= 1.0:
            continue
        if _CLOSE * speeds["ngram"] >= max(speeds.values()):
            found.append(
                f"On {cell.device.name} n-gram lookup alone is about as fast ({speeds['ngram']:.2f}×) as anything with "
                "a draft model, and needs no memory for one."
            )
    return found


def _temperature(trace: Trace) -> list[str]:
    """A draft may want another temperature than the target."""
    ask, found = recorded(trace), []
    if ask.params.greedy or trace.settings.redacted:
        return []
    heat = ask.params.temperature
    used = ask.draft_params.temperature
    for number, draft in enumerate(trace.settings.drafts):
        tried = [round(heat * share, 3) for share in (*_SHARES, used / heat)]
        fitted = best_draft_temperature(trace, number, ask, tried)
        now = best_draft_temperature(trace, number, ask, [used])
        if fitted is not None and now is not None and fitted[1] > now[1] + _GAIN:
            found.append(
                f"{draft.name} is accepted more often at temperature {fitted[0]:g} ({fitted[1]:.2f} of its tokens) "
                f"than at {used:g} ({now[1]:.2f}): set --draft-temperature {fitted[0]:g}."
            )
    return found


def _second_guesses(trace: Trace, cells: Sequence[Cell], threshold: float) -> list[str]:
    """Where no draft pays: whether training has something to work with."""
    if not cells or any(pays(cell, threshold) for cell in cells):
        return []
    ask, found = recorded(trace), []
    for number, draft in enumerate(trace.settings.drafts):
        first = float(np.concatenate([chances(trace, text, number, ask) for text in trace.counted]).mean())
        ranks = np.concatenate([accepted_by_rank(text, number, ask) for text in trace.counted]).mean(axis=0)
        second = float(ranks[1])
        if second >= _SECOND:
            found.append(
                f"{draft.name} is right with its first guess at {first:.0%} of all tokens and with its second at "
                f"{second:.0%} more: it knows the words but not their order, which tuning it on these prompts may mend."
            )
        elif any(better_would_pay(cell, threshold) for cell in cells):
            found.append(
                f"{draft.name} is right at {first:.0%} of all tokens: try a larger draft, or tune it on these prompts."
            )
    return found


def _off_kinds(cells: Sequence[Cell], threshold: float) -> list[str]:
    """Kinds that do not pay although others do."""
    found = []
    whole = {cell.device.name: cell for cell in cells if cell.kind == ALL}
    for name, everything in whole.items():
        mine = [cell for cell in cells if cell.device.name == name and cell.kind != ALL]
        off = [cell.kind for cell in mine if not pays(cell, threshold, everything)]
        if off and len(off) < len(mine):
            found.append(f"On {name} leave drafting off for: {', '.join(off)}.")
    return found
