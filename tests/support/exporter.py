"""The exporter, imported without the warnings that the packages under it give about themselves."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from foredraft.export import executorch, lower, quality
    from foredraft.export.program import Program, ProgramSpec

__all__ = ["Program", "ProgramSpec", "executorch", "lower", "quality"]
