"""The options of ``generate``, and how they become a setup and a request."""

from __future__ import annotations

import math
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from foredraft.catalogue import DEFAULT_TARGET
from foredraft.cli.models import find_or_pull
from foredraft.control import Controller
from foredraft.engines.llama_native import KV_TYPES
from foredraft.engines.opening import AUTO, ENGINES, Settings, is_head_draft
from foredraft.errors import InvalidValue, PromptError
from foredraft.pipeline import BUILT_IN, Request, Setup
from foredraft.policy import CONTROLLERS, COST_DRAFT, COST_TREE, FIXED_DRAFT, Policy
from foredraft.types import RULES, SamplingParams

_Command = TypeVar("_Command", bound=Callable[..., Any])

MODEL_OPTIONS = (
    click.option(
        "--target",
        default=DEFAULT_TARGET,
        show_default=True,
        metavar="PATH|NAME",
        help="The model whose words you want.",
    ),
    click.option(
        "--draft",
        "drafts",
        multiple=True,
        default=("ngram",),
        show_default=True,
        metavar="PATH|NAME|ngram|head|none",
        help="What guesses its words. Give several: the first one with something to say drafts.",
    ),
    click.option(
        "--engine",
        default=AUTO,
        show_default=True,
        type=click.Choice(ENGINES),
        help="What runs the target. auto: by the kind of file.",
    ),
    click.option("--draft-engine", default=AUTO, type=click.Choice(ENGINES), help="What runs the draft."),
    click.option("--ctx", default=0, metavar="N", help="Tokens of context. [default: the model's, at most 4096]"),
    click.option("--draft-ctx", default=0, metavar="N", help="Tokens of context of the draft. [default: like --ctx]"),
    click.option("--threads", default=0, metavar="N", help="CPU threads. [default: the CPUs, at most 8]"),
    click.option("--kv-type", default="f16", show_default=True, type=click.Choice(list(KV_TYPES)), help="Cache type."),
    click.option(
        "--strict", is_flag=True, help="Promise plain decoding's text bit for bit; see the guide for the price."
    ),
    click.option("--allow-differing", is_flag=True, help="Accept a draft whose unused ids differ from the target's."),
)
RULE_OPTION = click.option(
    "--rule", default="coupled", show_default=True, type=click.Choice(RULES), help="How drafts are accepted."
)
DRAFT_OPTIONS = (
    click.option(
        "--controller",
        default="cost",
        show_default=True,
        type=click.Choice(CONTROLLERS),
        help="How much to draft. cost: what pays under measured times, nothing if nothing does; threshold: by rolling "
        "acceptance; fixed: always the same.",
    ),
    click.option(
        "--max-draft",
        type=int,
        metavar="K",
        help=f"Tokens drafted a round; the most under cost. [default: {FIXED_DRAFT}, cost: {COST_DRAFT}]",
    ),
    click.option(
        "--tree",
        default="auto",
        show_default=True,
        metavar="auto|N|off",
        help="Draft trees of N nodes, at most N under cost. auto: where the cost controller finds that trees pay.",
    ),
    click.option(
        "--profile",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Device profile for the cost controller. [default: the one that doctor kept, or a quick measurement]",
    ),
    click.option(
        "--draft-temperature", type=float, metavar="T", help="Temperature of a draft model. [default: the target's]"
    ),
    RULE_OPTION,
    click.option(
        "--max-tv",
        default=0.02,
        show_default=True,
        metavar="X",
        help="Rule relaxed: total variation each token's law may differ from the target's.",
    ),
)
LAW_OPTIONS = (
    click.option("-t", "--temperature", default=0.0, show_default=True, help="0 is greedy decoding."),
    click.option("--top-k", default=0, metavar="N", help="Keep the N likeliest tokens. [default: all]"),
    click.option("--top-p", default=1.0, show_default=True, metavar="P", help="Keep the likeliest tokens with mass P."),
    click.option("--min-p", default=0.0, show_default=True, metavar="P", help="Keep tokens >= P × the likeliest one."),
)
"""What may be asked of recorded laws: no penalties, no biases."""
SAMPLING_OPTIONS = (
    *LAW_OPTIONS,
    click.option("--repetition-penalty", default=1.0, show_default=True, help="Divides logits of tokens seen before."),
    click.option("--presence-penalty", default=0.0, show_default=True, help="Subtracted once from tokens written."),
    click.option("--frequency-penalty", default=0.0, show_default=True, help="Subtracted for each time written."),
    click.option(
        "--penalty-window", default=0, metavar="N", help="Penalties look at the last N tokens. [default: all]"
    ),
    click.option("--logit-bias", multiple=True, metavar="ID=X", help="Added to one token's logit; -inf bars it."),
    click.option("--seed", type=int, metavar="N", help="Same seed, same text. [default: a new one, reported]"),
)
OUTPUT_OPTIONS = (
    click.option("--system", metavar="TEXT", help="System message."),
    click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template."),
    click.option("--max-tokens", default=256, show_default=True, metavar="N", help="Most tokens to generate."),
    click.option("--min-tokens", default=0, metavar="N", help="Do not end before N tokens."),
    click.option("--stop", "stops", multiple=True, metavar="TEXT", help="End before this text. Repeatable."),
    click.option(
        "--logprobs", type=int, metavar="N", help="With --json: log-probabilities and N alternatives a token."
    ),
    click.option("--compare", is_flag=True, help="Also decode plainly, in turns, and compare speed and text."),
    click.option("--runs", default=3, show_default=True, metavar="N", help="With --compare: runs of each kind."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text."),
    click.option("-q", "--quiet", is_flag=True, help="Print the text only."),
)


def options(*groups: tuple[Callable[[_Command], _Command], ...]) -> Callable[[_Command], _Command]:
    """Apply groups of click options so that ``--help`` lists them in this order."""

    def apply(command: _Command) -> _Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return apply


@dataclass(frozen=True)
class Choices:
    """All options of one call, by name."""

    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def setup(self) -> Setup:
        """Which models to load; catalogue models that are missing are downloaded."""
        if "none" in self.drafts and len(self.drafts) > 1:
            raise InvalidValue("--draft", " ".join(self.drafts), "none alone, or other drafts")
        engine = Settings(
            context=_natural("--ctx", self.ctx),
            threads=_natural("--threads", self.threads),
            lines=max(64, self.tree_nodes or COST_TREE),  # a tree has no more leaves than nodes
            kv_type=self.kv_type,
            strict=self.strict,
        )
        draft_context = _natural("--draft-ctx", self.draft_ctx)
        drafts = tuple(_draft(draft) for draft in self.drafts)
        return Setup(
            find_or_pull(self.target),
            drafts,
            engine,
            draft_context,
            self.allow_differing,
            self.engine,
            self.draft_engine,
            self.draft_temperature,
        )

    @property
    def tree_nodes(self) -> int | None:
        """``--tree`` as a node count; None for auto."""
        if self.tree in ("auto", "off"):
            return None if self.tree == "auto" else 0
        try:
            return int(self.tree)
        except ValueError:
            raise InvalidValue("--tree", self.tree, "auto, off or a number of nodes") from None

    def policy(self) -> Policy:
        """How much to draft."""
        return Policy(self.controller, self.max_draft, self.tree_nodes)

    def sampling(self) -> SamplingParams:
        """The law; a seed is drawn if none is given."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_window=self.penalty_window,
            min_tokens=self.min_tokens,
            logit_bias=dict(map(_bias, self.logit_bias)),
            seed=self.seed if self.seed is not None else secrets.randbits(32),
        )

    def request(self, ids: tuple[int, ...], sampling: SamplingParams, controller: Controller | None = None) -> Request:
        """The speculative request."""
        if self.logprobs is not None and not self.as_json:
            raise InvalidValue("--logprobs", self.logprobs, "only together with --json")
        if not 1 <= self.runs <= 1000:
            raise InvalidValue("--runs", self.runs, "1 to 1000")
        return Request(
            ids,
            sampling,
            controller,
            self.rule,
            self.max_tv if self.rule == "relaxed" else 0.0,
            self.max_tokens,
            self.stops,
            self.logprobs,
        )


def _draft(name: str) -> str | Path:
    """A built-in draft, the directory of a head, or a model."""
    if name in BUILT_IN:
        return name
    return Path(name) if is_head_draft(name) else find_or_pull(name)


def _natural(name: str, value: int) -> int:
    if value < 0:
        raise InvalidValue(name, value, "0 (automatic) or a positive number")
    return value


def _bias(text: str) -> tuple[int, float]:
    left, _, right = text.partition("=")
    try:
        token, value = int(left), float(right)
    except ValueError:
        raise InvalidValue("--logit-bias", text, "ID=NUMBER, e.g. 198=-5 or 198=-inf") from None
    if not 0 <= token < 2**31 or math.isnan(value):
        raise InvalidValue("--logit-bias", text, "an id from 0 to 2**31 - 1 and a number, e.g. 198=-5 or 198=-inf")
    return token, value


def read_prompt(prompt: str | None) -> str:
    """The prompt itself, or standard input for "-" and where no prompt is given but something is piped in."""
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("no prompt: give one, or - to read standard input")
    if prompt is not None and prompt != "-":
        try:
            return os.fsencode(prompt).decode()
        except UnicodeDecodeError:
            raise PromptError("the prompt is not UTF-8 text; convert it first, e.g. with iconv") from None
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PromptError(
            f"standard input is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}; "
            "convert it first, e.g. with iconv"
        ) from None
