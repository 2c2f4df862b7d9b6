"""From messages to token ids: chat templates, and the one tokenization every path uses.

Plain decoding, drafting and verification must all start from ``encode_prompt`` or ``encode_messages``, so
that they see the same ids. Knows no model format; Jinja is imported when a template is rendered.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from foredraft.errors import PromptError
from foredraft.tokens import Tokenizer

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, str]
"""``{"role": ..., "content": ...}``."""

ROLES = ("system", "user", "assistant", "tool")
_MAX_ITERATIONS = 100_000  # range() items one rendering may take in all, nested loops included
_MAX_PRODUCT = 1_000_000  # longest text or list that * makes in a template; numbers of * and ** stay below 64 bits
_MAX_RENDERED = 64 * 2**20  # characters
_MARK = "\ue000words\ue000"
_TEMPLATE_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)  # what a wrong template can make Python raise, besides Jinja's own errors


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """What the model is fed. ``rendered`` is the text behind ``ids`` (BOS excluded unless a template printed
    it); ``notes`` say in words what was changed on the way."""

    ids: tuple[int, ...]
    rendered: str
    notes: tuple[str, ...] = ()


def encode_prompt(tokenizer: Tokenizer, prompt: str, *, system: str | None = None, raw: bool = False) -> EncodedPrompt:
    """Ids for one prompt: as a user's chat message, or as plain text if ``raw``.

    Raw text gets BOS/EOS as the model asks, and control tokens in it are parsed. Raises PromptError for an
    empty prompt, a system text in raw mode and a template that fails.
    """
    if raw and system:
        raise PromptError("a raw prompt has no system text; put the text into the prompt, or drop raw")
    if raw:
        return _encode_raw(tokenizer, prompt, ())
    messages: list[Message] = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return encode_messages(tokenizer, messages)


def encode_messages(tokenizer: Tokenizer, messages: Sequence[Message]) -> EncodedPrompt:
    """Ids for a conversation, rendered by the model's template and open for the assistant's answer.

    BOS comes exactly once, whether or not the template prints it. Without a template the contents go as plain
    text; a template that does not know the system role gets its text in the first user message; both are
    noted. Raises PromptError for an empty conversation, an empty user message, an unknown role or a failing
    template.
    """
    _check_messages(messages)
    template = tokenizer.chat_template
    if template is None:
        text = "\n\n".join(message["content"] for message in messages)
        return _encode_raw(tokenizer, text, ("the model has no chat template: the prompt goes as plain text",))
    bos, eos = _special_text(tokenizer, tokenizer.bos_id), _special_text(tokenizer, tokenizer.eos_id)
    rendered, notes = _render_with_system(
        lambda conversation: render_chat(template, conversation, bos=bos, eos=eos), messages
    )
    ids = tokenizer.encode(rendered, add_special=False, parse_special=True)
    return _encoded(_with_one_bos(tokenizer, ids), rendered, notes)


def user_opening(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of the chat template up to where a user's words begin: a model that goes on from there writes as the user.
    PromptError without a template, or with one that does not show the place."""
    template = tokenizer.chat_template
    if template is None:
        raise PromptError("the model has no chat template, so it cannot ask its own questions; give --prompts FILE")
    bos, eos = _special_text(tokenizer, tokenizer.bos_id), _special_text(tokenizer, tokenizer.eos_id)
    asked = [{"role": "user", "content": _MARK}]
    head, mark, _ = render_chat(template, asked, bos=bos, eos=eos, add_generation_prompt=False).partition(_MARK)
    ids = _with_one_bos(tokenizer, tokenizer.encode(head, add_special=False, parse_special=True)) if head else []
    if not mark or not ids:
        raise PromptError("the chat template does not show where the user's words begin; give --prompts FILE")
    return tuple(ids)


def render_chat(
    template: str, messages: Sequence[Message], *, bos: str, eos: str, add_generation_prompt: bool = True
) -> str:
    """The conversation as text. ``bos`` and ``eos`` are the control tokens' texts.

    The template runs in Jinja's sandbox, as in transformers' ``apply_chat_template``: blocks trimmed, loop
    controls, ``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes, ``generation`` blocks.
    ``range`` is capped over a whole rendering, so are products and the length of the text. Raises PromptError
    with one line that says what failed.
    """
    from jinja2 import TemplateError

    try:
        compiled = _environment().from_string(template, globals={"range": _RangeBudget()})
        pieces = compiled.generate(
            messages=[dict(message) for message in messages],
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
        )
        return _join_capped(pieces)
    except (TemplateError, *_TEMPLATE_FAILURES) as error:
        line = getattr(error, "lineno", None)
        where = f" in line {line}" if line else ""
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise PromptError(f"the chat template failed{where}: {reason}; fix it, or use a raw prompt") from error


