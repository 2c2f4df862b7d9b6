"""Drafts with a head that shares the target's weights: chains and trees, from the target's own hidden states.

Every round it first reads the states of the tokens that were accepted, then goes on from its own output, one pass a
level (EAGLE-3, arXiv 2503.01840). It can only go on where it knows the states of all tokens but the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from foredraft.drafters.growth import Growth, growth
from foredraft.engines.head_base import HeadEngine, HeadScores, HeadSession
from foredraft.errors import EngineFailure
from foredraft.sampling import History, Sampler
from foredraft.types import Budget, Draft, Ids, Logits, Trial

_PASS = 256
"""Known entries that are read in one pass."""
_HINDSIGHT = 16
"""Guesses at most that are compared with what was written without it."""


class HeadDrafter:
    """``barred``: ids that may not be proposed."""

    def __init__(self, engine: HeadEngine, *, barred: Iterable[int] = (), name: str = "head") -> None:
        self.name = name
        self._engine = engine
        self._session: HeadSession | None = None
        ids, barred = engine.info.ids, frozenset(barred)
        self._columns = np.flatnonzero([id not in barred for id in ids.tolist()])
        self._ids = ids[self._columns]
        self._row: Logits = np.full(engine.info.vocab_size, -np.inf, np.float32)
        self._states: list[Logits] = []  # that were not read yet; consecutive
        self._first = 0  # place in the text of the first of them
        self._count = 0  # how many tokens they speak of
        self._asked = False  # whether the next states follow a proposal of this draft
        self._unasked = 0  # tokens written without it, up to now
        self._outputs: dict[int, Logits] = {}
        self._fed: dict[int, int] = {}

    def begin(self, prompt: Sequence[int]) -> None:
        """Start from an empty cache."""
        if self._session is not None:
            try:
                self._session.rewind(0)
            except EngineFailure:
                self._session.close()
                self._session = None
        self._states, self._first, self._count = [], 0, 0
        self._asked, self._unasked = False, 0

    def read_states(self, first: int, states: Logits, text: Sequence[int]) -> None:
        """Keep them for the next proposal; many at once are read now, so that none of them waits in memory."""
        if first != self._first + self._count:  # a gap: what stands before it says nothing of what comes
            self._states, self._first, self._count = [], first, 0
        self._unasked = 0 if self._asked else self._unasked + len(states)
        self._asked = False
        self._states.append(np.array(states, np.float32))
        self._count += len(states)
        if self._count >= _PASS and self._first + self._count < len(text):
            self._read(text, rows=0)

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """A chain or tree within ``budget``, drawn with the target's own noise (rule ``coupled``), one pass a level."""
        budget, text = budget.of(self.name), context.tokens
        if budget.nodes == 0:
            return Draft.empty(self.name, budget.why or f"{self.name}: budget 0")
        if not self._count or self._first + self._count != len(text) - 1:
            return Draft.empty(self.name, f"{self.name}: the target's states of the last tokens are not known")
        grown = growth(budget, sampler, context)
        known = self._known(context, budget)
        scores = self._read(text, rows=known + 1, room=grown.most_fed)
        if known and budget.gate is not None:
            budget.gate.learn(self._hindsight(scores.logits, context, sampler))
        self._outputs, self._fed = {-1: scores.outputs[-1].copy()}, {}
        grown.put(-1, self._spread(scores.logits[-1]))
        passes = 1
        session = self._opened()
        while level := grown.next_level():
            self._deepen(session, grown, level)
            passes += 1
        session.forget()
        finished = grown.finish()
        if not finished.nodes:
            return Draft.empty(self.name, f"{self.name}: not sure enough", passes)
        return finished.draft(self.name, passes)

    def observe(self, accepted: Sequence[int]) -> None:
        """What was accepted is read with the target's states; that it was this draft's is remembered until then."""
        self._asked = True

    def close(self) -> None:
        """Free the session (the engine belongs to the caller)."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _opened(self) -> HeadSession:
        if self._session is None:
            self._session = self._engine.open()
        return self._session

    def _read(self, text: Sequence[int], rows: int, room: int = 0) -> HeadScores:
        """Read all states that wait, each with the token that follows; the last ``rows`` entries are scored. Where the
        text outgrows the head's context it goes on with the end of it."""
        session, states = self._opened(), self._states[0] if len(self._states) == 1 else np.concatenate(self._states)
        most = self._engine.info.max_context - room
        if session.length + len(states) > most:
            session.rewind(0)
            states = states[-max(1, most // 2) :]
        first = self._first + self._count - len(states)
        tokens = np.array(text[first + 1 : first + len(states) + 1], np.int32)
        self._first, self._count, self._states = self._first + self._count, 0, []
        for start in range(0, len(tokens) - _PASS, _PASS):
            session.read(states[start : start + _PASS], tokens[start : start + _PASS], 0)
        rest = (len(tokens) - 1) // _PASS * _PASS
        return session.read(states[rest:], tokens[rest:], min(rows, len(tokens) - rest))

    def _known(self, context: History, budget: Budget) -> int:
        """How many positions before the next one to look back at: only where a gate listens, and where the states of
        several tokens have to be read that were written without this draft."""
        if budget.gate is None or self._unasked < 2:
            return 0
        return min(self._unasked, self._count - 1, _HINDSIGHT, context.generated)

    def _hindsight(self, rows: Logits, context: History, sampler: Sampler) -> list[Trial]:
        """What would have been guessed for the last tokens of the text, of which all but the last of ``rows`` speak."""
        known = list(context.tokens[len(context) - len(rows) + 1 :])
        context.shrink(len(context) - len(known))
        trials = list[Trial]()
        try:
            for token, row in zip(known, rows, strict=False):
                guess = sampler.children(self._spread(row), context, 1)
                right = len(guess.ids) > 0 and int(guess.ids[0]) == token
                trials.append(Trial(1, 0 if right else -1, guess.confidence[0] if guess.confidence else None))
                context.push(token)
        finally:
            for token in known[len(trials) :]:
                context.push(token)
        return trials

    def _deepen(self, session: HeadSession, grown: Growth, level: list[int]) -> None:
        """Feed one level's inner nodes in one pass and draw their children."""
        base = len(self._fed)
        above = [grown.parents[node] for node in level]
        outputs = np.stack([self._outputs[node] for node in above])
        tokens: Ids = np.array([grown.tokens[node] for node in level], np.int32)
        parents: Ids = np.array([self._fed.get(node, -1) for node in above], np.int32)
        scores = session.extend(outputs, tokens, parents)
        rows, mine = scores.logits, scores.outputs.copy()
        for order, node in enumerate(level):
            self._fed[node] = base + order
            self._outputs[node] = mine[order]
            grown.put(node, self._spread(rows[order]))

    def _spread(self, row: Logits) -> Logits:
        """Its logits over the target's whole vocabulary: what it cannot say has none."""
        self._row[self._ids] = row[self._columns]
        return self._row
