"""What a device profile means: where drafting pays, by how much, and how sure that is. Pure arithmetic and words.

It judges the machine, not a text: how often guesses are right (α) stays open, so every answer is for a given α.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.control.estimates import Acceptance
from foredraft.devices.measured import DeviceProfile, Noise, Timing
from foredraft.speed import NORMAL_95, Costs, Curve, best_chain, break_even_alpha
from foredraft.trees import Bounds, best_shape

ALPHAS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptance of a first guess, from poor to very good."""
HOPEFUL = 0.8
"""The α that a sentence speaks of: a good draft on a suitable text."""
NOISY = 0.10
"""A curve known no better than this does not decide."""
_TREE_MARGIN = 1.03
"""A tree must promise this much more than the best chain: its estimates lean on more assumptions."""
_CHEAPEST = 0.8
"""Wider passes may be a little cheaper than single ones (other kernels); below this something disturbed the clock."""
_BRANCHES, _DEPTH, _LONGEST = 4, 8, 63
_SE = 1.2533 / 0.6745
"""Standard error of a median ÷ (half the interquartile range ÷ √runs), for a normal law: √(π/2)·σ and .6745·σ."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The best chain or tree at one ``alpha``: its ``size`` in drafted tokens (0: drafting does not pay) and the
    ``speedup`` over plain decoding (1.0 then)."""

    alpha: float
    size: int
    speedup: float


