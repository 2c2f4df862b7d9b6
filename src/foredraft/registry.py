"""Names -> engines and drafters, imported only when asked for. Third parties add theirs through entry points in the
groups ``foredraft.engines`` and ``foredraft.drafters``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from foredraft.errors import MissingExtra, UnknownName

ENGINES: Mapping[str, str] = {
    "executorch": "foredraft.engines.executorch:ExecutorchEngine",
    "llama_cpp": "foredraft.engines.llama_cpp:LlamaEngine",
    "pytorch": "foredraft.engines.pytorch:TorchEngine",
    "scripted": "foredraft.engines.scripted:ScriptedEngine",
}
DRAFTERS: Mapping[str, str] = {
    "none": "foredraft.drafters.null:NullDrafter",
    "ngram": "foredraft.drafters.ngram:NgramDrafter",
    "model": "foredraft.drafters.model:ModelDrafter",
    "head": "foredraft.drafters.head:HeadDrafter",
    "chain": "foredraft.drafters.chain:ChainDrafter",
}
EXTRAS: Mapping[str, str] = {
    "executorch": "executorch",
    "gguf": "export",
    "huggingface_hub": "hub",
    "llama_cpp": "llama",
    "matplotlib": "plot",
    "safetensors": "export",
    "torch": "executorch",
    "torchao": "export",
}
"""Package -> the extra of foredraft that installs it."""


def names(group: str) -> dict[str, str]:
    """All names of ``group`` ("engines" or "drafters") with their "module:object"; built-in ones win."""
    builtin = ENGINES if group == "engines" else DRAFTERS
    return {**{point.name: point.value for point in entry_points(group=f"foredraft.{group}")}, **builtin}


def load(group: str, name: str) -> Any:
    """The class behind ``name``. Raises UnknownName with the nearest name, or MissingExtra with the command that
    installs the package it needs."""
    known = names(group)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise UnknownName(f"no {group[:-1]} is called {name!r}{hint} Known: {', '.join(sorted(known))}")
    module, _, attribute = known[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        extra = EXTRAS.get(package)
        fix = f"pip install 'foredraft[{extra}]'" if extra else f"pip install {package}"
        raise MissingExtra(f"{name} needs the package {package}; install it with: {fix}") from error
