"""The command line in the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foredraft.cli.main import main

Foredraft = Callable[..., tuple[int, str, str]]


def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str) -> Foredraft:
    """A function that runs `foredraft`, its arguments behind ``first``: exit code, standard output, standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["foredraft", *first, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        return code, *capsys.readouterr()

    return run
