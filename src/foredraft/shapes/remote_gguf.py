"""The shape of a GGUF file on a web server, of which only the header is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

from foredraft.errors import ModelFileError
from foredraft.gguf_header import HeaderReader
from foredraft.gguf_types import printable
from foredraft.modelfile import ModelShape, model_shape
from foredraft.shapes.web import Fetch, RemoteFile, refuse, shown


def gguf_at(url: str, fetch: Fetch) -> ModelShape:
    """The shape of the GGUF file at ``url``. ModelFileError, one line that begins with the address, if that fails."""
    path = Path(unquote(urlsplit(url).path)).name or "model.gguf"
    with RemoteFile(url, fetch) as file:
        try:
            # The reader needs read() alone, and a path that stands in front of its errors.
            return model_shape(HeaderReader(Path(path), cast(BinaryIO, file), file.size).read())
        except ModelFileError as error:
            what = str(error)
    if what.startswith(shown(url)):
        raise ModelFileError(what)
    refuse(shown(url), what.removeprefix(f"{printable(path)}: "))
