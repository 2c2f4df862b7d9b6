"""The examples in the documentation run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_library_example_runs(smollm2: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks("docs/getting-started.md", "python"))
    assert "Pipeline.open" in code
    (tmp_path / "target.gguf").symlink_to(smollm2)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert len(done.stdout) > 100 and re.search(rb"\d\.\d", done.stdout.splitlines()[-1])


def commands() -> list[str]:
    """The README's foredraft lines that need no file of the reader's."""
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if "smollm2-135m" in line or "models list" in line]


@pytest.mark.parametrize("command", commands())
def test_the_readme_s_commands_run(command: str, smollm2: Path) -> None:
    words = shlex.split(command)
    assert words[0] == "foredraft"
    words[:1] = [sys.executable, "-m", "foredraft.cli.main"]
    done = subprocess.run(words, capture_output=True, env=os.environ, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.strip()


def test_there_are_commands_to_run() -> None:
    assert len(commands()) >= 4
