"""Logits -> law -> choice. Position-keyed noise makes a choice a pure function of (seed, position, token).

Knows nothing about trees, drafts or engines. All arithmetic is float64 and touches only the tokens that
survive truncation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foredraft.errors import EngineFailure, InvalidValue
from foredraft.noise import DRAFT, TARGET, GumbelNoise, Noise, largest
from foredraft.types import Floats, Ids, Law, Logits, Rule, SamplingParams

_COLDEST, _HOTTEST = 1e-30, 1e30
"""Beyond these a temperature gives the same law, but no longer finite arithmetic."""
_RIVALS = 4
"""With how many of the best a noisy choice is compared to say how sure it is."""


class History:
    """The tokens a law may depend on, with counts kept incrementally: O(1) per push and pop.

    ``push``/``pop`` walk a tree path: the law at every node sees *that path's* history.
    """

    def __init__(self, prompt: Iterable[int], window: int = 0) -> None:
        self._tokens = list(prompt)
        self.prompt_length = len(self._tokens)
        self._window = window
        self.seen: dict[int, int] = {}
        self.output: dict[int, int] = {}
        for index in range(max(0, self.prompt_length - window) if window else 0, self.prompt_length):
            self._count(self.seen, self._tokens[index], 1)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        """All tokens, prompt first. A live view: read it, do not keep it."""
        return self._tokens

    @property
    def generated(self) -> int:
        """Tokens behind the prompt."""
        return len(self._tokens) - self.prompt_length

    def shrink(self, length: int) -> None:
        """Pop until ``length`` tokens are left."""
        while len(self._tokens) > length:
            self.pop()

    @staticmethod
    def _count(counts: dict[int, int], token: int, change: int) -> None:
        value = counts.get(token, 0) + change
        if value:
            counts[token] = value
        else:
            counts.pop(token, None)

    def _slide(self, index: int, change: int) -> None:
        """Count the token at ``index`` in or out of the window."""
        self._count(self.seen, self._tokens[index], change)
        if index >= self.prompt_length:
            self._count(self.output, self._tokens[index], change)

    def push(self, token: int) -> None:
        """Append one token."""
        self._tokens.append(token)
        self._slide(len(self._tokens) - 1, 1)
        if self._window and len(self._tokens) > self._window:
            self._slide(len(self._tokens) - 1 - self._window, -1)

    def pop(self) -> int:
        """Take the last token back."""
        if self._window and len(self._tokens) > self._window:
            self._slide(len(self._tokens) - 1 - self._window, 1)
        self._slide(len(self._tokens) - 1, -1)
        return self._tokens.pop()


class Children(NamedTuple):
    """Proposals for one place, in the order to be tried: ``ids`` int32[k]; ``law`` they were drawn from without
    replacement (None: a deterministic choice, a point mass each); ``confidence`` in [0, 1] of each: greedy, its
    probability at temperature 1; ``residual``, its probability; ``coupled``, its share among the best score + noise,
    because the target makes its choice with the same noise."""

    ids: Ids
    law: Law | None
    confidence: tuple[float, ...]


class Sampler:
    """Turns logits rows into laws and choices for one request. ``bars``: ids that are never to be chosen
    (what a draft may not propose); ``eog_ids``: barred until ``min_tokens`` are generated."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        rule: Rule = "coupled",
        noise: Noise | None = None,
        eog_ids: Iterable[int] = (),
        bars: Iterable[int] = (),
    ) -> None:
        self.params = params
        self.rule = rule
        self.noise: Noise = noise or GumbelNoise(params.seed)
        self._scratch = np.empty(0, np.float32)
        self._ends = frozenset(eog_ids)
        self._eog = np.array(sorted(self._ends), np.int64)
        self._bars = np.array(sorted(bars), np.int64)
        bias = {token: value for token, value in params.logit_bias.items() if 0 <= token < 2**31}
        self._bias_ids = np.array(sorted(bias), np.int64)
        self._bias = np.array([bias[token] for token in sorted(bias)], np.float64)
        self._edits = bool(params.penalised or self._bias_ids.size or self._bars.size)

    @property
    def draft_stream(self) -> int:
        """The noise stream a draft draws its proposals with."""
        return TARGET if self.rule == "coupled" else DRAFT

    def ends(self, token: int) -> bool:
        """True if ``token`` ends the text."""
        return token in self._ends

    def restricted(self, bars: Iterable[int], temperature: float | None = None) -> Sampler:
        """The same sampler with more ids barred, and another ``temperature`` unless the target is greedy: what a draft
        proposes with."""
        both = [*self._bars.tolist(), *bars]
        params = self.params
        if temperature is not None and not params.greedy:
            params = replace(params, temperature=temperature)
        return Sampler(params, rule=self.rule, noise=self.noise, eog_ids=self._eog.tolist(), bars=both)

    def choose(self, logits: Logits, history: History) -> int:
        """The target's choice after ``history``: a pure function of logits, history and seed."""
        row = self._edited(logits, history)
        if self.params.greedy:
            return _argmax(row)
        return self.noise.pick(self._truncated(row), len(history), TARGET)

    def children(self, logits: Logits, history: History, k: int) -> Children:
        """Up to k proposals after ``history``."""
        row = self._edited(logits, history)
        if self.params.greedy:
            peak = float(row[_argmax(row)])
            ids = _best(row, k)
            weights = self._weights(row, peak, 1.0)
            return Children(ids, None, tuple((weights[ids] / weights.sum(dtype=np.float64)).tolist()))
        law = self._truncated(row)
        position, stream = len(history), self.draft_stream
        if self.rule != "coupled" or not isinstance(self.noise, GumbelNoise):
            ids = self.noise.ranked(law, position, k, stream)
            probs = law.probs()[np.searchsorted(law.ids, ids)]
            return Children(ids, law if self.rule != "coupled" else None, tuple(probs.tolist()))
        ids = self.noise.ranked(law, position, max(k, _RIVALS), stream)
        keys = law.scores[np.searchsorted(law.ids, ids)] + self.noise.gumbel(ids, position, stream)
        shares = np.exp(keys - keys[0])
        return Children(ids[:k], None, tuple((shares / shares.sum())[:k].tolist()))

    def law(self, logits: Logits, history: History) -> Law:
        """The law of the next token after all processing, at a row whose history is ``history``."""
        row = self._edited(logits, history)
        if self.params.greedy:
            return Law.point(_argmax(row))
        return self._truncated(row)

    def _edited(self, logits: Logits, history: History) -> NDArray[np.floating]:
        """Bias, penalties, bars: the caller's row itself when there is nothing to do."""
        early = history.generated < self.params.min_tokens
        if not (self._edits or early):
            return logits
        row = logits.astype(np.float64)
        inside = self._bias_ids < len(row)
        row[self._bias_ids[inside]] += self._bias[inside]
        if self.params.penalised:
            self._penalise(row, history)
        for barred in (self._bars, self._eog if early else self._eog[:0]):
            row[barred[barred < len(row)]] = -np.inf
        return row

    def _penalise(self, row: Floats, history: History) -> None:
        """Repetition penalty of CTRL (arXiv 1909.05858, §4.1, sign-aware as commonly used), then presence and
        frequency penalties as in the OpenAI API."""
        params = self.params
        if params.repetition_penalty != 1.0 and history.seen:
            ids = np.fromiter(history.seen, np.int64, len(history.seen))
            ids = ids[ids < len(row)]
            values = row[ids]
            penalty = params.repetition_penalty
            row[ids] = np.where(values > 0, values / penalty, values * penalty)
        if (params.presence_penalty or params.frequency_penalty) and history.output:
            ids = np.fromiter(history.output, np.int64, len(history.output))
            counts = np.fromiter(history.output.values(), np.float64, len(history.output))
            inside = ids < len(row)
            row[ids[inside]] -= params.presence_penalty + params.frequency_penalty * counts[inside]

    def _weights(self, row: NDArray[np.floating], peak: float, temperature: float) -> Logits:
        """exp((row - peak) / temperature) as float32[V], in memory that the next call overwrites: fresh pages for a
        whole vocabulary would cost more than the arithmetic."""
        if len(self._scratch) < len(row):
            self._scratch = np.empty(len(row), np.float32)
        weights = self._scratch[: len(row)]
        with np.errstate(over="ignore"):  # of a difference, to -inf: its exponential is 0 all the same
            np.subtract(row, peak, out=weights, casting="same_kind")
            np.divide(weights, temperature, out=weights)
            return np.exp(weights, out=weights)

    def _truncated(self, row: NDArray[np.floating]) -> Law:
        """Temperature, top-k, top-p, min-p; scores of the law have maximum 0."""
        params = self.params
        temperature = min(max(params.temperature, _COLDEST), _HOTTEST)
        peak = row[_argmax(row)]
        best_only = 0 < params.top_k < len(row)
        if best_only:
            ids = _best(row, params.top_k)
            ids.sort()
        elif params.top_p < 1.0:
            ids = _nucleus(self._weights(row, peak, temperature), row, peak, temperature, params.top_p)
        elif params.min_p > 0.0:
            ids = _at_least(row, peak + temperature * np.log(params.min_p))
        else:
            ids = _at_least(row, -np.inf)
        scores = _scaled(row[ids], peak, temperature)
        if best_only and params.top_p < 1.0:
            order = np.argsort(-scores, kind="stable")
            mass = np.cumsum(np.exp(scores[order]))
            stays = np.sort(order[: int(np.searchsorted(mass, params.top_p * mass[-1])) + 1])
            ids, scores = ids[stays], scores[stays]
        if params.min_p > 0.0:
            stays = np.flatnonzero(scores >= np.log(params.min_p))
            ids, scores = ids[stays], scores[stays]
        return Law(ids, scores)


