"""Target + draft + settings, opened once and used for many requests. What the command line and programs call.

Knows which parts belong together (pair check, barred ids, rollback, strict mode); the loop itself is ``decode``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from foredraft import certify, registry
from foredraft.control import NGRAM, OFF, Controller, Fixed, Priors, SourcePriors
from foredraft.decode import Limits, Parts, check_prompt, decode
from foredraft.devices.pressure import MemoryWatch
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.droppable import DroppableDrafter
from foredraft.drafters.null import NullDrafter
from foredraft.engines.base import Engine, Session, emptied
from foredraft.engines.head_base import HeadEngine
from foredraft.engines.opening import AUTO, HEAD, Settings, draft_settings, is_head_draft, open_model
from foredraft.errors import InvalidValue, ModelFileError
from foredraft.pair import PairReport, check_pair
from foredraft.sampling import Sampler
from foredraft.summary import Summary
from foredraft.tokens import StopScanner, TextStream, Tokenizer
from foredraft.types import RULES, Rule, SamplingParams, Step
from foredraft.verify import check_max_tv

BUILT_IN = ("none", "ngram", HEAD)
"""Drafts that need no file of their own."""


@dataclass(frozen=True, slots=True)
class Setup:
    """``target``: a GGUF file, an export or a Hugging Face directory. ``drafts``: "none", "ngram", "head" (the one
    that an export holds), the directory of a head, or such files; the first one with something to say drafts.
    ``draft_context`` in tokens (0 = the target's, at most what the draft was made for). ``engine_name`` and
    ``draft_engine``: "auto", or one that is asked for. ``draft_temperature``: see ``ModelDrafter``."""

    target: Path
    drafts: tuple[str | Path, ...] = ("ngram",)
    engine: Settings = Settings()  # noqa: RUF009  frozen
    draft_context: int = 0
    allow_differing: bool = False
    engine_name: str = AUTO
    draft_engine: str = AUTO
    draft_temperature: float | None = None


@dataclass(frozen=True)
class Request:
    """One generation. ``rule`` and ``max_tv``: see ``verify``. ``controller`` None = plain decoding."""

    ids: Sequence[int]
    sampling: SamplingParams = SamplingParams()  # noqa: RUF009  frozen
    controller: Controller | None = None
    rule: Rule = "coupled"
    max_tv: float = 0.0
    max_tokens: int = 256
    stops: tuple[str, ...] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InvalidValue("rule", self.rule, ", ".join(RULES))
        if self.rule == "relaxed":
            check_max_tv(self.max_tv)
        if "" in self.stops:
            raise InvalidValue("stop string", "", "at least one character")
        Limits(self.max_tokens, logprobs=self.logprobs)

    @property
    def plain(self) -> Request:
        """The same request without speculation: the reference."""
        return replace(self, controller=None, rule="coupled", max_tv=0.0)


@dataclass
class Result:
    """A finished request: its numbers and its text."""

    summary: Summary
    text: str


def _check_whole(engine: Engine, path: Path) -> None:
    """A target must be able to say every word."""
    if engine.info.restricted:
        raise ModelFileError(f"{path.name}: has restricted output rows, so it can only be a --draft; export it whole")


def _bytes(path: Path) -> int:
    """Bytes of a model file, or of everything in its directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


@dataclass
class Pipeline:
    """An opened target with its drafter. A context manager; ``close`` frees weights and caches.

    ``short``: whether memory is short. If it is, draft models are dropped, and answers go on without them.
    """

    engine: Engine
    tokenizer: Tokenizer
    drafter: Drafter = field(default_factory=NullDrafter)
    pairs: tuple[PairReport, ...] = ()
    helpers: tuple[Engine, ...] = ()
    draft_share: float = 0.3
    short: Callable[[], bool] = field(default_factory=MemoryWatch)
    head: HeadEngine | None = None
    _session: Session | None = None

    @staticmethod
    def open(setup: Setup) -> Pipeline:
        """Load the models and check that they fit together (ModelFileError, PairMismatch, MissingExtra)."""
        heads = [draft for draft in setup.drafts if is_head_draft(draft)]
        if len(heads) > 1:
            raise InvalidValue("--draft", f"{heads[0]} and {heads[1]}", "one head")
        target = open_model(setup.target, setup.engine, setup.engine_name, next(iter(heads), None))
        opened = Pipeline(target.engine, target.tokenizer, head=target.head)
        try:
            _check_whole(target.engine, setup.target)
            drafters = [opened.open_draft(setup, draft) for draft in setup.drafts]
        except Exception:
            opened.close()
            raise
        opened.drafter = drafters[0] if len(drafters) == 1 else ChainDrafter(drafters)
        return opened

    def open_draft(self, setup: Setup, draft: str | Path) -> Drafter:
        """A drafter for one of the drafts of ``setup``, checked against this target. The pipeline closes its engine;
        the caller decides where the drafter goes."""
        if draft == "none":
            return NullDrafter("no draft was asked for")
        if is_head_draft(draft):
            assert self.head is not None, "it was opened with the target"
            return registry.load("drafters", "head")(self.head)  # type: ignore[no-any-return]
        if draft in BUILT_IN:
            kind = registry.load("drafters", str(draft))
            return kind()  # type: ignore[no-any-return]
        path = Path(draft)
        settings = draft_settings(path, setup.engine, setup.draft_context, self.engine.info.max_context)
        model = open_model(path, settings, setup.draft_engine)
        if not self.helpers:
            self.draft_share = min(1.0, _bytes(path) / max(1, _bytes(setup.target)))
        self.helpers += (model.engine,)
        report = check_pair(self.tokenizer, model.tokenizer, allow_differing=setup.allow_differing)
        report.raise_if_bad(setup.target.name, path.name)
        self.pairs += (report,)
        return self.model_drafter(len(self.pairs) - 1, setup.draft_temperature)

    def model_drafter(self, number: int, temperature: float | None = None) -> Drafter:
        """A drafter of its own for the loaded draft model ``number``, counted from 0."""
        kind, report, engine = registry.load("drafters", "model"), self.pairs[number], self.helpers[number]
        drafter = kind(
            engine,
            limit=report.shared_size,
            barred=report.barred,
            name="model" if number == 0 else f"model-{number + 1}",
            temperature=temperature,
        )
        return DroppableDrafter(drafter, self.short, engine.close)

    def stream(self, request: Request) -> Generator[Step]:
        """The request's steps; closing the iterator cancels it."""
        self._session = emptied(self.engine, self._session)
        parts = Parts(
            session=self._session,
            info=self.engine.info,
            sampler=self.sampler(request),
            drafter=self.drafter if request.controller else NullDrafter("plain decoding"),
            controller=request.controller or Fixed(OFF),
            stops=StopScanner(request.stops, self.tokenizer) if request.stops else None,
        )
        limits = Limits(request.max_tokens, self.tokenizer.eog_ids, request.logprobs, request.max_tv)
        return decode(parts, request.ids, limits)

    @property
    def session(self) -> Session | None:
        """The cache of the last request, which holds its prompt and text until the next one; None before the first."""
        return self._session

    def priors(self) -> Priors:
        """What a cost-aware controller may believe of these models before anything is measured: a draft pass takes as
        much of a target's as its file has bytes of the target's file."""
        sources = {"ngram": NGRAM} if "ngram" in self.drafter.name.split("+") else {}
        if self.head is not None and "head" in self.drafter.name.split("+"):
            sources["head"] = SourcePriors(self.head.info.share)
        if self.helpers:
            sources["model"] = SourcePriors(self.draft_share)
        return Priors(sources=sources)

    def check(self, request: Request) -> None:
        """Raise PromptError for a prompt that does not fit, before anything runs."""
        check_prompt(request.ids, self.engine.info)

    def sampler(self, request: Request) -> Sampler:
        """A fresh sampler for one request."""
        return Sampler(request.sampling, rule=request.rule, eog_ids=self.tokenizer.eog_ids)

    def run(self, request: Request) -> Result:
        """The whole request at once."""
        summary = Summary.of(self.stream(request))
        return Result(summary, self.text(summary.ids, summary.hidden_bytes))

    def text(self, ids: Sequence[int], hidden_bytes: int = 0) -> str:
        """The text of released ids; control tokens are not shown."""
        stream = TextStream(self.tokenizer)
        return stream.push(ids, hidden_bytes) + stream.finish()

    def explain(self, request: Request, plain: Sequence[int], other: Sequence[int]) -> certify.Difference | None:
        """Where ``other`` leaves plain decoding's text, None if it does not."""
        return certify.explain(self.engine, self.sampler(request.plain), certify.Texts(request.ids, plain, other))

    def close(self) -> None:
        """Free everything. Idempotent."""
        self.drafter.close()
        if self._session is not None:
            self._session.close()
            self._session = None
        for helper in self.helpers:
            helper.close()
        if self.head is not None:
            self.head.close()
        self.engine.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
