"""Programs exported by ``foredraft export executorch``: chains and trees, bit for bit plain decoding.

A session owns its caches; the program and its weights are loaded once for all sessions of an engine. Which token lies
in which slot is the business of ``slots``. Knows nothing about drafts or sampling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from foredraft.engines.answers import remembered
from foredraft.engines.base import EngineInfo, check_extend
from foredraft.engines.executorch_head import ExecutorchHead
from foredraft.engines.executorch_program import UNSEEN, Caches, NativeProgram, Pass
from foredraft.engines.slots import Layout, Slots
from foredraft.errors import EngineFailure, InvalidValue, ModelFileError
from foredraft.hf_tokenizer import HfTokenizer, TokenizerFacts
from foredraft.manifest import Manifest, read_head_ids, read_manifest, read_output_rows
from foredraft.types import Ids, Logits, Scores


@dataclass(frozen=True, slots=True)
class ExecutorchConfig:
    """``context``: tokens a session holds (0 = what the program was exported for). ``threads``: of the process's
    ExecuTorch pool (0 = as it is, but no more than the processors that the process may use)."""

    context: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.context <= 1 << 24:
            raise InvalidValue("context", self.context, "0 (from the program) or a positive number of tokens")
        if not 0 <= self.threads <= 1024:
            raise InvalidValue("threads", self.threads, "0 (automatic) to 1024")


class ExecutorchEngine:
    """One export (its directory, or the ``model.pte`` in it). Raises ModelFileError before native code sees a file that
    does not match its manifest."""

    def __init__(self, path: Path, config: ExecutorchConfig | None = None) -> None:
        config = config or ExecutorchConfig()
        self.directory = path.parent if path.is_file() else path
        self.manifest: Manifest = read_manifest(path)
        bounds = self.manifest.bounds
        if config.context > bounds.context:
            raise InvalidValue(
                "context", config.context, f"up to {bounds.context}; export the model again with a larger --ctx"
            )
        rows = read_output_rows(self.directory, self.manifest)
        self.output_rows = None if rows is None else np.array(rows, np.int64)
        program = self.directory / self.manifest.program.file
        check_hash(program, self.manifest.program.sha256)
        self._program = NativeProgram(program, self.manifest, config.threads)
        exact = self.manifest.exact
        self.info = EngineInfo(
            name="executorch",
            model=self.manifest.name,
            vocab_size=self.manifest.shape.vocab_size,
            max_context=config.context or bounds.context,
            tree=True,
            rollback="trim",
            hidden_size=len(self.manifest.taps) * self.manifest.shape.hidden_size or None,
            reason=None if exact else "exported with --no-exact: rows may differ by the width of a pass",
            exact_width=bounds.width if exact else None,
            restricted=rows is not None,
        )

    @cached_property
    def tokenizer(self) -> HfTokenizer:
        """The export's own tokenizer."""
        return exported_tokenizer(self.directory, self.manifest)

    def head(self) -> ExecutorchHead:
        """The draft head in the program; ModelFileError if it has none."""
        ids = read_head_ids(self.directory, self.manifest)
        return ExecutorchHead(self._program, self.manifest, ids, self.info.max_context)

    @property
    def threads(self) -> int:
        """Threads of the process's pool."""
        return self._program.threads

    def open(self, room: int = 0) -> ExecutorchSession:
        """A new, empty session with its own caches, at once for ``room`` tokens; the weights are shared."""
        session = ExecutorchSession(self._program, self.manifest, self.info, self.output_rows)
        session.reserve(room)
        return session

    def close(self) -> None:
        """Free the weights; sessions fail from then on. Idempotent."""
        self._program.close()