@dataclass(frozen=True, slots=True)
class DraftVerdict:
    """Of one draft; n-gram lookup has ``cost`` None. ``break_even``: the α from which some chain pays, None if none
    does; ``between``: the same if passes were dearer or cheaper by the curve's uncertainty (slowest first)."""

    name: str
    cost: float | None
    break_even: float | None
    between: tuple[float | None, float | None]
    chains: tuple[Gain, ...]
    trees: tuple[Gain, ...]

    @property
    def longest_chain(self) -> int:
        """The longest chain that is best for some α; 0 if none pays."""
        return max(gain.size for gain in self.chains)

    @property
    def largest_tree(self) -> int:
        """The largest tree that clearly beats the best chain for some α; 0 if none does."""
        return max((gain.size for gain in self.trees), default=0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``drafts``: n-gram lookup, then the draft models. ``uncertainty``: v(N) up to 9 is known to ± this share (95 %);
    None where passes were measured too seldom to say. ``exact``: no bit depended on the width or the tree; None where
    that was not measured. ``disturbed``: some wide pass seemed to take much less than a single position.
    """

    drafts: tuple[DraftVerdict, ...]
    uncertainty: float | None
    exact: bool | None
    disturbed: bool = False

    @property
    def decided(self) -> bool:
        """Whether the curve is known well enough to rely on the rest."""
        return self.uncertainty is not None and self.uncertainty <= NOISY and not self.disturbed


def judge(profile: DeviceProfile) -> Verdict:
    """The verdict on ``profile``."""
    known = uncertainty(profile.curve)
    drafts = [_judge_draft(profile, None, known or 0.0)]
    drafts += [_judge_draft(profile, index, known or 0.0) for index in range(len(profile.drafts))]
    noises = (*profile.width_noise, *profile.tree_noise)
    exact = all(noise.logits == 0.0 for noise in noises) if noises else None
    return Verdict(tuple(drafts), known, exact, min(profile.verify_curve().values) < _CHEAPEST)


def uncertainty(curve: Sequence[Timing]) -> float | None:
    """Half width of the 95 % interval of v(N) = time(N) / time(1), relative, the largest for N ≤ 9.

    The standard error of a median of n runs is √(π/2)·σ/√n for a normal law (asymptotically), σ half the interquartile
    range ÷ .6745; errors of numerator and denominator add in squares. None with fewer than 3 runs.

    >>> round(uncertainty([Timing(1, 0.020, 0.02, 16), Timing(4, 0.025, 0.02, 16)]), 3)
    0.026
    """
    near = [timing for timing in curve if timing.width <= 9]
    if min(timing.runs for timing in near) < 3:
        return None
    errors = [_SE * timing.spread / math.sqrt(timing.runs) for timing in near]
    return NORMAL_95 * max(math.hypot(errors[0], error) for error in errors)


def costs(profile: DeviceProfile, draft: int | None) -> Costs:
    """What rounds cost with the draft model ``draft`` (None: n-gram lookup, which costs nothing)."""
    fixed = (profile.rollback.chain or 0.0) / profile.step_seconds
    return Costs(profile.verify_curve(), None if draft is None else profile.draft_curve(draft), fixed)


def _judge_draft(profile: DeviceProfile, draft: int | None, known: float) -> DraftVerdict:
    spent = costs(profile, draft)
    most = min(_LONGEST, profile.curve[-1].width - 1)
    chains = tuple(Gain(alpha, *best_chain([alpha] * most, spent, profile.widths)) for alpha in ALPHAS)
    trees = tuple(_best_tree(profile, spent, chain) for chain in chains) if profile.tree and draft is not None else ()
    longest = max(1, min(8, most))
    return DraftVerdict(
        name="n-gram lookup" if draft is None else profile.drafts[draft].model.name,
        cost=None if draft is None else profile.cost(draft),
        break_even=break_even_alpha(spent, longest),
        between=(
            break_even_alpha(_scaled(spent, 1 + known), longest),
            break_even_alpha(_scaled(spent, 1 - known), longest),
        ),
        chains=chains,
        trees=trees,
    )


def _scaled(spent: Costs, factor: float) -> Costs:
    """Wide passes dearer or cheaper by ``factor``, never cheaper than one position."""
    first, *others = spent.verify.values
    return Costs(
        Curve(spent.verify.widths, (first, *(max(first, value * factor) for value in others))), spent.draft, spent.fixed
    )


def _best_tree(profile: DeviceProfile, spent: Costs, chain: Gain) -> Gain:
    """The best tree at the chain's α, of size 0 if it gains nothing worth speaking of. Siblings are accepted as
    often as controllers believe before they have seen any (``control.estimates``)."""
    ranks = Acceptance().by_rank(chain.alpha, _BRANCHES)
    sizes = frozenset(width - 1 for width in profile.widths) if profile.widths else None
    shape = best_shape([ranks], spent.tree, Bounds(min(_LONGEST, profile.curve[-1].width - 1), _DEPTH, sizes))
    if shape is None or shape.rate <= _TREE_MARGIN * chain.speedup or _is_chain(shape.parents):
        return Gain(chain.alpha, 0, chain.speedup)
    return Gain(chain.alpha, len(shape.parents), shape.rate)


def _is_chain(parents: Sequence[int]) -> bool:
    return list(parents) == list(range(-1, len(parents) - 1))


# --- words -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line of the page: a ``topic`` and what there is to say of it."""

    topic: str
    words: str


def sentences(profile: DeviceProfile, verdict: Verdict) -> list[Sentence]:
    """The verdict in words, the most important first; where nothing is decided, every advice says so."""
    perhaps = "" if verdict.decided else "perhaps: "
    return [
        Sentence("plain", _plain(profile)),
        Sentence("certainty", _certainty(profile, verdict)),
        *(Sentence("draft", perhaps + _draft(draft, verdict)) for draft in verdict.drafts),
        Sentence("chains", perhaps + _chains(verdict)),
        Sentence("trees", perhaps + _trees(profile, verdict)),
        Sentence("taking back", _rollback(profile)),
        Sentence("exactness", _exactness(profile, verdict)),
        Sentence("memory", _memory(profile)),
        *(Sentence("note", note) for note in profile.notes),
    ]


def _plain(profile: DeviceProfile) -> str:
    step, curve = profile.step_seconds, profile.verify_curve()
    wide = ", ".join(f"v({width}) {curve(width):.2f}" for width in (2, 4, 8) if width in curve.widths)
    return f"a token takes {milliseconds(step)} ms ({1 / step:.3g} tokens/s)" + (f"; {wide}" if wide else "")


def milliseconds(seconds: float) -> str:
    """Three digits, never as a power of ten.

    >>> milliseconds(6.3846), milliseconds(0.024123), milliseconds(0.00000012)
    ('6385', '24.1', '0.00012')
    """
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-4 else f"{value:.5f}"


def _certainty(profile: DeviceProfile, verdict: Verdict) -> str:
    again = "what follows is a guess; close other programs and measure again, with more time (--seconds)"
    if verdict.uncertainty is None:
        return f"not decided: some widths were measured once or twice only, so no spread is known; {again}"
    worst = max(timing.spread for timing in profile.curve)
    words = f"v is good to ± {verdict.uncertainty:.0%} (95 %); single passes vary by up to {worst:.0%}"
    if verdict.disturbed:
        return f"not decided: wide passes seemed cheaper than single ones, so something else was running; {again}"
    return words if verdict.decided else f"too noisy to decide: {words}; {again}"


def _draft(draft: DraftVerdict, verdict: Verdict) -> str:
    head = draft.name if draft.cost is None else f"{draft.name} costs {draft.cost:.2f} of a step"
    if draft.break_even is None:
        unsure = " (within the uncertainty it might)" if draft.between[1] is not None else ""
        return f"{head}; it does not pay, even if every guess were right{unsure}"
    begin = f"{head}; pays from α {draft.break_even:.2f}{_between(draft)} on"
    if draft.break_even < 0.01:
        begin = f"{head}; pays for any α"
    best = next(gain for gain in draft.chains if gain.alpha == HOPEFUL)
    if not best.size:
        return f"{begin}, so only where nearly every guess is right"
    words = f"{begin}; with α {HOPEFUL} {best.speedup:.2f}× ({_tokens(best.size)})"
    free = draft.cost is None and verdict.decided
    return f"{words}; leave it on, it guesses only where the text repeats" if free else words


def _between(draft: DraftVerdict) -> str:
    """The range of the break-even, if it is wide enough to matter."""
    late, early = draft.between
    if early is None or (late is not None and late - early < 0.04):
        return ""
    return f" ({early:.2f} to {'never' if late is None else f'{late:.2f}'})"


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count != 1 else ''}"


