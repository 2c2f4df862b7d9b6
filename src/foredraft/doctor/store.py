"""A profile that is kept, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from foredraft.devices import kept
from foredraft.devices.kept import Subject
from foredraft.devices.machine import versions
from foredraft.devices.measured import DeviceProfile
from foredraft.devices.verdict import judge
from foredraft.doctor.measuring import WIDTHS, measure
from foredraft.doctor.settings import SAMPLE, DoctorSettings, Loaded, Progress, silent
from foredraft.engines.llama_cpp import default_threads
from foredraft.engines.opening import AUTO, Settings, engine_name, is_head_draft
from foredraft.pipeline import Pipeline, Setup


@dataclass(frozen=True, slots=True)
class Found:
    """A profile, where it is kept (None: the cache cannot be written), and whether it was measured just now."""

    profile: DeviceProfile
    path: Path | None
    fresh: bool


def subject(
    target: Path, drafts: Sequence[Path], settings: Settings, engines: tuple[str, str] = (AUTO, AUTO)
) -> Subject:
    """What a profile of these files is kept for; ``engines``: of the target and of the drafts."""
    names = [engine_name(target) if engines[0] == AUTO else engines[0]]
    names += [engine_name(draft) if engines[1] == AUTO else engines[1] for draft in drafts]
    facts = [kept.model_facts(path, name) for path, name in zip((target, *drafts), names, strict=True)]
    enough = DoctorSettings().context + max(WIDTHS)
    chosen: Mapping[str, str] = {
        "kv_type": settings.kv_type,
        "strict": "yes" if settings.strict else "no",
        "context": str(settings.context) if 0 < settings.context < 2 * enough else "enough",
    }
    return Subject(facts[0], tuple(facts[1:]), settings.threads or default_threads(), chosen, versions(*names))


def subject_of(setup: Setup) -> Subject:
    """``subject`` of what a pipeline is opened with."""
    drafts = [draft for draft in setup.drafts if isinstance(draft, Path) and not is_head_draft(draft)]
    return subject(setup.target, drafts, setup.engine, (setup.engine_name, setup.draft_engine))


def loaded_of(pipeline: Pipeline, text: Sequence[int] = ()) -> Loaded:
    """The models of an open pipeline; ``text``: ids to measure behind, such as a prompt's (none: ``SAMPLE``)."""
    ids = text if len(text) else pipeline.tokenizer.encode(SAMPLE, add_special=True, parse_special=False)
    return Loaded(pipeline.engine, pipeline.helpers, tuple(ids))


def load_or_measure(
    about: Subject,
    opened: Callable[[], AbstractContextManager[Loaded]],
    settings: DoctorSettings,
    progress: Progress = silent,
    *,
    refresh: bool = False,
) -> Found:
    """The profile kept for ``about`` if it will do, else a new one, which is then kept; models are opened only for
    that. One that is quick, or too noisy to decide anything, will do for ``settings.quick`` only; a quick one that
    was disturbed is not kept."""
    if not refresh:
        known = kept.recall(about, settings.now(), quick=settings.quick)
        if known is not None and (settings.quick or judge(known).decided):
            return Found(known, about.path, fresh=False)
    with opened() as loaded:
        profile = measure(loaded, about, settings, progress)
    spoilt = settings.quick and judge(profile).disturbed
    return Found(profile, None if spoilt else kept.remember(about, profile), fresh=True)
