"""What lies beside an exported program: ``manifest.json``, read, checked and written. Loads no program.

An export is a directory: ``manifest.json``, ``model.pte``, ``tokenizer.json``, perhaps ``output_rows.json``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from reprlib import Repr
from typing import Any

from foredraft.errors import ModelFileError

FORMAT = "foredraft-executorch"
SCHEMA = 1
MANIFEST, PROGRAM, TOKENIZER, OUTPUT_ROWS = "manifest.json", "model.pte", "tokenizer.json", "output_rows.json"
HEAD_IDS = "head_ids.json"
_MAX_BYTES = 64 << 20
_IDENTIFIER = slice(4, 8)
"""Where a flatbuffer says what it is; ExecuTorch programs say ET and two digits."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file by name, size in bytes and SHA-256 (hexadecimal)."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model, in elements. ``window``: positions a local layer sees, None if there are no such layers."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest sizes the program takes: ``context`` slots, ``width`` tokens a pass, ``rows`` of logits a pass."""

    context: int
    width: int
    rows: int


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """A draft head in the same program: ``ids`` of its vocabulary stand in ``file``, ``rows`` of them; ``heads``,
    ``kv_heads`` and ``head_dim``: of its attention; ``share_ppm``: weights that its pass reads, in millionths of
    those of the target's; ``sha256``: of the trained head's weights."""

    file: str
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    share_ppm: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``exact``: rows were found bit-identical under every width, chunking, capacity and tree tried by the export.
    ``output_rows``: rows the output matrix was restricted to, None = all; ``taps``: layers whose hidden states are an
    output; ``operators`` and ``backends``: what the runtime must have. ``quality``: see ``export``. ``arena``: bytes of
    planned memory that the program asks for, None = not recorded; ``head``: the draft head in it, if there is one."""

    name: str
    source: FileFacts
    program: FileFacts
    tokenizer: FileFacts
    tokenizer_facts: Mapping[str, Any]
    shape: Shape
    bounds: Bounds
    quantization: Mapping[str, Any]
    exact: bool
    taps: tuple[int, ...] = ()
    output_rows: int | None = None
    operators: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    quality: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    arena: int | None = None
    head: HeadFacts | None = None

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps({"format": FORMAT, "schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"


def is_export(path: Path) -> bool:
    """True for a directory that holds a manifest or a program, or a program itself."""
    return path.suffix == ".pte" or (path.is_dir() and ((path / MANIFEST).exists() or (path / PROGRAM).exists()))


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an export; ModelFileError, one line, for whatever is wrong with it or with the files it names."""
    program = directory.name if directory.suffix == ".pte" and not directory.is_dir() else None
    if program is not None:
        directory = directory.parent
    path = directory / MANIFEST
    manifest = _parse(path, _load(path))
    if program not in (None, manifest.program.file):
        raise ModelFileError(f"{directory / program}: is not the program of {path}, which is {manifest.program.file}")
    _check_file(directory / manifest.tokenizer.file, manifest.tokenizer)
    head = _check_file(directory / manifest.program.file, manifest.program)
    if not head[_IDENTIFIER].startswith(b"ET"):
        raise ModelFileError(f"{directory / manifest.program.file}: is not an ExecuTorch program; export it again")
    return manifest


def read_output_rows(directory: Path, manifest: Manifest) -> list[int] | None:
    """Ids of the restricted output rows, ascending; None if the program has them all."""
    if manifest.output_rows is None:
        return None
    return _read_ids(directory / OUTPUT_ROWS, manifest.output_rows, manifest.shape.vocab_size)


def read_head_ids(directory: Path, manifest: Manifest) -> list[int]:
    """The draft vocabulary of the export's head, ascending; ModelFileError if it has none."""
    if manifest.head is None:
        raise ModelFileError(
            f"{directory}: holds no draft head; train one with `foredraft tune head` and export again with --head DIR"
        )
    return _read_ids(directory / manifest.head.file, manifest.head.rows, manifest.shape.vocab_size)


def _read_ids(path: Path, count: int, size: int) -> list[int]:
    rows = _load(path)
    good = isinstance(rows, list) and all(type(row) is int and 0 <= row < size for row in rows)
    if not good or len(rows) != count or sorted(set(rows)) != rows:
        raise ModelFileError(
            f"{path}: must hold {count} different ids below {size} in ascending order; export it again"
        )
    return rows  # type: ignore[no-any-return]


def _load(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelFileError(f"{path}: is larger than {_MAX_BYTES >> 20} MiB; export the model again")
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        hint = "a .pte file alone is not enough: make the directory with `foredraft export executorch`"
        raise ModelFileError(f"{path}: no such file; {hint}") from None
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({_reason(error)}); check the path") from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path}: is not JSON; export the model again") from None


