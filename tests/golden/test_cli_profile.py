"""``foredraft profile``, ``what-if`` and ``compare`` as their users see them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.devices.kept import model_facts
from foredraft.devices.measured import write_profile
from foredraft.profile.report import read_summary
from foredraft.profile.report.shape import ALL
from tests.support.command_line import Foredraft, in_process
from tests.support.profiles import PROFILE

PROMPTS = (
    {"kind": "list", "prompt": "List three colours, then repeat the list."},
    {"kind": "list", "prompt": "Count from one to five, then do it again."},
    {"kind": "chat", "prompt": "Say hello."},
    {"kind": "list", "prompt": "List three colours, then repeat the list."},
)
"""The last one repeats the first."""


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts, and a profile of the model as its own draft on a device that was measured."""
    made = tmp_path_factory.mktemp("profile")
    (made / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    facts = model_facts(smollm2, "llama_cpp")
    draft = replace(PROFILE.drafts[0], model=facts)
    write_profile(replace(PROFILE, target=facts, drafts=(draft,)), made / "pixel.json")
    return made


def flags(folder: Path, model: Path, *more: str) -> tuple[str, ...]:
    """One thread and few tokens; this machine is not measured, which would take its time."""
    few = ("--threads", "1", "--ctx", "512", "--max-tokens", "16", "--not-here", "--device", str(folder / "pixel.json"))
    return ("profile", "--prompts", str(folder / "p.jsonl"), "--target", str(model), "--draft", str(model), *few, *more)


@pytest.fixture
def foredraft(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foredraft:
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="module")
def report(folder: Path, smollm2: Path) -> Path:
    """A profile made once: the target is its own draft, so every guess is right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["foredraft", *flags(folder, smollm2, "-o", str(folder / "report"), "-q")])
        from foredraft.cli.main import main

        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    return folder / "report"


def test_the_report(report: Path) -> None:
    found = read_summary(report / "profile.json")
    assert (found["texts"], found["warm"]) == (3, 1)
    assert [kind["name"] for kind in found["kinds"]] == ["list", "chat"]
    whole = [row for row in found["acceptance"] if row["kind"] == ALL and row["temperature"] == 0.0]
    own = [row for row in whole if row["draft"].startswith("smollm2") and row["rule"] == "coupled"]
    assert own and (own[0]["alpha"]["value"] or 0.0) > 0.9, "a model guesses its own words"
    assert all(verdict["device"] == "pixel" for verdict in found["verdicts"])
    assert found["quality"]["live"] and "in real decoding of 3 texts" in found["quality"]["live"]
    assert (report / "report.html").read_text("utf-8").startswith("<!doctype html>")
    assert "pixel" in (report / "report.md").read_text("utf-8")
    assert sorted(path.name for path in report.iterdir()) == [
        "live.json", "profile.json", "report.html", "report.md", "trace.parquet",
    ]  # fmt: skip


def test_the_trace_tells_what_decoding_does(report: Path) -> None:
    """Real speculative decoding of all texts: α of the model and of n-gram lookup to .02."""
    for row in json.loads((report / "live.json").read_text()):
        live, traced = (hits / tried if tried else 0.0 for hits, tried in (row["live"], row["traced"]))
        assert abs(live - traced) <= 0.02, row


def test_nothing_is_run_twice(report: Path, folder: Path, smollm2: Path, foredraft: Foredraft) -> None:
    before = (report / "trace.parquet").read_bytes()
    code, out, err = foredraft(*flags(folder, smollm2, "-o", str(report)))
    assert code == 0, err
    assert (report / "trace.parquet").read_bytes() == before
    for words in ("Drafting pays on", "verdict", "conventional gate", "acceptance at temperature 0", "report: "):
        assert words in out
    assert "differ" not in err


def test_other_settings_need_another_directory(report: Path, folder: Path, smollm2: Path, foredraft: Foredraft) -> None:
    code, _, err = foredraft(*flags(folder, smollm2, "-o", str(report), "-t", "0.7", "--seed", "3"))
    assert code == 2
    assert "holds a trace with other settings (sampling); give another -o, or --restart" in err
    assert (report / "trace.parquet").exists()


def test_json_and_redacted(folder: Path, smollm2: Path, foredraft: Foredraft) -> None:
    more = (
        "-o",
        str(folder / "hidden"),
        "--redact",
        "--json",
        "-q",
        "--live",
        "0",
        "-t",
        "0.8",
        "--draft-temperature",
        "0.7",
    )
    code, out, err = foredraft(*flags(folder, smollm2, *more))
    assert code == 0, err
    found = json.loads(out)
    assert found["settings"]["redacted"] and found["samples"] == [] and found["quality"]["live"] is None
    for name in ("profile.json", "report.html", "trace.parquet"):
        assert b"colours" not in (folder / "hidden" / name).read_bytes()


def test_what_if(report: Path, foredraft: Foredraft) -> None:
    code, out, err = foredraft("what-if", str(report), "--temperature", "0.8", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert {row["device"] for row in rows} == {"pixel"} and {row["temperature"] for row in rows} == {0.8}
    own = next(row for row in rows if row["draft"].startswith("smollm2"))
    assert own["alpha"]["value"] > 0.9 and own["best_length"] > 0 and own["mean_tv"] == 0.0
    code, out, _ = foredraft("what-if", str(report), "--device", "OnePlus 12", "--kind", "chat")
    assert code == 0 and "(estimated)" in out and "kind chat" in out


def test_what_if_with_a_bound(report: Path, foredraft: Foredraft) -> None:
    code, out, _ = foredraft("what-if", str(report), "-t", "1.0", "--rule", "relaxed", "--max-tv", "0.02", "--json")
    assert code == 0
    assert all(0.0 <= row["mean_tv"] <= 0.02 + 1e-9 for row in json.loads(out)["rows"])


def test_compare(report: Path, tmp_path: Path, foredraft: Foredraft) -> None:
    slower: Any = read_summary(report / "profile.json")
    for row in slower["predictions"]:
        row["best"]["speedup"] = {"value": 1.01, "low": 1.0, "high": 1.02}
    (tmp_path / "profile.json").write_text(json.dumps(slower))
    code, out, err = foredraft("compare", report, tmp_path)
    assert code == 0, err
    assert "best predicted speed-up" in out and "acceptance α" in out and "1.01×" in out
    code, out, _ = foredraft("compare", report, tmp_path, "--fail-below", "1.15")
    assert code == 1 and "pixel: below 1.15×" in out
    assert foredraft("compare", report, report, "--fail-below", "1.0001")[0] == 0
    code, out, _ = foredraft("compare", report, tmp_path, "--json", "--fail-below", "1.15")
    assert code == 1 and json.loads(out)["below"] == ["pixel"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--threshold", "0.5"), "--threshold is 0.5; allowed: a speed-up of at least 1"),
        (("--max-tokens", "1"), "at least 2: nothing can be drafted for a single token"),
        (("--kind", "poem"), "no prompt is of the kind 'poem'; there are: list, chat"),
        (("--seed", "-1"), "--seed is -1"),
        (("-t", "-1"), "temperature is -1.0"),
        (("--device", "OnePlus 99"), "did you mean"),
    ],
)
def test_one_line_errors(folder: Path, smollm2: Path, foredraft: Foredraft, more: tuple[str, ...], words: str) -> None:
    code, _, err = foredraft(*flags(folder, smollm2, "-o", str(folder / "none"), *more))
    assert code == 2 and words in err and len(err.strip().splitlines()) == 1, err
    assert not (folder / "none").exists(), "nothing half-written"


def test_bad_files(folder: Path, tmp_path: Path, smollm2: Path, foredraft: Foredraft) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    bad = list(flags(folder, smollm2, "-o", str(tmp_path / "out")))
    bad[bad.index("--prompts") + 1] = str(tmp_path / "empty.jsonl")
    code, _, err = foredraft(*bad)
    assert code == 2 and "holds no prompt" in err
    (tmp_path / "file").write_text("x")
    code, _, err = foredraft(*flags(folder, smollm2, "-o", str(tmp_path / "file")))
    assert code == 2 and "a directory, or a name that is not taken" in err
    for command in (("what-if", str(tmp_path)), ("compare", str(tmp_path), str(tmp_path))):
        code, _, err = foredraft(*command)
        assert code == 2 and len(err.strip().splitlines()) == 1
