"""How fast a phone of the catalogue would decode, and what rounds would cost on it: an estimate from its memory
bandwidth, with what was assumed in words and how far it may be off. Nothing here was measured on that phone.

Decoding reads the weights once for every token, so a step takes bytes of the model's file ÷ (share × peak bandwidth),
and a draft's step its part of that by its bytes. Bytes are those of whole files, because the share was found with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

from foredraft.devices.device import model_of, no_draft
from foredraft.devices.phones import Catalogue, Decode
from foredraft.errors import InvalidValue, UnknownName, UsageError
from foredraft.speed import Costs, Curve

Case = Literal["expected", "pessimistic", "optimistic"]
_Value = TypeVar("_Value", float, Curve)
_WIDTHS = (1, 2, 3, 4, 6, 8, 9, 16, 32)
_SLOWEST, _FASTEST = 1e9, 1e13
"""Bytes/s that a memory may have; below the first somebody wrote GB/s."""


@dataclass(frozen=True, slots=True)
class Assumed(Generic[_Value]):
    """Something that nobody measured on the device: what is ``expected``, how bad and how good it may be, and why."""

    expected: _Value
    pessimistic: _Value
    optimistic: _Value
    source: str

    def of(self, case: Case) -> _Value:
        """The value of that case."""
        if case == "expected":
            return self.expected
        return self.pessimistic if case == "pessimistic" else self.optimistic


SHARE = Assumed(
    0.70, 0.57, 0.78,
    "expected: OnePlus 12, ExecuTorch on the CPU, 4-bit Llama 3.2 1B .74 and 3B .65; range: all 19 rows of the "
    "catalogue with a dense model, a CPU and a known bandwidth (median .64)",
)  # fmt: skip
"""Part of the peak bandwidth that decoding gets: file bytes × tokens/s ÷ bandwidth."""

VERIFY = Assumed(
    Curve(_WIDTHS, (1.0, 1.41, 1.39, 1.47, 1.51, 1.59, 2.58, 2.86, 4.74)),
    Curve(_WIDTHS, (1.0, 1.45, 1.74, 1.78, 2.60, 3.11, 3.44, 4.39, 7.73)),
    Curve(_WIDTHS, (1.0, 1.19, 1.26, 1.28, 1.37, 1.44, 2.09, 2.25, 3.97)),
    "a 1.5B with 4-bit weights on 2 CPUs of an x86-64 server (docs/benchmarks.md). Expected: ExecuTorch, 2 MB pages, "
    "256 tokens of context; pessimistic: llama.cpp, repacked weights, 2048 tokens (both mobile-curve-repacked.json); "
    "optimistic: ExecuTorch, 4 KB pages, 256 tokens (mobile-curve.json). No phone's curve is published",
)  # fmt: skip
"""v(N), time(N) ÷ time(1) of the target."""

DRAFT = Assumed(
    1.0, 1.45, 0.88,
    "expected: time in the proportion of the bytes; pessimistic: Qwen2.5-Coder 0.5B beside 1.5B, ExecuTorch on 2 CPUs "
    "of a server, .42 of a step with .29 of the bytes; optimistic: Llama 3.2 1B beside 3B on phones, .88 to 1.10 of "
    "the proportion (catalogue)",
)  # fmt: skip
"""A draft's step ÷ a target's step, over its bytes ÷ the target's bytes."""

