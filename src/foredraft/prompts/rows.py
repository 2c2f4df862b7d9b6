"""From the rows of any format to prompts: checks every value, finds repeats, and counts what the user should know."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foredraft.chat import ROLES, Message
from foredraft.errors import PromptError
from foredraft.prompts.columns import CONVERSATIONS, KEYS, translated
from foredraft.prompts.prompt import ALL, NO_KIND, Format, Prompt, Unit
from foredraft.prompts.wording import listed, shown

Row = tuple[int, Mapping[str, Any]]
"""The line or row on which it begins, from 1, and its values by the name of the column; None: empty."""

MAX_ANSWER = 1 << 20
"""No prompt may ask for more tokens than this."""
_MAX_KIND = 64
_WHOLE = re.compile(r"\s*([0-9]{1,9})(?:\.0*)?\s*")  # spreadsheets and pandas write 5 as 5.0 if a cell is empty


@dataclass(frozen=True)
class Table:
    """A file as rows. ``unit``: what their numbers count; ``unread``: columns that are not in the rows; ``cut``: how a
    plain text was cut into prompts. Iterating ``rows`` raises PromptError, which names file and line."""

    format: Format
    rows: Iterable[Row]
    unit: Unit = "line"
    unread: tuple[str, ...] = ()
    cut: str = ""


@dataclass
class Collector:
    """Makes a prompt of every row. ``unread``: names that mean nothing here; ``remarks``: how many prompts something
    else than the obvious was done to; ``characters``: length of all texts so far."""

    table: Table
    prompts: list[Prompt] = field(default_factory=list)
    unread: dict[str, None] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)
    characters: int = 0
    _seen: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, values: Mapping[str, Any]) -> None:
        """Check the values and keep the prompt; PromptError says what is wrong, but not where."""
        if self.table.format != "jsonl":
            values = _unpacked(values)
        row, remark = translated(values)
        if remark is not None:
            self.remarks[remark] += 1
        messages = self._messages(row)
        kind, most = _kind(row), _most(row)
        self.unread.update(dict.fromkeys(name for name in row if name not in KEYS))
        text = hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]
        repeats = self._seen[text]
        self._seen[text] += 1
        key = f"{text}/{most or 'default'}" + (f"/repeat {repeats}" if repeats else "")
        self.characters += sum(len(message["content"]) for message in messages)
        self.prompts.append(Prompt(number, kind, messages, most, key, repeats > 0, self.table.unit))

    def notes(self, name: str) -> tuple[str, ...]:
        """What the user should know about the file ``name``, sentence by sentence."""
        lines = []
        if self.table.cut:
            number = f"{len(self.prompts)} prompts, {self.table.cut}" if len(self.prompts) > 1 else "one prompt"
            lines.append(f"{name} is plain text: {number}")
        lines += [f"{remark} ({count} of {len(self.prompts)} prompts)" for remark, count in self.remarks.items()]
        unread = dict.fromkeys((*self.table.unread, *self.unread))
        if unread:
            sort = "keys" if self.table.format == "jsonl" else "columns"
            lines.append(f"{sort} of {name} that mean nothing here: {listed(unread)}")
        return tuple(lines)

    def _messages(self, row: Mapping[str, Any]) -> tuple[Message, ...]:
        """The conversation of a row, its system text first, the user's words last."""
        if "prompt" not in row and "messages" not in row:
            raise PromptError("give either prompt or messages; this one is empty")
        if "messages" not in row:
            conversation: list[Message] = [{"role": "user", "content": _text("prompt", row["prompt"])}]
        else:
            if "prompt" in row:
                _check_same(row["prompt"], row["messages"])
                self.remarks["prompt only repeats the user's first message, and messages is read"] += 1
            conversation = self._conversation(row["messages"])
        system = row.get("system")
        if not _blank(system):
            if conversation[0]["role"] == "system":
                raise PromptError("messages begin with a system text already; drop system")
            conversation.insert(0, {"role": "system", "content": _text("system", system)})
        return tuple(conversation)

    def _conversation(self, found: Any) -> list[Message]:
        if not isinstance(found, list) or not found:
            raise PromptError('messages must be a list such as [{"role": "user", "content": "…"}]')
        conversation: list[Message] = []
        for number, message in enumerate(found, 1):
            if not isinstance(message, dict) or message.get("role") not in ROLES:
                role = message.get("role") if isinstance(message, dict) else message
                raise PromptError(f"message {number} has the role {shown(role)}; allowed: {', '.join(ROLES)}")
            if number == 1 and message["role"] == "system" and _blank(message.get("content")):
                continue
            text = _text(f"content of message {number}", message.get("content"))
            conversation.append({"role": message["role"], "content": text})
            more = (key for key, value in message.items() if key not in ("role", "content") and value is not None)
            self.unread.update(dict.fromkeys(f"{key} of a message" for key in more))
        return self._without_answer(conversation)

    def _without_answer(self, conversation: list[Message]) -> list[Message]:
        """The conversation up to the last words that are not the assistant's: the target writes its own answer."""
        length = len(conversation)
        while length and conversation[length - 1]["role"] == "assistant":
            length -= 1
        if not length:
            raise PromptError("messages hold nothing to answer; give at least one user message")
        if length < len(conversation):
            self.remarks["the assistant's answer at the end of messages is left out"] += 1
        return conversation[:length]