def _chains(verdict: Verdict) -> str:
    longest = [(draft.longest_chain, draft) for draft in verdict.drafts]
    if not any(length for length, _ in longest):
        return f"do not pay for any α up to {ALPHAS[-1]}: decode plainly"
    return "; ".join(
        f"{draft.name}: up to {_tokens(length)}" if length else f"{draft.name}: none" for length, draft in longest
    )


def _trees(profile: DeviceProfile, verdict: Verdict) -> str:
    if not profile.tree:
        return "this engine takes none here"
    models = verdict.drafts[1:]
    if not models:
        return "the engine takes them; whether they pay depends on a draft model (--draft), and none was given"
    parts = []
    for draft in models:
        if not draft.largest_tree:
            parts.append(f"{draft.name}: a chain is about as fast for every α tried")
            continue
        best = max(zip(draft.trees, draft.chains, strict=True), key=lambda pair: pair[0].speedup / pair[1].speedup)
        tree, chain = best
        parts.append(
            f"{draft.name}: up to {draft.largest_tree} nodes; they gain most with α {tree.alpha}, "
            f"{tree.speedup:.2f}× against {chain.speedup:.2f}× for the best chain"
        )
    return "; ".join(parts)


def _rollback(profile: DeviceProfile) -> str:
    parts = []
    for name, seconds in (("chain of 4", profile.rollback.chain), ("tree of 8", profile.rollback.tree)):
        if seconds is not None:
            parts.append(
                f"a rejected {name} {milliseconds(seconds)} ms ({seconds / profile.step_seconds:.1%} of a step)"
            )
    return "; ".join(parts) if parts else "not measured"


def _exactness(profile: DeviceProfile, verdict: Verdict) -> str:
    if verdict.exact is None:
        return "not measured"
    shown: list[tuple[str, Sequence[Noise]]] = [("chains", profile.width_noise), ("trees", profile.tree_noise)]
    shown = [(name, noises) for name, noises in shown if noises]
    if verdict.exact:
        kinds = " and ".join(name for name, _ in shown)
        return f"{kinds} gave the bits of single positions in every row compared"
    parts = [f"{name} move logits by up to {max(noise.logits for noise in noises):.2g}" for name, noises in shown]
    return f"not bit for bit: {', '.join(parts)}, so near-ties may fall the other way"


def _memory(profile: DeviceProfile) -> str:
    size = sum(model.bytes for model in (profile.target, *(draft.model for draft in profile.drafts)))
    files = f"the model files have {_amount(size)}"
    if profile.free_bytes is None:
        return f"{files}; how much memory is free is not known here"
    words = f"{_amount(profile.free_bytes)} free beside the loaded models; {files}"
    if profile.free_bytes < size / 4:
        words += "; that is tight: weights may be dropped and read again, which makes every pass slow"
    return words


def _amount(size: int) -> str:
    """1.5e9 -> "1.5 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
