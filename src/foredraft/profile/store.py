"""Traces on disk: one Parquet file, and while a profile runs one small file for every finished text.

Every file is written under another name and then renamed, so that a run may be killed at any moment. Rows are
positions; what is known of whole texts and the settings stand in the file's metadata, as JSON under the key
``foredraft``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.errors import MissingExtra, TraceError
from foredraft.profile.laws import REST_POWERS, Laws
from foredraft.profile.replay import Copies
from foredraft.profile.trace import GRID, RANKS, TABLE_RULES, DraftTrace, Table, TextFacts, TextTrace, Trace
from foredraft.profile.trace import TraceSettings as Settings
from foredraft.records import DamagedRecord, record
from foredraft.whole_files import replacing

FORMAT, SCHEMA = "foredraft-trace", 1
TRACE, PARTS = "trace.parquet", "parts"
_KEY = b"foredraft"
_MAGIC = b"PAR1"
_AGAIN = "profile the prompts again"


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("traces need pyarrow: pip install 'foredraft[profile]'") from None
    return pyarrow


# --- writing -----------------------------------------------------------------------------------------------


def write_part(directory: Path, settings: Settings, text: TextTrace) -> None:
    """Keep one finished text under ``directory``."""
    path = directory / PARTS / f"{text.facts.index:06d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = _table(text)
    _write(path, table.schema, [table], _about(settings, [text.facts], complete=False))


def finish(directory: Path, settings: Settings) -> None:
    """Join all parts into the trace, text by text, and remove them."""
    arrow = _arrow()
    parts = part_files(directory)
    facts = [one for part in parts for one in _facts(part, _metadata(part))]
    tables = (arrow.parquet.read_table(part, memory_map=True) for part in parts)
    first = arrow.parquet.read_schema(parts[0])
    _write(directory / TRACE, first, tables, _about(settings, facts, complete=True))
    remove_parts(directory)


def remove_parts(directory: Path) -> None:
    """Forget finished texts that were not joined."""
    for part in part_files(directory):
        part.unlink()
    folder = directory / PARTS
    if folder.is_dir():
        for left in folder.glob(".*.tmp"):
            left.unlink()
        folder.rmdir()


def part_files(directory: Path) -> list[Path]:
    """The finished texts of an unfinished run, in order."""
    return sorted((directory / PARTS).glob("*.parquet"))


def _about(settings: Settings, facts: Sequence[TextFacts], *, complete: bool) -> bytes:
    about = {"format": FORMAT, "schema": SCHEMA, "complete": complete}
    about |= {"settings": asdict(settings), "texts": [asdict(one) for one in facts]}
    return json.dumps(about, ensure_ascii=False).encode()


def _write(path: Path, schema: Any, tables: Any, about: bytes) -> None:
    arrow = _arrow()
    schema = schema.with_metadata({_KEY: about})
    with replacing(path) as temporary:
        with arrow.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(schema.metadata))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def _table(text: TextTrace) -> Any:
    arrow, count = _arrow(), len(text)
    columns: dict[str, Any] = {
        "text": arrow.array(np.full(count, text.facts.index, np.int32)),
        "position": arrow.array(np.arange(count, dtype=np.int32)),
        "proposed": arrow.array(text.copies.proposed.astype(np.int16)),
        "matched": arrow.array(text.copies.matched.astype(np.int16)),
    }
    if text.ids is not None and text.pieces is not None and text.target is not None:
        columns["token"] = arrow.array(text.ids)
        columns["piece"] = arrow.array(list(text.pieces), arrow.binary())
        columns |= _law_columns("target", text.target)
    for number, draft in enumerate(text.drafts):
        columns[f"draft{number}_rank"] = arrow.array(draft.rank)
        if draft.laws is not None:
            columns |= _law_columns(f"draft{number}", draft.laws)
        if draft.table is not None:
            columns[f"draft{number}_rules"] = _rows(draft.table.rules)
            columns[f"draft{number}_ranks"] = _rows(draft.table.ranks)
    return arrow.table(columns)


def _law_columns(name: str, laws: Laws) -> dict[str, Any]:
    return {f"{name}_{part}": _rows(getattr(laws, part)) for part in ("ids", "scores", "rest")}


def _rows(values: Any) -> Any:
    """An array [P, …] as a column of lists of one size."""
    arrow = _arrow()
    flat = values.reshape(len(values), -1)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.ravel()), flat.shape[1])


# --- reading -----------------------------------------------------------------------------------------------


def read_trace(directory: Path) -> Trace:
    """The trace in ``directory``, or as much of it as an unfinished run has kept. TraceError, one line, for whatever is
    wrong with it."""
    whole = directory / TRACE
    files = [whole] if whole.exists() else part_files(directory)
    if not files:
        raise TraceError(f"{directory}: holds no trace; make one with `foredraft profile -o {directory}`")
    texts: list[TextTrace] = []
    about: Mapping[str, Any] = {}
    for file in files:
        about = _metadata(file)
        texts += _texts(file, about)
    return Trace(_settings(files[-1], about), tuple(texts), complete=whole.exists())


def read_settings(directory: Path) -> Settings | None:
    """The settings of the trace in ``directory``, finished or not; None where there is none."""
    files = [directory / TRACE] if (directory / TRACE).exists() else part_files(directory)
    return _settings(files[0], _metadata(files[0])) if files else None


def finished(directory: Path) -> set[int]:
    """Indices of the texts that an unfinished run has kept."""
    return {facts.index for part in part_files(directory) for facts in _facts(part, _metadata(part))}


def _metadata(path: Path) -> Mapping[str, Any]:
    """The JSON of a file that was checked to be Parquet before it is opened."""
    arrow = _arrow()
    try:
        with path.open("rb") as file:
            head = file.read(4)
            file.seek(max(-12, -path.stat().st_size), os.SEEK_END)
            tail = file.read(12)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error}); check the path") from None
    if len(tail) < 12 or head != _MAGIC or tail[-4:] != _MAGIC:
        raise TraceError(f"{path}: is no Parquet file, or cut off; {_AGAIN}")
    try:
        found = arrow.parquet.read_schema(path).metadata or {}
        about = json.loads(found.get(_KEY, b"null"))
    except (arrow.ArrowException, OSError, ValueError, RecursionError):
        raise TraceError(f"{path}: is damaged; {_AGAIN}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise TraceError(f"{path}: is no trace of foredraft; make one with `foredraft profile`")
    if about.get("schema") != SCHEMA:
        raise TraceError(f"{path}: schema version is {about.get('schema')!r}; this foredraft reads {SCHEMA}; {_AGAIN}")
    return about


def _settings(path: Path, about: Mapping[str, Any]) -> Settings:
    try:
        return record(Settings, about.get("settings"))
    except DamagedRecord as error:
        raise TraceError(f"{path}: settings: {error}; {_AGAIN}") from None


def _facts(path: Path, about: Mapping[str, Any]) -> list[TextFacts]:
    found = about.get("texts")
    if not isinstance(found, list):
        raise TraceError(f"{path}: texts is missing; {_AGAIN}")
    try:
        return [record(TextFacts, one) for one in found]
    except DamagedRecord as error:
        raise TraceError(f"{path}: texts: {error}; {_AGAIN}") from None


def _texts(path: Path, about: Mapping[str, Any]) -> list[TextTrace]:
    arrow = _arrow()
    settings = _settings(path, about)
    facts = _facts(path, about)
    try:
        table = arrow.parquet.read_table(path).combine_chunks()
        columns = {name: _array(table.column(name)) for name in table.column_names}
        return [_text(one, _of(columns, one), settings) for one in facts]
    except (arrow.ArrowException, OSError, KeyError, ValueError) as error:
        raise TraceError(f"{path}: is damaged ({str(error).splitlines()[0][:80]}); {_AGAIN}") from None


def _array(column: Any) -> Any:
    """A column as an array, lists of one size as rows; bytes as a list."""
    arrow = _arrow()
    kind = column.type
    if kind == arrow.binary():
        return np.array([*column.to_pylist(), None], object)[:-1]
    if not arrow.types.is_fixed_size_list(kind):
        return column.to_numpy()
    flat = column.combine_chunks().flatten().to_numpy()
    return flat.reshape(len(column), kind.list_size)


def _of(columns: Mapping[str, Any], facts: TextFacts) -> dict[str, Any]:
    """The rows of one text, in order."""
    rows = np.flatnonzero(columns["text"] == facts.index)
    if not np.array_equal(columns["position"][rows], np.arange(facts.tokens)):
        raise ValueError(f"text {facts.index} has {len(rows)} positions instead of {facts.tokens}")
    return {name: values[rows] for name, values in columns.items()}


def _text(facts: TextFacts, columns: Mapping[str, Any], settings: Settings) -> TextTrace:
    copies = Copies(columns["proposed"], columns["matched"])
    found = tuple(_draft(f"draft{number}", columns, settings) for number in range(len(settings.drafts)))
    if "token" not in columns:
        return TextTrace(facts, copies, found)
    pieces = tuple(columns["piece"].tolist())
    return TextTrace(facts, copies, found, columns["token"], pieces, _laws("target", columns))


def _draft(name: str, columns: Mapping[str, Any], settings: Settings) -> DraftTrace:
    rank = columns[f"{name}_rank"]
    if f"{name}_rules" not in columns:
        return DraftTrace(rank, _laws(name, columns))
    rules = columns[f"{name}_rules"].reshape(-1, len(GRID), len(TABLE_RULES))
    ranks = columns[f"{name}_ranks"].reshape(-1, len(GRID), RANKS)
    return DraftTrace(rank, None, Table(rules, ranks, settings.draft_temperature))


def _laws(name: str, columns: Mapping[str, Any]) -> Laws:
    if columns[f"{name}_rest"].shape[1:] != (len(REST_POWERS),):
        raise ValueError(f"{name}_rest has {columns[f'{name}_rest'].shape[1:]} values a row")
    return Laws(*(columns[f"{name}_{part}"] for part in ("ids", "scores", "rest")))
