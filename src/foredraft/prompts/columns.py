"""Which columns hold the prompt: foredraft's own names, and the conventions of data sets where they leave no doubt.

- ``conversations`` (ShareGPT): messages as ``{"from": "human" | "gpt" | …, "value": …}``, in some data sets as
  ``{"role": …, "content": …}`` (documentation of axolotl, "Conversation format for supervised fine-tuning").
- ``instruction`` (Alpaca): the prompt; ``input``, where it is not empty, is what the instruction is about (README of
  stanford_alpaca). Dolly calls it ``context`` (README of databricks-dolly-15k). It goes below, after a blank line.
- ``text``: the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from foredraft.errors import PromptError
from foredraft.prompts.wording import listed

KEYS = ("prompt", "messages", "kind", "system", "max_tokens")
CONVERSATIONS, INSTRUCTION, TEXT = "conversations", "instruction", "text"
CONVENTIONS = (CONVERSATIONS, INSTRUCTION, TEXT)
"""Read only where there is neither ``prompt`` nor ``messages``."""
BELOW = ("input", "context")
"""What an instruction is about."""
_ROLES = {"human": "user", "gpt": "assistant"}


def holds_prompts(names: Collection[str]) -> bool:
    """Whether some column of these names can be the prompt."""
    return any(name in names for name in ("prompt", "messages", *CONVENTIONS))


def convention(names: Collection[str]) -> str | None:
    """The convention by which a table with these columns is read; None: by foredraft's own names. PromptError if no
    column, or more than one, can be the prompt."""
    if "prompt" in names or "messages" in names:
        return None
    found = [name for name in CONVENTIONS if name in names]
    if found == [INSTRUCTION]:
        found += [name for name in BELOW if name in names][1:]
    if not found:
        raise PromptError(f"give either prompt or messages; there are: {listed(names)}")
    if len(found) > 1:
        raise PromptError(
            f"{' and '.join(found)}: which of them is the prompt is not clear; name that one prompt or messages"
        )
    return found[0]


def used(names: Collection[str]) -> list[str]:
    """The columns that mean something in a table with these names; PromptError as ``convention`` raises it."""
    found = convention(names)
    more = () if found is None else (found, *BELOW) if found == INSTRUCTION else (found,)
    return [name for name in names if name in KEYS or name in more]


def translated(row: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The row under foredraft's own names, without empty entries (None), and what to tell the user about it."""
    found = convention(row)
    own = {name: value for name, value in row.items() if value is not None}
    if found is None or found not in own:
        return own, None
    value = own.pop(found)
    if found == CONVERSATIONS:
        return own | {"messages": _conversation(value)}, "conversations is read as messages"
    if found == TEXT:
        return own | {"prompt": value}, "text is read as the prompt"
    below = next((name for name in BELOW if name in row), None)
    if below is None:
        return own | {"prompt": value}, "instruction is read as the prompt"
    more = own.pop(below, "")
    if isinstance(value, str) and isinstance(more, str) and more.strip():
        value = f"{value}\n\n{more}"
    return own | {"prompt": value}, f"instruction is read as the prompt, {below} below it"


def _conversation(messages: Any) -> Any:
    """Messages with role and content; what has another shape is left for the checks that follow."""
    if not isinstance(messages, list):
        return messages
    return [_message(message) if isinstance(message, dict) else message for message in messages]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if "from" not in message or "role" in message:
        return message
    rest = {key: value for key, value in message.items() if key not in ("from", "value")}
    speaker = message["from"]
    role = _ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
    return {"role": role, "content": message.get("value"), **rest}
