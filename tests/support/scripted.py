"""Whole requests in one call, and drafters that are right or wrong on command.

``generate`` works over every engine; the drafters know the target's table, or the text it is going to write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from foredraft.control import OFF, Controller, Fixed
from foredraft.decode import PREFILL, Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.base import Engine, EngineInfo, Session
from foredraft.engines.scripted import ScriptedEngine, Table
from foredraft.sampling import History, Sampler
from foredraft.summary import Summary
from foredraft.tokens import StopScanner, TextStream, Tokenizer
from foredraft.types import Budget, Draft, Floats, Ids, Logits, Rule, SamplingParams, Scores, Step
from tests.support.toy_tokenizer import ToyTokenizer

TOY = ToyTokenizer()
VOCAB = TOY.vocab_size
EOG = TOY.eog_ids
END = 4
"""One of the toy vocabulary's ids that end a text."""


# --- tables -----------------------------------------------------------------------------------------------------------


def constant(*logits: float) -> Table:
    """The same logits after every text."""
    row = np.array(logits, np.float32)
    return lambda text: row


def writes(script: Sequence[int], prompt_length: int, vocab: int = VOCAB) -> Table:
    """Greedy decoding behind a prompt of this length writes ``script`` and then repeats its last id. The best logit is
    8, all others 0, whatever text stands before."""

    def table(text: tuple[int, ...]) -> Logits:
        row = np.zeros(vocab, np.float32)
        row[script[min(len(text) - prompt_length, len(script) - 1)]] = 8.0
        return row

    return table


# --- sessions that remember -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One ``extend``: the ids fed, and how many rows were scored."""

    tokens: tuple[int, ...]
    rows: int


@dataclass
class RecordingSession:
    """Notes every pass; ``text`` is what the cache holds. ``fails_at``: the number of the pass that raises."""

    inner: Session
    passes: list[Pass] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    fails_at: int | None = None
    failure: Exception = field(default_factory=RuntimeError)

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def widths(self) -> list[int]:
        """Tokens fed by each pass."""
        return [len(one.tokens) for one in self.passes]

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        self.passes.append(Pass(tuple(tokens.tolist()), rows))
        if len(self.passes) - 1 == self.fails_at:
            raise self.failure
        scores = self.inner.extend(tokens, parents, rows)
        assert scores.logits.shape[0] == rows, "only the rows asked for may exist"
        self.pending += tokens.tolist()
        return scores

    def keep(self, path: Sequence[int]) -> None:
        self.inner.keep(path)
        self.text += [self.pending[node] for node in path]
        self.pending = []

    def rewind(self, length: int) -> int:
        reached = self.inner.rewind(length)
        self.pending = []
        del self.text[reached:]
        return reached

    def close(self) -> None:
        self.inner.close()


@dataclass
class RecordingEngine:
    """Opens recording sessions on another engine; ``sessions`` holds them all."""

    inner: Engine
    sessions: list[RecordingSession] = field(default_factory=list)
    fails_at: int | None = None
    failure: Exception = field(default_factory=RuntimeError)

    @property
    def info(self) -> EngineInfo:
        return self.inner.info

    def open(self) -> RecordingSession:
        opened = RecordingSession(self.inner.open(), fails_at=self.fails_at, failure=self.failure)
        self.sessions.append(opened)
        return opened

    def close(self) -> None:
        self.inner.close()


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A whole request."""

    engine: Engine
    prompt: Sequence[int] = (1, 60, 70)
    drafter: Drafter = field(default_factory=NullDrafter)
    budget: Budget = OFF
    params: SamplingParams = SamplingParams()  # noqa: RUF009  frozen
    rule: Rule = "coupled"
    limits: Limits = Limits(max_tokens=40, eog_ids=EOG)  # noqa: RUF009  frozen
    stops: tuple[str, ...] = ()
    tokenizer: Tokenizer = TOY
    sampler: Sampler | None = None
    controller: Controller | None = None

    @property
    def plain(self) -> Run:
        """The same request with drafting off."""
        return replace(self, drafter=NullDrafter(), budget=OFF, rule="coupled", controller=None)

    def drafting(self, drafter: Drafter, budget: Budget) -> Run:
        """The same request with this drafter."""
        return replace(self, drafter=drafter, budget=budget)

    def sampled(self, params: SamplingParams) -> Run:
        """The same request with these sampling settings."""
        return replace(self, params=params)

    def upto(self, max_tokens: int) -> Run:
        """The same request with another cap."""
        return replace(self, limits=replace(self.limits, max_tokens=max_tokens))


@dataclass(frozen=True, repr=False)
class Answer:
    """What came of it. ``session``: the target's, closed. No repr: pytest would print all of it."""

    steps: list[Step]
    session: RecordingSession
    tokenizer: Tokenizer

    @property
    def rounds(self) -> list[Step]:
        """The steps behind the prompt."""
        return [step for step in self.steps if step.drafter != PREFILL]

    @property
    def summary(self) -> Summary:
        return Summary.of(self.steps)

    @property
    def ids(self) -> list[int]:
        return [id for step in self.steps for id in step.ids]

    @property
    def finish(self) -> str | None:
        return self.steps[-1].finish_reason

    @property
    def text(self) -> str:
        stream = TextStream(self.tokenizer)
        shown = [stream.push(step.ids, step.hidden_bytes) for step in self.steps]
        return "".join(shown) + stream.finish()

    @property
    def reasons(self) -> list[str | None]:
        """Why nothing was drafted, per round."""
        return [step.reason for step in self.rounds]


