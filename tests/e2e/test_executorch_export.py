"""Exports: what lies in the directory, that it is the model, and that a failure leaves nothing behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.engines.executorch import ExecutorchEngine
from foredraft.engines.opening import Settings, open_model
from foredraft.engines.pytorch import TorchEngine
from foredraft.errors import ForedraftError, InvalidValue, ModelFileError
from foredraft.export import resources
from foredraft.export.resources import ShortOfResourcesError
from foredraft.export.selfcheck import Difference, Evidence
from foredraft.export.source import file_facts
from foredraft.gguf_types import TENSOR_TYPES
from foredraft.hf_tokenizer import TokenizerFacts
from foredraft.manifest import HEAD_IDS, MANIFEST, OUTPUT_ROWS, PROGRAM, TOKENIZER, read_manifest
from foredraft.modelfile import read_gguf
from foredraft.models.load import load_decoder
from foredraft.tokenizer_json import tokenizer_from_gguf
from tests.support import tiny_models
from tests.support.engine_cases import distance, read
from tests.support.exporter import executorch, quality
from tests.support.exports import RECIPES, ROWS, TINY, exported, write_tiny
from tests.support.gguf_writer import RawTensor, raw_tensors, write_gguf
from tests.support.tiny_heads import taps_of

ExportConfig, export_executorch, plan = executorch.ExportConfig, executorch.export_executorch, executorch.plan
TEXT = np.random.default_rng(3).integers(3, tiny_models.VOCAB, 200).tolist()
TINY_EXPORTS = [name for name, recipe in RECIPES.items() if recipe.model in TINY]
over_tiny = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.exports(n)) for n in TINY_EXPORTS])


def files(folder: Path) -> list[str]:
    """All that is below ``folder``."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# --- what was written --------------------------------------------------------------------------------------


@over_tiny
def test_a_directory_with_its_facts(name: str, tmp_path: Path) -> None:
    folder, recipe = exported(name), RECIPES[name]
    manifest = read_manifest(folder)
    source = write_tiny(recipe.model, tmp_path)
    expected = {MANIFEST, PROGRAM, TOKENIZER, *([OUTPUT_ROWS] if "rows" in recipe.settings else [])}
    expected |= {HEAD_IDS} if recipe.head else set()
    assert {path.name for path in folder.iterdir()} == expected
    assert manifest.source == file_facts(source)
    assert manifest.program == file_facts(folder / PROGRAM) and manifest.tokenizer == file_facts(folder / TOKENIZER)
    assert manifest.name == f"tiny-{manifest.shape.architecture}" and manifest.exact
    assert manifest.shape.vocab_size == tiny_models.VOCAB
    assert manifest.bounds.context == recipe.settings.get("context", 4096)
    assert (manifest.bounds.width, manifest.bounds.rows) == (64, 32)
    heads = taps_of(manifest.shape.layers) if recipe.head else ()
    assert manifest.taps == recipe.settings.get("taps", heads) and (manifest.head is not None) == recipe.head
    assert manifest.output_rows == (len(ROWS) if "rows" in recipe.settings else None)
    assert (manifest.shape.window is not None) == recipe.model.startswith("gemma")
    assert manifest.backends == ("XnnpackBackend",) and len(manifest.operators) > 3
    assert {"executorch", "torch", "torchao", "foredraft"} == manifest.versions.keys()
    facts = tokenizer_from_gguf(read_gguf(source)).facts
    assert TokenizerFacts.from_json(manifest.tokenizer_facts) == facts


@over_tiny
def test_the_program_is_the_model(name: str, tmp_path: Path) -> None:
    """Its rows are those of the weights, as far as its bits allow; the lowered program is its torch module."""
    recipe = RECIPES[name]
    engine, torch = ExecutorchEngine(exported(name)), TorchEngine(write_tiny(recipe.model, tmp_path))
    ours, theirs = engine.open(), torch.open()
    columns = list(recipe.settings.get("rows", range(tiny_models.VOCAB)))
    weights = recipe.settings.get("weights", "int4")
    got, want = (read(session, TEXT[:40], 40)[:, columns] for session in (ours, theirs))
    off = [distance(one, other) for one, other in zip(got, want, strict=True)]
    assert np.median(off) < {"int4": 0.7, "int8": 0.35, "float32": 0.05}[weights], off
    measured = engine.manifest.quality
    assert measured["mean_kl"] < {"int4": 0.45, "int8": 0.12, "float32": 0.002}[weights]
    assert measured["round_trip_relative"] < (1e-3 if weights == "float32" else 0.04)
    if "rows" in recipe.settings:
        assert 0.3 < measured["kept_mass"] < 1 and "perplexity" not in measured
    else:
        assert abs(measured["perplexity"] / measured["perplexity_source"] - 1) < 0.3
    engine.close()
    torch.close()


