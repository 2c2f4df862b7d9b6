"""Before models are loaded: do they fit into the memory that is free here? If not, what to change."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from foredraft.devices.machine import free_memory
from foredraft.engines.opening import AUTO, engine_name
from foredraft.errors import ForedraftError
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
    target = _shape(setup.target, setup.engine_name)
    drafts = [
        Candidate(Path(draft).name, _shape(Path(draft), setup.draft_engine))
        for draft in setup.drafts
        if draft not in BUILT_IN
    ]
    drafts.sort(key=lambda each: -each.nbytes)
    largest, others = (drafts[0], drafts[1:]) if drafts else (Candidate(NONE), [])
    setting = _setting(setup, target)
    reserve = sum(plan(target, each, setting).of(part="draft") for each in others)
    setting = replace(setting, reserve=reserve)
    needed = plan(target, largest, setting)
    if needed.dirty <= free:
        return None if needed.total <= free else _slow(needed.total, free)
    found = plan_device(
        Question(target, (largest,), setting), given_allowance("this machine", free + needed.mapped), None
    )
    fixes = [f"{change.words}{_option(change.words)}" for change in found.changes if "head" not in change.words]
    fix = "; or ".join(fixes[:3]) or "a smaller model, or a machine with more memory"
    beside = "" if largest.shape is None else f" with {', '.join(each.name for each in drafts)}"
    raise ShortOfMemoryError(
        f"{setup.target.name}{beside} needs about {size(needed.dirty)} of memory beside its mapped files, {size(free)} "
        f"are free; what would do: {fix} ({OVERRIDE}=1 tries it all the same)"
    )


def _option(words: str) -> str:
    option = next((option for start, option in _OPTIONS.items() if words.startswith(start)), None)
    return "" if option is None else f" ({option})"


def _slow(total: int, free: int) -> str:
    needs = f"{size(total)} are needed for full speed and {size(free)} are free"
    return f"{needs}: weights will be read from disk again and again"


def _shape(path: Path, name: str) -> ModelShape:
    """The pytorch engine holds weights in float32, whatever the file has."""
    shape = read_shape(str(path))
    chosen = engine_name(path) if name == AUTO else name
    return replace(shape, weight_bytes=4 * shape.parameters) if chosen == "pytorch" and shape.parameters else shape


def _setting(setup: Setup, target: ModelShape) -> Setting:
    name = engine_name(setup.target) if setup.engine_name == AUTO else setup.engine_name
    context = setup.engine.context or min(target.context_length or _CONTEXT, _CONTEXT)
    kv_type = setup.engine.kv_type if name == "llama_cpp" else "f32"
    return Setting(context, name, kv_type, rows=setup.engine.lines, reserve=0, here=True)
