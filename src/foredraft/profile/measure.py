"""Record a trace: the target writes an answer to every prompt, then target and drafts score it in wide passes.

Every finished text is kept at once, so that a run may be interrupted, or killed, and goes on where it stopped. Memory
does not grow with the number of prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from foredraft.engines.base import Engine, Session
from foredraft.errors import PromptError, TraceError
from foredraft.pair import PairReport
from foredraft.pipeline import Pipeline, Request
from foredraft.profile import store
from foredraft.profile.scoring import DraftModel, Known, copies, score_draft, score_target
from foredraft.profile.trace import Ask, DraftTrace, TextFacts, TextTrace, TraceSettings, tabled
from foredraft.prompts import Prompt
from foredraft.sampling import Sampler

_SHOWN = 400
"""Characters of a prompt that are kept for the report."""


@dataclass(frozen=True)
class Job:
    """``prompts``: all of the file, repeats too; ``settings``: what the trace is made with."""

    settings: TraceSettings
    prompts: Sequence[Prompt]

    @property
    def fresh(self) -> list[tuple[int, Prompt]]:
        """The prompts to run, with their indices: each once."""
        return [(index, prompt) for index, prompt in enumerate(self.prompts) if not prompt.warm]


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Changes with any prompt, its kind, its length or their order."""
    rows = "\n".join(f"{prompt.key} {prompt.kind}" for prompt in prompts)
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def remaining(job: Job, directory: Path, *, restart: bool = False) -> list[tuple[int, Prompt]]:
    """The prompts that are not recorded in ``directory`` yet. TraceError if what is there was made with other settings;
    with ``restart`` it is removed instead."""
    found = store.read_settings(directory)
    if found is not None and restart:
        store.remove_parts(directory)
        (directory / store.TRACE).unlink(missing_ok=True)
        found = None
    if found is None:
        return job.fresh
    differing = found.differing(job.settings)
    if differing:
        names = ", ".join(name.replace("_", " ") for name in differing)
        raise TraceError(f"{directory}: holds a trace with other settings ({names}); give another -o, or --restart")
    if (directory / store.TRACE).exists():
        return []
    done = store.finished(directory)
    return [(index, prompt) for index, prompt in job.fresh if index not in done]


def check_prompts(pipeline: Pipeline, job: Job) -> None:
    """PromptError for the first prompt that does not fit, before hours are spent on the others."""
    for _, prompt in job.fresh:
        request = Request(prompt.encoded(pipeline.tokenizer, raw=job.settings.raw).ids)
        try:
            pipeline.check(request)
        except PromptError as error:
            raise PromptError(f"{prompt.where}: {error}") from error


def run(
    pipeline: Pipeline,
    job: Job,
    directory: Path,
    done: Callable[[TextFacts], None] = lambda facts: None,
) -> None:
    """Record all prompts missing in ``directory`` and join them into a trace; ``done`` is told of each text."""
    directory.mkdir(parents=True, exist_ok=True)
    todo = remaining(job, directory)
    for text in _texts(pipeline, job, todo):
        store.write_part(directory, job.settings, text)
        done(text.facts)
    if not (directory / store.TRACE).exists():
        store.finish(directory, job.settings)


def _texts(pipeline: Pipeline, job: Job, todo: Sequence[tuple[int, Prompt]]) -> Iterator[TextTrace]:
    recorder = Recorder(pipeline, job.settings)
    try:
        for index, prompt in todo:
            yield recorder.record(index, prompt)
    finally:
        recorder.close()


class Recorder:
    """Makes the traces of single texts with one opened target and its drafts."""

    def __init__(self, pipeline: Pipeline, settings: TraceSettings) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._drafts = [
            _draft_model(engine, pair) for engine, pair in zip(pipeline.helpers, pipeline.pairs, strict=True)
        ]
        self._sessions = [draft.engine.open() for draft in self._drafts]

    def record(self, index: int, prompt: Prompt) -> TextTrace:
        """One prompt answered and scored."""
        start = perf_counter()
        known, request = self._answer(index, prompt)
        written = perf_counter()
        target = score_target(self._target_session(), known, self._pipeline.engine.info.vocab_size)
        sampler = self._pipeline.sampler(request)
        drafts = tuple(self._draft(number, known, sampler) for number in range(len(self._drafts)))
        found = copies(known, sampler)
        pieces = tuple(self._pipeline.tokenizer.piece(token) for token in known.ids)
        finish = "length" if len(known.ids) == known.limit else "stop"
        facts = TextFacts(
            index=index,
            line=prompt.line,
            key=prompt.key,
            kind=prompt.kind,
            prompt_tokens=len(known.prompt),
            tokens=len(known.ids),
            limit=known.limit,
            finish=finish,
            prompt=prompt.messages[-1]["content"][:_SHOWN],
            seconds=(written - start, perf_counter() - written),
        )
        hidden = self._settings.redacted
        text = TextTrace(facts, found, drafts, np.array(known.ids, np.int32), pieces, target)
        return redacted(text, Ask(request.sampling, "coupled", self._settings.draft_temperature)) if hidden else text

    def _answer(self, index: int, prompt: Prompt) -> tuple[Known, Request]:
        """The target's own text, by plain decoding; every prompt has noise of its own."""
        limit = prompt.max_tokens or self._settings.max_tokens
        params = self._settings.sampling.params()
        request = Request(
            prompt.encoded(self._pipeline.tokenizer, raw=self._settings.raw).ids,
            replace(params, seed=params.seed + index),
            max_tokens=limit,
        )
        ids = self._pipeline.run(request).summary.ids
        room = self._pipeline.engine.info.max_context - len(request.ids)
        return Known(request.ids, ids, max(len(ids), min(limit, room))), request

    def _target_session(self) -> Session:
        session = self._pipeline.session
        assert session is not None, "an answer was written with it"
        return session

    def _draft(self, number: int, known: Known, sampler: Sampler) -> DraftTrace:
        model, name = self._drafts[number], self._settings.drafts[number].name
        model.check(known, name)
        session = self._sessions[number]
        session.rewind(0)
        mine = sampler.restricted(model.barred, self._settings.draft_temperature)
        laws, rank = score_draft(model, session, known, mine)
        return DraftTrace(rank, laws)

    def close(self) -> None:
        """Free the drafts' caches."""
        for session in self._sessions:
            session.close()


def redacted(text: TextTrace, ask: Ask) -> TextTrace:
    """The same text without ids, laws and words: only how often drafts would be accepted; ``ask``: the recorded
    setting."""
    assert text.target is not None
    drafts = []
    for draft in text.drafts:
        assert draft.laws is not None
        drafts.append(DraftTrace(draft.rank, None, tabled(text.target, draft.laws, ask, text.facts.index)))
    return TextTrace(replace(text.facts, prompt=""), text.copies, tuple(drafts))


def _draft_model(engine: Engine, pair: PairReport) -> DraftModel:
    limit = min(pair.shared_size, engine.info.vocab_size)
    return DraftModel(engine, limit, frozenset(token for token in pair.barred if token < limit))
