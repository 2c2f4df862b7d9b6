"""One way in: whatever names a model, a file, an address, a name or a description, becomes its ModelShape."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from foredraft import catalogue
from foredraft.errors import UnknownName
from foredraft.gguf_types import printable
from foredraft.manifest import is_export, read_manifest
from foredraft.modelfile import ModelShape, check_path, model_shape, read_gguf
from foredraft.shapes.description import described, is_description
from foredraft.shapes.hub import hub_shape, pulled
from foredraft.shapes.hugging_face import LocalPlace, hugging_face_shape
from foredraft.shapes.presets import preset_names, preset_shape
from foredraft.shapes.remote_gguf import gguf_at
from foredraft.shapes.web import Fetch, checked, is_address, refuse
from foredraft.shapes.web import fetch as fetch_range


def read_shape(spec: str, *, fetch: Fetch | None = None) -> ModelShape:
    """The shape of the model that ``spec`` names. In this order it may be

    - a path: a .gguf file, an export (its directory or its .pte), a directory with config.json and safetensors files,
      or one .safetensors file with config.json beside it;
    - ``http://`` or ``https://`` and the address of a .gguf file;
    - a description, ``params=7B,layers=32,hidden=4096,kv-heads=8,weights=int4`` (see ``describe``);
    - a model of the catalogue, and if it was not pulled what its download will hold;
    - a preset, ``NAME`` or ``NAME@WEIGHTS``, such as ``llama-3.2-3b@q4_k_m``;
    - ``OWNER/REPO:FILE`` or ``OWNER/REPO`` of the hub, pulled or not.

    Of files on servers only headers are fetched, with ``fetch`` (None = over the network). Raises ModelFileError,
    UnknownName or InvalidValue, each one line.
    """
    getter = fetch or fetch_range
    if spec and os.path.exists(spec) and not (spec in catalogue.CATALOGUE and os.path.isdir(spec)):
        return _local(Path(spec))
    if is_address(spec):
        return gguf_at(checked(_file_address(spec)), getter)
    if is_description(spec):
        return described(spec)
    named = _named(spec)
    if named is not None:
        return named
    hub = catalogue.hub_spec(spec)
    if hub is not None:
        path = pulled(spec, hub)
        return _local(path) if path is not None else hub_shape(spec, hub, getter)
    if any(mark in spec for mark in ("/", os.sep, "\0")) or Path(spec).suffix in (".gguf", ".pte", ".safetensors"):
        check_path(Path(spec))
    raise _unknown(spec)


def _file_address(url: str) -> str:
    """The file itself where ``url`` is the hub's page about it."""
    return url.replace("/blob/", "/resolve/", 1) if url.startswith("https://huggingface.co/") else url


def _named(spec: str) -> ModelShape | None:
    """A model of the catalogue or a preset; None for other words."""
    model = catalogue.CATALOGUE.get(spec)
    if model is None:
        return preset_shape(spec)
    if catalogue.model_path(spec).exists():
        return _local(catalogue.resolve(spec))
    shape = preset_shape(spec)
    if shape is None:
        return _local(catalogue.resolve(spec))
    # The size of the file that a pull brings is known, and it is no less than its weights.
    size = model.size
    return replace(shape, name=spec, weight_bytes=size, file_bytes=size, quantization=MappingProxyType({"GGUF": size}))


def _local(path: Path) -> ModelShape:
    if path.is_dir() and not os.access(path, os.X_OK):
        refuse(str(path), "no permission to look into it; give yourself access with `chmod`")
    if is_export(path):
        return _export(path)
    if path.is_dir():
        return hugging_face_shape(LocalPlace(path))
    if path.suffix == ".safetensors":
        return hugging_face_shape(LocalPlace(path.parent), path.name)
    return model_shape(read_gguf(path))


def _export(path: Path) -> ModelShape:
    """The program counts as the weights, which are most of it. Its caches hold every position in every layer, also in
    those that see a window only; the context is what the program has slots for."""
    manifest = read_manifest(path)
    shape, size = manifest.shape, manifest.program.bytes
    return ModelShape(
        architecture=shape.architecture,
        name=manifest.name,
        vocab_size=shape.vocab_size,
        context_length=manifest.bounds.context,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        kv_heads_by_layer=(shape.kv_heads,) * shape.layers,
        head_size_k=shape.head_dim,
        head_size_v=shape.head_dim,
        embedding_length=shape.hidden_size,
        feed_forward_length=0,
        sliding_window=shape.window,
        parameters=0,
        weight_bytes=size,
        quantization=MappingProxyType({"PTE": size}),
        chat_template=None,
        recurrent=False,
        file_bytes=size,
        source="export",
        arena_bytes=manifest.arena,
        pass_width=manifest.bounds.width,
        pass_rows=manifest.bounds.rows,
    )


def _unknown(spec: str) -> UnknownName:
    names = sorted({*catalogue.CATALOGUE, *preset_names()})
    near = difflib.get_close_matches(spec.partition("@")[0].lower()[:100], names, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownName(
        f"no model named {printable(spec, 100)!r}; {hint}known: {', '.join(names)}; a path, https://….gguf, "
        "OWNER/REPO:FILE and a description such as params=7B,layers=32,hidden=4096,kv-heads=8 work too"
    )
