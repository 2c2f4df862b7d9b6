"""The shape of a model of transformers: config.json and the headers of its safetensors files, here or on a server."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import quote

from foredraft.errors import ModelFileError
from foredraft.gguf_types import printable
from foredraft.modelfile import MAX_LAYERS, ModelShape, check_path
from foredraft.models.config import DecoderConfig
from foredraft.models.hf_config import hf_config
from foredraft.shapes.safetensors import MAX_JSON, Readable, StoredTensor, json_object, read_header
from foredraft.shapes.web import Fetch, RemoteFile, document, refuse, shown

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_MAX_CONFIG = 1 << 20
_FIRST_PIECE = 64 << 10
_MAX_FILES = 256
_LIMITS = {"num_hidden_layers": MAX_LAYERS, "hidden_size": 1 << 20, "head_dim": 1 << 14, "vocab_size": 1 << 24}
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\.safetensors")
_OTHER_PARTS = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
"""Tensors of the pictures' part of a model, which is no part of the decoder."""
_EMBEDDING, _HEAD, _FREQUENCIES = "embed_tokens.weight", "lm_head.weight", "rotary_emb.inv_freq"


class Place(Protocol):
    """Where the files of one model lie."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def place(self) -> str:
        """The folder, for an error."""

    def has(self, file: str) -> bool:
        """True if ``file`` is there."""

    def where(self, file: str) -> str:
        """``file`` for an error."""

    def document(self, file: str, most: int) -> bytes:
        """All of a file of at most ``most`` bytes."""

    def open(self, file: str) -> AbstractContextManager[tuple[Readable, int]]:
        """A file to read from its beginning, and its size in bytes."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A directory."""

    folder: Path

    @property
    def name(self) -> str:
        """The directory's."""
        return self.folder.absolute().name

    @property
    def place(self) -> str:
        """Its path."""
        return str(self.folder)

    def has(self, file: str) -> bool:
        """True if ``file`` is there."""
        return os.path.exists(self.folder / file)

    def where(self, file: str) -> str:
        """The file's path."""
        return str(self.folder / file)

    def document(self, file: str, most: int) -> bytes:
        """All of a file of at most ``most`` bytes."""
        with self.open(file) as (readable, size):
            if size > most:
                refuse(self.where(file), f"has more than {most} bytes; get another copy")
            return readable.read(size)

    @contextmanager
    def open(self, file: str) -> Iterator[tuple[Readable, int]]:
        """A file to read from its beginning, and its size in bytes."""
        path = check_path(self.folder / file)
        try:
            with path.open("rb") as opened:
                yield opened, os.fstat(opened.fileno()).st_size
        except OSError as error:
            refuse(str(path), f"cannot be read ({printable(error.strerror or str(error))}); check the disk")


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """A folder at the address ``place`` with the files ``names``."""

    name: str
    place: str
    names: Collection[str]
    fetch: Fetch

    def has(self, file: str) -> bool:
        """True if ``file`` is there."""
        return file in self.names

    def where(self, file: str) -> str:
        """The file's address."""
        return shown(self.address(file))

    def address(self, file: str) -> str:
        """The file's address, to be fetched."""
        return f"{self.place}/{quote(file)}"

    def document(self, file: str, most: int) -> bytes:
        """All of a file of at most ``most`` bytes."""
        return document(self.address(file), self.fetch, most)

    @contextmanager
    def open(self, file: str) -> Iterator[tuple[Readable, int]]:
        """A file to read from its beginning, and its size in bytes."""
        with RemoteFile(self.address(file), self.fetch, _FIRST_PIECE) as opened:
            yield opened, opened.size


def hugging_face_shape(place: Place, file: str | None = None) -> ModelShape:
    """The shape of the model at ``place``; ``file``: the one safetensors file that holds it, None = the usual ones.

    A tensor counts once, in the type it is stored in. Parts for pictures, tables that are computed anew, and an output
    matrix that is the embedding again count only as bytes of the file. ModelFileError says what is wrong.
    """
    config = _config(place)
    tensors, file_bytes = _tensors(place, [file] if file else None)
    used = {
        name: tensor
        for name, tensor in tensors.items()
        if not _OTHER_PARTS.match(name)
        and not name.endswith(_FREQUENCIES)
        and not (config.tied and name.endswith(_HEAD))
    }
    embedding = next((tensor for name, tensor in used.items() if name.endswith(_EMBEDDING)), None)
    if embedding is None or embedding.shape != (config.vocab_size, config.hidden_size):
        found = "missing" if embedding is None else f"of shape {embedding.shape}"
        wanted = f"{(config.vocab_size, config.hidden_size)}, as config.json says"
        refuse(place.place, f"the embedding ({_EMBEDDING}) is {found}; allowed: {wanted}; get both from one model")
    output = sum(tensor.nbytes for name, tensor in used.items() if name.endswith(_HEAD))
    return _shape(place.name, config, used, _Bytes(file_bytes, embedding.nbytes, output))


