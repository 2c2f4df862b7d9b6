"""What a runtime adds to a model's own numbers: how weights lie in memory, how large caches and buffers are.

Every constant was measured with foredraft's own engines (docs/benchmarks.md, "Memory"); a phone's build may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from foredraft.errors import InvalidValue
from foredraft.memory.lines import DIRTY, MAPPED

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Runtime:
    """``weights``: mapped from the file, or dirty because they are packed into memory of their own. ``kv_types``: types
    of cached keys and values, the default first. ``cells``: caches are rounded up to multiples of so many tokens.
    ``chunk``: tokens of a prompt in one pass, by default. ``base``: bytes of the process before a model is loaded;
    ``per_token``: bytes for each token of the vocabulary; ``source`` of these."""

    name: str
    weights: str
    kv_types: tuple[str, ...]
    cells: int
    chunk: int
    base: int
    per_token: int
    source: str


_LLAMA = Runtime(
    "llama_cpp",
    MAPPED,
    ("f16", "q8_0", "q4_0", "q5_1", "f32"),
    256,
    512,
    8 * _MIB,
    400,
    "measured: libraries of llama-cpp-python 0.3.36, and its tables for vocabularies of 49152 and 151936 tokens",
)
_EXECUTORCH = Runtime(
    "executorch",
    DIRTY,
    ("f32",),
    64,
    64,
    16 * _MIB,
    1000,
    "measured: tokenizers 0.22 with vocabularies of 49152 and 151936 tokens; the libraries of a phone's build: a guess",
)
APP = {"llama_cpp": _LLAMA, "executorch": _EXECUTORCH}
"""Inside an app: the libraries alone."""
_TORCH = 230 * _MIB
_SOURCE = "measured: Python and numpy 44 MiB, torch 2.13 and executorch 1.5.1 186 MiB"
HERE = {
    "llama_cpp": replace(_LLAMA, base=52 * _MIB, source=_LLAMA.source + "; Python and numpy 44 MiB"),
    "executorch": replace(_EXECUTORCH, base=_TORCH, source=_SOURCE),
    "pytorch": replace(_EXECUTORCH, name="pytorch", base=_TORCH, chunk=512, source=_SOURCE),
}
"""Inside foredraft's own process."""
RUNTIMES = tuple(APP)


def runtime_for(name: str, *, here: bool = False) -> Runtime:
    """The runtime ``name``; InvalidValue with the list otherwise. ``here``: as foredraft itself runs it."""
    found = (HERE if here else APP).get(name)
    if found is None:
        raise InvalidValue("--runtime", name, ", ".join(RUNTIMES))
    return found
