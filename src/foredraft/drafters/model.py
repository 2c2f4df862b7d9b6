"""Drafts with a second, smaller model of the same vocabulary: chains, and trees level by level.

Its cache is rolled back with the same ``keep`` as the target's. Where its context is smaller than the text it goes on
with the end of the text; an id it does not know is left out of what it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from foredraft.drafters.growth import Growth, growth
from foredraft.engines.base import Engine, Session, emptied
from foredraft.errors import InvalidValue
from foredraft.sampling import History, Sampler
from foredraft.speed import LONGEST_READ, RECENT, read_passes
from foredraft.types import Budget, Draft, Logits, Trial

_HINDSIGHT = 16
"""Positions at most of those at which it is compared with the text: a row of scores each."""


class ModelDrafter:
    """``limit``: ids from here on are padding, or unknown to one side, and never proposed or fed. ``barred``: single
    ids that may not be proposed (they mean something else to the target). ``temperature`` of the draft (None: the
    target's; a greedy target is always drafted for greedily)."""

    def __init__(
        self,
        engine: Engine,
        *,
        limit: int | None = None,
        barred: Iterable[int] = (),
        name: str = "model",
        temperature: float | None = None,
    ) -> None:
        if temperature is not None and not 0.0 < temperature < float("inf"):
            raise InvalidValue("draft temperature", temperature, "a positive number, or none for the target's")
        self.name = name
        self._temperature = temperature
        self._engine = engine
        self._session: Session | None = None
        self._limit = min(limit or engine.info.vocab_size, engine.info.vocab_size)
        self._barred = frozenset(token for token in barred if token < self._limit)
        self._restricted: tuple[Sampler, Sampler] | None = None
        self._view: list[int] = []  # the text as the draft model sees it
        self._read = 0  # tokens of the text that went into the view
        self._fed: dict[int, int] = {}  # drafted node -> its number among the session's pending tokens
        self._unseen = 0  # committed tokens among the pending ones

    def begin(self, prompt: Sequence[int]) -> None:
        """Start from an empty cache and read the prompt up to its last token."""
        session = self._session = emptied(self._engine, self._session)
        self._view, self._read, self._fed, self._unseen = [], 0, {}, 0
        self._restricted = None
        self._look(prompt[:-1])
        if self._view:
            self._fit(session, 1)
            self._feed_view(session, rows=0)
            self._keep(session, ())

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """A chain or tree within ``budget``, drawn with the target's own noise (rule ``coupled``), one pass a level."""
        session, budget = self._opened(), budget.of(self.name)
        if budget.nodes == 0:
            return Draft.empty(self.name, budget.why or f"{self.name}: budget 0")
        self._look(context.tokens)
        self._skip(session)
        if not self._view or context.tokens[-1] >= self._limit:
            return Draft.empty(self.name, f"{self.name}: the last token, {context.tokens[-1]}, is unknown to the draft")
        if not self._engine.info.tree:
            budget = budget.within(budget.nodes, budget.depth, tree=False)
        grown = growth(budget, self._sampler(sampler), context)
        self._fit(session, grown.most_fed)
        rows = self._feed_view(session, self._known(context, budget, len(self._view) - session.length) + 1)
        if len(rows) > 1 and budget.gate is not None:
            budget.gate.learn(self._hindsight(rows, context, self._sampler(sampler)))
        grown.put(-1, rows[-1, : self._limit])
        passes = 1 + read_passes(self._unseen - 1)
        while level := grown.next_level():
            self._deepen(session, grown, level)
            passes += 1
        finished = grown.finish()
        if not finished.nodes:
            self._keep(session, ())
            return Draft.empty(self.name, f"{self.name}: not sure enough", passes)
        self._fed = {new: self._fed[old] for new, old in enumerate(finished.nodes) if old in self._fed}
        return finished.draft(self.name, passes)

    def observe(self, accepted: Sequence[int]) -> None:
        """Roll the cache back to the committed tokens and the accepted ones that the draft model has seen."""
        self._keep(self._opened(), accepted)

    def close(self) -> None:
        """Free the session (the engine belongs to the caller)."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._engine.open()
        return self._session

    def _sampler(self, sampler: Sampler) -> Sampler:
        """The request's sampler with the barred ids taken out, at the draft's temperature, made once per request."""
        if not self._barred and self._temperature is None:
            return sampler
        if self._restricted is None or self._restricted[0] is not sampler:
            self._restricted = (sampler, sampler.restricted(self._barred, self._temperature))
        return self._restricted[1]

    def _look(self, text: Sequence[int]) -> None:
        """Take new tokens of the text into the view, unknown ids left out."""
        self._view += [token for token in text[self._read :] if token < self._limit]
        self._read = len(text)

    def _skip(self, session: Session) -> None:
        """Of a long stretch that was written without this draft, read the end only: that tells whether it is worth
        asking again, and what has to be read stays bounded."""
        if len(self._view) - session.length > LONGEST_READ + 1:
            self._view = self._view[: session.length] + self._view[-RECENT - 1 :]

    def _fit(self, session: Session, nodes: int) -> None:
        """Where the view would outgrow the draft's context, go on with its end: half a context, so that reading it
        again costs at most one token per token on average."""
        room = self._engine.info.max_context - nodes
        if room < 1:
            raise InvalidValue("draft context", self._engine.info.max_context, f"more than {nodes} drafted tokens")
        if len(self._view) > room:
            self._view = self._view[-max(1, room // 2) :]
            session.rewind(0)

    def _known(self, context: History, budget: Budget, unseen: int) -> int:
        """How many positions before the next one to look back at: only where a gate listens, and where several tokens
        have to be read anyway. 0 where what the draft sees is not the text itself."""
        if budget.gate is None or unseen < 3:
            return 0
        count = min(unseen - 1, _HINDSIGHT, context.generated)
        return count if self._view[-count - 1 :] == list(context.tokens[-count - 1 :]) else 0

    def _hindsight(self, rows: Logits, context: History, sampler: Sampler) -> list[Trial]:
        """What would have been guessed for the last tokens of the text, of which all but the last of ``rows`` speak."""
        known = list(context.tokens[-len(rows) + 1 :])
        context.shrink(len(context) - len(known))
        trials = list[Trial]()
        try:
            for row in rows[:-1]:
                guess = sampler.children(row[: self._limit], context, 1)
                right = len(guess.ids) > 0 and int(guess.ids[0]) == known[len(trials)]
                trials.append(Trial(1, 0 if right else -1, guess.confidence[0] if guess.confidence else None))
                context.push(known[len(trials) - 1])
        finally:
            for token in known[len(trials) :]:
                context.push(token)
        return trials

    def _feed_view(self, session: Session, rows: int) -> Logits:
        tokens = np.array(self._view[session.length :], np.int32)
        self._unseen = len(tokens)
        if not len(tokens):
            # The cache already holds the whole view (its last token was drafted and accepted): score it again.
            session.rewind(session.length - 1)
            return self._feed_view(session, rows)
        parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
        return session.extend(tokens, parents, rows).logits

    def _deepen(self, session: Session, grown: Growth, level: list[int]) -> None:
        """Feed one level's inner nodes in one pass and draw their children."""
        base = self._unseen + len(self._fed)
        parents = [self._fed.get(grown.parents[node], self._unseen - 1) for node in level]
        tokens = np.array([grown.tokens[node] for node in level], np.int32)
        rows = session.extend(tokens, np.array(parents, np.int32), len(level)).logits
        for order, node in enumerate(level):
            self._fed[node] = base + order
            grown.put(node, rows[order, : self._limit])

    def _keep(self, session: Session, accepted: Sequence[int]) -> None:
        path = list(range(self._unseen))
        for node in accepted:
            if node not in self._fed:
                break
            path.append(self._fed[node])
        session.keep(path)
        self._fed, self._unseen = {}, 0