def _parse(path: Path, data: Any) -> Manifest:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = _shown(data.get("format")) if isinstance(data, dict) else "not there"
        raise ModelFileError(f"{path}: format is {found}; allowed: {FORMAT!r}; export with `foredraft export`")
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise ModelFileError(
            f"{path}: schema version is {_shown(schema)}; this foredraft reads {SCHEMA}; export the model again"
        )
    try:
        return _manifest(data)
    except _DamageError as error:
        raise ModelFileError(f"{path}: is damaged ({error}); export the model again") from None


class _DamageError(ValueError):
    """What is wrong with a manifest."""


def _manifest(data: dict[str, Any]) -> Manifest:
    values = _present(Manifest, data, "")
    for name, kind in (("source", FileFacts), ("program", FileFacts), ("tokenizer", FileFacts)):
        values[name] = _record(kind, values[name], name)
    values["shape"] = _record(Shape, values["shape"], "shape")
    values["bounds"] = _record(Bounds, values["bounds"], "bounds")
    for name in ("taps", "operators", "backends"):
        if not isinstance(values.setdefault(name, []), list):
            raise _DamageError(f"{name} is {_shown(values[name])}, not a list")
        values[name] = tuple(values[name])
    if values.get("head") is not None:
        values["head"] = _record(HeadFacts, values["head"], "head")
    manifest = Manifest(**values)
    _check_types(manifest)
    return manifest


def _present(kind: type[Any], data: Any, name: str) -> dict[str, Any]:
    """The values of ``kind``'s fields; those without a default must be there."""
    if not isinstance(data, dict):
        raise _DamageError(f"{name} is {_shown(data)}, not an object")
    for item in fields(kind):
        if item.name not in data and item.default is MISSING and item.default_factory is MISSING:
            raise _DamageError(f"{name}{'.' if name else ''}{item.name} is missing")
    return {item.name: data[item.name] for item in fields(kind) if item.name in data}


def _record(kind: type[Any], data: Any, name: str) -> Any:
    """A small record of texts and positive integers."""
    record = kind(**_present(kind, data, name))
    for item in fields(kind):
        value = getattr(record, item.name)
        if value is None and "None" in str(item.type):
            continue
        text = item.type == "str"
        if not (isinstance(value, str) if text else type(value) is int and 0 < value < 1 << 48):
            allowed = "a text" if text else "a positive integer"
            raise _DamageError(f"{name}.{item.name} is {_shown(value)}, not {allowed}")
    return record


def _shown(value: object) -> str:
    """``value`` on one short line."""
    short = Repr()
    short.maxstring = 60
    return short.repr(value)


def _check_types(manifest: Manifest) -> None:
    shape, bounds, rows = manifest.shape, manifest.bounds, manifest.output_rows
    versions = manifest.versions if isinstance(manifest.versions, dict) else {"": None}
    names = (*manifest.operators, *manifest.backends, *versions.values())
    checks = {
        "name": isinstance(manifest.name, str),
        "exact": isinstance(manifest.exact, bool),
        "tokenizer_facts": isinstance(manifest.tokenizer_facts, dict),
        "quantization": isinstance(manifest.quantization, dict),
        "quality": isinstance(manifest.quality, dict),
        "operators, backends or versions": all(isinstance(name, str) for name in names),
        "taps": all(type(tap) is int and 0 <= tap < shape.layers for tap in manifest.taps),
        "shape.kv_heads": shape.heads % shape.kv_heads == 0,
        "shape": max(shape.layers, shape.heads) <= 1024 and shape.vocab_size <= 1 << 24 and shape.head_dim <= 4096,
        "bounds": bounds.rows <= bounds.width <= bounds.context <= 1 << 24,
        "arena": manifest.arena is None or (type(manifest.arena) is int and 0 <= manifest.arena < 1 << 48),
        "output_rows": rows is None or (type(rows) is int and 0 < rows <= shape.vocab_size),
    }
    for name, good in checks.items():
        if not good:
            raise _DamageError(f"{name} has a value that cannot be")
    if (head := manifest.head) is not None:
        good = head.heads % head.kv_heads == 0 and max(head.heads, head.head_dim) <= 4096
        if not good or not manifest.taps or not head.rows <= shape.vocab_size or not _FILE_NAME.fullmatch(head.file):
            raise _DamageError("head has a value that cannot be")
    for name, facts in (("source", manifest.source), ("program", manifest.program), ("tokenizer", manifest.tokenizer)):
        if not _SHA256.fullmatch(facts.sha256):
            raise _DamageError(f"{name}.sha256 is {_shown(facts.sha256)}, not 64 hexadecimal digits")
        if name != "source" and not _FILE_NAME.fullmatch(facts.file):
            raise _DamageError(f"{name}.file is {_shown(facts.file)}, not a plain file name")


def _check_file(path: Path, facts: FileFacts) -> bytes:
    """The first bytes of a file that has the size its ``facts`` give."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_IDENTIFIER.stop)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({_reason(error)}); export the model again") from None
    if size != facts.bytes:
        raise ModelFileError(f"{path}: has {size} bytes, its manifest says {facts.bytes}; copy or export it again")
    return head


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
