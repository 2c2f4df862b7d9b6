"""What is planned: how the models are used, and which drafts are thought of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foredraft.memory import Member, Plan, Runtime, Use, draft_use, head_shape, plan_memory, runtime_for
from foredraft.modelfile import ModelShape

RESERVE = 256 << 20
"""Bytes for the rest of the app where nothing is said: a guess."""
_HEAD_ROWS, _BITS = 32_000, 4.5
NGRAM, NONE, HEAD = "ngram", "none", "shared-weight head"


@dataclass(frozen=True, slots=True)
class Setting:
    """``context``: tokens of a request, prompt and answer; ``kv_type``, ``draft_kv_type`` (None: the same): of cached
    keys and values; ``sequences``: requests at the same time; ``rows``: positions verified at once; ``chunk``: tokens
    of a prompt in one pass (None: the runtime's usual number); ``reserve``: bytes for the rest of the app.
    ``draft_context`` (None: the same); ``windows``: see ``Use``. ``here``: as foredraft's own process runs it."""

    context: int
    runtime: str = "llama_cpp"
    kv_type: str = "f16"
    draft_kv_type: str | None = None
    sequences: int = 1
    rows: int = 16
    chunk: int | None = None
    reserve: int = RESERVE
    draft_context: int | None = None
    windows: bool = False
    here: bool = False

    def use(self, shape: ModelShape) -> Use:
        """How the target is used; a program has its own bounds."""
        chunk = shape.pass_width or self.chunk or _runtime(shape, self).chunk
        rows = shape.pass_rows or self.rows
        return Use(self.context, self.kv_type, self.sequences, chunk, rows, self.windows)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that is thought of; ``shape`` None for copies from the text ("ngram") and for none at all ("none").
    ``shared_bytes``: of the target's weights that each of its steps reads too (a head with the target's output)."""

    name: str
    shape: ModelShape | None = None
    shared_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes that a step of the draft reads."""
        return 0 if self.shape is None else self.shape.weight_bytes + self.shared_bytes

    @staticmethod
    def head(target: ModelShape) -> Candidate:
        """A head for ``target``, of the usual size, that scores the 32000 most useful tokens (arXiv 2503.01840 and
        2502.14856 restrict the draft's vocabulary so)."""
        matrix = (
            target.output_bytes or target.embedding_bytes or target.vocab_size * target.embedding_length * _BITS / 8
        )
        return Candidate(HEAD, head_shape(target), int(matrix * min(1.0, _HEAD_ROWS / target.vocab_size)))


def plan(target: ModelShape, candidate: Candidate, setting: Setting) -> Plan:
    """All that is in memory with this draft."""
    use = setting.use(target)
    drafts = []
    if candidate.shape is not None:
        drafts.append(_draft(candidate, candidate.shape, use, setting))
    return plan_memory(Member(target, use, _runtime(target, setting)), drafts, setting.reserve)


def _draft(candidate: Candidate, shape: ModelShape, use: Use, setting: Setting) -> Member:
    runtime = _runtime(shape, setting)
    kind = setting.draft_kv_type or use.kv_type
    mine = draft_use(use, kind if kind in runtime.kv_types else runtime.kv_types[0])
    if shape.pass_width:
        mine = replace(mine, chunk=shape.pass_width, rows=shape.pass_rows or mine.rows)
    elif setting.here:  # foredraft's own engines treat both alike
        mine = replace(mine, chunk=runtime.chunk, rows=setting.rows)
    if setting.draft_context:
        mine = replace(mine, context=setting.draft_context)
    return Member(shape, mine, replace(runtime, per_token=0) if candidate.name == HEAD else runtime)


def _runtime(shape: ModelShape, setting: Setting) -> Runtime:
    """An export runs in ExecuTorch, and here a GGUF file in llama.cpp and any other in torch, whatever runs the other
    model."""
    if setting.here:
        names = {"export": "executorch", "gguf": "llama_cpp"}
        return runtime_for(names.get(shape.source, "pytorch"), here=True)
    return runtime_for("executorch" if shape.source == "export" else setting.runtime)
