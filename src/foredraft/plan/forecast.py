"""How fast a draft would make a device: acceptance that was measured, given or assumed, under the speed model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foredraft.devices.device import Device
from foredraft.plan.options import NGRAM, NONE, Candidate
from foredraft.speed import best_chain, break_even_alpha

ASSUMED = 0.70
"""α of every draft model of which nothing is known: the same for all, so it says nothing about which is better."""
_LONGEST = 8
_PLAIN = "plain decoding"


@dataclass(frozen=True, slots=True)
class Alphas:
    """Acceptance by a draft's name; ``default`` for the others (None: they are assumed). ``origin`` in words."""

    by_name: Mapping[str, float] = field(default_factory=dict)
    default: float | None = None
    origin: str = "as given"

    def of(self, candidate: Candidate) -> tuple[float, str] | None:
        """α and its origin; None where any number would be a fable: copies from a text that nobody has seen."""
        known = self.by_name.get(candidate.name, self.default)
        if known is not None:
            return known, self.origin
        return None if candidate.name == NGRAM else (ASSUMED, "assumed")


@dataclass(frozen=True, slots=True)
class Forecast:
    """``tokens_per_second`` and ``speedup`` over plain decoding with the best chain of ``length`` tokens (0: plain
    decoding is best), for ``alpha``, and the α from which drafting pays (None: never). ``estimated``: the device was
    not measured."""

    tokens_per_second: float
    speedup: float
    length: int
    alpha: float | None
    origin: str
    break_even: float | None
    estimated: bool

    @property
    def known(self) -> bool:
        """False for a draft of which nobody knows how often it is right; its speed is plain decoding's then."""
        return self.alpha is not None or self.origin == _PLAIN

    @property
    def note(self) -> str:
        """What the speed leans on, in words."""
        notes = ["estimated"] if self.estimated else []
        if self.origin == "assumed":
            notes.append(f"α {self.alpha:.2f} assumed")
        elif not self.known:
            notes.append("more where copies are right")
        return ", ".join(notes)


def forecast(device: Device, candidate: Candidate, alphas: Alphas) -> Forecast:
    """What ``candidate`` gives on ``device``, which knows its costs under its name."""
    plain = 1.0 / device.step_seconds
    if candidate.name == NONE:
        return Forecast(plain, 1.0, 0, None, _PLAIN, None, device.estimated)
    costs = device.costs(candidate.name)
    pays_from = break_even_alpha(costs, _LONGEST)
    known = alphas.of(candidate)
    if known is None:
        return Forecast(plain, 1.0, 0, None, "depends on the text", pays_from, device.estimated)
    alpha, origin = known
    length, gain = best_chain([alpha] * _LONGEST, costs)
    return Forecast(gain * plain, gain, length, alpha, origin, pays_from, device.estimated)
