"""Where the cost-aware controller's prior times come from: a profile that was given, one that is kept, a quick look."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from foredraft.control import Priors
from foredraft.devices import read_profile
from foredraft.doctor import QUICK, load_or_measure, loaded_of, subject_of
from foredraft.errors import ContextFull, EngineFailure, InvalidValue, UsageError
from foredraft.pipeline import Pipeline, Setup
from foredraft.policy import Policy


@dataclass(frozen=True)
class KnownCosts:
    """``priors`` for the controller, and what the user should know of them."""

    priors: Priors
    notes: tuple[str, ...] = ()


def known_costs(
    pipeline: Pipeline, setup: Setup, policy: Policy, profile: Path | None, ids: Sequence[int]
) -> KnownCosts:
    """What is known of times before the first round; ``ids``: the prompt, to measure behind. Measures, for a second or
    two, only where the controller needs it, nothing is kept, and something may be drafted at all."""
    guess = pipeline.priors()
    if policy.controller != "cost":
        if profile is not None:
            raise InvalidValue("--profile", str(profile), "only with --controller cost, which alone knows times")
        return KnownCosts(guess)
    if not guess.sources or pipeline.engine.info.rollback == "none":
        return KnownCosts(guess)
    if profile is not None:
        return _given(profile, setup, guess)
    try:
        found = load_or_measure(subject_of(setup), lambda: nullcontext(loaded_of(pipeline, ids)), QUICK)
    except (ContextFull, EngineFailure, UsageError) as error:
        return KnownCosts(guess, (f"passes could not be measured ({error}); starting from a guess",))
    return KnownCosts(_completed(found.profile.as_priors(tuple(guess.sources)), guess))


def _given(path: Path, setup: Setup, guess: Priors) -> KnownCosts:
    profile, own = read_profile(path), subject_of(setup)
    notes = []
    if profile.target.fingerprint != own.target.fingerprint:
        notes.append(f"{path.name} was measured with {profile.target.name}, not with {own.target.name}")
    elif profile.machine != own.machine:
        notes.append(f"{path.name} was measured on another machine; times are corrected while decoding")
    priors = profile.as_priors(tuple(guess.sources))
    if "model" in guess.sources and "model" not in priors.sources:
        notes.append(f"{path.name} knows no draft model; its cost is guessed from the size of its file")
    return KnownCosts(_completed(priors, guess), tuple(notes))


def _completed(priors: Priors, guess: Priors) -> Priors:
    """With the guesses of what a profile does not know, such as a head, whose cost is learnt while decoding."""
    sources = {name: priors.sources.get(name, source) for name, source in guess.sources.items()}
    return replace(priors, sources=sources)
