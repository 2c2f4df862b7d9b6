"""An exported program in ExecuTorch's runtime: checked, loaded, called with arrays. Knows no sessions and no tokens.

The runtime's thread pool belongs to the process. ``OMP_NUM_THREADS=1`` is set before torch is first imported, because
torch's own pool would fight it for the processors.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foredraft.devices.machine import usable_cpus
from foredraft.engines.huge_pages import huge_heap
from foredraft.errors import EngineFailure, InvalidValue, MissingExtra, ModelFileError
from foredraft.manifest import Bounds, Manifest, Shape
from foredraft.types import Logits

UNSEEN = np.float32(-1e9)
"""What the mask adds to a slot that a token does not see: its share is then exactly 0."""


@dataclass(frozen=True)
class Pass:
    """One call: ``tokens``, ``positions``, ``slots`` int64[N], ``rows`` int64[R]; ``masks`` float32[N, C], one or two
    (see ``manifest``)."""

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    rows: NDArray[np.int64]
    masks: tuple[Logits, ...]


class Caches:
    """Keys and values of one sequence, float32[K, capacity, D] for each layer, shared with the runtime: the program
    writes its rows in place. The capacity grows with the slots in use, and so does the time of a pass."""

    STEP = 64

    def __init__(self, shape: Shape, context: int) -> None:
        self._shape, self._context = shape, context
        self.capacity = 0
        self.arrays: list[Logits] = []
        self.tensors: list[Any] = []
        self._torch = import_module("torch")

    def reserve(self, slots: int) -> None:
        """Make room for ``slots`` rows; what is there stays."""
        if slots <= self.capacity:
            return
        capacity = max(2, min(self._context, -(-slots // self.STEP) * self.STEP))
        shape, self.tensors = self._shape, []
        if not self.arrays:
            self.arrays = [np.zeros((shape.kv_heads, 0, shape.head_dim), np.float32)] * (2 * shape.layers)
        for index, old in enumerate(self.arrays):  # one at a time, so that old and new never lie side by side
            self.arrays[index] = np.zeros((shape.kv_heads, capacity, shape.head_dim), np.float32)
            self.arrays[index][:, : self.capacity] = old
        ones = np.ones((shape.kv_heads, capacity, 1), np.float32)
        self.capacity = capacity
        self.tensors = [self._torch.from_numpy(array) for array in (ones, *self.arrays)]

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows; all are read before one is written."""
        for array in self.arrays:
            array[:, targets] = array[:, sources]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(array.nbytes for array in self.arrays)


class NativeProgram:
    """A loaded ``model.pte``. Raises ModelFileError where the runtime lacks an operator or does not take the file."""

    def __init__(self, path: Path, manifest: Manifest, threads: int) -> None:
        self.bounds: Bounds = manifest.bounds
        self._torch, runtime = load_runtime()
        with captured_stderr() as lines, huge_heap(manifest.program.bytes):
            try:
                _set_threads(runtime, threads)
                _check_runtime(runtime, path, manifest)
                program = runtime._load_program(str(path), program_verification=runtime.Verification.Minimal)
                self._method: Any = program.load_method("forward")
                self._head: Any = program.load_method("head") if manifest.head is not None else None
                self._fuse: Any = program.load_method("fuse") if manifest.head is not None else None
            except RuntimeError as error:
                reason = lines() or str(error)
                raise ModelFileError(f"{path}: ExecuTorch cannot load it ({reason}); export it again") from None
        self._program: Any = program  # the method points into it
        self.threads: int = runtime._threadpool_get_thread_count()

    def run(self, step: Pass, caches: Caches) -> list[Any]:
        """The program's outputs: logits float32[R, V'], hidden states float32[N, ·] if it has taps.

        They are views of the program's memory, which its methods share: valid until the next run of any of them.
        Raises InvalidValue beyond the bounds.
        """
        self._check(self._method, step, caches)
        arrays = (step.tokens, step.positions, step.slots, step.rows, *step.masks)
        return self._call(self._method, arrays, caches.tensors)

    def run_head(self, step: Pass, state: Logits, caches: Caches) -> list[Any]:
        """One pass of the draft head: ``state`` float32[N, h]; logits float32[R, V'] and outputs float32[N, h], views
        of the program's memory. Sizes are bounded as those of ``run``."""
        self._check(self._head, step, caches)
        arrays = (step.tokens, step.positions, step.slots, step.rows, state, *step.masks)
        return self._call(self._head, arrays, caches.tensors)

    def fuse(self, states: Logits) -> Logits:
        """The target's states float32[N, T·h] -> what the head reads, float32[N, h]."""
        if self._fuse is None or not 1 <= len(states) <= self.bounds.width:
            raise InvalidValue("states", len(states), f"1 to {self.bounds.width}, of a program with a head")
        fused: Logits = self._call(self._fuse, (states,), [])[0].copy()
        return fused

    def _call(self, method: Any, arrays: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        try:
            outputs = method.call([*map(self._torch.from_numpy, arrays), *tensors], False)
        except RuntimeError as error:
            raise EngineFailure(f"ExecuTorch failed: {error}") from None
        return [output.numpy() for output in outputs]

    def _check(self, method: Any, step: Pass, caches: Caches) -> None:
        if method is None:
            raise EngineFailure("the engine is closed")
        for name, size, most in (
            ("width", len(step.tokens), self.bounds.width),
            ("rows", len(step.rows), self.bounds.rows),
            ("slots", caches.capacity, self.bounds.context),
        ):
            if not 1 <= size <= most:
                raise InvalidValue(name, size, f"1 to {most}, the bound this program was exported with")

    def close(self) -> None:
        """Free the program. Idempotent."""
        self._method = self._head = self._fuse = self._program = None


def load_runtime() -> tuple[ModuleType, Any]:
    """torch and the runtime's bindings with the quantized operators; MissingExtra if they are not installed."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        torch = import_module("torch")
        # What portable_lib re-exports; that module itself first imports the whole exporter, in some 5 seconds.
        runtime = import_module("executorch.extension.pybindings._C")
        import_module("executorch.kernels.quantized")
    except ImportError as error:
        raise MissingExtra(
            "the ExecuTorch engine needs executorch and torch; install them with: pip install 'foredraft[executorch]'"
        ) from error
    return torch, runtime


def _set_threads(runtime: Any, threads: int) -> None:
    """``threads`` 0: as many as the pool has, but no more than there are processors that this process may use."""
    present = runtime._threadpool_get_thread_count()
    wanted = threads or min(present, usable_cpus())
    if present != wanted:
        runtime._unsafe_reset_threadpool(wanted)


def _check_runtime(runtime: Any, path: Path, manifest: Manifest) -> None:
    known = {*runtime._get_operator_names(), *runtime._get_registered_backend_names()}
    missing = [name for name in (*manifest.operators, *manifest.backends) if name not in known]
    if missing:
        raise ModelFileError(
            f"{path}: needs {', '.join(missing)}, which this ExecuTorch does not have; "
            f"install the version it was exported with ({manifest.versions.get('executorch', 'unknown')})"
        )


@contextmanager
def captured_stderr() -> Iterator[Any]:
    """Keep what native code writes to file descriptor 2 away from the terminal; yields a function that returns its last
    line. Without such a descriptor nothing is captured."""
    try:
        saved = os.dup(2)
    except OSError:
        yield lambda: ""
        return
    with tempfile.TemporaryFile() as file:

        def last_line() -> str:
            file.seek(0)
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
            return lines[-1] if lines else ""

        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield last_line
        finally:
            os.dup2(saved, 2)
            os.close(saved)
