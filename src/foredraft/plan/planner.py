"""One question, one device, one answer: what fits, what binds, which draft is the largest, which the fastest, and what
to change if it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foredraft.devices.device import Device
from foredraft.errors import UnknownName
from foredraft.memory import Plan, runtime_for, size
from foredraft.modelfile import ModelShape
from foredraft.plan.allowance import Allowance, Bound
from foredraft.plan.forecast import Alphas, Forecast, forecast
from foredraft.plan.options import NGRAM, NONE, Candidate, Setting, plan

LEAST_CONTEXT = 512
"""No shorter context is proposed."""
_STEP = 256
_LEAST_CHUNK, _LEAST_WIDTH = 64, 4
_PADDING = 128
"""Vocabularies of one family differ by no more (llama.cpp's rule for pairs)."""


@dataclass(frozen=True, slots=True)
class Question:
    """``drafts``: what may stand beside the target, the wanted one first; the others are smaller or larger
    candidates."""

    target: ModelShape
    drafts: tuple[Candidate, ...]
    setting: Setting
    alphas: Alphas = field(default_factory=Alphas)


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft in its plan. ``room``: bytes left below the binding bound (negative: missing), None if nothing is known
    of the device's memory. ``forecast`` None: nothing is known of its speed. ``flaw``: why it cannot draft for this
    target, in words."""

    candidate: Candidate
    plan: Plan
    room: int | None
    forecast: Forecast | None
    flaw: str | None = None

    @property
    def fits(self) -> bool | None:
        """None: not known."""
        return None if self.room is None else self.room >= 0


@dataclass(frozen=True, slots=True)
class Change:
    """A single change, in words, and what it leads to."""

    words: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer for one device. ``asked``: the first draft of the question. ``largest``: the largest draft model that
    fits; ``recommended``: the fastest that fits, as far as speeds are known. ``changes``: single ones after which the
    asked plan fits, the fastest first; ``enough``: if none does, the changes that together do, in order; ``needs``: GiB
    that a device of this system would need, None if no such device is known."""

    allowance: Allowance
    choices: tuple[Choice, ...]
    changes: tuple[Change, ...] = ()
    enough: tuple[Change, ...] = ()

    @property
    def asked(self) -> Choice:
        """The plan with the draft that was asked for."""
        return self.choices[0]

    @property
    def binding(self) -> Bound | None:
        """What limits this device."""
        return self.allowance.binding

    @property
    def needs(self) -> int | None:
        """GiB that a device of this system would need for the asked plan."""
        return self.allowance.needs(self.asked.plan.total)

    @property
    def largest(self) -> Choice | None:
        """The largest draft model that fits."""
        fitting = [each for each in self.choices if each.fits and each.candidate.shape is not None and not each.flaw]
        return max(fitting, key=lambda each: each.candidate.nbytes, default=None)

    @property
    def recommended(self) -> Choice | None:
        """The fastest that fits, no draft if none is known to pay; None where no speed is known or nothing fits."""
        known = [
            each
            for each in self.choices
            if each.fits and not each.flaw and each.forecast is not None and each.forecast.known
        ]
        return max(known, key=lambda each: each.forecast.speedup if each.forecast else 0.0, default=None)


def plan_device(question: Question, allowed: Allowance, device: Device | None) -> Planned:
    """Hold every draft of the question against ``allowed``; ``device``: for speeds, None if nothing is known of
    them."""
    world = _World(question, allowed, device)
    names = [candidate.name for candidate in question.drafts]
    extra = [Candidate(name) for name in (NGRAM, NONE) if name not in names]
    choices = tuple(world.choice(candidate) for candidate in (*question.drafts, *extra))
    if choices[0].fits is not False:
        return Planned(allowed, choices)
    changes = sorted(world.changes(), key=_speed, reverse=True)
    single = tuple(change for change in changes if change.choice.fits)
    return Planned(allowed, choices, single, () if single else tuple(world.together()))


def _speed(change: Change) -> float:
    known = change.choice.forecast
    return known.tokens_per_second if known is not None else 0.0


@dataclass(frozen=True)
class _World:
    question: Question
    allowed: Allowance
    device: Device | None

    def choice(self, candidate: Candidate, setting: Setting | None = None) -> Choice:
        """The candidate's plan, under another setting if one is given."""
        made = plan(self.question.target, candidate, setting or self.question.setting)
        return Choice(candidate, made, self.room(made), self.forecast(candidate), flaw(self.question.target, candidate))

    def room(self, made: Plan) -> int | None:
        """See ``Choice``."""
        bound = self.allowed.binding
        counted = made.dirty if self.allowed.mapped_free else made.total
        return None if bound is None else bound.nbytes - counted

    def forecast(self, candidate: Candidate) -> Forecast | None:
        """None where the device, or what the draft costs on it, is not known."""
        if self.device is None:
            return None
        try:
            return forecast(self.device, candidate, self.question.alphas)
        except UnknownName:
            return None

    def changes(self) -> Iterator[Change]:
        """All single changes, in the order in which they hurt least where no speed is known."""
        asked, setting = self.question.drafts[0], self.question.setting
        if self.allowed.entitled is not None:
            entitled = replace(self, allowed=self.allowed.entitled)
            yield Change("Apple's increased-memory-limit entitlement", entitled.choice(asked))
        for words, changed in self.settings():
            yield Change(words, self.choice(asked, changed))
        context = self.context(asked, setting)
        if context is not None:
            words = f"a context of {context} tokens instead of {setting.context}"
            yield Change(words, self.choice(asked, replace(setting, context=context)))
        if asked.shape is None:
            return
        for other in self.smaller(asked):
            yield Change(f"{other.name} as the draft instead of {asked.name}", self.choice(other))
        if not asked.shared_bytes:
            yield Change("a shared-weight head instead of a draft model", self.choice(self.head()))
        yield Change("copies from the text (n-gram) instead of a draft model", self.choice(Candidate(NGRAM)))
        yield Change("no draft", self.choice(Candidate(NONE)))

    def settings(self) -> Iterator[tuple[str, Setting]]:
        """Smaller types for keys and values, where the runtime has them."""
        setting = self.question.setting
        smaller = _smaller_types(setting)
        if self.question.drafts[0].shape is not None and (setting.draft_kv_type or setting.kv_type) in smaller:
            kind = smaller[setting.draft_kv_type or setting.kv_type]
            yield f"the draft's keys and values as {kind}", replace(setting, draft_kv_type=kind)
        if setting.kv_type in smaller:
            kind = smaller[setting.kv_type]
            both = replace(setting, kv_type=kind, draft_kv_type=smaller.get(setting.draft_kv_type or ""))
            yield f"keys and values as {kind} instead of {setting.kv_type}", both

    def smaller(self, asked: Candidate) -> list[Candidate]:
        """Smaller draft models of the question, the largest first."""
        others = [
            each
            for each in self.question.drafts[1:]
            if each.shape is not None and each.nbytes < asked.nbytes and flaw(self.question.target, each) is None
        ]
        return sorted(others, key=lambda each: -each.nbytes)

    def head(self) -> Candidate:
        return Candidate.head(self.question.target)

    def context(self, candidate: Candidate, setting: Setting) -> int | None:
        """The longest context in steps of 256 that fits; None if none from 512 on does."""
        low, high = LEAST_CONTEXT // _STEP, (setting.context - 1) // _STEP
        found = None
        while low <= high:
            middle = (low + high) // 2
            room = self.room(plan(self.question.target, candidate, replace(setting, context=middle * _STEP)))
            if room is not None and room >= 0:
                found, low = middle * _STEP, middle + 1
            else:
                high = middle - 1
        return found

    def together(self) -> Iterator[Change]:
        """Changes one on top of the other until the plan fits; if it never does, all of them."""
        world = self
        if self.allowed.entitled is not None:
            world = replace(self, allowed=self.allowed.entitled)
            yield Change("Apple's increased-memory-limit entitlement", world.choice(self.question.drafts[0]))
        for words, candidate, setting in self.steps():
            change = Change(words, world.choice(candidate, setting))
            yield change
            if change.choice.fits:
                return
            context = world.context(candidate, setting)
            if context is not None:
                shorter = f"a context of {context} tokens instead of {setting.context}"
                yield Change(shorter, world.choice(candidate, replace(setting, context=context)))
                return

    def steps(self) -> Iterator[tuple[str, Candidate, Setting]]:
        """What is changed after the entitlement, in order; the context is tried after every one of them."""
        candidate, setting = self.question.drafts[0], self.question.setting
        for words, changed in list(self.settings())[-1:]:
            setting = changed
            yield words, candidate, setting
        for other in self.smaller(candidate)[-1:]:
            candidate = other
            yield f"{other.name} as the draft", candidate, setting
        if candidate.shape is not None:
            candidate = Candidate(NGRAM)
            yield "copies from the text (n-gram) instead of a draft model", candidate, setting
        if setting.use(self.question.target).chunk > _LEAST_CHUNK and not self.question.target.pass_width:
            setting = replace(setting, chunk=_LEAST_CHUNK)
            yield f"prompts in chunks of {_LEAST_CHUNK} tokens", candidate, setting
        if setting.rows > _LEAST_WIDTH and not self.question.target.pass_rows:
            setting = replace(setting, rows=_LEAST_WIDTH)
            yield f"{_LEAST_WIDTH} positions verified at once", candidate, setting
        if setting.sequences > 1:
            setting = replace(setting, sequences=1)
            yield "one request at a time", candidate, setting
        setting = replace(setting, context=min(setting.context, LEAST_CONTEXT))
        yield f"a context of {setting.context} tokens", candidate, setting


def _smaller_types(setting: Setting) -> dict[str, str]:
    """Type -> the next smaller one worth having; half of f16 loses next to nothing, 4 bits do."""
    known = runtime_for(setting.runtime, here=setting.here).kv_types
    return {kind: "q8_0" for kind in ("f32", "f16") if "q8_0" in known and kind in known}


def sentence(planned: Planned) -> str:
    """What fits by how much, or what is missing and which bound says so, in one line."""
    asked, bound = planned.asked, planned.binding
    if bound is None or asked.room is None:
        return f"{planned.allowance.device}: its memory is not known; give --available, or a device file"
    guess = ", a guess" if bound.guess else ""
    if asked.room >= 0:
        return f"fits: {size(asked.plan.total)} of {size(bound.nbytes)} ({bound.name}{guess}), {size(asked.room)} left"
    needs = f"; needs a device with {planned.needs} GiB" if planned.needs else ""
    return f"does not fit: {size(-asked.room)} more than {size(bound.nbytes)} ({bound.name}{guess}){needs}"


def flaw(target: ModelShape, candidate: Candidate) -> str | None:
    """Why a draft cannot guess for ``target``: its words are others. None if nothing speaks against it, which
    `foredraft pair-check` looks at in full."""
    shape = candidate.shape
    if shape is None or abs(shape.vocab_size - target.vocab_size) <= _PADDING:
        return None
    return f"{candidate.name} has {shape.vocab_size} tokens, the target {target.vocab_size}: it cannot draft for it"


def warnings(question: Question) -> list[str]:
    """What a plan cannot know, or what will not work, in one sentence each."""
    found, context = [], question.setting.context
    shapes = [(question.target.name, question.target)]
    shapes += [(each.name, each.shape) for each in question.drafts if each.shape is not None]
    for name, shape in shapes:
        if shape.context_length and context > shape.context_length:
            found.append(f"{name} was made for {shape.context_length} tokens of context, not {context}")
        if shape.recurrent and shape.state_bytes is None:
            found.append(f"{name} keeps a state of a kind whose size is not known here; it is not counted")
    return found + list(filter(None, (flaw(question.target, each) for each in question.drafts)))
