"""The profile summary as types: what `profile.json` holds, from which page, Markdown and tables are made.

Every speed-up is over plain decoding on the same device. Lists "by length" have one number for each chain length
K = 1..``longest``. ``schema.json`` says the same to other languages.
"""

from __future__ import annotations

from typing import Literal, TypedDict

FORMAT, SCHEMA = "foredraft-profile", 1
ALL = "all"
"""The kind that stands for all texts together."""
GATE_ALPHA = 0.55
"""The conventional gate: draft if α is at least this."""

Decision = Literal["ship", "ship_by_kind", "better_draft", "off"]
Source = Literal["ngram", "model", "both"]
NOT_DRAFTED, RIGHT, WRONG = 0, 1, 2
"""What became of a token of a sample: nothing was proposed there, the proposal was right, it was wrong."""


class Interval(TypedDict):
    """A number with its 95 % interval; no interval (null) from a single text."""

    value: float
    low: float | None
    high: float | None


class Rate(TypedDict):
    """The same of an acceptance, which is unknown (null) where nothing was ever evaluated."""

    value: float | None
    low: float | None
    high: float | None


class SettingsUsed(TypedDict):
    """``threshold``: the speed-up from which shipping is worth it; ``redacted``: no text and no token is kept."""

    target: str
    temperature: float
    top_k: int
    top_p: float
    rule: str
    seed: int
    max_tokens: int
    threshold: float
    redacted: bool


class Kind(TypedDict):
    """A kind of prompts, how many texts it has and how many generated tokens."""

    name: str
    texts: int
    tokens: int


class DraftUsed(TypedDict):
    """A candidate; ``bytes`` of its weights, 0 for n-gram lookup."""

    name: str
    source: Source
    bytes: int


class VerifyCurve(TypedDict):
    """v(N) = time(N) / time(1) at some widths, ascending from 1."""

    widths: list[int]
    values: list[float]


class DeviceUsed(TypedDict):
    """``step_seconds``: a plain step; ``draft_cost``: c of one draft pass, ``fixed``: o of a round, both in plain
    steps. A draft that several drafters make together costs what ``draft_cost`` says of its name, else the sum of its
    parts, which the name joins with +."""

    name: str
    estimated: bool
    step_seconds: float
    verify: VerifyCurve
    draft_cost: dict[str, float]
    fixed: float
    note: str


class Acceptance(TypedDict):
    """Of one draft on one kind under one rule and temperature: α, acceptance by depth, E(K) tokens a round and passes
    of the draft model a round, both by length. ``widths``: by length, the shares of rounds whose pass scores 1, 2, …, K
    + 1 positions (a round without a draft scores 1)."""

    draft: str
    kind: str
    rule: str
    temperature: float
    alpha: Rate
    by_depth: list[Rate]
    expected: list[float]
    model_passes: list[float]
    widths: list[list[float]]


class Best(TypedDict):
    """The best chain; ``length`` 0 means plain decoding."""

    length: int
    speedup: Interval
    tokens_per_second: float | None
    weight_bytes_per_token: float | None


class Prediction(TypedDict):
    """Speed-up of one draft on one kind and device, at the settings' rule and temperature only."""

    draft: str
    kind: str
    device: str
    rule: str
    temperature: float
    by_length: list[float]
    best: Best
    break_even_alpha: float | None


class Tree(TypedDict):
    """The best tree: ``parents`` before children, -1 the last kept token; ``expected`` tokens a round with it."""

    draft: str
    kind: str
    device: str
    parents: list[int]
    expected: float
    speedup: float


class Gate(TypedDict):
    """The conventional gate α ≥ .55: what it says and whether the verdict says the same."""

    alpha: float | None
    passes: bool
    agrees: bool


class VerdictGiven(TypedDict):
    """Of one kind on one device."""

    kind: str
    device: str
    decision: Decision
    draft: str | None
    setting: str
    speedup: Interval
    reason: str
    gate: Gate


class Quality(TypedDict):
    """One sentence each: is acceptance the same at every depth, does it drift, are there enough texts, and how the
    trace compares with real speculative decoding (null if that was not run)."""

    geometric: str
    drift: str
    sample_size: str
    live: str | None


class Sample(TypedDict):
    """A generated text; each token with what became of it (``NOT_DRAFTED``, ``RIGHT`` or ``WRONG``)."""

    kind: str
    draft: str
    prompt: str
    tokens: list[tuple[str, int]]


class Summary(TypedDict):
    """The whole document. ``texts`` and ``tokens`` leave out ``warm`` ones, which repeat an earlier prompt."""

    format: str
    schema: int
    created: str
    version: str
    settings: SettingsUsed
    texts: int
    tokens: int
    warm: int
    kinds: list[Kind]
    drafts: list[DraftUsed]
    devices: list[DeviceUsed]
    temperatures: list[float]
    rules: list[str]
    longest: int
    acceptance: list[Acceptance]
    predictions: list[Prediction]
    trees: list[Tree]
    verdicts: list[VerdictGiven]
    advice: list[str]
    quality: Quality
    samples: list[Sample]