def _argmax(row: NDArray[np.floating]) -> int:
    """Index of the highest entry; NaN, which numpy would return first, and +inf are an engine's fault."""
    best = int(row.argmax())
    if row[best] == -np.inf:
        raise InvalidValue("logits", "-inf for every token", "at least one token that logit_bias does not bar")
    if not np.isfinite(row[best]):
        raise EngineFailure(
            f"the engine returned {row[best]} as the logit of token {best}; the model file may be damaged"
        )
    return best


def _scaled(values: NDArray[np.floating], peak: float, temperature: float) -> Floats:
    with np.errstate(over="ignore"):  # -inf is then the right score
        return np.asarray((values.astype(np.float64) - peak) / temperature, np.float64)


def _at_least(row: NDArray[np.floating], bar: float) -> Ids:
    """Ids, ascending, of the finite entries >= ``bar``."""
    return np.flatnonzero((row >= bar) if bar > -np.inf else (row > -np.inf)).astype(np.int32)


def _best(row: NDArray[np.floating], k: int) -> Ids:
    """The k highest finite entries, best first; ties go to the lower id, as argmax does."""
    if k == 1:
        return np.array([_argmax(row)], np.int32)
    ids = largest(row, k)
    ids = ids[np.argsort(-row[ids], kind="stable")[:k]]
    return np.asarray(ids[np.isfinite(row[ids])], np.int32)


