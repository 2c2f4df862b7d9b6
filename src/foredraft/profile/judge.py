"""From predictions to a decision: what to ship for which kind of prompts on which device, and why.

A kind pays where the predicted speed-up reaches the user's threshold and a loss is excluded, by its own interval or
that of all texts. The conventional
gate, α ≥ .55, is computed beside it: it knows neither the draft's cost nor the device's curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.devices.device import Device
from foredraft.profile.intervals import Estimate
from foredraft.profile.report.shape import ALL, GATE_ALPHA, Decision
from foredraft.profile.what_if import LONGEST, Played, Predicted
from foredraft.speed import Costs, chain_speedup

_GATE_LENGTH = 4
"""The chain length at which the conventional gate's α is taken."""
_GOOD = 0.9
"""Acceptance of a very good draft."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind (or all) on one device: every draft's prediction, and the ``played`` texts behind them."""

    kind: str
    device: Device
    options: tuple[tuple[Played, Predicted], ...]

    @property
    def best(self) -> tuple[Played, Predicted]:
        """The draft with the highest predicted speed-up."""
        return max(self.options, key=lambda option: option[1].speedup.value)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict. ``draft`` None: none. ``alpha`` of the best model draft at K = 4 (of n-gram lookup where there is no
    model), None if nothing was evaluated."""

    kind: str
    device: str
    decision: Decision
    draft: str | None
    length: int
    speedup: Estimate
    reason: str
    alpha: float | None

    @property
    def setting(self) -> str:
        """What to set, in words."""
        if self.draft is None or self.decision in ("off", "better_draft"):
            return "plain decoding"
        return f"{self.draft}, at most {self.length} token{'s' * (self.length > 1)} a round"

    @property
    def gate(self) -> bool:
        """Whether the conventional gate would draft."""
        return self.alpha is not None and self.alpha >= GATE_ALPHA

    @property
    def agrees(self) -> bool:
        """Whether it says the same."""
        return self.gate == (self.decision in ("ship", "ship_by_kind"))


def judge(cells: Sequence[Cell], threshold: float) -> list[Judged]:
    """A verdict for every cell of one device; that of all kinds first, if there is one.

    Some kinds pay and others do not: those that pay get ``ship_by_kind``, the others are off. None pays:
    ``better_draft`` if a draft that is right nine times of ten would at the same cost, or one at half the cost with the
    same acceptance; else ``off``.
    """
    whole = next((cell for cell in cells if cell.kind == ALL), None)
    paying = {cell.kind: pays(cell, threshold, whole) for cell in cells}
    kinds = {kind: paid for kind, paid in paying.items() if kind != ALL} or paying
    return [_judged(cell, _decision(cell, kinds, threshold), threshold) for cell in cells]


def pays(cell: Cell, threshold: float, whole: Cell | None = None) -> bool:
    """Fast enough, and surely not slower: by the texts of the cell, or, where those are too few to tell, by all texts
    of the device (``whole``)."""
    found = cell.best[1]
    if not found.length or found.speedup.value < threshold:
        return False
    return any(_no_loss(each) for each in (cell, *filter(None, [whole])))


def _no_loss(cell: Cell) -> bool:
    found = cell.best[1]
    return found.length > 0 and (found.speedup.low is None or found.speedup.low > 1.0)


def _decision(cell: Cell, kinds: dict[str, bool], threshold: float) -> Decision:
    mine = kinds.get(cell.kind, any(kinds.values()))
    if mine:
        return "ship" if all(kinds.values()) else "ship_by_kind"
    return "better_draft" if better_would_pay(cell, threshold) else "off"


def better_would_pay(cell: Cell, threshold: float) -> bool:
    """Whether a better model draft could reach the threshold here."""
    for played, _ in cell.options:
        costs = cell.device.costs(played.choice.name)
        if played.choice.source != "model" or costs.draft is None:
            continue
        right = max(chain_speedup([_GOOD] * length, costs) for length in range(1, LONGEST + 1))
        cheap = Costs(costs.verify, costs.draft.scaled(0.5), costs.fixed)
        faster = [played.speedup(length, cheap) for length in range(1, LONGEST + 1)]
        if max(right, *(one.value for one in faster if one is not None)) >= threshold:
            return True
    return False


def gate_alpha(cell: Cell) -> float | None:
    """α of the model draft with the best prediction at K = 4, of n-gram lookup without a model."""
    models = [option for option in cell.options if option[0].choice.source == "model"] or list(cell.options)
    played = max(models, key=lambda option: option[1].speedup.value)[0]
    hits = sum(float(run.hits[_GATE_LENGTH - 1].sum()) for run in played.runs)
    trials = sum(float(run.trials[_GATE_LENGTH - 1].sum()) for run in played.runs)
    return hits / trials if trials else None


def _judged(cell: Cell, decision: Decision, threshold: float) -> Judged:
    played, predicted = cell.best
    alpha = gate_alpha(cell)
    ships = decision in ("ship", "ship_by_kind")
    draft = played.choice.name if ships and predicted.length else None
    plain = Estimate(1.0, None, None, len(played.runs))
    shown = predicted.speedup if ships else plain
    reason = _reason(cell, decision, threshold)
    return Judged(cell.kind, cell.device.name, decision, draft, predicted.length if draft else 0, shown, reason, alpha)


def _reason(cell: Cell, decision: Decision, threshold: float) -> str:
    played, predicted = cell.best
    found, name = predicted.speedup, played.choice.name
    limit = f"the threshold of {threshold:g}×"
    if decision in ("ship", "ship_by_kind"):
        rest = "" if decision == "ship" else "; other kinds do not pay and are left off"
        certain = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f} with 95 % confidence)"
        above = f", above {limit}" if found.value >= threshold else ""
        return f"{name} is predicted to reach {found.value:.2f}×{certain}{above}{rest}"
    if not predicted.length:
        why = "no draft is faster than plain decoding"
    elif found.value < threshold:
        why = f"the best draft, {name}, is predicted to reach {found.value:.2f}×, below {limit}"
    else:
        why = f"{name} is predicted to reach {found.value:.2f}×, but a loss is not excluded ({found.low:.2f}×)"
    if decision == "better_draft":
        return f"{why}; a draft that is right nine times of ten, or half as dear, would pay"
    return f"{why}; a better draft would not change that" if _has_model(cell) else why


def _has_model(cell: Cell) -> bool:
    return any(played.choice.model is not None for played, _ in cell.options)
