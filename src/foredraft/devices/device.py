"""One small interface for a device that was measured and one that is only estimated: what a round costs on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from foredraft.devices.measured import DeviceProfile, DraftTimes
from foredraft.devices.verdict import uncertainty
from foredraft.errors import UnknownName
from foredraft.records import shown
from foredraft.speed import Costs, Curve

NGRAM = "ngram"
"""The draft that copies from the text: no model, so it costs nothing but the fixed part of a round."""
_WITH_NGRAM = f"{NGRAM}+"
_ENDINGS = (".gguf", ".pte", ".safetensors")
_UNKNOWN = 0.25
"""Uncertainty of a curve whose widths were measured once or twice only: a guess, because no spread is known then."""


class Device(Protocol):
    """Where a target and its drafts run."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    @property
    def estimated(self) -> bool:
        """True if nothing was measured on it: every figure is then to be marked as an estimate."""
        ...

    @property
    def step_seconds(self) -> float:
        """Seconds of one plain step of the target; tokens/s of plain decoding is its inverse."""
        ...

    @property
    def note(self) -> str:
        """One sentence: when it was measured, or what was assumed."""
        ...

    @property
    def pessimistic(self) -> Device:
        """The same device if everything that is not known exactly were as bad as it may be: where a speed-up's interval
        ends below. A round costs at least as much there, in steps, and a step takes at least as long."""
        ...

    @property
    def optimistic(self) -> Device:
        """The same device if everything that is not known exactly were as good as it may be."""
        ...

    def costs(self, draft: str) -> Costs:
        """What rounds with ``draft`` cost, in steps of the target: "ngram", a model's name, or "ngram+" and a model's
        name for both together (the draft cost is then the model's). UnknownName with the list if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device profile as a ``Device``. Drafts are known by the name of their file, with or without its ending, in any
    case, or by their fingerprint. ``scale``: by how much wider passes cost more than measured (1 = as measured)."""

    profile: DeviceProfile
    name: str = "this machine"
    scale: float = 1.0

    @property
    def estimated(self) -> bool:
        """False."""
        return False

    @property
    def step_seconds(self) -> float:
        """The measured time(1), which the interval leaves alone: it is known much better than a speed-up."""
        return self.profile.step_seconds

    @property
    def note(self) -> str:
        """When and with what it was measured."""
        profile = self.profile
        known = uncertainty(profile.curve)
        unsure = f"too few passes to know how good v is, ± {_UNKNOWN:.0%} is a guess"
        sure = unsure if known is None else f"v is good to ± {known:.0%}"
        return (
            f"measured {profile.measured_at:%Y-%m-%d} with {profile.target.name} on {profile.target.engine}, "
            f"{profile.threads} threads, behind {profile.context} tokens; {sure}"
        )

    @property
    def pessimistic(self) -> MeasuredDevice:
        """With wide passes dearer by the 95 % uncertainty of the curve."""
        return replace(self, scale=1.0 + self._uncertainty())

    @property
    def optimistic(self) -> MeasuredDevice:
        """With wide passes cheaper by the 95 % uncertainty of the curve, but never cheaper than a single position."""
        return replace(self, scale=1.0 - self._uncertainty())

    def costs(self, draft: str) -> Costs:
        """See ``Device.costs``; ``fixed`` is the measured time of taking a rejected chain back."""
        index = self._index(draft)
        curve = None if index is None else self.profile.draft_curve(index)
        fixed = (self.profile.rollback.chain or 0.0) / self.step_seconds
        return Costs(scaled(self.profile.verify_curve(), self.scale), curve, fixed)

    def _uncertainty(self) -> float:
        known = uncertainty(self.profile.curve)
        return _UNKNOWN if known is None else known

    def _index(self, draft: str) -> int | None:
        model = model_of(draft)
        if model is None:
            return None
        found = [index for index, times in enumerate(self.profile.drafts) if _fits(times, model)]
        if len(found) == 1:
            return found[0]
        known = [times.model for times in self.profile.drafts]
        if found:
            prints = ", ".join(known[index].fingerprint for index in found)
            raise UnknownName(f"{shown(model)} means {len(found)} drafts of {self.name}; use a fingerprint: {prints}")
        raise no_draft(model, self.name, [facts.name for facts in known])


def model_of(draft: str) -> str | None:
    """The draft model that ``draft`` speaks of; None for copies alone.

    >>> model_of("ngram"), model_of("ngram+small"), model_of("small")
    (None, 'small', 'small')
    """
    return None if draft == NGRAM else draft.removeprefix(_WITH_NGRAM)


def no_draft(draft: str, device: str, known: Iterable[str]) -> UnknownName:
    """The error for a draft whose cost on ``device`` nobody knows."""
    listed = ", ".join((NGRAM, *known))
    return UnknownName(f"the cost of the draft {shown(draft)} on {device} is not known; known: {listed}")


def scaled(curve: Curve, factor: float) -> Curve:
    """Wide passes dearer or cheaper by ``factor``, never cheaper than one position.

    >>> scaled(Curve((1, 4, 8), (1.0, 1.2, 2.0)), 0.7).values
    (1.0, 1.0, 1.4)
    """
    first, *others = curve.values
    return Curve(curve.widths, (first, *(max(first, value * factor) for value in others)))


def _fits(times: DraftTimes, draft: str) -> bool:
    facts = times.model
    return draft == facts.fingerprint or _bare(draft) == _bare(facts.name)


def _bare(name: str) -> str:
    lower = name.casefold()
    return next((lower.removesuffix(ending) for ending in _ENDINGS if lower.endswith(ending)), lower)
