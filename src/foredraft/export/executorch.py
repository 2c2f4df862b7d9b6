"""A model file -> a directory that ExecuTorch runs: program, tokenizer, chat template, manifest; checked, atomic.

The stages are load, quantize, export, lower, write, check; ``Progress`` is told each. Nothing is left under the final
name unless everything succeeded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from foredraft.engines.executorch import ExecutorchEngine
from foredraft.errors import ForedraftError, InvalidValue
from foredraft.export import lower, quality
from foredraft.export.head_program import FuseProgram, HeadProgram
from foredraft.export.program import Program, ProgramSpec
from foredraft.export.resources import Needs, check_resources, needs
from foredraft.export.rounding import balance, observed
from foredraft.export.sample import sample_text
from foredraft.export.selfcheck import Evidence, check_exact
from foredraft.export.source import Source, file_facts, open_source
from foredraft.manifest import HEAD_IDS, MANIFEST, OUTPUT_ROWS, PROGRAM, TOKENIZER, Bounds, HeadFacts, Manifest, Shape
from foredraft.models.config import DecoderConfig
from foredraft.models.decoder import Decoder
from foredraft.models.head_file import WEIGHTS, load_head
from foredraft.models.load import load_decoder
from foredraft.types import Logits

Progress = Callable[[str], None]
"""Told the name of the stage that begins."""
CHAT_TEMPLATE = "chat_template.jinja"
DEFAULT_CONTEXT = 4096
CALIBRATION = 512
"""Tokens on which activations are watched."""
ROWS = 32
"""Most rows of logits a pass returns."""


WORST_ROUND_TRIP = 0.3
"""Rounding activations to int8 turns last bits into steps, which add up to .02 to .1 over the layers of real models."""


class NotExactError(ForedraftError):
    """The lowered program failed its own check."""


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """``context``: slots (0 = what the model was trained with, at most 4096); ``width``: most tokens a pass.
    ``weights`` int4, int8 or float32; ``head`` likewise, ``embedding_bits`` 4 or 8; ``group``: weights per scale.
    ``taps``: layers whose hidden states become an output; ``rows``: output rows kept, None = all. ``exact`` False
    writes a program that failed the check, too. ``draft_head``: directory of a trained head that goes into the program,
    with weights of the type ``draft_weights``; its taps are then the program's."""

    context: int = 0
    width: int = 64
    weights: lower.WeightType = "int4"
    head: lower.WeightType = "int4"
    embedding_bits: int = 4
    group: int = 32
    taps: tuple[int, ...] = ()
    rows: tuple[int, ...] | None = None
    exact: bool = True
    draft_head: Path | None = None
    draft_weights: lower.WeightType = "int4"

    def __post_init__(self) -> None:
        if self.draft_head is not None and self.rows is not None:
            raise InvalidValue("output rows", len(self.rows), "all of them beside a draft head, which is for a target")
        for name in ("weights", "head", "draft_weights"):
            if getattr(self, name) not in lower.WEIGHT_TYPES:
                raise InvalidValue(name, getattr(self, name), ", ".join(lower.WEIGHT_TYPES))
        if self.embedding_bits not in (4, 8):
            raise InvalidValue("embedding bits", self.embedding_bits, "4 or 8")
        if self.group not in (32, 64, 128, 256):
            raise InvalidValue("group", self.group, "32, 64, 128 or 256")
        if not (self.context == 0 or 64 <= self.context <= 1 << 17):
            raise InvalidValue("context", self.context, "0 (from the model) or 64 to 131072 tokens")
        if not 1 <= self.width <= 1024:
            raise InvalidValue("width", self.width, "1 to 1024 tokens a pass")


@dataclass(frozen=True, slots=True)
class Report:
    """What an export did: the finished directory, its manifest, and the check of its bits."""

    directory: Path
    manifest: Manifest
    evidence: Evidence


