"""Counts of accepted drafted tokens, one record a text: checked, merged, added up, written as plain JSON types.

Knows no model, no trace and no statistics; ``stats`` turns counts into estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from foredraft.errors import InvalidValue
from foredraft.types import Floats

BANDS = (0, 32, 128, 512)
"""Where the bands of positions in a text begin: tokens 0–31, 32–127, 128–511, from 512 on."""
_SLACK = 1e-6
"""Sums of expectations may pass their bound by this share, for rounding."""
_PAIRS = (("hits", "trials"), ("band_hits", "band_trials"))


@dataclass(frozen=True, slots=True)
class TextCounts:
    """What rounds of speculation did on one text. Counts may be fractions: expectations over the sampling noise.

    ``text``: key of its prompt (a hash). ``tokens`` of the text that ``rounds`` rounds produced. ``hits`` and
    ``trials``: drafted tokens accepted and evaluated at depth 1..D; a depth is evaluated only if the one above it was
    accepted. ``band_hits`` and ``band_trials``: the same by position in the text, one number for each of ``BANDS``.
    InvalidValue names the count that cannot be.
    """

    text: str
    kind: str
    tokens: float
    rounds: float
    hits: tuple[float, ...]
    trials: tuple[float, ...]
    band_hits: tuple[float, ...]
    band_trials: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("tokens", "rounds"):
            _check_numbers(name, (getattr(self, name),))
        for hits, trials in _PAIRS:
            _check_shares(hits, getattr(self, hits), trials, getattr(self, trials))
        for name in ("band_hits", "band_trials"):
            if len(getattr(self, name)) != len(BANDS):
                raise InvalidValue(name, list(getattr(self, name)), f"{len(BANDS)} numbers, one a band")
        if any(_above(below, hit) for below, hit in zip(self.trials[1:], self.hits, strict=False)):
            raise InvalidValue("trials", list(self.trials), "at most the hits of the depth above, at every depth")

    def as_json(self) -> dict[str, Any]:
        """Plain types, by field."""
        data: dict[str, Any] = {"text": self.text, "kind": self.kind}
        data |= {name: float(getattr(self, name)) for name in ("tokens", "rounds")}
        return data | {name: [float(value) for value in getattr(self, name)] for pair in _PAIRS for name in pair}

    def _order(self) -> tuple[object, ...]:
        """Of two records of one text the larger one wins, whatever the order in which they come."""
        return (self.tokens, self.rounds, self.hits, self.trials, self.band_hits, self.band_trials, self.kind)


def _check_numbers(name: str, values: Sequence[float]) -> None:
    if not all(0 <= value < math.inf for value in values):  # NaN fails too
        shown = values[0] if len(values) == 1 else list(values)
        raise InvalidValue(name, shown, "finite numbers from 0 on")


def _check_shares(name: str, hits: Sequence[float], of: str, trials: Sequence[float]) -> None:
    _check_numbers(name, hits)
    _check_numbers(of, trials)
    if len(hits) != len(trials) or any(map(_above, hits, trials)):
        raise InvalidValue(name, list(hits), f"as many numbers as {of} ({list(trials)}), none above its one there")


def _above(value: float, bound: float) -> bool:
    return value > bound + _SLACK * max(1.0, bound)


def banded(values: Floats) -> tuple[float, ...]:
    """Sums of ``values``, float64[P] by position in the text, for each of ``BANDS``.

    >>> banded(np.ones(40))
    (32.0, 8.0, 0.0, 0.0)
    """
    ends = (*BANDS[1:], len(values))
    return tuple(float(values[begin:end].sum()) for begin, end in zip(BANDS, ends, strict=True))


# --- sets of texts -----------------------------------------------------------------------------------------


def distinct(texts: Iterable[TextCounts]) -> tuple[TextCounts, ...]:
    """Every text once, in order of first appearance. Of several records of one text the one with the most tokens
    stays; if they are equal in that, the one that is larger in rounds, then in the other counts, then in its kind."""
    kept: dict[str, TextCounts] = {}
    for text in texts:
        other = kept.get(text.text)
        if other is None or cast(Any, text)._order() > cast(Any, other)._order():
            kept[text.text] = text
    return tuple(kept.values())


def merge(*sets: Iterable[TextCounts]) -> tuple[TextCounts, ...]:
    """All texts of several sets, each once (see ``distinct``), by key: the order of sets and of texts does not matter,
    and neither does merging step by step.

    >>> one = TextCounts("a", "code", 9, 4, (5,), (6,), (5, 0, 0, 0), (6, 0, 0, 0))
    >>> merge([one], [one]) == merge([one]) == (one,)
    True
    """
    every = distinct(text for texts in sets for text in texts)
    return tuple(sorted(every, key=lambda text: text.text))


def by_kind(texts: Iterable[TextCounts]) -> dict[str, tuple[TextCounts, ...]]:
    """The texts of every kind, kinds in order of appearance."""
    groups: dict[str, list[TextCounts]] = {}
    for text in texts:
        groups.setdefault(text.kind, []).append(text)
    return {kind: tuple(group) for kind, group in groups.items()}


def as_json(texts: Iterable[TextCounts]) -> list[dict[str, Any]]:
    """Plain types that ``from_json`` reads back."""
    return [text.as_json() for text in texts]


def from_json(data: object) -> tuple[TextCounts, ...]:
    """The texts that ``as_json`` wrote; InvalidValue names what is wrong and where."""
    if not isinstance(data, list):
        raise InvalidValue("counts", type(data).__name__, "a list of objects, one a text")
    return tuple(_read(f"counts[{index}]", row) for index, row in enumerate(data))


def _read(name: str, row: object) -> TextCounts:
    if not isinstance(row, Mapping):
        raise InvalidValue(name, type(row).__name__, "an object with the counts of one text")
    values = {
        item.name: _field(f"{name}.{item.name}", str(item.type), row.get(item.name)) for item in fields(TextCounts)
    }
    try:
        return TextCounts(**values)
    except InvalidValue as error:
        raise InvalidValue(f"{name}.{error.name}", error.value, error.allowed) from None


def _field(name: str, kind: str, value: object) -> Any:
    """``value`` as the type written as ``kind`` in ``TextCounts``."""
    if kind == "str":
        if not isinstance(value, str):
            raise InvalidValue(name, value, "a text")
        return value
    if kind == "float":
        return _number(name, value)
    if not isinstance(value, list):
        raise InvalidValue(name, value, "a list of numbers")
    return tuple(_number(f"{name}[{index}]", item) for index, item in enumerate(value))


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue(name, "a huge whole number", "a number below 1e308") from None


# --- sums --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts added up over R samples of texts, depth D, B bands. ``rows`` float64[R, 2 + 2·D + 2·B]: tokens, rounds,
    then hits and trials by depth, then hits and trials by band. ``depth`` is D."""

    rows: Floats
    depth: int

    @staticmethod
    def of(texts: Sequence[TextCounts]) -> Sums:
        """One row a text; texts with fewer depths than the deepest have no trials below theirs."""
        depth = max((len(text.hits) for text in texts), default=0)
        rows = np.zeros((len(texts), 2 + 2 * depth + 2 * len(BANDS)))
        for row, text in zip(rows, texts, strict=True):
            row[:2] = text.tokens, text.rounds
            row[2 : 2 + len(text.hits)] = text.hits
            row[2 + depth : 2 + depth + len(text.trials)] = text.trials
            row[2 + 2 * depth :] = text.band_hits + text.band_trials
        return Sums(rows, depth)

    @property
    def tokens(self) -> Floats:
        """Tokens of the texts, float64[R]."""
        return self.rows[:, 0]

    @property
    def rounds(self) -> Floats:
        """Rounds that produced them, float64[R]."""
        return self.rows[:, 1]

    @property
    def hits(self) -> Floats:
        """Accepted by depth, float64[R, D]."""
        return self.rows[:, 2 : 2 + self.depth]

    @property
    def trials(self) -> Floats:
        """Evaluated by depth, float64[R, D]."""
        return self.rows[:, 2 + self.depth : 2 + 2 * self.depth]

    @property
    def band_hits(self) -> Floats:
        """Accepted by band, float64[R, B]."""
        return self.rows[:, 2 + 2 * self.depth : 2 + 2 * self.depth + len(BANDS)]

    @property
    def band_trials(self) -> Floats:
        """Evaluated by band, float64[R, B]."""
        return self.rows[:, 2 + 2 * self.depth + len(BANDS) :]

    @property
    def total(self) -> Sums:
        """All samples added up: R is 1."""
        return Sums(self.rows.sum(axis=0, keepdims=True), self.depth)

    @property
    def acceptance(self) -> Floats:
        """a_1..a_D: accepted ÷ evaluated by depth, float64[R, D]; 0 where nothing was evaluated."""
        return divided(self.hits, self.trials)

    @property
    def alpha(self) -> Floats:
        """Accepted ÷ evaluated over all depths, float64[R]; 0 where nothing was evaluated."""
        return divided(self.hits.sum(axis=1), self.trials.sum(axis=1))


def divided(above: Floats, below: Floats) -> Floats:
    """``above`` ÷ ``below`` by element; 0 where ``below`` is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)