@pytest.mark.exports("smollm2-135m")
def test_a_real_model(smollm2: Path) -> None:
    folder = exported("smollm2-135m")
    manifest = read_manifest(folder)
    assert {path.name for path in folder.iterdir()} == {MANIFEST, PROGRAM, TOKENIZER, "chat_template.jinja"}
    template = tokenizer_from_gguf(read_gguf(smollm2)).facts.chat_template
    assert (folder / "chat_template.jinja").read_text("utf-8") == template == manifest.tokenizer_facts["chat_template"]
    assert manifest.program.bytes < 1.15 * smollm2.stat().st_size
    assert manifest.exact and manifest.bounds.context == 4096
    assert manifest.quality["mean_kl"] < 0.35 and manifest.quality["same_top"] > 0.68
    assert manifest.quality["perplexity"] < 1.4 * manifest.quality["perplexity_source"]
    assert manifest.quality["round_trip_relative"] < 0.15  # int8 turns last bits into steps


# --- exports that fail -------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return write_tiny("llama", folder)


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    return folder


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of the tiny llama take the program that was made before, in milliseconds."""
    made = exported("llama")

    def program(export: Any, ids: list[int]) -> Any:
        shutil.copy(made / PROGRAM, export.folder / PROGRAM)
        reference = quality.reference_rows(load_decoder(export.source.path), ids[: export.scored])
        return executorch._Made(read_manifest(made).operators, 0, reference, reference[: quality.ROUND_TRIP])

    monkeypatch.setattr(executorch._Export, "_program", program)
    monkeypatch.setattr(quality, "round_trip", lambda eager, rows: {"round_trip_relative": 0.0})


def run(source: Path, target: Path, progress: Callable[[str], None] = lambda stage: None, **settings: Any) -> Any:
    opened, config, _ = plan(source, ExportConfig(**settings))
    return export_executorch(opened, config, target, progress)


class Interrupt:
    """Ctrl-C when a stage begins."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.seen: list[str] = []

    def __call__(self, stage: str) -> None:
        self.seen.append(stage)
        if stage == self.stage:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["reading the tokenizer", "loading the weights", "quantizing", "exporting"])
def test_an_interrupt_leaves_nothing(stage: str, source: Path, outputs: Path) -> None:
    progress = Interrupt(stage)
    with pytest.raises(KeyboardInterrupt):
        run(source, outputs / "out", progress)
    assert progress.seen[-1] == stage and files(outputs) == []


