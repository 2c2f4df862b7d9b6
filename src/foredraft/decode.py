"""The loop: the only room that calls session, drafter, verification and controller together.

``decode`` yields one ``Step`` per prompt chunk and per round; everything else (command line, server, profiler, tests)
is a plain consumer of that iterator. Knows nothing about models, files or terminals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from foredraft import trees
from foredraft.control import OFF, Controller, Fixed
from foredraft.drafters.base import Drafter, ReadsStates
from foredraft.drafters.null import NullDrafter
from foredraft.engines.base import EngineInfo, Session
from foredraft.errors import InvalidValue, PromptError
from foredraft.sampling import History, Sampler, log_softmax_at, top_logprobs
from foredraft.tokens import StopScanner
from foredraft.types import Budget, Draft, Emitted, FinishReason, Ids, Logits, Rung, Seconds, Step, Trial, Verdict
from foredraft.verify import check_max_tv, verify

PREFILL = "prefill"
"""``Step.drafter`` of the steps that only read the prompt."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request ends and what it reports. ``logprobs``: alternatives per token (None = no log-probabilities).
    ``max_tv``: bound of the ``relaxed`` rule. ``chunk``: prompt tokens per pass, the same with and without a draft."""

    max_tokens: int = 256
    eog_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    max_tv: float = 0.0
    chunk: int = 512

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise InvalidValue("max_tokens", self.max_tokens, "0 or a positive integer")
        if self.logprobs is not None and not 0 <= self.logprobs <= 100:
            raise InvalidValue("logprobs", self.logprobs, "0 to 100 alternatives")
        if self.chunk < 1:
            raise InvalidValue("chunk", self.chunk, "a positive integer")


@dataclass(frozen=True)
class Parts:
    """What a request is decoded with. ``info`` describes the engine behind ``session``."""

    session: Session
    info: EngineInfo
    sampler: Sampler
    drafter: Drafter = NullDrafter()  # noqa: RUF009  stateless
    controller: Controller = Fixed(OFF)  # noqa: RUF009  frozen
    stops: StopScanner | None = None


def decode(parts: Parts, prompt: Sequence[int], limits: Limits) -> Generator[Step]:
    """Generate up to ``limits.max_tokens`` tokens after ``prompt``; the last step has a finish reason.

    The session may already hold a prefix of the prompt. Closing the iterator cancels within one round. Raises
    PromptError before the first step if the prompt is empty, too long, or holds ids the model does not have.
    """
    check_prompt(prompt, parts.info)
    if parts.sampler.rule == "relaxed":
        check_max_tv(limits.max_tv)
    run = _Run(parts, prompt, limits)
    return run.steps()


def check_prompt(prompt: Sequence[int], info: EngineInfo) -> None:
    """Raise PromptError for a prompt that ``decode`` would refuse."""
    if not len(prompt):
        raise PromptError("the prompt is empty; give at least one token")
    if len(prompt) >= info.max_context:
        raise PromptError(
            f"the prompt has {len(prompt)} tokens, the context holds {info.max_context} including at least one new "
            "token; shorten the prompt or raise --ctx"
        )
    worst = max(prompt) if max(prompt) >= info.vocab_size else min(prompt)
    if not 0 <= worst < info.vocab_size:
        raise PromptError(f"token id {worst} is outside the model's vocabulary of {info.vocab_size}")


class _Run:
    """The state of one request."""

    def __init__(self, parts: Parts, prompt: Sequence[int], limits: Limits) -> None:
        self._parts = parts
        self._limits = limits
        self._history = History(prompt, parts.sampler.params.penalty_window)
        self._room = min(limits.max_tokens, parts.info.max_context - len(prompt))
        self._off: str | None = None
        if parts.info.rollback == "none":
            self._off = f"rollback: none, plain decoding ({parts.info.reason or 'the engine cannot forget tokens'})"
        self._outlet = _Outlet(parts.stops, limits.eog_ids)

    def steps(self) -> Generator[Step]:
        if self._room == 0:
            yield Step((), 0, 0, 0, 0, 0, Seconds(), "none", None, "length")
            return
        yield from self._prefill()
        finish = None
        while finish is None:
            step = self._round()
            finish = step.finish_reason
            self._parts.controller.observe(step)
            yield step

    def _prefill(self) -> Iterator[Step]:
        """Read the prompt but for its last token, which the first round scores: the passes are the same whether or
        not anything is drafted."""
        session, tokens = self._parts.session, self._history.tokens
        if session.length >= len(tokens):
            session.rewind(len(tokens) - 1)  # it holds the whole prompt: the last token must be fed to be scored
        start = perf_counter()
        self._parts.controller.begin()
        self._begin_draft(tokens)
        draft_seconds = perf_counter() - start
        while session.length < len(tokens) - 1:
            start = perf_counter()
            end = min(session.length + self._limits.chunk, len(tokens) - 1)
            ids = np.array(tokens[session.length : end], np.int32)
            hidden = session.extend(ids, np.arange(-1, len(ids) - 1, dtype=np.int32), 0).hidden
            middle = perf_counter()
            session.keep(range(len(ids)))
            self._read_states(hidden)
            seconds = Seconds(draft_seconds, middle - start, perf_counter() - middle, 0.0)
            draft_seconds = 0.0
            yield Step((), 0, 0, 0, 0, len(ids), seconds, PREFILL)

    def _begin_draft(self, tokens: Sequence[int]) -> None:
        if self._off is None:
            try:
                self._parts.drafter.begin(tokens)
            except Exception as error:  # noqa: BLE001  a draft must never take the answer down, whatever it raises
                self._disable(error)

    def _disable(self, error: Exception) -> None:
        self._off = f"{self._parts.drafter.name} failed, drafting is off for this request: {error}"

    def _round(self) -> Step:
        start = perf_counter()
        budget = self._budget()
        draft = self._propose(budget)
        drafted = perf_counter()
        session = self._parts.session
        unseen = len(self._history) - session.length
        scores = session.extend(*self._fed(draft, unseen), len(draft) + 1)
        verified = perf_counter()
        verdict = verify(draft, scores.logits, self._parts.sampler, self._history, self._limits.max_tv)
        chosen = self._chosen(draft, verdict, scores.logits)
        count, finish = self._outlet.push(chosen, self._room - self._history.generated)
        path = verdict.path[:count]
        kept_tokens = [*range(unseen), *(unseen + node for node in path)]
        hidden = scores.hidden[kept_tokens] if scores.hidden is not None else None
        judged = perf_counter()
        session.keep(kept_tokens)
        kept = perf_counter()
        self._commit(draft, path, chosen[:count])
        self._read_states(hidden)
        released, hidden_bytes, dropped = self._outlet.take()
        end = perf_counter()
        other = (judged - verified) + (end - kept)
        return Step(
            emitted=released,
            hidden_bytes=hidden_bytes,
            dropped=dropped,
            drafted=len(draft),
            evaluated=min(verdict.evaluated, count),
            accepted=len(path),
            generated=count,
            width=len(draft) + 1,
            seconds=Seconds(drafted - start, verified - drafted, kept - judged, other),
            drafter=draft.source,
            reason=draft.reason,
            finish_reason=finish,
            bias=sum(verdict.bias[:count]),
            rung=_rung(draft),
            why=budget.why,
            trials=_trials(draft, verdict)[: min(verdict.evaluated, count)],
            passes=draft.passes,
        )

    def _propose(self, budget: Budget) -> Draft:
        """The drafter's proposal, or an empty one with the reason; a draft that raises or breaks the rules is off."""
        if self._off is not None:
            return Draft.empty("none", self._off)
        if budget.nodes == 0:
            return Draft.empty("none", budget.why or "budget 0")
        length = len(self._history)
        try:
            draft = self._parts.drafter.propose(self._history, budget, self._parts.sampler)
            _check_draft(draft, budget, self._parts.info.vocab_size)
        except Exception as error:  # noqa: BLE001  see _begin_draft
            self._disable(error)
            return Draft.empty("none", self._off)
        finally:
            self._history.shrink(length)
        return draft

    def _budget(self) -> Budget:
        """The controller's wish within what is left: a bonus token always comes too, so depth <= room - 1, and every
        fed token needs a place in the context."""
        info = self._parts.info
        wish = self._parts.controller.budget(len(self._history))
        if wish.branches > 1 and not info.tree:
            wish = replace(wish, why=f"{wish.why or 'a tree was asked for'}; a chain: {info.name} takes no trees here")
        free = info.max_context - len(self._history)
        if info.widths:
            free = min(free, max(info.widths) - (len(self._history) - self._parts.session.length))
        cut = wish.within(free, self._room - self._history.generated - 1, tree=info.tree)
        if wish.nodes and not cut.nodes:  # no room left: not the controller's reason
            return replace(cut, why=None)
        return cut

    def _fed(self, draft: Draft, unseen: int) -> tuple[Ids, Ids]:
        """Unseen committed tokens as a chain, then the tree below the last of them."""
        tail = np.array(self._history.tokens[-unseen:], np.int32)
        chain = np.arange(-1, unseen - 1, dtype=np.int32)
        return np.concatenate([tail, draft.tokens]), np.concatenate([chain, draft.parents + np.int32(unseen)])

    def _chosen(self, draft: Draft, verdict: Verdict, logits: Logits) -> list[Emitted]:
        """The accepted tokens and the target's own, each with its log-probability from the row that scored it."""
        tokens = [*(int(draft.tokens[node]) for node in verdict.path), verdict.token]
        rows = [0, *(node + 1 for node in verdict.path)]
        last = len(tokens) - 1
        return [
            self._one(token, index < last, logits[row])
            for index, (token, row) in enumerate(zip(tokens, rows, strict=True))
        ]

    def _one(self, token: int, drafted: bool, row: Logits) -> Emitted:
        if self._limits.logprobs is None:
            return Emitted(token, drafted)
        top = top_logprobs(row, self._limits.logprobs) if self._limits.logprobs else ()
        return Emitted(token, drafted, float(log_softmax_at(row, [token])[0]), top)

    def _read_states(self, states: Logits | None) -> None:
        """Show the drafter the states of the tokens that were kept last, if it wants them."""
        drafter = self._parts.drafter
        if states is None or self._off is not None or not isinstance(drafter, ReadsStates):
            return
        try:
            drafter.read_states(self._parts.session.length - len(states), states, self._history.tokens)
        except Exception as error:  # noqa: BLE001  see _begin_draft
            self._disable(error)

    def _commit(self, draft: Draft, path: Sequence[int], tokens: Sequence[Emitted]) -> None:
        for token in tokens:
            self._history.push(token.id)
        if len(draft):
            try:
                self._parts.drafter.observe(path)
            except Exception as error:  # noqa: BLE001  see _begin_draft
                self._disable(error)


