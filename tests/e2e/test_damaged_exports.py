"""Exports that are damaged, foreign or not for this runtime: refused in one line, before native code sees them."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from foredraft.engines.executorch import ExecutorchConfig
from foredraft.engines.opening import Settings, open_model
from foredraft.errors import InvalidValue, MissingExtra, ModelFileError
from foredraft.manifest import FORMAT, MANIFEST, PROGRAM, TOKENIZER, read_manifest
from tests.support.exports import exported, write_tiny


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(exported("llama"), tmp_path / "export")


def changed(folder: Path, **values: Any) -> None:
    """Write other values into the manifest."""
    data = json.loads((folder / MANIFEST).read_text("utf-8")) | values
    (folder / MANIFEST).write_text(json.dumps(data), "utf-8")


def replaced(folder: Path, name: str, key: str, data: bytes) -> None:
    """Another file, and a manifest that says so."""
    (folder / name).write_bytes(data)
    changed(folder, **{key: {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}})


def refusal(path: Path, settings: Settings | None = None) -> str:
    """The one line."""
    with pytest.raises((ModelFileError, InvalidValue)) as caught:
        open_model(path, settings or Settings())
    message = str(caught.value)
    assert message.isprintable() and caught.value.exit_code == 2
    return message


needs_llama = pytest.mark.exports("llama")


@needs_llama
def test_a_program_without_manifest(export: Path) -> None:
    (export / MANIFEST).unlink()
    for path in (export, export / PROGRAM):
        message = refusal(path)
        assert message.startswith(f"{export / MANIFEST}: no such file; a .pte file alone is not enough")


@needs_llama
def test_a_flipped_bit_is_found_before_native_code_sees_it(export: Path) -> None:
    data = bytearray((export / PROGRAM).read_bytes())
    data[len(data) // 2] ^= 1
    (export / PROGRAM).write_bytes(data)
    assert refusal(export).startswith(f"{export / PROGRAM}: is damaged (its SHA-256 is not the manifest's)")


@needs_llama
def test_another_schema_version(export: Path) -> None:
    changed(export, schema=2)
    assert refusal(export).endswith("schema version is 2; this foredraft reads 1; export the model again")
    changed(export, schema=1, format="someone-elses")
    assert f"allowed: '{FORMAT}'" in refusal(export)


@needs_llama
@pytest.mark.parametrize("key", ["operators", "backends"])
def test_operators_that_the_runtime_lacks(export: Path, key: str) -> None:
    manifest = read_manifest(export)
    changed(export, **{key: [*getattr(manifest, key), "llama::custom_sdpa_9.out", "other::one"]})
    assert refusal(export) == (
        f"{export / PROGRAM}: needs llama::custom_sdpa_9.out, other::one, which this ExecuTorch does not have; "
        f"install the version it was exported with ({manifest.versions['executorch']})"
    )


@needs_llama
def test_a_truncated_program(export: Path) -> None:
    data = (export / PROGRAM).read_bytes()
    (export / PROGRAM).write_bytes(data[: len(data) // 2])
    assert refusal(export).endswith(
        f"has {len(data) // 2} bytes, its manifest says {len(data)}; copy or export it again"
    )
    replaced(export, PROGRAM, "program", b"PK\3\4" + data[4:8].swapcase() + bytes(100))
    assert refusal(export).endswith("is not an ExecuTorch program; export it again")


@needs_llama
def test_a_tokenizer_that_is_damaged(export: Path) -> None:
    data = (export / TOKENIZER).read_bytes()
    (export / TOKENIZER).write_bytes(data[:-1])
    assert f"has {len(data) - 1} bytes, its manifest says {len(data)}" in refusal(export)
    (export / TOKENIZER).write_bytes(b"{" * len(data))
    assert refusal(export).startswith(f"{export / TOKENIZER}: is no tokenizer.json (")
    (export / TOKENIZER).unlink()
    assert refusal(export).startswith(f"{export / TOKENIZER}: cannot be read (No such file or directory)")


@pytest.mark.exports("llama", "smollm2-135m")
def test_a_tokenizer_of_another_model(export: Path) -> None:
    other = exported("smollm2-135m")
    replaced(export, TOKENIZER, "tokenizer", (other / TOKENIZER).read_bytes())
    assert refusal(export) == (
        f"{export / TOKENIZER}: has 49152 tokens; allowed: at most 24, the size of the model's vocabulary; "
        "it belongs to another model"
    )
    changed(export, tokenizer_facts=json.loads((other / MANIFEST).read_text("utf-8"))["tokenizer_facts"])
    assert refusal(export) == (
        f"{export / TOKENIZER}: is a tokenizer of 49152 tokens; the model has 24; export it again"
    )


@needs_llama
def test_a_larger_context_than_exported(export: Path) -> None:
    assert refusal(export, Settings(context=4097)) == (
        "context is 4097; allowed: up to 4096; export the model again with a larger --ctx"
    )
    opened = open_model(export, Settings(context=4096))
    assert opened.engine.info.max_context == 4096
    opened.engine.close()
    for values in ({"context": -1}, {"threads": 1025}):
        with pytest.raises(InvalidValue):
            ExecutorchConfig(**values)


@needs_llama
def test_settings_of_other_engines(export: Path, tmp_path: Path) -> None:
    assert refusal(export, Settings(kv_type="q8_0")).startswith("--kv-type is 'q8_0'; allowed: only with llama.cpp")
    with pytest.raises(ModelFileError, match="is an ExecuTorch export; run it with --engine executorch or auto"):
        open_model(export, Settings(), "llama_cpp")
    with pytest.raises(InvalidValue, match="engine is 'vulkan'; allowed: auto, llama_cpp, executorch, pytorch"):
        open_model(export, Settings(), "vulkan")
    with pytest.raises(ModelFileError, match="no such file"):
        open_model(tmp_path / "none", Settings(), "executorch")
    with pytest.raises(InvalidValue, match=r"--strict is True; allowed: the engines llama_cpp and executorch"):
        open_model(write_tiny("llama", tmp_path), Settings(strict=True), "pytorch")


@needs_llama
def test_packages_that_are_missing(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings._C", None)
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[executorch\]'"):
        open_model(export, Settings())
