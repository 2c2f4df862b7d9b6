"""Real models for tests: pulled once through the product's own downloader, then taken from the cache."""

from __future__ import annotations

from pathlib import Path

from foredraft.catalogue import is_pulled, model_path
from foredraft.pull import pull


def ensure_model(name: str) -> Path:
    """The catalogue model ``name``, downloaded if it is absent; concurrent callers wait for each other."""
    return model_path(name) if is_pulled(name) else pull(name)
