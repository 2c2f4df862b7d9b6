"""The prompts of a benchmark: one JSON object a line, checked line by line before anything is measured."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foredraft.chat import ROLES, EncodedPrompt, Message, encode_messages, encode_prompt
from foredraft.errors import PromptError
from foredraft.tokens import Tokenizer

KEYS = ("prompt", "messages", "kind", "system", "max_tokens")
NO_KIND, ALL = "other", "all"
"""The kind of a prompt that names none; the kind that stands for all together, which no prompt may name."""


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """``line``: its number in the file, from 1. ``key``: a hash of what the model is given, which finds its
    record again. ``warm``: the same text stood on an earlier line, so that its numbers are not averaged in.
    ``max_tokens`` None: as the benchmark says. ``ignored``: keys of the line that mean nothing here."""

    line: int
    kind: str
    messages: tuple[Message, ...]
    max_tokens: int | None
    key: str
    warm: bool = False
    ignored: tuple[str, ...] = ()

    def encoded(self, tokenizer: Tokenizer, *, raw: bool = False) -> EncodedPrompt:
        """Ids for the model, through its chat template unless ``raw``; PromptError names the line."""
        try:
            if not raw:
                return encode_messages(tokenizer, self.messages)
            if len(self.messages) > 1:
                raise PromptError("a conversation or a system text cannot be fed raw")
            return encode_prompt(tokenizer, self.messages[0]["content"], raw=True)
        except PromptError as error:
            raise PromptError(f"line {self.line}: {error}") from error


def read_prompts(path: Path) -> list[BenchPrompt]:
    """All prompts of a file; empty lines are skipped. PromptError names the first line that is wrong."""
    if not path.is_file():
        raise PromptError(f"{path}: no such file; name a file with one JSON object a line")
    seen: Counter[str] = Counter()
    prompts = []
    for number, line in _lines(path):
        try:
            prompt = _prompt(number, _object(line), seen)
        except PromptError as error:
            raise PromptError(f"{path.name} line {number}: {error}") from error
        prompts.append(prompt)
    if not prompts:
        raise PromptError(f'{path}: holds no prompt; give at least one line such as {{"prompt": "Hello"}}')
    return prompts


def chosen(prompts: Sequence[BenchPrompt], kinds: Sequence[str] = (), limit: int = 0) -> list[BenchPrompt]:
    """The prompts of these kinds (none named: all), at most ``limit`` of each kind (0: all)."""
    known = list(dict.fromkeys(prompt.kind for prompt in prompts))
    for kind in kinds:
        if kind not in known:
            raise PromptError(f"no prompt is of the kind {kind!r}; there are: {', '.join(known)}")
    taken: Counter[str] = Counter()
    result = []
    for prompt in prompts:
        if (not kinds or prompt.kind in kinds) and (not limit or taken[prompt.kind] < limit):
            taken[prompt.kind] += 1
            result.append(prompt)
    return result


def unused_keys(prompts: Iterable[BenchPrompt]) -> list[str]:
    """Keys that some line has and that mean nothing here, in order of appearance."""
    return list(dict.fromkeys(key for prompt in prompts for key in prompt.ignored))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, data in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            where = f"{path.name} line {number}"
            raise PromptError(f"{where}: not UTF-8 text (byte 0x{data[error.start]:02x}); convert it first") from None
        if line:
            yield number, line


def _object(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"not JSON: {error.msg} at column {error.colno}; one object a line") from None
    except RecursionError:
        raise PromptError("nested too deeply; one object with the keys " + ", ".join(KEYS)) from None
    if not isinstance(found, dict):
        raise PromptError('not an object; write {"prompt": "…"} or {"messages": […]}')
    return found


def _prompt(number: int, row: Mapping[str, Any], seen: Counter[str]) -> BenchPrompt:
    messages = _messages(row)
    kind = row.get("kind", NO_KIND)
    if not isinstance(kind, str) or kind.strip() in ("", ALL):
        raise PromptError(f"kind is {kind!r}; allowed: a word such as code, but not {ALL}")
    most = row.get("max_tokens")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise PromptError(f"max_tokens is {most!r}; allowed: a positive integer")
    text = hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]
    repeats = seen[text]
    seen[text] += 1
    key = f"{text}/{most or 'default'}" + (f"/repeat {repeats}" if repeats else "")
    ignored = tuple(key for key in row if key not in KEYS)
    return BenchPrompt(number, kind.strip(), messages, most, key, warm=repeats > 0, ignored=ignored)


def _messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    """The conversation of a line, its system text first."""
    if ("prompt" in row) == ("messages" in row):
        raise PromptError("give either prompt or messages" + (", not both" if "prompt" in row else ""))
    if "prompt" in row:
        conversation: list[Message] = [{"role": "user", "content": _text("prompt", row["prompt"])}]
    else:
        conversation = _conversation(row["messages"])
    if "system" in row:
        if conversation[0]["role"] == "system":
            raise PromptError("messages begin with a system text already; drop system")
        conversation.insert(0, {"role": "system", "content": _text("system", row["system"])})
    return tuple(conversation)


def _conversation(found: Any) -> list[Message]:
    if not isinstance(found, list) or not found:
        raise PromptError('messages must be a list such as [{"role": "user", "content": "…"}]')
    conversation: list[Message] = []
    for number, message in enumerate(found, 1):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            role = message.get("role") if isinstance(message, dict) else message
            raise PromptError(f"message {number} has the role {role!r}; allowed: {', '.join(ROLES)}")
        text = _text(f"content of message {number}", message.get("content"))
        conversation.append({"role": message["role"], "content": text})
    return conversation


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise PromptError(f"{name} is {value!r}; allowed: text with at least one visible character")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as \\udc00
        raise PromptError(f"{name} holds a code point that is no character") from None
    return value