def _nucleus(single: Logits, row: NDArray[np.floating], peak: float, temperature: float, top_p: float) -> Ids:
    """Ids, ascending, of the smallest set of likeliest tokens with mass >= top_p (Holtzman et al., arXiv
    1904.09751, §3.1). Sorts only as many tokens as needed; the mass of the rest is summed from ``single``, the
    float32 weights of all tokens, with a relative error below 1e-6 of that rest."""
    total = float(single.sum())
    floor = 1.0 / 64
    while True:
        floor = floor / 16 if floor > 1e-30 else -1.0
        head = np.flatnonzero(single >= floor)
        scores = _scaled(row[head], peak, temperature)
        order = np.argsort(-scores, kind="stable")
        mass = np.cumsum(np.exp(scores[order]))
        rest = total - float(single[head].sum())
        need = top_p * (float(mass[-1]) + max(rest, 0.0))
        if mass[-1] >= need or len(head) == len(row):
            break
    return np.sort(head[order[: int(np.searchsorted(mass, need)) + 1]]).astype(np.int32)


def log_softmax_at(logits: Logits, ids: Sequence[int]) -> Floats:
    """Natural-log probabilities of ``ids`` under the unprocessed ``logits``, float64[len(ids)]."""
    peak = float(logits.max())
    total = float(np.log(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    return np.asarray(logits[list(ids)].astype(np.float64) - peak - total, np.float64)


def top_logprobs(logits: Logits, k: int) -> tuple[tuple[int, float], ...]:
    """The k likeliest tokens of the unprocessed logits as (id, natural-log probability), best first."""
    ids = _best(logits, k).tolist()
    return tuple(zip(ids, log_softmax_at(logits, ids).tolist(), strict=True))
