"""May llama.cpp rearrange weights for wide passes on this machine?

Repacked weights are faster. On some server CPUs, however, the kernels behind them (ggml's AMX path) end the process
with a segmentation fault, which nothing in the process can catch. Where they are compiled in, a child process tries
them once; the answer is kept in the cache.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from foredraft.engines import answers
from foredraft.engines.llama_vocab import native_api

_TRIAL = """
import sys
from pathlib import Path
import numpy as np
from foredraft.engines.llama_native import ContextConfig, NativeContext, NativeModel
model = NativeModel(Path(sys.argv[1]), repack=True)
context = NativeContext(model, ContextConfig(256, 2, lines=1))
for first, count in ((0, 1), (1, 8), (9, 40)):
    ids = np.arange(count, dtype=np.int32) % model.vocab_size
    context.run(ids, np.arange(first, first + count, dtype=np.int32), None, 1)
"""
_TRIAL_SECONDS = 600


def suspects() -> bool:
    """True if the installed build holds the kernels that crash on some CPUs."""
    return b"AMX_INT8 = 1" in native_api().llama_print_system_info()


def repacking_works(path: Path) -> bool:
    """Whether this model runs with repacked weights here; tried in a child process at most once per build and model."""
    return not suspects() or remembered(path, "repack", lambda: _survives(path)) == 1


def remembered(path: Path, question: str, answer: Callable[[], int | None]) -> int | None:
    """The answer to ``question`` about this model, this build and this processor: from the cache, or measured now and
    kept there. None is not kept."""
    import llama_cpp

    build = (llama_cpp.__version__, native_api().llama_print_system_info())
    return answers.remembered("llama_kernels.json", path, (question, build), answer)


def _survives(path: Path) -> int | None:
    """1, or 0 if a signal ended the child; None if it failed for another reason, which says nothing about kernels."""
    command = [sys.executable, "-c", _TRIAL, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode > 0:
        return None
    return int(done.returncode == 0)