FIXED = Assumed(
    0.02, 0.06, 0.002,
    "docs/benchmarks.md, loop overhead: 2.2 ms (greedy) to 5.9 ms (sampled) a round outside the engines, with steps of "
    "about 100 ms; taking a chain back took .001 to .002 of a step",
)  # fmt: skip
"""What a round costs besides passes, in steps."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All that an estimate leans on besides bandwidth and bytes; give your own where you know better."""

    share: Assumed[float] = SHARE
    verify: Assumed[Curve] = VERIFY
    draft: Assumed[float] = DRAFT
    fixed: Assumed[float] = FIXED


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of model files in bytes: the ``target``'s, and the ``drafts``' by name. Raises InvalidValue."""

    target: float
    drafts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, size in (("target", self.target), *self.drafts.items()):
            if not 0 < size < math.inf:
                raise InvalidValue(f"bytes of {name}", size, "the size of the model file, more than 0")


@dataclass(frozen=True, slots=True)
class EstimatedDevice:
    """A ``Device`` of which only the bandwidth is known, in bytes/s, with its ``origin`` in words."""

    name: str
    bandwidth: float
    origin: str
    weights: Weights
    assumptions: Assumptions = Assumptions()
    case: Case = "expected"

    @property
    def estimated(self) -> bool:
        """True."""
        return True

    @property
    def step_seconds(self) -> float:
        """Bytes of the target ÷ (share × bandwidth).

        >>> phone = EstimatedDevice("OnePlus 12", 76.8e9, "data sheet", Weights(1083 * 2**20))
        >>> round(1 / phone.step_seconds, 1), round(1 / phone.pessimistic.step_seconds, 1)
        (47.3, 38.5)
        """
        return self.weights.target / (self.assumptions.share.of(self.case) * self.bandwidth)

    @property
    def pessimistic(self) -> EstimatedDevice:
        """The same device if all assumptions turned out badly."""
        return replace(self, case="pessimistic")

    @property
    def optimistic(self) -> EstimatedDevice:
        """The same device if all assumptions turned out well."""
        return replace(self, case="optimistic")

    def costs(self, draft: str) -> Costs:
        """See ``Device.costs``: the assumed v(N) and o; a draft's pass over N nodes takes c·v(N), c from the bytes."""
        verify = self.assumptions.verify.of(self.case)
        fixed = self.assumptions.fixed.of(self.case)
        model = model_of(draft)
        if model is None:
            return Costs(verify, None, fixed)
        if model not in self.weights.drafts:
            raise no_draft(model, self.name, self.weights.drafts)
        cost = self.weights.drafts[model] / self.weights.target * self.assumptions.draft.of(self.case)
        return Costs(verify, verify.scaled(cost), fixed)

    @property
    def note(self) -> str:
        """What was assumed, in one sentence."""
        share, draft, verify = self.assumptions.share, self.assumptions.draft, self.assumptions.verify
        return (
            f"estimated, not measured: memory of at most {self.bandwidth / 1e9:.1f} GB/s ({self.origin}), of which "
            f"decoding is assumed to get {_range(share, '.0%')}; a pass over 8 positions is assumed to take "
            f"{verify.expected(8):.2f} steps ({verify.optimistic(8):.2f} to {verify.pessimistic(8):.2f}, measured on a "
            f"server, no phone's curve is published) and a draft's step {_range(draft, '.2f')} times its part of the "
            "bytes; measure on the phone before you rely on it"
        )


def _range(assumed: Assumed[float], form: str) -> str:
    low, high = sorted((assumed.pessimistic, assumed.optimistic))
    return f"{assumed.expected:{form}} ({low:{form}} to {high:{form}})"


def estimate(
    catalogue: Catalogue,
    name: str,
    weights: Weights,
    bandwidth: float | None = None,
    assumptions: Assumptions | None = None,
) -> EstimatedDevice:
    """The device ``name`` of the ``catalogue``, running models of these ``weights``.

    ``bandwidth``: peak bytes/s, if you know it; it wins over the catalogue, and then ``name`` may be any. Raises
    UnknownName, UsageError if the bandwidth is known neither here nor there, InvalidValue for one that cannot be.
    """
    assumptions = assumptions or Assumptions()
    if bandwidth is not None:
        return EstimatedDevice(_shown(catalogue, name), _checked(bandwidth), "as given", weights, assumptions)
    phone = catalogue.phone(name)
    fact = catalogue.bandwidth(phone)
    if fact is None:
        of = f"of {phone.name}" + (f" ({phone.chip})" if phone.chip not in (None, phone.name) else "")
        raise UsageError(
            f"the memory bandwidth {of} is not known, so no speed can be estimated; give it as a number of bytes/s, or "
            'as "bandwidth" in a device file'
        )
    origin = f"{fact.mark}, {fact.source}, {fact.date}"
    return EstimatedDevice(phone.name, _checked(fact.value), origin, weights, assumptions)


def _checked(bandwidth: float) -> float:
    if not _SLOWEST <= bandwidth <= _FASTEST:
        raise InvalidValue("bandwidth", bandwidth, "bytes/s between 1e9 and 1e13 (76.8 GB/s is 76.8e9)")
    return bandwidth


def _shown(catalogue: Catalogue, name: str) -> str:
    try:
        return catalogue.phone(name).name
    except UnknownName:
        return name


# --- against what was measured -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A measured speed of the catalogue and the ``predicted`` one, in tokens/s."""

    row: Decode
    predicted: float
    slowest: float
    fastest: float

    @property
    def ratio(self) -> float:
        """Predicted ÷ measured: 1.2 is a prediction 20 % too fast."""
        return self.predicted / self.row.tokens_per_second

    @property
    def within(self) -> bool:
        """Whether the measured speed lies in the predicted range."""
        return self.slowest <= self.row.tokens_per_second <= self.fastest


def checks(catalogue: Catalogue) -> list[Check]:
    """Every measured decode speed whose file size and bandwidth are known, beside its prediction.

    Of the 21 built-in ones, 19 of dense models on CPUs lie within the range, which was made from them; expected speeds
    are .91 to 1.23 of the measured ones, too fast for 14 of the 19. Two miss by far, at .44 and .49: Gemma 4 E2B reads
    a part of its file only.
    """
    found = []
    for row in catalogue.decode:
        fact = catalogue.bandwidth(catalogue.phone(row.device))
        if fact is not None and row.file_bytes is not None:
            device = estimate(catalogue, row.device, Weights(row.file_bytes))
            speeds = [1 / each.step_seconds for each in (device, device.pessimistic, device.optimistic)]
            found.append(Check(row, *speeds))
    return found