def parse_json(text: str) -> Any:
    """``text`` as JSON; PromptError says what is wrong with it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise PromptError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise PromptError("nested too deeply; the keys are " + ", ".join(KEYS)) from None
    except ValueError:  # Python reads no integer of more than 4300 digits
        raise PromptError("holds a number of thousands of digits") from None


def _unpacked(values: Mapping[str, Any]) -> dict[str, Any]:
    """A table's row as JSONL would have it: JSON text as what it stands for, numbers written as text as numbers, and
    lists in place of the ``{"role": […], "content": […]}`` that ``datasets`` makes of a Sequence of objects."""
    row = dict(values)
    for name in ("messages", CONVERSATIONS):
        match row.get(name):
            case str() as text:
                try:
                    row[name] = parse_json(text)
                except PromptError as error:
                    raise PromptError(f"{name}: {error}; write the list as json.dumps does") from error
            case dict() as columns if all(isinstance(column, list) for column in columns.values()):
                row[name] = [dict(zip(columns, entry, strict=False)) for entry in zip(*columns.values(), strict=False)]
    most = row.get("max_tokens")
    if isinstance(most, str) and (match := _WHOLE.fullmatch(most)):
        row["max_tokens"] = int(match[1])
    return row


def _kind(row: Mapping[str, Any]) -> str:
    kind = row.get("kind", NO_KIND)
    if not isinstance(kind, str) or kind.strip() in ("", ALL):
        raise PromptError(f"kind is {shown(kind)}; allowed: a word such as code, but not {ALL}")
    if len(kind.strip()) > _MAX_KIND or not kind.strip().isprintable():
        raise PromptError(f"kind is {shown(kind)}; allowed: at most {_MAX_KIND} characters on one line")
    return kind.strip()


def _most(row: Mapping[str, Any]) -> int | None:
    most = row.get("max_tokens")
    if isinstance(most, float) and most.is_integer():
        most = int(most)
    if most is None or (isinstance(most, int) and not isinstance(most, bool) and 1 <= most <= MAX_ANSWER):
        return most
    raise PromptError(f"max_tokens is {shown(most)}; allowed: a positive integer up to {MAX_ANSWER}")


def _check_same(prompt: Any, messages: Any) -> None:
    """Some data sets give the user's first message again as ``prompt``; anything else is two prompts in one row."""
    said = messages if isinstance(messages, list) else []
    first = next((each.get("content") for each in said if isinstance(each, dict) and each.get("role") == "user"), None)
    if not (isinstance(first, str) and isinstance(prompt, str) and first.strip() == prompt.strip()):
        raise PromptError("give either prompt or messages, not both")


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and (not value or value.isspace()))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or _blank(value):
        raise PromptError(f"{name} is {shown(value)}; allowed: text with at least one visible character")
    if "\0" in value:
        raise PromptError(f"{name} holds a NUL character; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as \\udc00
        raise PromptError(f"{name} holds a code point that is no character") from None
    return value