class _Outlet:
    """Between the text and the reader: ends it at the first end-of-generation id, stop string or cap, in the order
    of the tokens, and holds back what may be the start of a stop string."""

    def __init__(self, stops: StopScanner | None, eog_ids: frozenset[int]) -> None:
        self._stops = stops
        self._eog_ids = eog_ids
        self._waiting: deque[Emitted] = deque()
        self._ready: list[Emitted] = []
        self._hidden_bytes = 0
        self._dropped: tuple[int, ...] = ()

    def push(self, tokens: Sequence[Emitted], room: int) -> tuple[int, FinishReason | None]:
        """Take the tokens of one round; returns how many of them belong to the text, and whether it ends there."""
        for count, token in enumerate(tokens, 1):
            self._waiting.append(token)
            if token.id in self._eog_ids:
                self._release(len(self._waiting))
                return count, "stop"
            if self._stopped(token):
                return count, "stop"
            if count == room:
                self._release(len(self._waiting))
                return count, "length"
        return len(tokens), None

    def _stopped(self, token: Emitted) -> bool:
        if self._stops is None:
            self._release(len(self._waiting))
            return False
        event = self._stops.push(token.id)
        self._release(len(event.released))
        if event.stopped is None:
            return False
        self._waiting.clear()
        self._hidden_bytes, self._dropped = event.hidden_bytes, event.dropped
        return True

    def _release(self, count: int) -> None:
        self._ready += [self._waiting.popleft() for _ in range(count)]

    def take(self) -> tuple[tuple[Emitted, ...], int, tuple[int, ...]]:
        """The tokens released since the last call, the bytes of the last one that a stop string hides, and the ids that
        it hides wholly."""
        ready, self._ready = tuple(self._ready), []
        return ready, self._hidden_bytes, self._dropped


