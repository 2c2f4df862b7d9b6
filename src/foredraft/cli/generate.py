"""``foredraft generate``: answer a prompt with speculation, and say what it did; ``--compare`` sets it beside plain
decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from foredraft.chat import EncodedPrompt, encode_prompt
from foredraft.cli.compare import Comparison, compare
from foredraft.cli.costs import known_costs
from foredraft.cli.options import (
    DRAFT_OPTIONS,
    MODEL_OPTIONS,
    OUTPUT_OPTIONS,
    SAMPLING_OPTIONS,
    Choices,
    options,
    read_prompt,
)
from foredraft.cli.view import View
from foredraft.control import Fixed
from foredraft.pipeline import Pipeline, Request
from foredraft.plan.guard import check_memory
from foredraft.summary import Summary
from foredraft.types import Emitted, Step

INTERRUPTED = 130


@click.command()
@click.argument("prompt", required=False)
@options(MODEL_OPTIONS, DRAFT_OPTIONS, SAMPLING_OPTIONS, OUTPUT_OPTIONS)
def generate(prompt: str | None, **values: Any) -> int:
    """Answer PROMPT (or standard input, "-") with TARGET, as fast as its drafts allow.

    The text is the target's own: the same seed gives the same text with any draft, or none. Text goes to standard
    output, accepted drafts in colour; everything else to standard error.
    """
    choices = Choices(values)
    sampling = choices.sampling()
    text = read_prompt(prompt)
    choices.request((0,), sampling)
    policy = choices.policy()
    view = View(quiet=choices.quiet, as_json=choices.as_json)
    setup = choices.setup()
    for note in filter(None, [check_memory(setup)]):
        view.note(note)
    with view.status(f"loading {setup.target.name}"):
        pipeline = Pipeline.open(setup)
    with pipeline:
        encoded = encode_prompt(pipeline.tokenizer, text, system=choices.system, raw=choices.raw)
        pipeline.check(choices.request(encoded.ids, sampling))
        with view.status("measuring passes on this machine"):
            costs = known_costs(pipeline, setup, policy, choices.profile, encoded.ids)
        for note in costs.notes:
            view.note(note)
        controller = policy.make(pipeline.engine.info, costs.priors)
        job = _Job(pipeline, encoded, choices.request(encoded.ids, sampling, controller), view, policy.controller)
        for note in _notes(job):
            view.note(note)
        if choices.compare:
            return _compare(job, choices.runs)
        return _single(job)


@dataclass(frozen=True)
class _Job:
    pipeline: Pipeline
    prompt: EncodedPrompt
    request: Request
    view: View
    controller: str


def _notes(job: _Job) -> Iterator[str]:
    info = job.pipeline.engine.info
    yield from job.prompt.notes
    if info.rollback == "none":
        yield f"rollback: none, so nothing is drafted ({info.reason})"
    elif info.reason:
        yield info.reason
    controller = job.request.controller
    if not info.tree and isinstance(controller, Fixed) and controller.what.branches > 1:
        yield "this engine takes no trees here; drafting chains"
    for pair in job.pipeline.pairs:
        yield from (str(warning) for warning in pair.warnings)


def _single(job: _Job) -> int:
    summary = Summary()
    interrupted = not _stream(job, job.request, summary)
    if job.view.as_json:
        click.echo(json.dumps(_document(job, summary), indent=2))
    else:
        job.view.summary(summary, job.request, len(job.prompt.ids))
    return INTERRUPTED if interrupted else 0


def _stream(job: _Job, request: Request, summary: Summary) -> bool:
    """Run one request into ``summary``, showing its text; False if Ctrl-C ended it."""
    text = job.view.text(job.pipeline.tokenizer)
    try:
        for step in job.pipeline.stream(request):
            summary.add(step)
            text.show(step)
    except KeyboardInterrupt:
        summary.finish_reason = "cancelled"
    text.end()
    return summary.finish_reason != "cancelled"


def _compare(job: _Job, runs: int) -> int:
    text = job.view.text(job.pipeline.tokenizer)

    def shown(step: Step) -> None:
        text.show(step)
        if step.finish_reason:
            text.end()

    result = compare(job.pipeline, job.request, runs, shown, job.view.status)
    if job.view.as_json:
        document = _document(job, result.speculative) | result.as_json()
        click.echo(json.dumps(document, indent=2))
    else:
        text.end()
        job.view.comparison(result, job.request, len(job.prompt.ids))
    return _exit_code(result)


def _exit_code(result: Comparison) -> int:
    """A difference that rounding cannot explain is a fault, and not hidden."""
    if result.interrupted:
        return INTERRUPTED
    return 1 if result.difference is not None and not result.difference.near_tie else 0


def _document(job: _Job, summary: Summary) -> dict[str, Any]:
    request, info = job.request, job.pipeline.engine.info
    ids = summary.ids
    document: dict[str, Any] = {
        "text": job.pipeline.text(ids, summary.hidden_bytes),
        "ids": ids,
        **summary.as_json(),
        "prompt_tokens": len(job.prompt.ids),
        "target": info.model,
        "draft": job.pipeline.drafter.name,
        "controller": job.controller,
        "rule": request.rule,
        "seed": request.sampling.seed,
        "exact": request.rule != "relaxed",
        "notes": list(_notes(job)),
    }
    if request.rule == "relaxed":
        document["max_tv"] = request.max_tv
        document["mean_tv"] = summary.bias / summary.generated if summary.generated else 0.0
    if request.logprobs is not None:
        document["logprobs"] = [_logprob(token) for token in summary.tokens]
    return document


def _logprob(token: Emitted) -> dict[str, Any]:
    top = [{"id": id, "logprob": value} for id, value in token.top or ()]
    return {"id": token.id, "logprob": token.logprob, "top": top}
