"""``foredraft export executorch`` as its user sees it: what it says, one-line errors, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foredraft.export import resources
from foredraft.gguf_types import TENSOR_TYPES
from foredraft.manifest import read_manifest
from tests.support import exporter, tiny_models
from tests.support.command_line import Foredraft, in_process
from tests.support.exports import exported, write_tiny
from tests.support.gguf_writer import RawTensor, raw_tensors, write_gguf

EXPORTER = exporter.executorch  # imported here, because importing it in a test would warn


@pytest.fixture
def foredraft(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foredraft:
    return in_process(monkeypatch, capsys)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_tiny("llama", tmp_path)


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    folder = tmp_path / "outputs"
    folder.mkdir()
    return folder


def refused(done: tuple[int, str, str], words: str, code: int = 2) -> None:
    """One line on standard error that holds ``words``."""
    assert done[0] == code, done[2]
    lines = done[2].splitlines()
    assert done[1] == "" and words in lines[-1] and lines[-1].startswith("foredraft: "), done[2]
    assert len(lines) == 1, done[2]


def test_an_export_says_what_it_does(llama: Path, outputs: Path) -> None:
    """The one whole export through the command line."""
    (llama.parent / "text.txt").write_text("abc abc abd\nfoo bar\n")
    command = [
        sys.executable,
        "-m",
        "foredraft.cli.main",
        "export",
        "executorch",
        str(llama),
        "-o",
        str(outputs / "out"),
    ]
    command += ["--ctx", "128", "--width", "16", "--output-rows", "23", "--output-text", str(llama.parent / "text.txt")]
    done = subprocess.run(
        [*command, "--hidden", "1", "--hidden", "0"], capture_output=True, timeout=600, check=False, env={**os.environ}
    )
    notes = " ".join(done.stderr.decode().split())  # long lines are wrapped
    assert done.returncode == 0 and done.stdout == b"", notes
    manifest = read_manifest(outputs / "out")
    assert (manifest.bounds.context, manifest.bounds.width, manifest.bounds.rows) == (128, 16, 16)
    assert manifest.taps == (0, 1) and manifest.output_rows == 23 and manifest.exact
    for words in (
        r"23 output rows cover \d+\.\d% of the text",
        r"tiny-llama: 0 million parameters; this takes about 1\.0 GB of memory at its peak and 0\.00 GB of disk",
        r" s loading the weights",
        r" s lowering to XNNPACK",
        r"\d MB, \d+\.\d\d × the source",
        r"bits: \d+ rows of logits, fed in \d+ ways, identical to one at a time",
        r"mean KL to the source \d\.\d{4} nats; same best token \d+\.\d%; kept rows hold \d+\.\d% of the probability",
        r"lowered program vs its torch module: \d\.\de[-+]\d\d of the logits' spread",
    ):
        assert re.search(words, notes), (words, notes)
    assert [path.name for path in outputs.iterdir()] == ["out"]


BAD_VALUES = [
    (("--ctx", "63"), "context is 63; allowed: 0"),
    (("--ctx", "-5"), "context is -5; allowed: 0"),
    (("--ctx", "5000"), "context is 5000; allowed: up to 4096"),
    (("--width", "0"), "width is 0; allowed: 1 to 1024"),
    (("--group", "48"), "group is 48; allowed: 32, 64, 128 or 256"),
    (("--group", "64"), "group is 64; allowed: a divisor of the model's hidden size, 32"),
    (("--hidden", "2"), "hidden-state layer is 2; allowed: 0 to 1"),
    (("--hidden", "-1"), "hidden-state layer is -1; allowed: 0 to 1"),
    (("--output-rows", "0"), "--output-rows is 0; allowed: 1 or more"),
    (("--output-rows", "-3"), "--output-rows is -3"),
    (("--output-rows", "999"), "--output-rows is 999"),
    (("--output-rows", "no-such-file"), "no-such-file"),
    (("--output-text", "some.txt"), "--output-text is 'some.txt'; allowed: only together with --output-rows"),
    (("--output-rows", "5", "--output-text", "no-such-text"), "no-such-text"),
]


@pytest.mark.parametrize(("flags", "words"), BAD_VALUES, ids=lambda value: "_".join(value) if value[0] == "--" else "")
def test_a_bad_value_is_one_line(
    flags: tuple[str, ...], words: str, foredraft: Foredraft, llama: Path, outputs: Path
) -> None:
    refused(foredraft("export", "executorch", llama, "-o", outputs / "out", *flags), words)
    assert list(outputs.iterdir()) == []


def test_rows_from_a_file_that_makes_no_sense(foredraft: Foredraft, llama: Path, outputs: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    for text, words in (
        ("", "at least one token id"),
        ("banana\n", "banana"),
        ("[1, 2, 99]", "99"),
        ("3\n3\n", "every id once"),
        ("[1, ", "rows"),
    ):
        rows.write_text(text)
        refused(foredraft("export", "executorch", llama, "-o", outputs / "out", "--output-rows", rows), words)
    assert list(outputs.iterdir()) == []


def test_a_choice_that_is_none(foredraft: Foredraft, llama: Path, outputs: Path) -> None:
    for flags in (("--weights", "int2"), ("--output-matrix", "q4"), ("--embedding-bits", "2"), ("--hidden", "x")):
        code, out, err = foredraft("export", "executorch", llama, "-o", outputs / "out", *flags)
        assert code == 2 and out == "" and flags[1] in err and "Traceback" not in err
    code, _, err = foredraft("export", "executorch", llama)
    assert code == 2 and "--output" in err


def test_models_that_cannot_be_exported(foredraft: Foredraft, outputs: Path, tmp_path: Path) -> None:
    mamba = tiny_models.write_mamba(tmp_path / "mamba.gguf")
    (tmp_path / "text.gguf").write_text("this is no model, whatever its name says")
    for path, words in (
        (mamba, "llama, qwen2, qwen3, gemma2, gemma3"),
        (tmp_path / "text.gguf", "not a GGUF file"),
        (tmp_path / "none.gguf", "no such file"),
        (tmp_path, "is a directory; give a .gguf file"),
        ("no-such-model", "no model named 'no-such-model'"),
    ):
        refused(foredraft("export", "executorch", path, "-o", outputs / "out"), words)
    assert list(outputs.iterdir()) == []


def test_weights_that_cannot_be_dequantized(foredraft: Foredraft, outputs: Path, tmp_path: Path) -> None:
    metadata, weights = tiny_models.llama3_parts()
    kind = TENSOR_TYPES[24]
    tensors = [
        RawTensor(one.name, one.shape, 24, bytes(64 * 32 // kind.block * kind.nbytes)) if "ffn_up" in one.name else one
        for one in raw_tensors(weights)
    ]
    path = write_gguf(tmp_path / "types.gguf", metadata, tensors)
    refused(foredraft("export", "executorch", path, "-q", "-o", outputs / "out"), "cannot be dequantized; allowed: F32")
    assert list(outputs.iterdir()) == []


@pytest.mark.exports("llama")
def test_an_export_is_no_source(foredraft: Foredraft, outputs: Path) -> None:
    code, _, err = foredraft("export", "executorch", exported("llama"), "-o", outputs / "out")
    assert code == 2 and err.startswith("foredraft: ") and err.count("\n") == 1
    assert list(outputs.iterdir()) == []


def test_an_output_that_cannot_be(foredraft: Foredraft, llama: Path, outputs: Path) -> None:
    (outputs / "file").write_text("precious")
    for name in (outputs, outputs / "file"):
        refused(foredraft("export", "executorch", llama, "-q", "-o", name), "output directory is")
    refused(foredraft("export", "executorch", llama, "-q", "-o", outputs / "file" / "out"), "file", 1)
    assert [path.name for path in outputs.iterdir()] == ["file"]
    assert (outputs / "file").read_text() == "precious"


def test_too_little_memory(foredraft: Foredraft, llama: Path, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "free_memory", lambda: 600_000_000)
    done = foredraft("export", "executorch", llama, "-q", "-o", outputs / "new" / "out")
    refused(done, "needs about 1.0 GB of memory, 0.6 GB are available; close other programs", 1)
    assert list(outputs.iterdir()) == []


def test_ctrl_c_leaves_nothing(llama: Path, outputs: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "foredraft.cli.main",
        "export",
        "executorch",
        str(llama),
        "-o",
        str(outputs / "out"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        seen = b""
        while b"exporting" not in seen:
            line = process.stderr.readline()
            assert line, seen.decode()
            seen += line
        assert len(list(outputs.iterdir())) == 1  # the directory that is being written, under another name
        assert not (outputs / "out").exists()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
        assert process.wait(60) == 130
    assert "foredraft: interrupted\n" in rest and "Traceback" not in rest
    assert list(outputs.iterdir()) == []
