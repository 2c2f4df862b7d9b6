"""``foredraft generate`` over every engine: exports, GGUF files and Hugging Face directories, compared with plain."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_torch
from tests.support.exports import exported, write_tiny

PROMPT = "List three colours, then repeat the list."
FIXED = ("--controller", "fixed")
"""Drafts whether it pays or not: a model drafting for itself never does."""
smol_export = pytest.mark.exports("smollm2-135m")


def foredraft(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "foredraft.cli.main", "generate", *map(str, arguments)],
        capture_output=True,
        env={**os.environ},
        timeout=300,
        check=False,
    )


def document(*arguments: str | Path) -> dict[str, Any]:
    done = foredraft("--json", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def refused(words: str, *arguments: str | Path) -> None:
    done = foredraft(*arguments)
    line = done.stderr.decode()
    assert done.returncode == 2 and done.stdout == b"", line
    assert words in line and line.startswith("foredraft: ") and line.count("\n") == 1, line


# --- exports -----------------------------------------------------------------------------------------------


@smol_export
def test_an_export_answers() -> None:
    target = exported("smollm2-135m")
    done = foredraft("--target", target, "--max-tokens", "16", PROMPT)
    text, notes = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, notes
    assert len(text.strip()) > 10 and text.endswith("\n") and "16 tokens in" in notes and "Traceback" not in notes
    quiet = foredraft("-q", "--target", target / "model.pte", "--max-tokens", "16", "--engine", "executorch", PROMPT)
    assert quiet.stdout.decode().strip() == text.strip() and quiet.stderr == b""


@smol_export
@pytest.mark.parametrize("law", [(), ("-t", "0.8", "--top-p", "0.95", "--seed", "3")], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", [("--max-draft", "3"), ("--max-draft", "5", "--tree", "12")], ids=["chain", "tree"])
def test_an_export_is_compared_with_plain_decoding(draft: tuple[str, ...], law: tuple[str, ...]) -> None:
    export = exported("smollm2-135m")
    flags = ("--strict", "--compare", "--runs", "1", "--max-tokens", "40", "--draft", str(export), *FIXED, *draft, *law)
    found = document("--target", export, *flags, PROMPT)
    assert found["identical"] is True and found["first_difference"] is None and found["exact"] is True
    assert found["plain"]["ids"] == found["ids"] and found["notes"] == []
    assert found["drafted"] > 0 and found["target"] == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert found["accepted"] > 0 and found["generated"] == len(found["ids"])
    # A round adds one token of the target's own, unless an accepted one ends the text.
    assert found["rounds"] + found["accepted"] - found["generated"] in (0, 1)


@smol_export
def test_an_export_and_its_source_draft_for_each_other(smollm2: Path) -> None:
    """The same vocabulary from two kinds of file: the pair check passes, and most drafts are right."""
    export = exported("smollm2-135m")
    for model, draft in ((export, smollm2), (smollm2, export)):
        found = document("--target", model, "--draft", draft, *FIXED, "--max-tokens", "12", "--ctx", "512", PROMPT)
        assert found["generated"] == 12 and found["accepted"] > 3 and found["draft"] == "model"


@pytest.mark.exports("llama-rows")
def test_a_restricted_export_is_no_target() -> None:
    refused(
        "has restricted output rows, so it can only be a --draft", "--target", exported("llama-rows"), "--raw", "abc"
    )


@pytest.mark.exports("llama", "llama-rows")
def test_a_restricted_export_drafts() -> None:
    flags = (
        "--raw",
        "--draft",
        exported("llama-rows"),
        "--compare",
        "--runs",
        "1",
        "--max-tokens",
        "60",
        "--min-tokens",
        "60",
    )
    found = document("--target", exported("llama"), *FIXED, *flags, "abcab")
    assert found["identical"] is True and found["accepted"] > 10


@pytest.mark.exports("llama")
def test_an_export_for_a_smaller_context(tmp_path: Path) -> None:
    target = exported("llama")
    refused("context is 5000; allowed: up to 4096", "--target", target, "--ctx", "5000", "--raw", "abc")
    refused(
        "--kv-type is 'q8_0'; allowed: only with llama.cpp", "--target", target, "--kv-type", "q8_0", "--raw", "abc"
    )
    refused("run it with --engine executorch or auto", "--target", target, "--engine", "llama_cpp", "--raw", "abc")
    gguf = write_tiny("llama", tmp_path)
    refused("is not an ExecuTorch export; make one with", "--target", gguf, "--engine", "executorch", "--raw", "abc")
    (tmp_path / "model.pte").write_bytes((target / "model.pte").read_bytes())
    refused("manifest.json: no such file; a .pte file alone", "--target", tmp_path / "model.pte", "--raw", "abc")


# --- torch -------------------------------------------------------------------------------------------------


def test_torch_runs_a_gguf(smollm2: Path) -> None:
    flags = ("--engine", "pytorch", "--ctx", "512", "--max-tokens", "20", "--compare", "--runs", "1")
    found = document("--target", smollm2, *FIXED, *flags, PROMPT)
    assert found["identical"] is True and found["plain"]["ids"] == found["ids"]
    assert found["generated"] == 20 and found["drafted"] > 0 and len(found["text"]) > 20
    refused("--strict is True", "--target", smollm2, "--engine", "pytorch", "--strict", PROMPT)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer of its own, as transformers saves both."""
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("hf") / "tiny"
    tiny_torch.save("llama", folder)
    letters = ["<s>", "</s>", *(chr(97 + index) for index in range(26)), *"ABCDEFGHIJKLMNOPQRSTUV"]
    model = tokenizers.models.BPE({letter: id for id, letter in enumerate(letters)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    return folder


def test_torch_runs_a_directory(directory: Path) -> None:
    flags = ("--raw", "--max-tokens", "30", "--min-tokens", "30")
    found = document("--target", directory, *flags, "--compare", "--runs", "1", "abcabcabc")
    assert found["identical"] is True and found["generated"] == 30 and found["target"] == "tiny"
    assert len(found["text"]) > 20 and found["seconds"].keys() == {"draft", "verify", "keep", "other"}
    again = document("--target", directory, "--engine", "pytorch", "--draft", directory, *FIXED, *flags, "abcabcabc")
    assert again["ids"] == found["ids"] and again["accepted"] > 15
