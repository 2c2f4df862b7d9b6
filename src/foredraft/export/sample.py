"""A small general text, the same for every export: English prose, code, lists and dialogue, mixed from the start.

What it is used for (measuring a program, counting tokens) is not known here.
"""

from __future__ import annotations

from importlib.resources import files


def sample_text() -> str:
    """The text, about 1900 tokens; its first 250 already hold prose and code."""
    return files("foredraft.export").joinpath("sample.txt").read_text("utf-8")
