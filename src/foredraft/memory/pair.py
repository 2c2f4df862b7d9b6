"""The plan of a target with its drafts inside one app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.memory.lines import DIRTY, Line, Plan
from foredraft.memory.model import Use, model_lines
from foredraft.memory.runtimes import Runtime
from foredraft.modelfile import ModelShape


@dataclass(frozen=True, slots=True)
class Member:
    """A model of the plan and how it is used."""

    shape: ModelShape
    use: Use
    runtime: Runtime


def plan_memory(target: Member, drafts: Sequence[Member] = (), reserve: int = 0) -> Plan:
    """Everything that is in memory at once. ``reserve``: bytes for the rest of the app. The bases of two runtimes are
    both counted, that of one runtime once."""
    lines = list(model_lines(target.shape, target.use, target.runtime, "target"))
    for index, draft in enumerate(drafts):
        part = "draft" if len(drafts) == 1 else f"draft {index + 1}"
        lines += model_lines(draft.shape, draft.use, draft.runtime, part)
    bases: dict[str, Line] = {}
    for member in (target, *drafts):
        runtime = member.runtime
        bases[runtime.name] = Line("app", f"runtime ({runtime.name})", runtime.base, DIRTY, "libraries", runtime.source)
    lines += bases.values()
    if reserve:
        lines.append(Line("app", "rest of the app", reserve, DIRTY, "set aside", "as given, or a guess; see --reserve"))
    return Plan(tuple(line for line in lines if line.nbytes))