@dataclass(frozen=True, slots=True)
class _Bytes:
    files: int
    embedding: int
    output: int


def _shape(name: str, config: DecoderConfig, used: Mapping[str, StoredTensor], size: _Bytes) -> ModelShape:
    by_type: dict[str, int] = {}
    for tensor in used.values():
        by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.nbytes
    return ModelShape(
        architecture=config.architecture,
        name=name,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        kv_heads_by_layer=(config.kv_heads,) * config.layers,
        head_size_k=config.head_dim,
        head_size_v=config.head_dim,
        embedding_length=config.hidden_size,
        feed_forward_length=config.ffn_size,
        sliding_window=config.window,
        parameters=sum(tensor.elements for tensor in used.values()),
        weight_bytes=sum(by_type.values()),
        quantization=MappingProxyType(dict(sorted(by_type.items(), key=lambda item: -item[1]))),
        chat_template=None,
        recurrent=False,
        windows=tuple(config.window if local else None for local in config.local),
        file_bytes=size.files,
        embedding_bytes=size.embedding,
        output_bytes=size.output,
        source="safetensors",
    )


def _config(place: Place) -> DecoderConfig:
    """config.json, read from a copy so that its size is checked first; errors name the original."""
    if not place.has(CONFIG):
        refuse(place.place, "holds no config.json; give a model's directory, a .gguf file or an export")
    data = place.document(CONFIG, _MAX_CONFIG)
    _check_numbers(place.where(CONFIG), json_object(place.where(CONFIG), data))
    with tempfile.TemporaryDirectory(prefix="foredraft-") as folder:
        copy = Path(folder) / CONFIG
        copy.write_bytes(data)
        try:
            return hf_config(Path(folder))
        except ModelFileError as error:
            what = str(error).removeprefix(f"{copy}: ")
        except OverflowError:
            what = "has a number that is too large; get another copy"
    refuse(place.where(CONFIG), what)


def _check_numbers(where: str, values: Mapping[str, Any]) -> None:
    """Refuse sizes with which reading the rest would take forever; whatever else is wrong, ``hf_config`` says."""
    inner = values.get("text_config")
    for settings in (values, inner if isinstance(inner, dict) else {}):
        for key, most in _LIMITS.items():
            value = settings.get(key)
            if isinstance(value, int) and value > most:
                refuse(where, f"{key} is {printable(str(value)[:40])}; allowed: at most {most}; get another copy")


def _tensors(place: Place, files: list[str] | None) -> tuple[Mapping[str, StoredTensor], int]:
    """All tensors by name, and the bytes of the files that hold them."""
    if files is None and not place.has(SINGLE) and place.has(INDEX):
        return _indexed(place)
    if files is None and not place.has(SINGLE):
        refuse(place.place, "holds no model.safetensors; convert the weights with transformers' save_pretrained")
    file = files[0] if files else SINGLE
    with place.open(file) as (readable, size):
        return read_header(place.where(file), readable, size), size


def _indexed(place: Place) -> tuple[Mapping[str, StoredTensor], int]:
    """The tensors that the index names, each from the file it names."""
    where = place.where(INDEX)
    mapping = json_object(where, place.document(INDEX, MAX_JSON)).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        refuse(where, "has no object weight_map; download it again")
    files: dict[str, list[str]] = {}
    for name, file in mapping.items():
        if not isinstance(file, str) or not _FILE.fullmatch(file):
            refuse(where, f"names the file {printable(repr(file), 80)}; allowed: .safetensors files beside it")
        files.setdefault(file, []).append(name)
    if len(files) > _MAX_FILES:
        refuse(where, f"names {len(files)} files; allowed: at most {_MAX_FILES}; get another copy")
    tensors: dict[str, StoredTensor] = {}
    total = 0
    for file, names in sorted(files.items()):
        with place.open(file) as (readable, size):
            found = read_header(place.where(file), readable, size)
        lost = next((name for name in names if name not in found), None)
        if lost is not None:
            refuse(
                place.where(file), f"lacks the tensor '{printable(lost, 64)}' that the index names; download it again"
            )
        tensors |= {name: found[name] for name in names}
        total += size
    return tensors, total
