"""``foredraft bench`` as its user sees it: tables, documents, resuming, one-line errors, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

PROMPTS = (
    {"kind": "list", "prompt": "List three colours, then repeat the list."},
    {"kind": "chat", "prompt": "Say hello.", "id": 7},
    {"kind": "list", "prompt": "List three colours, then repeat the list."},
)


def foredraft(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "foredraft.cli.main", "bench", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        timeout=600,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with ``p.jsonl``; the third prompt repeats the first."""
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return tmp_path


def flags(model: Path, *more: str) -> Sequence[str]:
    """One thread and few tokens: these tests are about output, not about speed."""
    few = ("--runs", "1", "--max-tokens", "6", "--threads", "1", "--ctx", "512")
    return ("p.jsonl", "--target", str(model), *few, *more)


def test_tables_on_stdout_progress_on_stderr_and_raw_numbers_kept(folder: Path, smollm2: Path) -> None:
    more = ("--draft", str(smollm2), "--arm", "ngram,model:fixed:2", "--arm", "ngram+model:cost", "--plot", "b.svg")
    done = foredraft(*flags(smollm2, *more), cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["arm", "list", "(1)", "chat", "(1)", "all", "(2)"] in lines
    for words in (
        "speed-up by kind of prompt",
        "best fixed",
        "tokens/round",
        "text as plain",
        "1 repeated prompt (warm)",
    ):
        assert words in done.stdout
    assert [line[0] for line in lines if line and line[0].endswith(":2")][:2] == ["ngram:fixed:2", "model:fixed:2"]
    assert "mean nothing here: id" in done.stderr and "raw numbers: bench.json" in done.stderr
    assert "warm: a repeated prompt" in done.stderr and "plot: b.svg" in done.stderr
    assert (folder / "b.svg").read_text().startswith("<?xml")
    raw = json.loads((folder / "bench.json").read_text())
    assert [record["warm"] for record in raw["records"]] == [False, False, True]
    assert set(raw["records"][0]["arms"]) == {"plain", "ngram:fixed:2", "model:fixed:2", "ngram+model:cost"}
    assert all(str(folder) not in text and str(smollm2.parent) not in text for text in (json.dumps(raw), done.stdout))


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    done = foredraft(*arguments, "--json", "-q", cwd=folder)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_resume_measures_what_is_missing_and_reports_everything(folder: Path, smollm2: Path) -> None:
    arguments = flags(smollm2, "--arm", "ngram:fixed:2", "--arm", "ngram:cost", "-o", "raw.json")
    first = document(folder, *arguments, "--kind", "chat")
    assert first["targets"][0]["kinds"] == ["chat"]
    before = json.loads((folder / "raw.json").read_text())["records"]
    whole = document(folder, *arguments, "--resume")
    assert json.loads((folder / "raw.json").read_text())["records"][: len(before)] == before
    (target,) = whole["targets"]
    assert (target["kinds"], target["warm_prompts"]) == (["list", "chat", "all"], 1)
    assert {cell["arm"] for cell in target["cells"]} == {"plain", "ngram:fixed:2", "ngram:cost"}
    for cell in target["cells"]:
        assert cell["texts"] == {"identical": cell["speedup"]["prompts"]}
        assert sum(cell["rungs"].values()) == pytest.approx(1.0)
    assert [choice["kind"] for choice in target["choices"]] == ["list", "chat", "all"]
    again = document(folder, *arguments, "--resume")
    assert again["targets"] == whole["targets"], "nothing is measured twice"
    assert again["setup"]["machine"]["cpus"] >= 1 and again["setup"]["sampling"]["seed"] == 0


BAD = [
    (("missing.jsonl",), "missing.jsonl: no such file"),
    (("p.jsonl", "--kind", "poem"), "no prompt is of the kind 'poem'; there are: list, chat"),
    (("p.jsonl", "--arm", "ngram:fixed"), "a length of at least 1"),
    (("p.jsonl", "--arm", "model:cost"), "give one with --draft"),
    (("p.jsonl", "--draft", "ngram"), "n-gram lookup is an --arm"),
    (("p.jsonl", "--target", "nope"), "no model named 'nope'"),
    (("p.jsonl", "--runs", "0"), "--runs is 0"),
    (("p.jsonl", "--limit", "-1"), "--limit is -1"),
    (("p.jsonl", "--max-tokens", "0"), "--max-tokens is 0"),
    (("p.jsonl", "--draft-ctx", "-5"), "--draft-ctx is -5"),
    (("p.jsonl", "--temperature", "-1"), "temperature is -1.0"),
    (("p.jsonl", "--plot", "b.gif"), "a file name ending in .png, .svg, .pdf"),
    (("p.jsonl", "--output", "nowhere/b.json"), "a file in a directory that exists"),
    (("p.jsonl", "--output", "taken.json"), "add --resume"),
    (("p.jsonl", "--output", "taken.json", "--resume"), "is not a raw file of foredraft bench"),
    (("p.jsonl", "--profile", "taken.json"), "taken.json: is no device profile"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments[1:]) or "file" for arguments, _ in BAD])
def test_a_mistake_is_one_line_before_any_model_is_loaded(
    arguments: tuple[str, ...], words: str, folder: Path, smollm2: Path
) -> None:
    (folder / "taken.json").write_text("{}")
    target = () if "--target" in arguments else ("--target", str(smollm2))
    done = foredraft(*arguments, *target, "-q", cwd=folder)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert words in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("foredraft: ")
    assert not (folder / "bench.json").exists()


def test_a_bad_line_is_named(folder: Path, smollm2: Path) -> None:
    (folder / "p.jsonl").write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    done = foredraft(*flags(smollm2), cwd=folder)
    assert done.returncode == 2 and "p.jsonl line 2: give either prompt or messages" in done.stderr


def test_prompts_of_another_format_and_what_was_made_of_them(folder: Path, smollm2: Path) -> None:
    (folder / "p.txt").write_text("Say hello.\nList three colours.\nSay hello.\n")
    arguments = ("p.txt", *flags(smollm2, "--arm", "ngram:fixed:2")[1:])
    done = foredraft(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "note: p.txt is plain text: 3 prompts, one a line\n" in done.stderr
    assert "other, line 3: " in done.stderr and "1 repeated prompt (warm)" in done.stdout


def test_ctrl_c_reports_what_is_done_and_keeps_it(folder: Path, smollm2: Path) -> None:
    (folder / "p.jsonl").write_text("".join(f'{{"prompt": "Count to {n}.", "kind": "x"}}\n' for n in range(200)))
    command = [sys.executable, "-m", "foredraft.cli.main", "bench", *flags(smollm2, "--arm", "ngram:fixed:2")]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stderr:
            if "line 2: " in line:  # two prompts are finished
                break
        process.send_signal(signal.SIGINT)
        notes = process.stderr.read()
        tables = process.stdout.read()
        assert process.wait(60) == 130
    kept = json.loads((folder / "bench.json").read_text())["records"]
    assert 2 <= len(kept) < 200 and "Traceback" not in notes
    assert f"interrupted: {len(kept)} of 200 prompts are kept; --resume goes on" in notes
    assert f"x ({len(kept)})" in tables
