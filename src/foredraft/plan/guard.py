"""Before models are loaded: do they fit into the memory that is free here? If not, what to change."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from foredraft.devices.machine import free_memory
from foredraft.engines.opening import AUTO, engine_name, is_head_draft
from foredraft.errors import ForedraftError, UsageError
from foredraft.memory import size
from foredraft.modelfile import ModelShape
from foredraft.pipeline import BUILT_IN, Setup
from foredraft.plan.allowance import given_allowance
from foredraft.plan.options import NONE, Candidate, Setting, plan
from foredraft.plan.planner import Question, plan_device
from foredraft.shapes import read_shape

OVERRIDE = "FOREDRAFT_IGNORE_MEMORY"
"""Set to 1, nothing is refused: for a machine whose free memory is told wrongly."""
_CONTEXT = 4096
_OPTIONS = {"keys and values": "--kv-type", "a context": "--ctx", "copies": "--draft ngram", "no draft": "--draft none"}


class ShortOfMemoryError(ForedraftError):
    """Models that would not fit into free memory."""


def check_memory(setup: Setup, free: int | None = None) -> str | None:
    """Refuse what needs more memory of its own than ``free`` bytes (None: as this machine says) with
    ShortOfMemoryError, one line; a note if the weights, mapped from their files, will not all stay in memory. None: all
    is well, or nobody says how much is free."""
    free = free_memory() if free is None else free
    if free is None or os.environ.get(OVERRIDE) == "1":
        return None
    paths = [Path(draft) for draft in setup.drafts if draft not in BUILT_IN and not is_head_draft(draft)]
    try:
        target = _shape(setup.target, setup.engine_name)
        drafts = [Candidate(path.name, _shape(path, setup.draft_engine)) for path in paths]
    except UsageError:  # loading says what is wrong with it
        return None
    drafts.sort(key=lambda each: -each.nbytes)
    largest, others = (drafts[0], drafts[1:]) if drafts else (Candidate(NONE), [])
    setting = _setting(setup, target)
    reserve = sum(plan(target, each, setting).of(part="draft") for each in others)
    setting = replace(setting, reserve=reserve)
    needed = plan(target, largest, setting)
    if needed.dirty <= free:
        return None if needed.total <= free else _slow(needed.total, free)
    allowed = replace(given_allowance("this machine", free), mapped_free=True)
    found = plan_device(Question(target, (largest,), setting), allowed, None)
    fixes = [f"{change.words}{option}" for change in found.changes if (option := _option(change.words))]
    fix = "; or ".join(fixes[:3]) or "a smaller model, or a machine with more memory"
    beside = "" if largest.shape is None else f" with {', '.join(each.name for each in drafts)}"
    raise ShortOfMemoryError(
        f"{setup.target.name}{beside} needs about {size(needed.dirty)} of memory of its own, "
        f"{size(needed.dirty - free)} more than are free; what would do: {fix} ({OVERRIDE}=1 tries it all the same)"
    )


def _option(words: str) -> str:
    """The option behind a change; none for what foredraft cannot do here."""
    option = next((option for start, option in _OPTIONS.items() if words.startswith(start)), None)
    return "" if option is None else f" ({option})"


def _slow(total: int, free: int) -> str:
    needs = f"{size(total)} are needed for full speed and {size(free)} are free"
    return f"{needs}: weights will be read from disk again and again"


def _shape(path: Path, name: str) -> ModelShape:
    """The pytorch engine holds weights in float32, whatever the file has."""
    shape = read_shape(str(path))
    chosen = engine_name(path) if name == AUTO else name
    if chosen != "pytorch":
        return shape
    return replace(shape, weight_bytes=4 * shape.parameters or shape.weight_bytes, source="safetensors")


def _setting(setup: Setup, target: ModelShape) -> Setting:
    asked, most = setup.engine.context, target.context_length or _CONTEXT
    context = min(asked, most) if asked and target.source == "export" else asked or min(most, _CONTEXT)
    kv_type = setup.engine.kv_type if target.source == "gguf" else "f32"
    return Setting(
        context,
        kv_type=kv_type,
        draft_kv_type=setup.engine.kv_type,
        rows=setup.engine.lines,
        reserve=0,
        draft_context=setup.draft_context or None,
        here=True,
    )