def _rung(draft: Draft) -> Rung:
    """The rung of the fallback ladder a proposal stands on."""
    if not len(draft):
        return "off"
    if bool((np.diff(draft.parents) != 1).any()):
        return "tree"
    return "ngram" if draft.source == "ngram" else "chain"


def _trials(draft: Draft, verdict: Verdict) -> tuple[Trial, ...]:
    """What was tried at each level of the walked path."""
    below, found = trees.children(draft.parents), []
    for above, node in zip((-1, *verdict.path), (*verdict.path, -1), strict=True):
        kids = below.get(above, [])
        if kids:
            confidence = draft.confidence[kids[0]] if draft.confidence is not None else None
            found.append(Trial(len(kids), kids.index(node) if node in kids else -1, confidence))
    return tuple(found)


def _check_draft(draft: Draft, budget: Budget, vocab_size: int) -> None:
    """A drafter is anybody's code: its proposal is checked before verification and native code see it."""
    if len(draft) == 0:
        return
    for name, array in (("tokens", draft.tokens), ("parents", draft.parents)):
        if array.dtype != np.int32 or array.shape != (len(draft),):
            raise InvalidValue(f"draft {name}", f"{array.dtype}{list(array.shape)}", f"int32[{len(draft)}]")
    if draft.confidence is not None and len(draft.confidence) != len(draft):
        raise InvalidValue("draft confidence", len(draft.confidence), f"one for each of the {len(draft)} tokens")
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        worst = min(tokens) if min(tokens) < 0 else max(tokens)
        raise InvalidValue("drafted token", worst, f"0 to {vocab_size - 1}")
    chain = parents == list(range(-1, len(tokens) - 1))
    if len(tokens) > budget.nodes or not (chain or trees.is_tree(draft.parents)):
        raise InvalidValue("draft", len(draft), f"a tree of at most {budget.nodes} nodes, parents before children")
    depth = len(tokens) if chain else int(trees.depths(draft.parents).max())
    if depth > budget.depth:
        raise InvalidValue("draft depth", depth, f"at most {budget.depth}")
    if budget.branches == 1 and not chain:
        raise InvalidValue("draft", parents, "a chain")
    if not chain or draft.laws is not None:
        _check_siblings(draft)


def _check_siblings(draft: Draft) -> None:
    """Accept-reject without replacement is exact only for distinct siblings that their own law can produce."""
    pairs = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    if len(set(pairs)) < len(pairs):
        raise InvalidValue("draft", draft.tokens.tolist(), "siblings that differ")
    if draft.laws is None:
        return
    if len(draft.laws) != len(draft):
        raise InvalidValue("draft laws", len(draft.laws), f"one for each of the {len(draft)} tokens")
    for kids in trees.children(draft.parents).values():
        law, tokens = draft.laws[kids[0]], draft.tokens[kids]
        found = np.searchsorted(law.ids, tokens)
        if found.max() >= len(law.ids) or (law.ids[found] != tokens).any():
            raise InvalidValue("drafted siblings", tokens.tolist(), "tokens in the support of their law")
        if any(draft.laws[kid] is not law for kid in kids):
            raise InvalidValue("draft laws", kids, "one object shared by siblings")