def plan(path: Path, config: ExportConfig) -> tuple[Source, ExportConfig, Needs]:
    """Read the model's header, resolve ``config`` against it, and estimate memory and disk. Loads no weights.

    Raises InvalidValue for a setting that this model does not allow.
    """
    source = open_source(path)
    shape = source.config
    context = config.context or min(shape.context_length, DEFAULT_CONTEXT)
    if context > shape.context_length:
        raise InvalidValue("context", context, f"up to {shape.context_length}, what the model was trained with")
    for name, size in (("hidden size", shape.hidden_size), ("feed-forward size", shape.ffn_size)):
        if size % config.group:
            raise InvalidValue("group", config.group, f"a divisor of the model's {name}, {size}")
    for tap in config.taps:
        if not 0 <= tap < shape.layers:
            raise InvalidValue("hidden-state layer", tap, f"0 to {shape.layers - 1}")
    if config.draft_head is not None:
        taps = _head_taps(config.draft_head, source)
        if config.taps and config.taps != taps:
            raise InvalidValue("hidden-state layers", list(config.taps), f"{list(taps)}, which the draft head reads")
        config = replace(config, taps=taps)
    config = replace(config, context=context, width=min(config.width, context))
    return source, config, needs(shape, config.weights, config.head)


def _head_taps(directory: Path, source: Source) -> tuple[int, ...]:
    """The layers that a trained head reads; ModelFileError if it is another model's."""
    stored = load_head(directory)
    stored.check_target(source.config, source.name)
    return stored.head.config.taps


def export_executorch(source: Source, config: ExportConfig, target: Path, progress: Progress) -> Report:
    """Write the export ``target``, with ``source`` and ``config`` from ``plan``.

    Raises InvalidValue if ``target`` exists, ShortOfResourcesError before anything is loaded, and NotExactError if the
    program's rows depend on how tokens are fed.
    """
    if target.exists() or target.is_symlink():
        raise InvalidValue("output directory", str(target), "a new name; remove it or choose another")
    check_resources(needs(source.config, config.weights, config.head), target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name}.", dir=target.parent, ignore_cleanup_errors=True
    ) as folder:
        inner = Path(folder) / target.name
        inner.mkdir()
        report = _Export(inner, source, config, progress).run()
        inner.rename(target)
    return replace(report, directory=target)


@dataclass(frozen=True)
class _Made:
    """What later stages need of a lowered program. ``arena``: bytes of planned memory; ``reference``: rows of the
    unquantized model; ``eager``: rows of the exported torch module."""

    operators: tuple[str, ...]
    arena: int
    reference: Logits
    eager: Logits


