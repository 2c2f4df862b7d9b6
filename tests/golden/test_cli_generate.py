"""``foredraft generate`` as its user sees it: documents, exit codes, one-line errors, interruption."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foredraft.certify import Difference
from foredraft.cli.compare import Comparison
from foredraft.cli.generate import generate
from foredraft.cli.options import Choices

PROMPT = "List three colours, then repeat the list."
TIMES = re.compile(r"\d+\.\d+(?= s\b| tokens/s|×|%)")


def foredraft(*arguments: str | bytes, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "foredraft.cli.main", *arguments],
        input=stdin,
        capture_output=True,
        env={**os.environ, **env},
        timeout=300,
        check=False,
    )


def document(*arguments: str) -> dict[str, Any]:
    done = foredraft("generate", "--json", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_json_holds_every_promised_key(smollm2: Path) -> None:
    found = document("--target", str(smollm2), "--max-tokens", "24", PROMPT)
    assert {
        "text", "ids", "tokens_per_second", "alpha", "mean_accepted_length", "rounds", "drafted", "evaluated",
        "accepted", "finish_reason", "seconds",
    } <= found.keys()  # fmt: skip
    assert found["seconds"].keys() == {"draft", "verify", "keep", "other"}
    assert len(found["ids"]) == found["generated"] == 24
    assert found["finish_reason"] == "length"
    assert found["evaluated"] <= found["drafted"] and found["accepted"] <= found["evaluated"]
    assert found["rounds"] + found["accepted"] == found["generated"]


def test_compare_states_the_speedup_and_identity(smollm2: Path) -> None:
    found = document("--target", str(smollm2), "--max-tokens", "40", "--strict", "--compare", "--runs", "2", PROMPT)
    assert found["identical"] is True
    assert found["first_difference"] is None
    assert found["plain"]["ids"] == found["ids"]
    assert found["plain"]["rounds"] == len(found["ids"])
    ratio = found["tokens_per_second"] / found["plain"]["tokens_per_second"]
    assert found["speedup"] == pytest.approx(ratio)
    assert [len(found["runs"][kind]) for kind in ("plain", "speculative")] == [2, 2]


def test_the_text_goes_to_stdout_and_the_numbers_to_stderr(smollm2: Path) -> None:
    done = foredraft(
        "generate", "--target", str(smollm2), "--max-tokens", "12", "--strict", "--compare", "--runs", "1", PROMPT
    )
    text = done.stdout.decode()
    assert text.endswith("\n") and len(text.strip()) > 10 and "\x1b" not in text
    notes = done.stderr.decode()
    assert "speed-up" in notes and "the text is identical" in notes and "tokens/round" in notes


def test_quiet_prints_the_text_only_and_equals_the_json_text(smollm2: Path) -> None:
    flags = ("--target", str(smollm2), "--max-tokens", "12", PROMPT)
    done = foredraft("generate", "--quiet", *flags)
    assert done.stderr == b""
    assert done.stdout.decode() == document(*flags)["text"] + "\n"


def test_a_seed_gives_the_same_text_with_any_draft(smollm2: Path) -> None:
    flags = (
        "--target",
        str(smollm2),
        "--strict",
        "--max-tokens",
        "30",
        "-t",
        "0.8",
        "--top-p",
        "0.95",
        "--seed",
        "7",
        PROMPT,
    )
    texts = {document("--draft", draft, *flags)["text"] for draft in ("none", "ngram", str(smollm2))}
    assert len(texts) == 1


def test_without_a_seed_one_is_drawn_and_reported(smollm2: Path) -> None:
    flags = ("--target", str(smollm2), "--max-tokens", "16", "-t", "1.5", PROMPT)
    first = document(*flags)
    assert document("--seed", str(first["seed"]), *flags)["text"] == first["text"]
    assert document(*flags)["seed"] != first["seed"]


def test_lossy_output_says_so(smollm2: Path) -> None:
    flags = ("--target", str(smollm2), "--draft", str(smollm2), "--max-tokens", "16", "--rule", "relaxed", "-t", "1")
    found = document(*flags, "--max-tv", "0.05", PROMPT)
    assert found["exact"] is False and found["max_tv"] == 0.05 and 0 <= found["mean_tv"] <= 0.05
    assert b"lossy" in foredraft("generate", *flags, PROMPT).stderr


def test_logprobs(smollm2: Path) -> None:
    found = document("--target", str(smollm2), "--max-tokens", "6", "--logprobs", "3", PROMPT)
    assert [token["id"] for token in found["logprobs"]] == found["ids"]
    for token in found["logprobs"]:
        assert token["logprob"] < 0
        assert len(token["top"]) == 3 and token["top"][0]["id"] == token["id"]


def test_stop_strings_trim_ids_and_text_alike(smollm2: Path) -> None:
    whole = document("--target", str(smollm2), "--max-tokens", "40", PROMPT)
    word = whole["text"].split()[3]
    cut = document("--target", str(smollm2), "--max-tokens", "40", "--stop", word, PROMPT)
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(word)]
    assert whole["ids"][: len(cut["ids"])] == cut["ids"]


def test_standard_input_is_the_prompt(smollm2: Path) -> None:
    flags = ("generate", "--quiet", "--target", str(smollm2), "--max-tokens", "8")
    piped = foredraft(*flags, "-", stdin=PROMPT.encode())
    assert piped.returncode == 0
    assert piped.stdout == foredraft(*flags, PROMPT).stdout == foredraft(*flags, stdin=PROMPT.encode()).stdout


def test_ctrl_c_ends_cleanly_with_text_and_numbers(smollm2: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "foredraft.cli.main", "generate", "--target", str(smollm2), "--max-tokens", "4000",
         "--min-tokens", "4000", "Tell me a long story."],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        seen = process.stdout.read(20)  # the answer has begun
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        seen += process.stdout.read()
        notes = process.stderr.read().decode()
        assert process.wait(60) == 130
    assert len(seen) > 20 and seen.endswith(b"\n")
    assert "ended: cancelled" in notes and "tokens/s" in notes and "Traceback" not in notes


BAD_VALUES = [
    (("--temperature", "-1"), "temperature is -1.0"),
    (("--temperature", "nan"), "temperature is nan"),
    (("--top-p", "0"), "top_p is 0.0"),
    (("--top-p", "nan"), "top_p is nan"),
    (("--top-k", "-1"), "top_k is -1"),
    (("--min-p", "1.5"), "min_p is 1.5"),
    (("--repetition-penalty", "0"), "repetition_penalty is 0.0"),
    (("--frequency-penalty", "inf"), "frequency_penalty is inf"),
    (("--presence-penalty", "nan"), "presence_penalty is nan"),
    (("--penalty-window", "-3"), "penalty_window is -3"),
    (("--logit-bias", "x=1"), "--logit-bias is 'x=1'"),
    (("--logit-bias", "5=nan"), "--logit-bias is '5=nan'"),
    (("--logit-bias", f"{2**63}=1"), "--logit-bias is '9223372036854775808=1'"),
    (("--seed", "9" * 400), "seed is 999"),
    (("--seed", "-1"), "seed is -1"),
    (("--max-tokens", "-1"), "max_tokens is -1"),
    (("--min-tokens", "-1"), "min_tokens is -1"),
    (("--max-draft", "1000"), "max_draft is 1000"),
    (("--tree", "-2"), "tree is -2"),
    (("--rule", "relaxed", "--max-tv", "0"), "max_tv is 0.0"),
    (("--stop", ""), "stop string is ''"),
    (("--ctx", "-1"), "--ctx is -1"),
    (("--threads", "-1"), "--threads is -1"),
    (("--runs", "0", "--compare"), "--runs is 0"),
    (("--logprobs", "2"), "--logprobs is 2"),
    (("--draft", "none", "--draft", "ngram"), "--draft is 'none ngram'"),
    (("--draft", "nope"), "no model named 'nope'"),
    (("--target", "smollm2-135"), "did you mean 'smollm2-135m'"),
    (("--target", "missing.gguf"), "missing.gguf: no such file"),
]


def refused(done: subprocess.CompletedProcess[bytes], words: str, code: int = 2) -> None:
    """One line on stderr that holds ``words``; nothing on stdout; this exit code."""
    line = done.stderr.decode()
    assert done.returncode == code, line
    assert done.stdout == b""
    assert words in line and line.count("\n") == 1 and line.startswith("foredraft: "), line


@pytest.mark.parametrize(
    ("flags", "words"), BAD_VALUES, ids=lambda value: "_".join(value) if isinstance(value, tuple) else ""
)
def test_a_bad_value_is_one_line(flags: tuple[str, ...], words: str, smollm2: Path) -> None:
    target = () if "--target" in flags else ("--target", str(smollm2))
    refused(foredraft("generate", *target, *flags, "hello"), words)


def test_bad_prompts_are_one_line(smollm2: Path) -> None:
    flags = ("generate", "--target", str(smollm2))
    refused(foredraft(*flags, ""), "empty")
    refused(foredraft(*flags, "--raw", ""), "empty")
    refused(foredraft(*flags, "-", stdin=b"ab\xffcd"), "byte 0xff at offset 2")
    refused(foredraft(*flags, b"caf\xe9"), "not UTF-8")
    refused(foredraft(*flags, "--ctx", "64", "word " * 200), "raise --ctx")


def test_zero_and_one_token(smollm2: Path) -> None:
    flags = ("--target", str(smollm2), "--raw")
    nothing = document(*flags, "--max-tokens", "0", "a")
    assert nothing["ids"] == [] and nothing["finish_reason"] == "length" and nothing["prompt_tokens"] == 1
    assert len(document(*flags, "--max-tokens", "5", "a")["ids"]) == 5


def test_bad_files_are_one_line(smollm2: Path, tmp_path: Path) -> None:
    whole = smollm2.read_bytes()[: 1 << 20]
    cases = {
        "empty.gguf": (b"", "empty"),
        "short.gguf": (whole[:1000], "truncated"),
        "cut.gguf": (whole, "truncated"),
        "garbage.gguf": (bytes(range(64)), "not a GGUF"),
        "page.gguf": (b"<!doctype html><html></html>", "web page"),
    }
    for name, (data, words) in cases.items():
        (tmp_path / name).write_bytes(data)
        refused(foredraft("generate", "--target", str(tmp_path / name), "hello"), words)
        refused(foredraft("generate", "--target", str(smollm2), "--draft", str(tmp_path / name), "hello"), words)
    refused(foredraft("generate", "--target", str(tmp_path), "hello"), "is a directory")


def test_a_draft_of_another_vocabulary_is_refused(smollm2: Path, gemma3: Path) -> None:
    done = foredraft("generate", "--target", str(smollm2), "--draft", str(gemma3), "hello")
    refused(done, "does not fit target")


def test_an_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = foredraft("generate", "hello", FOREDRAFT_CACHE=str(blocked / "cache"))
    lines = [line for line in done.stderr.decode().splitlines() if line.strip()]
    assert done.returncode == 1
    assert len(lines) == 1 and "FOREDRAFT_CACHE" in lines[0]


def test_unknown_commands_and_options_suggest_the_right_one() -> None:
    for arguments, words in ((("genrate",), "generate"), (("generate", "--targt", "x"), "--target")):
        done = foredraft(*arguments)
        assert done.returncode == 2 and words in done.stderr.decode() and b"Traceback" not in done.stderr


def test_closed_streams_are_no_traceback() -> None:
    run = f"{sys.executable} -m foredraft.cli.main"
    for command, code in ((f"{run} models list >&-", 0), (f"{run} generate <&-", 2)):
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=60, check=False)
        assert done.returncode == code and b"Traceback" not in done.stderr


def test_a_file_name_that_is_not_utf_8_comes_back(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.gguf"
    Path(os.fsdecode(path)).write_bytes(b"x")
    done = foredraft("models", "path", path, PYTHONIOENCODING="utf-8:strict")
    assert (done.returncode, done.stdout) == (0, path + b"\n"), done.stderr


def test_a_wide_tree_gets_a_line_for_every_leaf(smollm2: Path) -> None:
    for nodes, lines in (("0", 64), ("64", 64), ("200", 200)):
        context = generate.make_context("generate", ["--target", str(smollm2), "--tree", nodes, "hello"])
        assert Choices(context.params).setup().engine.lines == lines


def test_json_holds_no_infinity() -> None:
    found = Comparison(comparable=True, difference=Difference(3, 7, None, float("inf"), 0.5)).as_json()
    assert json.loads(json.dumps(found, allow_nan=False))["first_difference"]["gap"] is None


def test_a_closed_pipe_is_quiet(smollm2: Path) -> None:
    command = f"{sys.executable} -m foredraft.cli.main generate --target {smollm2} -q --max-tokens 60 hello | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=300, check=False)
    assert len(done.stdout) == 1 and b"Traceback" not in done.stderr


def test_summary_snapshot(smollm2: Path) -> None:
    done = foredraft("generate", "--target", str(smollm2), "--max-tokens", "4", "--draft", "none", "--strict", PROMPT)
    assert TIMES.sub("N", done.stderr.decode()) == (
        "4 tokens in N s: N tokens/s; prompt 39 tokens, N s; ended: length\n"
        "drafted: nothing, 4 rounds\n"
        "time: draft N%, verify N%, keep N%, other N%\n"
        "nothing drafted in 4 of 4 rounds, mostly: no draft was asked for\n"
    )
