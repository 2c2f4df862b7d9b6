"""What a plan consists of: lines of bytes, each with its formula and source. Computes nothing but sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAPPED, DIRTY = "mapped", "dirty"
"""Pages of a file, which the system may drop and read again; memory of the process's own, which it cannot."""
_MIB, _GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Line:
    """``nbytes`` of one ``part`` ("target", "draft", "app"). ``formula``: how they come about, with units; ``source``:
    where the formula or its numbers are from."""

    part: str
    name: str
    nbytes: int
    kind: str
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is in memory at once."""

    lines: tuple[Line, ...]

    @property
    def total(self) -> int:
        """Bytes that must be in memory for full speed: mapped and dirty."""
        return sum(line.nbytes for line in self.lines)

    @property
    def dirty(self) -> int:
        """Bytes that the system cannot take back without ending the process."""
        return sum(line.nbytes for line in self.lines if line.kind == DIRTY)

    @property
    def mapped(self) -> int:
        """Bytes that can be dropped and read from the file again, which costs speed."""
        return self.total - self.dirty

    def of(self, *, part: str | None = None, name: str | None = None) -> int:
        """Bytes of a part, of lines with one name, or of both."""
        return sum(
            line.nbytes
            for line in self.lines
            if (part is None or line.part == part) and (name is None or line.name == name)
        )

    def as_json(self) -> dict[str, Any]:
        """Plain types; all sizes in bytes."""
        names = ("part", "name", "nbytes", "kind", "formula", "source")
        rows = [{("bytes" if name == "nbytes" else name): getattr(line, name) for name in names} for line in self.lines]
        return {"total": self.total, "dirty": self.dirty, "mapped": self.mapped, "lines": rows}


def size(nbytes: float) -> str:
    """Bytes in words, always in powers of two.

    >>> size(144 * 2**20), size(4.5 * 2**30), size(300_000), size(0)
    ('144 MiB', '4.50 GiB', '0.3 MiB', '0 MiB')
    """
    if abs(nbytes) >= _GIB:
        return f"{nbytes / _GIB:.2f} GiB"
    return f"{nbytes / _MIB:.{0 if abs(nbytes) >= 10 * _MIB or not nbytes else 1}f} MiB"