class _Export:
    """One export into ``folder``."""

    def __init__(self, folder: Path, source: Source, config: ExportConfig, progress: Progress) -> None:
        self.folder, self.source, self.config, self.progress = folder, source, config, progress
        self.scored = min(quality.SCORED_END, config.context)

    def run(self) -> Report:
        """All stages."""
        self.progress("reading the tokenizer")
        converted = self.source.tokenizer()
        converted.tokenizer.save(str(self.folder / TOKENIZER), pretty=False)
        if converted.facts.chat_template:
            (self.folder / CHAT_TEMPLATE).write_text(converted.facts.chat_template, "utf-8")
        if self.config.rows is not None:
            (self.folder / OUTPUT_ROWS).write_text(json.dumps(self.config.rows) + "\n", "utf-8")
        ids = converted.tokenizer.encode(sample_text(), add_special_tokens=False).ids
        made = self._program(ids)
        self.progress("hashing")
        manifest = self._manifest(converted.facts.to_json(), made)
        self._write(manifest)
        return self._checked(manifest, made, ids)

    def _program(self, ids: list[int]) -> _Made:
        """Load, quantize, export, lower, write ``model.pte``; memory is free again afterwards."""
        config = self.config
        self.progress("loading the weights")
        decoder = load_decoder(self.source.path)
        self.progress("scoring a text with the unquantized model")
        reference = quality.reference_rows(decoder, ids[: self.scored])
        with lower.quiet():
            spec = ProgramSpec(config.context, config.taps, config.rows, config.embedding_bits, config.group)
            program = Program(decoder, spec)
            drafting = self._head_programs(decoder, program)
            del decoder
            self._quantize(program, ids)
            eager = quality.eager_rows(program, ids[: quality.ROUND_TRIP])
            self.progress("exporting")
            sizes = lower.Sizes(config.width, min(ROWS, config.width), config.context)
            exported = {lower.FORWARD: lower.export(program, sizes)}
            if drafting is not None:
                exported |= lower.export_head(*drafting, sizes)
            del program, drafting
            self.progress("lowering to XNNPACK")
            manager = lower.lower(exported)
        self.progress("writing the program")
        with (self.folder / PROGRAM).open("wb") as file:
            manager.write_to_file(file)
        return _Made(lower.operators(manager), lower.arena(manager), reference, eager)

    def _head_programs(self, decoder: Decoder, program: Program) -> tuple[HeadProgram, FuseProgram] | None:
        """The draft head's methods, quantized; they share the target's embedding."""
        config = self.config
        if config.draft_head is None:
            return None
        stored = load_head(config.draft_head)
        head = HeadProgram(stored.head, stored.ids, (decoder, program.embedding), config.context)
        fuse = FuseProgram(stored.head)
        for module in (head, fuse):
            lower.quantize(module, lower.Precision(config.draft_weights, config.draft_weights, config.group))
        (self.folder / HEAD_IDS).write_text(json.dumps(stored.ids) + "\n", "utf-8")
        return head, fuse

    def _quantize(self, program: Program, ids: list[int]) -> None:
        """Round the weights with what they are multiplied by in mind, seen on text that is not scored."""
        config, importance = self.config, None
        precision = lower.Precision(config.weights, config.head, config.group)
        if "int4" in (config.weights, config.head):
            self.progress("watching activations")
            with observed(program) as means:
                quality.eager_rows(program, ids[quality.SCORED_END :][: min(CALIBRATION, config.context)])
            importance = balance(program, means)
        self.progress("quantizing")
        lower.quantize(program, precision, importance)

    def _manifest(self, tokenizer_facts: Mapping[str, object], made: _Made) -> Manifest:
        config = self.config
        return Manifest(
            name=self.source.name,
            source=self.source.facts(),
            program=file_facts(self.folder / PROGRAM),
            tokenizer=file_facts(self.folder / TOKENIZER),
            tokenizer_facts=tokenizer_facts,
            shape=_shape(self.source.config),
            bounds=Bounds(config.context, config.width, min(ROWS, config.width)),
            quantization={
                "weights": config.weights,
                "head": config.head,
                "embedding_bits": config.embedding_bits,
                "group": config.group,
                "activations": "int8 per token, dynamic",
            },
            exact=False,
            taps=config.taps,
            output_rows=None if config.rows is None else len(config.rows),
            operators=made.operators,
            backends=("XnnpackBackend",),
            versions={name: version(name) for name in ("foredraft", "executorch", "torch", "torchao")},
            arena=made.arena,
            head=None if config.draft_head is None else _head_facts(config.draft_head, self.source.config),
        )

    def _write(self, manifest: Manifest) -> None:
        (self.folder / MANIFEST).write_text(manifest.to_json(), "utf-8")

    def _checked(self, manifest: Manifest, made: _Made, ids: list[int]) -> Report:
        """Run the program: its bits, its distance from the torch module, and its laws."""
        self.progress("checking that no bit depends on how tokens are fed")
        engine = ExecutorchEngine(self.folder)
        try:
            capacities = [c for c in (320, 1024) if c < self.config.context]
            evidence = check_exact(engine, engine.open, [*capacities, self.config.context])
            if self.config.exact and evidence.difference is not None:
                raise NotExactError(
                    f"the program is not bit-identical: {evidence.difference}; --no-exact writes it all the same, but "
                    "then text with speculation may differ from plain decoding"
                )
            self.progress("comparing it with the unquantized model")
            kept = self.config.rows
            scored = ids[: self.scored]
            measured = quality.compare(made.reference, quality.scored_rows(engine, scored), scored, kept)
            rows = quality.all_rows(engine, ids[: quality.ROUND_TRIP])
            measured |= quality.round_trip(made.eager, rows if kept is None else rows[:, list(kept)])
            if not measured["round_trip_relative"] <= WORST_ROUND_TRIP:
                raise NotExactError(
                    f"the program does not compute what its torch module does: logits are off by "
                    f"{measured['round_trip_relative']:.2g} of their spread; allowed: {WORST_ROUND_TRIP}"
                )
        finally:
            engine.close()
        manifest = replace(manifest, exact=evidence.exact, quality=measured)
        self._write(manifest)
        return Report(self.folder, manifest, evidence)


def _head_facts(directory: Path, target: DecoderConfig) -> HeadFacts:
    config = load_head(directory).head.config
    return HeadFacts(
        HEAD_IDS,
        config.rows,
        config.heads,
        config.kv_heads,
        config.head_dim,
        round(1e6 * config.pass_size / target.pass_size),
        file_facts(directory / WEIGHTS).sha256,
    )


def _shape(config: DecoderConfig) -> Shape:
    windowed = any(config.is_local(layer) for layer in range(config.layers))
    return Shape(
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        window=config.window if windowed else None,
    )
