"""Where a model to export comes from: a GGUF file or a Hugging Face directory. Reads headers only, until asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from foredraft.manifest import FileFacts
from foredraft.modelfile import check_path, read_gguf
from foredraft.models.config import DecoderConfig
from foredraft.models.load import read_config
from foredraft.tokenizer_json import Converted, tokenizer_from_directory, tokenizer_from_gguf

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Source:
    """A model's path and shape. ``files``: all that its weights and shape are read from."""

    path: Path
    config: DecoderConfig
    name: str
    files: tuple[Path, ...]

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(file.stat().st_size for file in self.files)

    def tokenizer(self) -> Converted:
        """Its tokenizer in Hugging Face's format."""
        return tokenizer_from_directory(self.path) if self.path.is_dir() else tokenizer_from_gguf(read_gguf(self.path))

    def facts(self) -> FileFacts:
        """Its name, size and SHA-256; that of a directory is over its files in order of their names."""
        digest = hashlib.sha256()
        for file in self.files:
            _update(digest, file)
        return FileFacts(self.path.name or str(self.path), self.bytes, digest.hexdigest())


def open_source(path: Path) -> Source:
    """Read the header of ``path``; ModelFileError for anything but a decoder of the supported family."""
    if path.is_dir():
        config = read_config(path)
        files = (path / "config.json", *sorted(path.glob("*.safetensors")))
        return Source(path, config, path.resolve().name, files)
    config = read_config(check_path(path))
    name = read_gguf(path).metadata.get("general.name")
    return Source(path, config, name if isinstance(name, str) and name else path.stem, (path,))


def file_facts(path: Path) -> FileFacts:
    """Name, size and SHA-256 of one file."""
    digest = hashlib.sha256()
    _update(digest, path)
    return FileFacts(path.name, path.stat().st_size, digest.hexdigest())


def _update(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
