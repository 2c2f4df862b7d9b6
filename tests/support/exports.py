"""Exports for tests, each made once per run: of tiny random models by architecture, or of a catalogue model."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from foredraft.catalogue import CATALOGUE
from tests.support import tiny_models
from tests.support.models import ensure_model

TINY = {
    "llama": tiny_models.write_llama,
    "llama3": tiny_models.write_llama3,
    "qwen2": tiny_models.write_qwen2,
    "qwen3": tiny_models.write_qwen3,
    "gemma2": tiny_models.write_gemma2,
    "gemma3": tiny_models.write_gemma3,
}


@cache
def folder() -> Path:
    """Where the exports of this run lie; removed at its end."""
    path = Path(tempfile.mkdtemp(prefix="foredraft-exports-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def exported(name: str, rows: tuple[int, ...] | None = None, taps: tuple[int, ...] = ()) -> Path:
    """The export of a model with the default settings, perhaps with restricted output rows or hidden states."""
    from foredraft.export.executorch import ExportConfig, export_executorch, plan

    path = ensure_model(name) if name in CATALOGUE else TINY[name](folder() / f"{name}.gguf")
    source, config, _ = plan(path, ExportConfig(rows=rows, taps=taps))
    target = folder() / f"{name}-{len(rows or ())}-{len(taps)}"
    export_executorch(source, config, target, lambda stage: None)
    return target
