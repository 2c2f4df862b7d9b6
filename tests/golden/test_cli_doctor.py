"""``foredraft doctor`` as its user sees it: the page, the documents, one-line errors, interruption."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from foredraft.devices import read_profile
from foredraft.devices.kept import remember
from foredraft.doctor import subject
from foredraft.engines.opening import Settings
from tests.support import tiny_models
from tests.support.command_line import Foredraft, in_process
from tests.support.profiles import PROFILE


@pytest.fixture(scope="module")
def cache(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache for the module: what llama.cpp can do here is found out once. The model is fetched before."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREDRAFT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def model(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 under a name that a terminal could misread."""
    path = tmp_path_factory.mktemp("models") / "smol [b].gguf"
    path.symlink_to(smollm2)
    return path


@pytest.fixture
def foredraft(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foredraft:
    return in_process(monkeypatch, capsys, "doctor")


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "profiles").iterdir()) if (cache / "profiles").exists() else []


def refused(done: tuple[int, str, str], words: str) -> None:
    code, out, err = done
    assert code == 2 and out == "", err
    assert words in err and err.startswith("foredraft: ") and err.count("\n") == 1, err


def test_the_page(foredraft: Foredraft, model: Path, cache: Path) -> None:
    code, page, notes = foredraft("--target", model, "--draft", "ngram", "--draft", model, "--seconds", "3")
    assert code == 0, notes
    assert notes == "measuring for about 3 s\n"
    assert page.startswith("smol [b].gguf: llama_cpp, ") and re.search(r"behind \d+ tokens$", page, re.MULTILINE)
    assert re.search(r"^measured in \d+\.\d s; kept in .*\.json$", page, re.MULTILINE)
    topics = re.findall(r"^([a-z ]+): ", page, re.MULTILINE)
    expected = ["plain", "certainty", "draft", "draft", "chains", "trees", "taking back", "exactness", "memory"]
    assert [topic for topic in topics if topic in expected] == expected
    assert re.search(r"^draft: (perhaps: )?smol \[b\]\.gguf costs \d+\.\d\d of a step; ", page, re.MULTILINE)
    rows = re.findall(r"^ *(\d+|draft, \d) +([\d.]+) +(\d+\.\d\d) +(\d+\.\d%|–) +(\d+)$", page, re.MULTILINE)
    widths = [row[0] for row in rows]
    assert widths[0] == "1" and {"4", "draft, 1", "draft, 4"} <= set(widths) and rows[0][2] == "1.00"
    profile = read_profile(kept(cache)[0])
    assert [str(timing.width) for timing in profile.curve] == widths[: len(profile.curve)]


def test_a_kept_profile_is_shown_again(foredraft: Foredraft, model: Path, cache: Path) -> None:
    date = (datetime.now(UTC) - timedelta(days=3)).isoformat()
    remember(subject(model, [], Settings(threads=1)), replace(PROFILE, date=date, drafts=()))
    flags = ("--target", model, "--threads", "1", "--seconds", "0.5")
    code, page, notes = foredraft(*flags)
    assert code == 0 and notes == ""
    assert "(3 days ago), --refresh measures again; kept in" in page
    assert "certainty: v is good to ± 1% (95 %); single passes vary by up to 1%" in page
    assert "speed-up of the best chain" in page and re.search(r"^0\.8 +\d\.\d\d× \(\d+\)$", page, re.MULTILINE)
    code, page, notes = foredraft(*flags, "--refresh")
    assert code == 0 and notes == "measuring for about 0.5 s\n" and "measured in" in page


def test_documents(foredraft: Foredraft, model: Path, cache: Path, tmp_path: Path) -> None:
    output = tmp_path / "device.json"
    code, text, notes = foredraft("--target", model, "--seconds", "0.5", "--ctx", "300", "--json", "-o", output)
    assert code == 0 and " ".join(notes.split()) == f"measuring for about 0.5 s profile written to {output}"
    document: dict[str, Any] = json.loads(text)
    assert {"schema", "date", "machine", "versions", "threads", "target", "context", "curve", "step_seconds", "drafts",
            "rollback", "tree", "hidden", "widths", "width_noise", "tree_noise", "free_bytes", "took", "notes",
            "verdict", "kept", "measured_now"} <= document.keys()  # fmt: skip
    assert document["context"] <= 150 and document["measured_now"] is True
    assert document["target"]["bytes"] == 98_362_432 and document["settings"]["context"] == "300"
    assert document["verdict"]["words"][0]["topic"] == "plain"
    (tmp_path / "printed.json").write_text(text)
    assert read_profile(tmp_path / "printed.json") == read_profile(output) == read_profile(Path(document["kept"]))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--seconds", "0"), "seconds is 0.0; allowed: 0.1 to 3600"),
        (("--seconds", "nan"), "seconds is nan"),
        (
            ("-o", "nowhere/profile.json"),
            "--output is 'nowhere/profile.json'; allowed: a file in a directory that exists",
        ),
        (("-o", "."), "--output is '.'; allowed: a file in a directory that exists"),
        (("--threads", "-1"), "--threads is -1"),
        (("--draft", "none", "--draft", "ngram"), "none alone"),
    ],
)
def test_refusals(flags: tuple[str, ...], words: str, foredraft: Foredraft, model: Path, cache: Path) -> None:
    before = kept(cache)
    refused(foredraft("--target", model, *flags), words)
    assert kept(cache) == before


def test_a_draft_of_another_family_is_refused_before_measuring(
    foredraft: Foredraft, model: Path, cache: Path, tmp_path: Path
) -> None:
    before, other = kept(cache), tiny_models.write_llama(tmp_path / "tiny.gguf")
    done = foredraft("--target", model, "--draft", other)
    assert done[0] == 2 and done[1] == "" and done[2].startswith("foredraft: ") and done[2].count("\n") == 1
    assert kept(cache) == before


def test_ctrl_c_leaves_nothing(model: Path, cache: Path, tmp_path: Path) -> None:
    before = kept(cache)
    command = [sys.executable, "-m", "foredraft.cli.main", "doctor", "--target", str(model), "--threads", "2"]
    command += ["--refresh", "--seconds", "600", "-o", str(tmp_path / "device.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stderr is not None and process.stdout is not None
        assert process.stderr.readline() == b"measuring for about 600 s\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
        assert process.wait(60) == 130
        assert process.stdout.read() == b""
    assert rest.strip() == "foredraft: interrupted"
    assert kept(cache) == before and list(tmp_path.iterdir()) == []
