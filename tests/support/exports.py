"""ExecuTorch exports for tests: made anew in every run, by one process in the background while other tests run.

Which are needed is read off the collected tests: parameters that name a case of ``CASES``, and the marker
``exports("llama", ...)``. ``python -m tests.support.exports DIR`` waits until ``DIR/wanted`` names them and makes them
one after the other. Where tests run in several processes, the first one of these starts that process for all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from foredraft.catalogue import CATALOGUE
from tests.support import tiny_models
from tests.support.models import ensure_model

TINY: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_models.write_llama,
    "llama3": tiny_models.write_llama3,
    "qwen2": tiny_models.write_qwen2,
    "qwen3": tiny_models.write_qwen3,
    "gemma2": tiny_models.write_gemma2,
    "gemma3": tiny_models.write_gemma3,
}
ROWS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 14, 15, 20, 21, 22, 23)
"""Output rows of "llama-rows"."""
TAPS = (1, 5)
"""Layers of "gemma3-taps"; the second one is global, the first one local."""
WANTED, PROCESS = "wanted", "process"
FLOAT = {"weights": "float32", "head": "float32", "embedding_bits": 8}


@dataclass(frozen=True)
class Recipe:
    """A model of ``TINY`` or of the catalogue, the ``ExportConfig`` that differs from the default, and whether an
    untrained draft head goes in."""

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    head: bool = False


RECIPES: dict[str, Recipe] = {
    "llama": Recipe("llama"),
    "gemma3": Recipe("gemma3"),
    "llama-rows": Recipe("llama", {"rows": ROWS, "context": 512}),
    "smollm2-135m": Recipe("smollm2-135m"),
    "gemma3-taps": Recipe("gemma3", {"taps": TAPS, "context": 512, **FLOAT}),
    "llama-head": Recipe("llama", {"context": 512, "draft_weights": "float32", **FLOAT}, head=True),
    "llama3": Recipe("llama3"),
    "qwen2": Recipe("qwen2", {"weights": "int8", "head": "int8"}),
    "qwen3": Recipe("qwen3"),
    "gemma2": Recipe("gemma2"),
}
"""In the order in which they are made."""
CASES = {"executorch-llama": "llama", "executorch-gemma3": "gemma3", "executorch-smollm2": "smollm2-135m"}
"""Engines of the contract suite -> their export."""


# --- in the process that makes them ------------------------------------------------------------------------


def make(name: str, folder: Path) -> None:
    """Export ``name`` as ``folder/name``, or write down in ``folder/name.failed`` why that was not possible."""
    from foredraft.export.executorch import ExportConfig, export_executorch, plan
    from tests.support import tiny_heads

    parent = os.getppid()

    def progress(stage: str) -> None:
        if os.getppid() != parent:
            raise SystemExit("the tests have ended")

    recipe = RECIPES[name]
    try:
        path = ensure_model(recipe.model) if recipe.model in CATALOGUE else write_tiny(recipe.model, folder)
        head = tiny_heads.write_head(path, folder / f"{name}.trained") if recipe.head else None
        source, config, _ = plan(path, ExportConfig(**recipe.settings, draft_head=head))
        export_executorch(source, config, folder / name, progress)
    except Exception:  # noqa: BLE001  whatever it is, the tests that need the export show it
        (folder / f"{name}.failed").write_text(traceback.format_exc(), "utf-8")


def write_tiny(model: str, folder: Path) -> Path:
    """The GGUF of a model of ``TINY``."""
    return TINY[model](folder / f"{model}.gguf")


def main(folder: Path) -> None:
    """Make what ``folder/wanted`` names, once it is there."""
    parent, wanted = os.getppid(), folder / WANTED
    while not wanted.exists():
        if os.getppid() != parent:
            return
        time.sleep(0.1)
    for name in json.loads(wanted.read_text("utf-8")):
        make(name, folder)


# --- in the tests ------------------------------------------------------------------------------------------


class Maker:
    """The process that makes the exports of one run of the tests, in a directory of their own. It belongs to the
    process that pytest was started in."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="foredraft-exports-"))
        with (self.folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "tests.support.exports", str(self.folder)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        (self.folder / PROCESS).write_text(str(self._process.pid))

    def stop(self) -> None:
        """End the process and remove everything."""
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.folder)


@dataclass(frozen=True)
class Run:
    """What a process that runs tests knows of the exports in ``folder``."""

    folder: Path
    names: Sequence[str]

    def want(self) -> None:
        """Have them made. Several processes may ask: they have collected the same tests."""
        wanted = self.folder / f"{WANTED}.{os.getpid()}"
        wanted.write_text(json.dumps(self.names), "utf-8")
        wanted.replace(self.folder / WANTED)

    def wait(self, name: str) -> Path:
        """The finished export; fails the test if it could not be made."""
        path, failed = self.folder / name, self.folder / f"{name}.failed"
        assert name in self.names, f"mark this test with @pytest.mark.exports({name!r})"
        while not path.exists():
            ended = not self._running()
            if failed.exists() or (ended and not path.exists()):
                reason = failed.read_text("utf-8") if failed.exists() else "its process has ended"
                log = (self.folder / "log").read_text("utf-8", "replace")
                pytest.fail(f"the export {name} could not be made: {reason}\n{log[-4000:]}", pytrace=False)
            time.sleep(0.1)
        return path

    def _running(self) -> bool:
        """Whether the process that makes them lives; a process that ended and was not waited for does not."""
        process = int((self.folder / PROCESS).read_text())
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
        return state.returncode == 0 and not state.stdout.strip().startswith("Z")


_MAKERS: list[Maker] = []
_RUNS: list[Run] = []


def exported(name: str) -> Path:
    """The export of ``RECIPES[name]``; waits until it is finished."""
    assert _RUNS, f"no export was started: mark this test with @pytest.mark.exports({name!r})"
    return _RUNS[0].wait(name)


def needs(item: pytest.Item) -> set[str]:
    """The exports a test needs."""
    marked = {name for marker in item.iter_markers("exports") for name in marker.args}
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return marked | {CASES[value] for value in values if isinstance(value, str) and value in CASES}


def last(items: list[pytest.Item]) -> None:
    """Move the tests that need exports behind the others, those first whose exports are finished first."""
    order = list(RECIPES)
    items.sort(key=lambda item: max((order.index(name) + 1 for name in needs(item)), default=0))


def folder() -> Path:
    """Where the exports of this run lie; starts the process that makes them, which waits to be told which."""
    if not _MAKERS:
        _MAKERS.append(Maker())
    return _MAKERS[0].folder


def start(items: Iterable[pytest.Item], place: Path | None) -> None:
    """Have made what ``items`` need, in ``place``, which another process owns (None: this one does)."""
    wanted = set[str]().union(*map(needs, items))
    if wanted:
        run = Run(place or folder(), [name for name in RECIPES if name in wanted])
        run.want()
        _RUNS.append(run)


def stop() -> None:
    """End what this process began."""
    _RUNS.clear()
    while _MAKERS:
        _MAKERS.pop().stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