def begin(run: Run, session: Session) -> Generator[Step]:
    """The request's steps over a session of the caller's."""
    parts = Parts(
        session=session,
        info=run.engine.info,
        sampler=run.sampler or Sampler(run.params, rule=run.rule, eog_ids=run.limits.eog_ids),
        drafter=run.drafter,
        controller=run.controller or Fixed(run.budget),
        stops=StopScanner(run.stops, run.tokenizer) if run.stops else None,
    )
    return decode(parts, run.prompt, run.limits)


def generate(run: Run) -> Answer:
    """The whole request on a fresh session; checks what must hold of every request."""
    session = RecordingSession(run.engine.open())
    try:
        steps = list(begin(run, session))
    finally:
        session.close()
        run.drafter.close()
    answer = Answer(steps, session, run.tokenizer)
    check_counts(answer, run)
    return answer


def check_counts(answer: Answer, run: Run) -> None:
    """Counters add up, nothing exceeds a limit, and the cache holds nothing but the text."""
    for step in answer.rounds:
        assert step.drafted >= step.evaluated >= step.accepted >= 0
        assert step.accepted <= step.generated <= step.accepted + 1
        assert (step.drafted == 0) or step.reason is None
        assert step.width in (0, step.drafted + 1)
    assert [step.finish_reason for step in answer.steps[:-1]] == [None] * (len(answer.steps) - 1)
    assert answer.finish in ("stop", "length")
    generated = sum(step.generated for step in answer.steps)
    assert generated <= run.limits.max_tokens
    assert len(run.prompt) + generated <= run.engine.info.max_context
    if not run.stops:
        assert generated == len(answer.ids)
    if generated:
        held = answer.session.text
        shown = [*run.prompt, *answer.ids]
        assert len(held) <= len(run.prompt) + generated
        assert held[: len(shown)] == shown[: len(held)]


# --- drafters ---------------------------------------------------------------------------------------------------------

Source = Callable[[History, Sampler], int | None]
"""The next token the target will choose; None where that is not known."""


def oracle(table: Table) -> Source:
    """Asks the target's own table and noise."""
    return lambda context, sampler: sampler.choose(table(tuple(context.tokens)), context)


def recalled(text: Sequence[int]) -> Source:
    """Reads from prompt + answer, written down before."""
    return lambda context, sampler: text[len(context)] if len(context) < len(text) else None


class Forced:
    """Right for exactly ``accepts[round]`` tokens of each round (None = all), then wrong; the pattern repeats."""

    def __init__(self, source: Source, accepts: Sequence[int | None] = (None,), name: str = "forced") -> None:
        self.name = name
        self.observed: list[list[int]] = []
        self._source = source
        self._accepts = accepts
        self._round = 0

    def begin(self, prompt: Sequence[int]) -> None:
        self._round = 0
        self.observed = []

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        right = self._accepts[self._round % len(self._accepts)]
        self._round += 1
        start = len(context)
        tokens: list[int] = []
        while len(tokens) < budget.depth and (token := self._source(context, sampler)) is not None:
            tokens.append(token if right is None or len(tokens) < right else token - 1 if token else 1)
            context.push(tokens[-1])
        context.shrink(start)
        return Draft.chain(tokens, self.name) if tokens else Draft.empty(self.name, f"{self.name}: text ends")

    def observe(self, accepted: Sequence[int]) -> None:
        self.observed.append(list(accepted))

    def close(self) -> None:
        """Nothing to free."""


def always_right(table: Table) -> Forced:
    """Every drafted token is the target's choice."""
    return Forced(oracle(table), name="right")


def always_wrong(table: Table) -> Forced:
    """No drafted token is the target's choice."""
    return Forced(oracle(table), (0,), name="wrong")


Proposal = Callable[[History, Budget, Sampler], Draft]


class Says:
    """Proposes what a function returns; like somebody else's drafter it may break every rule."""

    def __init__(self, proposal: Proposal, name: str = "third-party") -> None:
        self.name = name
        self.calls = 0
        self.prompts: list[list[int]] = []
        self.closed = False
        self._proposal = proposal

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompts.append(list(prompt))

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        self.calls += 1
        return self._proposal(context, budget, sampler)

    def observe(self, accepted: Sequence[int]) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        self.closed = True


def repeats(token: int) -> Says:
    """Drafts copies of one token."""
    return Says(lambda context, budget, sampler: Draft.chain([token] * budget.depth, "repeats"), "repeats")


class Breaks(Forced):
    """Right until it raises: in ``begin``, in the n-th ``propose`` or in the n-th ``observe`` (from 0)."""

    def __init__(self, table: Table, where: str, number: int = 0, error: Exception | None = None) -> None:
        super().__init__(oracle(table), name="breaks")
        self._where, self._number = where, number
        self._error = error or RuntimeError("the draft broke")

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        if self._where == "begin":
            raise self._error

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        draft = super().propose(context, budget, sampler)
        if self._where == "propose" and self._round - 1 == self._number:
            context.push(9)  # broken half-way through a path
            raise self._error
        return draft

    def observe(self, accepted: Sequence[int]) -> None:
        super().observe(accepted)
        if self._where == "observe" and len(self.observed) - 1 == self._number:
            raise self._error


class RecordingSampler(Sampler):
    """Remembers the processed logits behind every choice of the target, by position."""

    def __init__(self, params: SamplingParams, eog_ids: frozenset[int] = EOG) -> None:
        super().__init__(params, eog_ids=eog_ids)
        self.rows: dict[int, Floats] = {}

    def choose(self, logits: Logits, history: History) -> int:
        self.rows[len(history)] = self._edited(logits, history).astype(np.float64)
        return super().choose(logits, history)


def toy_engine(table: Table, max_context: int = 4096) -> ScriptedEngine:
    """A scripted engine over the toy vocabulary."""
    return ScriptedEngine(table, VOCAB, max_context)
