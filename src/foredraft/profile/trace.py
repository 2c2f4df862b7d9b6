"""What a profile records of every position of every text, so that later questions need no model.

A recorded text holds its own tokens and, per position, the laws of target and drafts. A redacted one holds neither ids
nor text, only how often each draft would be accepted at the temperatures of ``GRID``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foredraft.devices.measured import ModelFacts
from foredraft.errors import InvalidValue, TraceError
from foredraft.profile.laws import Laws, Probs, acceptance, at_temperature, by_rank, processed
from foredraft.profile.replay import Copies
from foredraft.types import Floats, Ids, Logits, Rule, SamplingParams

GRID = (0.0, 0.3, 0.6, 0.8, 1.0, 1.3)
"""Temperatures at which a redacted trace knows acceptance; between them it is interpolated."""
RANKS = 4
"""Children of a node that are followed."""
TABLE_RULES: tuple[Rule, ...] = ("coupled", "residual")


@dataclass(frozen=True, slots=True)
class Sampled:
    """How the texts were made: the settings that may be asked of laws (no penalties, no biases)."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def params(self) -> SamplingParams:
        """As sampling settings."""
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.min_p, seed=self.seed)


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What must be equal for a run to go on where another stopped. ``prompts``: a hash over the keys of all prompts;
    ``repeats``: prompts that stand in the file again and are not run again;
    ``draft_temperature`` None: the target's; ``max_tokens``: of an answer, where its prompt does not say."""

    target: ModelFacts
    drafts: tuple[ModelFacts, ...]
    prompts: str
    repeats: int = 0
    sampling: Sampled = Sampled()
    draft_temperature: float | None = None
    max_tokens: int = 160
    raw: bool = False
    redacted: bool = False
    version: str = ""

    def differing(self, other: TraceSettings) -> list[str]:
        """Names of the settings that differ; the version of foredraft is not one."""
        names = [name for name in self.__slots__ if name != "version"]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


@dataclass(frozen=True, slots=True)
class Table:
    """Acceptance of a draft at the temperatures of ``GRID`` (G of them), where the laws themselves were not kept.

    ``rules`` float32[P, G, 2]: of its first guess under ``TABLE_RULES``; ``ranks`` float32[P, G, 4]: that the target's
    choice is its guess of rank 0..3, rule ``coupled``; all at the draft's recorded ``draft_temperature``."""

    rules: Logits
    ranks: Logits
    draft_temperature: float | None = None


@dataclass(frozen=True, slots=True)
class DraftTrace:
    """Of one draft model on one text. ``rank`` int8[P]: which of its guesses the text's token was under the recorded
    settings, -1 for none of the first ``RANKS``."""

    rank: NDArray[np.int8]
    laws: Laws | None = None
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class TextFacts:
    """About one text. ``index``: its place among the prompts, ``line``: of the file; ``key``: hash of the prompt;
    ``limit``: tokens it might have had;
    ``finish``: why it ended. ``prompt``: its last user message, empty if redacted. ``seconds``: generating it took,
    then scoring."""

    index: int
    line: int
    key: str
    kind: str
    prompt_tokens: int
    tokens: int
    limit: int
    finish: str
    prompt: str = ""
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TextTrace:
    """One text. ``ids`` int32[P], ``pieces`` (the bytes of each token) and ``target`` are None if redacted. ``drafts``
    are in the order of the settings' drafts."""

    facts: TextFacts
    copies: Copies
    drafts: tuple[DraftTrace, ...]
    ids: Ids | None = None
    pieces: tuple[bytes, ...] | None = None
    target: Laws | None = None

    def __len__(self) -> int:
        return self.facts.tokens


@dataclass(frozen=True)
class Trace:
    """All texts of a profile, in the order of the prompts; ``complete`` unless the run that made it was stopped."""

    settings: TraceSettings
    texts: tuple[TextTrace, ...]
    complete: bool = True

    @property
    def counted(self) -> tuple[TextTrace, ...]:
        """The texts that averages are made of: none empty."""
        return tuple(text for text in self.texts if len(text))

    @property
    def kinds(self) -> tuple[str, ...]:
        """In order of appearance."""
        return tuple(dict.fromkeys(text.facts.kind for text in self.counted))


