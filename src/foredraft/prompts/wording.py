"""How a message shows what a file holds: short, on one line, and never a whole prompt."""

from __future__ import annotations

from collections.abc import Collection

_LETTERS = 24
_NAMES = 12


def shown(value: object) -> str:
    """``value`` for an error message: at most 24 characters of a text, a number as it is, else what sort of thing it
    is."""
    match value:
        case str():
            return repr(value) if len(value) <= _LETTERS else f"{value[:_LETTERS]!r}… ({len(value)} characters)"
        case int():
            return repr(value) if abs(value) < 10**_LETTERS else "a huge number"
        case None | float():
            return repr(value)
        case list() | dict():
            return "a list" if isinstance(value, list) else "an object"
        case _:
            return f"of the type {type(value).__name__}"


def too_much(most: int) -> str:
    """What to say of a file that holds more than ``most`` bytes of prompts."""
    return f"holds more than {most >> 20} MB of prompts, which is the limit; copy some of them to a file of their own"


def listed(names: Collection[str]) -> str:
    """Names of columns, at most twelve, control characters written as escapes; "none" if there are none."""
    words = [repr(name)[1:-1] if len(name) <= _LETTERS else f"{repr(name[:_LETTERS])[1:-1]}…" for name in names]
    more = [f"and {len(words) - _NAMES} more"] if len(words) > _NAMES else []
    return ", ".join(words[:_NAMES] + more) or "none"