@pytest.mark.exports("llama")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "stage",
    ["hashing", "checking that no bit depends on how tokens are fed", "comparing it with the unquantized model"],
)
def test_a_late_interrupt_leaves_nothing(stage: str, source: Path, outputs: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(source, outputs / "out", Interrupt(stage))
    assert files(outputs) == []
    assert files(run(source, outputs / "out").directory) == [MANIFEST, PROGRAM, TOKENIZER]
    assert files(outputs) == ["out", *(f"out/{name}" for name in (MANIFEST, PROGRAM, TOKENIZER))]


@pytest.mark.exports("llama")
@pytest.mark.usefixtures("quick")
def test_a_program_that_is_not_exact(source: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Evidence(128, 2, Difference("passes of 3 tokens", 17, 0.25))
    monkeypatch.setattr(executorch, "check_exact", lambda engine, opener, capacities: found)
    with pytest.raises(executorch.NotExactError) as caught:
        run(source, outputs / "out")
    assert str(caught.value) == (
        "the program is not bit-identical: passes of 3 tokens: the logits at position 17 differ by up to 0.25; "
        "--no-exact writes it all the same, but then text with speculation may differ from plain decoding"
    )
    assert caught.value.exit_code == 1 and files(outputs) == []
    report = run(source, outputs / "out", exact=False)
    assert report.evidence == found and report.directory == outputs / "out"
    assert report.manifest == read_manifest(outputs / "out") and not report.manifest.exact
    opened = open_model(outputs / "out", Settings())
    assert opened.engine.info.exact_width is None
    assert opened.engine.info.reason == "exported with --no-exact: rows may differ by the width of a pass"
    opened.engine.close()
    with pytest.raises(InvalidValue, match=r"--strict is True; allowed: an export that passed its bit check"):
        open_model(outputs / "out", Settings(strict=True))


@pytest.mark.exports("llama")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("off", [0.31, float("nan")])
def test_a_program_that_computes_something_else(
    off: float, source: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "round_trip", lambda eager, rows: {"round_trip_relative": off})
    with pytest.raises(executorch.NotExactError, match="does not compute what its torch module does"):
        run(source, outputs / "out")
    assert files(outputs) == []


@pytest.mark.exports("llama")
@pytest.mark.usefixtures("quick")
def test_the_capacities_that_are_checked(source: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[int]] = []

    def check(engine: Any, opener: Any, capacities: list[int]) -> Evidence:
        tried.append(capacities)
        return Evidence(1, 1, None)

    monkeypatch.setattr(executorch, "check_exact", check)
    for context in (0, 512, 320):
        run(source, outputs / str(context), context=context)
    assert tried == [[320, 1024, 4096], [320, 512], [320]]


def test_what_is_there_is_not_touched(source: Path, outputs: Path) -> None:
    (outputs / "folder").mkdir()
    (outputs / "file").write_text("precious")
    (outputs / "link").symlink_to(outputs / "nowhere")
    before = files(outputs)
    for name in ("folder", "file", "link"):
        with pytest.raises(InvalidValue, match=f"output directory is '.*/{name}'; allowed: a new name; remove it"):
            run(source, outputs / name)
    assert files(outputs) == before and (outputs / "file").read_text() == "precious"


@pytest.mark.exports("llama")
@pytest.mark.usefixtures("quick")
def test_parents_are_made(source: Path, outputs: Path) -> None:
    target = outputs / "a" / "b" / "out"
    run(source, target)
    assert files(outputs) == ["a", "a/b", "a/b/out", *(f"a/b/out/{n}" for n in (MANIFEST, PROGRAM, TOKENIZER))]


def test_a_parent_that_is_a_file(source: Path, outputs: Path) -> None:
    (outputs / "file").write_text("precious")
    with pytest.raises((OSError, ForedraftError)) as caught:
        run(source, outputs / "file" / "out")
    assert "file" in str(caught.value) and files(outputs) == ["file"]


def test_too_little_memory_or_disk(source: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(resources, "free_memory", lambda: 500_000_000)
        with pytest.raises(ShortOfResourcesError, match=r"about 1\.0 GB of memory, 0\.5 GB are available"):
            run(source, outputs / "new" / "out", stages.append)
    with monkeypatch.context() as patch:
        patch.setattr(resources.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 0))  # type: ignore[attr-defined]
        with pytest.raises(ShortOfResourcesError, match=r"of disk, .*outputs has 0\.0 GB"):
            run(source, outputs / "new" / "out", stages.append)
    assert stages == [] and files(outputs) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 63}, "context is 63; allowed: 0 (from the model) or 64 to 131072 tokens"),
        ({"context": -1}, "context is -1; allowed: 0 (from the model) or 64 to 131072 tokens"),
        ({"context": 8192}, "context is 8192; allowed: up to 4096, what the model was trained with"),
        ({"width": 0}, "width is 0; allowed: 1 to 1024 tokens a pass"),
        ({"width": 1025}, "width is 1025; allowed: 1 to 1024 tokens a pass"),
        ({"weights": "int2"}, "weights is 'int2'; allowed: int4, int8, float32"),
        ({"head": "q4"}, "head is 'q4'; allowed: int4, int8, float32"),
        ({"embedding_bits": 2}, "embedding bits is 2; allowed: 4 or 8"),
        ({"group": 48}, "group is 48; allowed: 32, 64, 128 or 256"),
        ({"group": 64}, "group is 64; allowed: a divisor of the model's hidden size, 32"),
        ({"taps": (2,)}, "hidden-state layer is 2; allowed: 0 to 1"),
        ({"taps": (-1,)}, "hidden-state layer is -1; allowed: 0 to 1"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str, source: Path) -> None:
    with pytest.raises(InvalidValue) as caught:
        plan(source, ExportConfig(**settings))
    assert str(caught.value) == message


def test_models_that_cannot_be_exported(tmp_path: Path, outputs: Path) -> None:
    with pytest.raises(ModelFileError, match=r"mamba.*; allowed: llama, qwen2, qwen3, gemma2, gemma3"):
        plan(tiny_models.write_mamba(tmp_path / "mamba.gguf"), ExportConfig())
    metadata, weights = tiny_models.llama3_parts()
    kind = TENSOR_TYPES[24]
    tensors = [
        RawTensor(one.name, one.shape, 24, bytes(64 * 32 // kind.block * kind.nbytes)) if "ffn_up" in one.name else one
        for one in raw_tensors(weights)
    ]
    path = write_gguf(tmp_path / "types.gguf", metadata, tensors)
    with pytest.raises(
        ModelFileError, match=rf"type {kind.name}, which cannot be dequantized; allowed: F32, F16, Q4_0"
    ):
        run(path, outputs / "out")
    assert files(outputs) == []