# --- acceptance under any setting --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """A setting to be asked of a trace. ``draft_temperature`` None: the target's. ``weight``: of rule ``relaxed``, see
    ``laws.acceptance``."""

    params: SamplingParams
    rule: Rule = "coupled"
    draft_temperature: float | None = None
    weight: float = 1.0

    @property
    def draft_params(self) -> SamplingParams:
        """What the draft samples with; for a greedy target it is greedy too."""
        if self.params.greedy or self.draft_temperature is None:
            return self.params
        return at_temperature(self.params, self.draft_temperature)


def accepted(text: TextTrace, draft: int, ask: Ask) -> Floats:
    """Probability, float64[P], that the token of draft number ``draft`` is accepted at each position."""
    found = text.drafts[draft]
    if found.table is not None:
        return _from_table(found.table, ask)
    target, guess = _laws(text, found)
    return acceptance(processed(target, ask.params), processed(guess, ask.draft_params), ask.rule, ask.weight)


def accepted_by_rank(text: TextTrace, draft: int, ask: Ask) -> Floats:
    """Probability, float64[P, RANKS], that the target's choice is the draft's guess of each rank."""
    found = text.drafts[draft]
    if found.table is not None:
        _check_table(found.table, ask)
        return _between(found.table.ranks, ask.params.temperature)
    target, guess = _laws(text, found)
    return by_rank(processed(target, ask.params), _ranked(guess, ask), RANKS, seed=text.facts.index)


def _ranked(guess: Laws, ask: Ask) -> Probs:
    """The draft's law in which second guesses have an order: a greedy one's is the plain order of its tokens."""
    params = at_temperature(ask.params, 1.0) if ask.params.greedy else ask.draft_params
    return processed(guess, params)


def _laws(text: TextTrace, draft: DraftTrace) -> tuple[Laws, Laws]:
    if text.target is None or draft.laws is None:
        raise TraceError(f"text {text.facts.index} holds neither laws nor a table; profile the prompts again")
    return text.target, draft.laws


def tabled(target: Laws, draft: Laws, ask: Ask, seed: int) -> Table:
    """What a redacted trace keeps of one draft on one text; ``ask``: the recorded setting."""
    rules, ranks = [], []
    for temperature in GRID:
        asked = Ask(at_temperature(ask.params, temperature), "coupled", ask.draft_temperature)
        mine, guess = processed(target, asked.params), processed(draft, asked.draft_params)
        rules.append(np.stack([acceptance(mine, guess, rule) for rule in TABLE_RULES], axis=1))
        ranks.append(by_rank(mine, _ranked(draft, asked), RANKS, seed))
    tables = (np.stack(rules, axis=1).astype(np.float32), np.stack(ranks, axis=1).astype(np.float32))
    return Table(*tables, ask.draft_temperature)


def _from_table(table: Table, ask: Ask) -> Floats:
    _check_table(table, ask)
    if ask.rule == "relaxed":
        overlap = _between(table.rules, ask.params.temperature)[:, TABLE_RULES.index("residual")]
        return np.asarray(1.0 - ask.weight * (1.0 - overlap), np.float64)
    return _between(table.rules, ask.params.temperature)[:, TABLE_RULES.index(ask.rule)]


def _check_table(table: Table, ask: Ask) -> None:
    recorded = table.draft_temperature
    if ask.draft_temperature != recorded and ask.draft_params.temperature != (recorded or ask.params.temperature):
        raise TraceError("a redacted trace does not know other draft temperatures; profile again without --redact")
    if ask.params.temperature > GRID[-1]:
        raise InvalidValue("temperature", ask.params.temperature, f"0 to {GRID[-1]} with a redacted trace")


def _between(values: Logits, temperature: float) -> Floats:
    """[P, G, …] at ``temperature``, linear between the temperatures of the grid."""
    right = int(np.searchsorted(GRID, temperature))
    if GRID[min(right, len(GRID) - 1)] == temperature:
        return np.asarray(values[:, right], np.float64)
    share = (temperature - GRID[right - 1]) / (GRID[right] - GRID[right - 1])
    return np.asarray((1 - share) * values[:, right - 1] + share * values[:, right], np.float64)
