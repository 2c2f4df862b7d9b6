"""Models on the Hugging Face hub, planned before they are downloaded: a header's worth of bytes by range."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from foredraft.catalogue import HubSpec, choose_file, match_file, resolve
from foredraft.errors import ModelFileError
from foredraft.modelfile import ModelShape
from foredraft.shapes.hugging_face import CONFIG, RemotePlace, hugging_face_shape
from foredraft.shapes.remote_gguf import gguf_at
from foredraft.shapes.safetensors import MAX_JSON, json_object
from foredraft.shapes.web import Fetch, document, endpoint, refuse

_COMMIT = re.compile("[0-9a-f]{40}")


def pulled(spec: str, hub: HubSpec) -> Path | None:
    """The file that ``spec`` means if it was pulled, None if none was; ModelFileError if it means several."""
    names = [path.relative_to(hub.folder).as_posix() for path in hub.folder.glob("**/*.gguf")]
    return resolve(spec) if names and (hub.file is None or match_file(hub.file, names)) else None


def hub_shape(spec: str, hub: HubSpec, fetch: Fetch) -> ModelShape:
    """The shape of a GGUF file on the hub, or of a repository that has config.json and safetensors files instead."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        refuse(spec, "HF_HUB_OFFLINE is set and the file was not pulled; unset it, or give a local file")
    names, revision = _listing(spec, hub, fetch)
    base = f"{endpoint()}/{hub.repo}/resolve/{revision}"
    files = [name for name in names if name.lower().endswith(".gguf")]
    if hub.file is None and not files and CONFIG in names:
        return hugging_face_shape(RemotePlace(hub.repo.partition("/")[2], base, names, fetch))
    return gguf_at(f"{base}/{quote(_choose(spec, hub, files))}", fetch)


def _listing(spec: str, hub: HubSpec, fetch: Fetch) -> tuple[set[str], str]:
    """Names of the repository's files, and the commit they belong to."""
    url = f"{endpoint()}/api/models/{hub.repo}"
    try:
        answer = json_object(url, document(url, fetch, MAX_JSON))
    except ModelFileError as error:
        refuse(spec, f"is no file here, and asking the hub failed: {error}")
    siblings: Any = answer.get("siblings")
    names = [item.get("rfilename") for item in siblings if isinstance(item, dict)] if isinstance(siblings, list) else []
    good = {name for name in names if isinstance(name, str)}
    if not good:
        refuse(spec, "the hub names no files of it; check the name, and HF_ENDPOINT if it is set")
    commit = answer.get("sha")
    return good, commit if isinstance(commit, str) and _COMMIT.fullmatch(commit) else "main"


def _choose(spec: str, hub: HubSpec, files: list[str]) -> str:
    """The one .gguf file that is meant."""
    try:
        return choose_file(hub, files)
    except ValueError as error:
        refuse(spec, str(error))