def _render_with_system(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message]
) -> tuple[str, tuple[str, ...]]:
    """Render, folding a leading system text into the first user message if the template refuses or drops
    it."""
    if messages[0]["role"] != "system":
        return render(messages), ()
    refusal: PromptError | None = None
    rendered = ""
    try:
        rendered = render(messages)
    except PromptError as error:
        refusal = error
    text = messages[0]["content"].strip()
    if refusal is None and text in rendered:
        return rendered, ()
    folded = _fold_system(messages)
    if folded is None:
        raise refusal or PromptError("the chat template drops the system text; add a user message to hold it")
    try:
        rendered = render(folded)
    except PromptError as error:
        raise refusal or error from error
    return rendered, ("the chat template has no system role: its text leads the first user message",)


def _fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """The conversation with its system text in front of the first user message, None without a user
    message."""
    system, rest = messages[0], list(messages[1:])
    for index, message in enumerate(rest):
        if message["role"] == "user":
            content = f"{system['content'].strip()}\n\n{message['content']}"
            return [*rest[:index], {**message, "content": content}, *rest[index + 1 :]]
    return None


def _encode_raw(tokenizer: Tokenizer, text: str, notes: tuple[str, ...]) -> EncodedPrompt:
    if not text:
        raise PromptError("the prompt is empty; give at least one character")
    return _encoded(tokenizer.encode(text, add_special=True, parse_special=True), text, notes)


def _encoded(ids: Sequence[int], rendered: str, notes: tuple[str, ...]) -> EncodedPrompt:
    if not ids:
        raise PromptError(f"the prompt {rendered[:40]!r} has no tokens; give some text")
    return EncodedPrompt(tuple(ids), rendered, notes)


def _with_one_bos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """BOS once in front if the model asks for it; a repeated BOS is reduced to one in any case."""
    bos = tokenizer.bos_id
    if bos is None:
        return ids
    printed = 0
    while printed < len(ids) and ids[printed] == bos:
        printed += 1
    return [bos] * (1 if printed or tokenizer.add_bos else 0) + ids[printed:]


def _special_text(tokenizer: Tokenizer, id: int | None) -> str:
    return "" if id is None else tokenizer.piece(id, special=True).decode("utf-8", "replace")


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise PromptError("the conversation is empty; give at least one user message")
    for number, message in enumerate(messages, 1):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise PromptError(f"message {number} has role {role!r}; allowed: {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise PromptError(f"message {number} has content {content!r}; allowed: text")
        if role == "user" and not content.strip():
            raise PromptError(f"user message {number} is empty; give at least one visible character")


def _join_capped(pieces: Any) -> str:
    """Join a template's output, stopping at the largest allowed text."""
    parts: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > _MAX_RENDERED:
            raise ValueError(f"the text grows beyond {_MAX_RENDERED} characters")
        parts.append(piece)
    return "".join(parts)


class _RangeBudget:
    """``range`` for one rendering; all its ranges together have at most _MAX_ITERATIONS items."""

    def __init__(self) -> None:
        self._left = _MAX_ITERATIONS

    def __call__(self, *bounds: int) -> range:
        items = range(*bounds)
        self._left -= max(0, -(-(items.stop - items.start) // items.step))
        if self._left < 0:
            raise ValueError(f"range takes more than {_MAX_ITERATIONS} items")
        return items


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _tojson(value: object, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _checked_product(operator: str, left: Any, right: Any) -> Any:
    """``left * right`` or ``left ** right`` if the result stays small; OverflowError otherwise."""
    if operator == "**":
        bits = abs(right) * max(1, int(abs(left)).bit_length())
        if bits > 64:
            raise OverflowError(f"{left} ** {right} is too large")
        return left**right
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 64:
        raise OverflowError(f"a product of {left.bit_length()} and {right.bit_length()} bits is too large")
    for text, times in ((left, right), (right, left)):
        if isinstance(text, (str, list, tuple)) and len(text) * times > _MAX_PRODUCT:
            raise OverflowError(f"repeats {times} times, more than {_MAX_PRODUCT} items")
    return left * right


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja's immutable sandbox with what chat templates expect."""
    from jinja2 import Environment, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's words for training; here its body is plain output."""

        def __init__(self, environment: Environment) -> None:
            super().__init__(environment)
            self.tags = {"generation"}

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            return _checked_product(operator, left, right)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    environment.filters["tojson"] = _tojson
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment
