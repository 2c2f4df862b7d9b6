"""Where device profiles are kept, what each is kept for, and when it is stale. Measures nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from foredraft.catalogue import cache_dir
from foredraft.devices.machine import Machine, this_machine, versions
from foredraft.devices.measured import SCHEMA, DeviceProfile, ModelFacts, read_profile, write_profile
from foredraft.errors import InvalidValue, ModelFileError, ProfileError
from foredraft.manifest import is_export, read_manifest

MAX_AGE = timedelta(days=30)
"""An older profile is stale: drivers, cooling and background load change."""
_END = 1 << 20


@dataclass(frozen=True, slots=True)
class Subject:
    """What a profile is about: these models on this machine, with what changes times or bits. ``threads``: as asked
    for, or the default; ``versions``: of foredraft and of the engines' packages; ``settings``: the engine's."""

    target: ModelFacts
    drafts: tuple[ModelFacts, ...] = ()
    threads: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    machine: Machine = field(default_factory=this_machine)

    @property
    def key(self) -> str:
        """Changes with every one of these but the models' names."""
        models = [(model.engine, model.fingerprint) for model in (self.target, *self.drafts)]
        rest = (self.threads, dict(self.settings), dict(self.versions), asdict(self.machine))
        return hashlib.sha256(json.dumps([SCHEMA, models, rest], sort_keys=True).encode()).hexdigest()[:24]

    @property
    def path(self) -> Path:
        """Where its profile is kept."""
        return cache_dir() / "profiles" / f"{self.key}.json"


def model_facts(path: Path, engine: str) -> ModelFacts:
    """What a profile says of the model at ``path``, run by ``engine``. ModelFileError if it is not there."""
    shown = path.parent if path.suffix == ".pte" else path
    return ModelFacts(
        shown.name or shown.resolve().name, fingerprint(path), engine, sum(map(_size, weight_files(path)))
    )


def fingerprint(path: Path) -> str:
    """Tells models apart without reading them whole.

    An export: the SHA-256 of its program, from its manifest. A GGUF file: a hash over its size, its first and its last
    MiB (header, vocabulary, last weights); a file that differs only between the two would be taken for the same. A
    Hugging Face directory: the same over config.json and its weight files.
    """
    if is_export(path):
        return f"program-{read_manifest(path).program.sha256}"
    files = weight_files(path)
    if path.is_dir():
        files = [path / "config.json", *files]
    digest = hashlib.sha256()
    for file in files:
        _add_ends(digest, file)
    return f"ends-{digest.hexdigest()}"


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights of the model at ``path``."""
    if is_export(path):
        manifest = read_manifest(path)
        return [(path if path.is_dir() else path.parent) / manifest.program.file]
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def _size(file: Path) -> int:
    return file.stat().st_size


def _add_ends(digest: hashlib._Hash, path: Path) -> None:
    try:
        size = _size(path)
        with path.open("rb") as file:
            first = file.read(_END)
            file.seek(max(len(first), size - _END))
            last = file.read(_END)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
    digest.update(f"{size} {len(first)} ".encode() + first + last)


def recall(subject: Subject, now: datetime, *, quick: bool) -> DeviceProfile | None:
    """The profile kept for ``subject``; None if there is none, it is stale or damaged, or only a quick one and
    ``quick`` is not enough."""
    with suppress(ProfileError):
        profile = read_profile(subject.path)
        if not is_stale(profile, now) and (quick or not profile.quick):
            return profile
    return None


def is_stale(profile: DeviceProfile, now: datetime) -> bool:
    """Older than 30 days, or from a future that only a wrong clock explains."""
    age = now - profile.measured_at
    return not -timedelta(days=1) <= age <= MAX_AGE


def remember(subject: Subject, profile: DeviceProfile) -> Path | None:
    """Keep ``profile`` for ``subject``; None if the cache cannot be written, which only costs measuring again."""
    path = subject.path
    with suppress(OSError, InvalidValue):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_profile(profile, path)
        return path
    return None
