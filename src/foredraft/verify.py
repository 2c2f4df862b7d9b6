"""Which drafted tokens survive: ``coupled`` (default, exact), ``residual`` (exact), ``relaxed`` (lossy, bounded).

Pure functions of the draft, the target's logits rows, the sampler and the history. A law is made only for rows on
the walked path. Knows nothing about engines, caches or text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foredraft.errors import InvalidValue
from foredraft.noise import TARGET
from foredraft.sampling import History, Sampler
from foredraft.trees import children
from foredraft.types import Draft, Floats, Ids, Law, Logits, Verdict


def verify(draft: Draft, logits: Logits, sampler: Sampler, history: History, max_tv: float = 0.0) -> Verdict:
    """Walk the tree from the root. ``logits`` float32[N + 1, V]: row 0 scores the children of the last committed
    token, row i + 1 those of node i. ``history`` is left as it was found.

    ``max_tv`` (rule ``relaxed`` only): the total variation each token's law may differ from the target's.
    """
    depth = len(history)
    try:
        if sampler.rule == "coupled":
            return _coupled(draft, logits, sampler, history)
        return _residual(draft, logits, sampler, history, max_tv if sampler.rule == "relaxed" else 0.0)
    finally:
        history.shrink(depth)


def check_max_tv(max_tv: float) -> float:
    """The bound a user may state for ``relaxed``."""
    if not 0.0 < max_tv < 1.0:
        raise InvalidValue("max_tv", max_tv, "a number in (0, 1), e.g. 0.02; for exact output use rule coupled")
    return max_tv


def _coupled(draft: Draft, logits: Logits, sampler: Sampler, history: History) -> Verdict:
    """The target makes its own position-keyed choice; while it is among the children, descend. The emitted text
    therefore never depends on the draft (chain version: Daliri et al., arXiv 2408.07978)."""
    below = children(draft.parents)
    path: list[int] = []
    node, evaluated = -1, 0
    while True:
        token = sampler.choose(logits[node + 1], history)
        kids = below.get(node, [])
        evaluated += bool(kids)
        hit = next((kid for kid in kids if draft.tokens[kid] == token), None)
        if hit is None:
            return Verdict(tuple(path), token, evaluated, (0.0,) * (len(path) + 1))
        path.append(hit)
        history.push(token)
        node = hit


def _residual(draft: Draft, logits: Logits, sampler: Sampler, history: History, max_tv: float) -> Verdict:
    """Accept-reject (Leviathan et al., arXiv 2211.17192, Alg. 1; for siblings drawn without replacement: Sequoia,
    arXiv 2402.12374, Alg. 2). ``relaxed`` is the same rule with the target w·p + (1 - w)·q in place of p."""
    below = children(draft.parents)
    path: list[int] = []
    bias: list[float] = []
    node, evaluated = -1, 0
    while True:
        law = sampler.law(logits[node + 1], history)
        kids = below.get(node, [])
        if not kids:
            token = sampler.noise.pick(law, len(history), TARGET)
            return Verdict(tuple(path), token, evaluated, (*bias, 0.0))
        evaluated += 1
        trial = _Trial.of(law, draft, kids)
        bias.append(trial.relax(max_tv) if max_tv else 0.0)
        hit = trial.run(sampler, len(history))
        if hit is None:
            token = sampler.noise.pick(trial.rest(), len(history), TARGET)
            return Verdict(tuple(path), token, evaluated, tuple(bias))
        path.append(hit)
        history.push(int(draft.tokens[hit]))
        node = hit


@dataclass(slots=True)
class _Trial:
    """One sibling group under accept-reject. ``ids`` int32[S] is the union of the supports; ``target`` float64[S]
    what remains to be emitted, ``proposal`` float64[S] what the next sibling was drawn from (None: point masses)."""

    ids: Ids
    target: Floats
    proposal: Floats | None
    kids: list[int]
    tokens: Ids

    @staticmethod
    def of(law: Law, draft: Draft, kids: list[int]) -> _Trial:
        tokens = draft.tokens[kids]
        proposal = draft.laws[kids[0]] if draft.laws is not None else None
        drafted = tokens if proposal is None else np.concatenate([tokens, proposal.ids])
        ids = np.union1d(law.ids, drafted).astype(np.int32)
        target = np.zeros(len(ids))
        target[np.searchsorted(ids, law.ids)] = law.probs()
        dense = None
        if proposal is not None:
            dense = np.zeros(len(ids))
            dense[np.searchsorted(ids, proposal.ids)] = proposal.probs()
        return _Trial(ids, target, dense, kids, tokens)

    def _point(self, index: int) -> Floats:
        point = np.zeros(len(self.ids))
        point[index] = 1.0
        return point

    def relax(self, max_tv: float) -> float:
        """Mix the proposal into the target with weight 1 - w, w = max(0, 1 - max_tv / TV(p, q)); returns the total
        variation spent, (1 - w)·TV(p, q) = min(max_tv, TV(p, q))."""
        proposal = self.proposal
        if proposal is None:
            proposal = self._point(int(np.searchsorted(self.ids, self.tokens[0])))
        distance = 0.5 * float(np.abs(self.target - proposal).sum())
        if distance <= 0.0:
            return 0.0
        w = max(0.0, 1.0 - max_tv / distance)
        self.target = w * self.target + (1.0 - w) * proposal
        return (1.0 - w) * distance

    def run(self, sampler: Sampler, position: int) -> int | None:
        """Try the siblings in order; the accepted node, or None with ``target`` left as the residual."""
        for order, (kid, token) in enumerate(zip(self.kids, self.tokens.tolist(), strict=True)):
            index = int(np.searchsorted(self.ids, token))
            proposal = self.proposal if self.proposal is not None else self._point(index)
            p, q = float(self.target[index]), float(proposal[index])
            if q <= 0.0:  # not drawn from its law: as if it had not been proposed
                continue
            if sampler.noise.accept(min(1.0, p / q), position, order):
                return kid
            self._reject(index, proposal)
        return None

    def _reject(self, index: int, proposal: Floats) -> None:
        residual = np.maximum(self.target - proposal, 0.0)
        mass = float(residual.sum())
        if mass > 0.0:  # mass 0 means p = q, where a rejection has probability 0
            self.target = residual / mass
        if self.proposal is not None:
            left = self.proposal.copy()
            left[index] = 0.0
            mass = float(left.sum())
            self.proposal = left / mass if mass > 0.0 else left

    def rest(self) -> Law:
        """The residual law after every sibling was rejected."""
        support = np.flatnonzero(self.target > 0.0)
        return Law(self.ids[support], np.log(self.target[support]))
