"""Tiny wheels that pip accepts, and a catalogue model made of them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from foredraft.catalogue import CatalogueModel, Part

TOY_BYTES = tuple(bytes([i]) * 5000 for i in (1, 2, 3))


def write_wheel(folder: Path, package: str, member: str, data: bytes) -> Path:
    """A wheel of ``package`` 1.0 that holds ``data`` as ``member``, and code that must never run."""
    path = folder / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    files = {
        member: data,
        f"{package}/__init__.py": b"raise SystemExit('the code of a data package was executed')",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


def write_toy_wheels(folder: Path) -> None:
    """The wheels of ``toy_model``."""
    for i, data in enumerate(TOY_BYTES, 1):
        write_wheel(folder, f"toy_part{i}", f"toy_part{i}/data/part.bin", data)


def toy_model() -> CatalogueModel:
    """A model in three parts of 5000 bytes each."""
    whole = b"".join(TOY_BYTES)
    parts = tuple(Part(f"toy-part{i}==1.0", f"toy_part{i}/data/part.bin") for i in (1, 2, 3))
    return CatalogueModel("toy", parts, hashlib.sha256(whole).hexdigest(), len(whole), 3000, "MIT", "a toy")
