"""Asserts that something is refused with one clear line, and returns what the line says."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.errors import ModelFileError, PullError
from foredraft.modelfile import model_shape, read_gguf
from foredraft.pull import pull


def refused(path: Path) -> str:
    """What is said about the model file ``path``, without the path in front."""
    with pytest.raises(ModelFileError) as caught:
        model_shape(read_gguf(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message.removeprefix(f"{path}: ")


def refused_bytes(file: Path, data: bytes) -> str:
    """The same for a file of these bytes."""
    file.write_bytes(data)
    return refused(file)


def failed_pull(spec: str = "toy") -> str:
    """What is said when ``spec`` cannot be pulled."""
    with pytest.raises(PullError) as caught:
        pull(spec)
    message = str(caught.value)
    assert message.startswith(f"{spec}: ")
    assert message.isprintable()
    return message


def files(folder: Path) -> list[str]:
    """All files below ``folder`` but locks."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return sorted(path.relative_to(folder).as_posix() for path in paths)