class ExecutorchSession:
    """One sequence. Kept token i lies in slot i, pending tokens behind in the order they were fed."""

    def __init__(
        self, program: NativeProgram, manifest: Manifest, info: EngineInfo, output_rows: np.ndarray | None
    ) -> None:
        self._program, self._info, self._output_rows = program, info, output_rows
        self._window = manifest.shape.window
        self._slots = Slots(info.max_context)
        self._caches: Caches | None = Caches(manifest.shape, manifest.bounds.context)
        self._logits: Logits = np.empty((0, info.vocab_size), np.float32)
        self._failed = False

    @property
    def length(self) -> int:
        """Tokens kept."""
        return self._slots.length

    def reserve(self, room: int) -> None:
        """Make the caches large enough for ``room`` tokens now; they grow by themselves otherwise."""
        if room:
            self._open().reserve(room)

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        """Feed ``tokens`` tentatively; the rows are valid until the session's next call."""
        caches = self._open()
        check_extend(tokens, parents, rows, self._info.vocab_size)
        first = self._slots.pending
        layout = self._slots.add(parents.tolist())
        caches.reserve(self._slots.used)
        logits = self._room(rows)
        hidden: list[Logits] = []
        try:
            for start, end in self._pieces(len(tokens), rows):
                scored = np.arange(max(start, len(tokens) - rows), end) - start
                outputs = self._run(caches, tokens[start:end], layout.part(start, end), first + start, scored)
                if len(scored):
                    at = start + int(scored[0]) - (len(tokens) - rows)
                    self._put(logits[at : at + len(scored)], outputs[0])
                hidden += [output.copy() for output in outputs[1:]]  # views of what the next pass overwrites
        except EngineFailure:
            self._failed = True
            raise
        return Scores(logits, np.concatenate(hidden) if len(hidden) > 1 else next(iter(hidden), None))

    def _pieces(self, count: int, rows: int) -> list[tuple[int, int]]:
        """Cut ``count`` tokens, the last ``rows`` of them scored, into passes within the program's bounds."""
        bounds, pieces, start = self._program.bounds, [], 0
        while start < count:
            end = min(count, start + bounds.width)
            if end > count - rows:
                end = min(end, max(start, count - rows) + bounds.rows)
            pieces.append((start, end))
            start = end
        return pieces

    def _run(self, caches: Caches, tokens: Ids, layout: Layout, first: int, scored: np.ndarray) -> list[Logits]:
        """One pass. A program scores at least one row: the last one, if nobody asked."""
        count = len(tokens)
        masks = tuple(
            np.where(self._slots.visible(first, count, caches.capacity, window), np.float32(0), UNSEEN)
            for window in ((None,) if self._window is None else (None, self._window))
        )
        rows = scored if len(scored) else np.array([count - 1])
        step = Pass(tokens.astype(np.int64), layout.positions, layout.slots, rows.astype(np.int64), masks)
        return self._program.run(step, caches)

    def _room(self, rows: int) -> Logits:
        """A buffer for the rows, used again by the next call; restricted rows leave -inf where nothing is known."""
        if len(self._logits) < rows:
            shape = (rows, self._info.vocab_size)
            restricted = self._output_rows is not None
            self._logits = np.full(shape, -np.inf, np.float32) if restricted else np.empty(shape, np.float32)
        return self._logits[:rows]

    def _put(self, target: Logits, rows: Logits) -> None:
        if self._output_rows is None:
            target[:] = rows
        else:
            target[:, self._output_rows] = rows

    def keep(self, path: Sequence[int]) -> None:
        """Keep a root-first path of the pending tokens, forget the others."""
        caches = self._open()
        moves = self._slots.keep(path)
        if len(moves):
            caches.move(moves.sources, moves.targets)

    def rewind(self, length: int) -> int:
        """Forget everything from ``length`` on."""
        self._open()
        self._slots.rewind(length)
        return length

    def close(self) -> None:
        """Free the caches. Idempotent."""
        self._caches = None

    def _open(self) -> Caches:
        if self._caches is None or self._failed:
            raise EngineFailure("the session is closed" if self._caches is None else "the session has failed")
        return self._caches


def exported_tokenizer(directory: Path, manifest: Manifest) -> HfTokenizer:
    """The tokenizer of an export; ModelFileError if it is another model's."""
    path, size = directory / manifest.tokenizer.file, manifest.shape.vocab_size
    facts = TokenizerFacts.from_json(manifest.tokenizer_facts)
    if facts.vocab_size != size:
        raise ModelFileError(
            f"{path}: is a tokenizer of {facts.vocab_size} tokens; the model has {size}; export it again"
        )
    return HfTokenizer.load(path, facts)


def check_hash(path: Path, expected: str) -> None:
    """Raise ModelFileError if ``path`` has another SHA-256: the runtime trusts what it reads, so a damaged
    file could end the process. A second a gigabyte, once: the answer is remembered."""

    def matches() -> int | None:
        with path.open("rb") as file:
            return 1 if hashlib.file_digest(file, "sha256").hexdigest() == expected else None

    if remembered("executorch_files.json", path, expected, matches) != 1:
        raise ModelFileError(f"{path}: is damaged (its SHA-256 is not the manifest's); copy or export it again")
