"""Chat templates, and the one tokenization that plain, draft and verify paths share (case A13)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.chat import EncodedPrompt, encode_messages, encode_prompt, render_chat
from foredraft.errors import PromptError
from tests.support.toy_tokenizer import TEMPLATE, ToyTokenizer

TOY = ToyTokenizer()
USER = [{"role": "user", "content": "ab"}]
NO_SYSTEM_ROLE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] | trim }}{% endfor %}"
)
DROPS_SYSTEM = "{% for message in messages if message.role != 'system' %}[{{ message.content }}]{% endfor %}"


def render(template: str, add_generation_prompt: bool = True) -> str:
    return render_chat(template, USER, bos="<s>", eos="</s>", add_generation_prompt=add_generation_prompt)


def test_template_sees_messages_special_tokens_and_the_generation_flag() -> None:
    assert render(TEMPLATE) == "<s><|turn|>user\nab<|end|>\n<|turn|>assistant\n"
    assert render(TEMPLATE, add_generation_prompt=False) == "<s><|turn|>user\nab<|end|>\n"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'a': '<b>é'} | tojson }}", '{"a": "<b>é"}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% generation %}{{ eos_token }}{% endgeneration %}", "</s>"),
        ("{{ tools is none }}{{ missing is defined }}", "TrueFalse"),
        ("{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}", "ab"),
        ("{{ '-' * 3 }}{{ 2 ** 10 }}{{ 6 * 7 }}{{ 1.5 * 2 }}", "---1024423.0"),
        ("{{ range(10, 0, -3) | list }}", "[10, 7, 4, 1]"),
    ],
)
def test_template_dialect(template: str, text: str) -> None:
    assert render(template) == text


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for %}", "in line 1: "),
        ("a\nb\n{% endif %}", "in line 3: "),
        ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe; fix it"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ missing.attribute }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{% for i in range(1000000000) %}x{% endfor %}", "range takes more than 100000 items"),
        (
            "{% for i in range(10 ** 15, -(10 ** 15), -1) %}x{% endfor %}",
            "range takes more than 100000 items",
        ),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "range takes more"),
        ("{{ 'x' * 1000000000 }}", "repeats 1000000000 times"),
        ("{{ 9 ** 999999999 }}", "too large"),
        (
            "{% set n = namespace(x=3) %}{% for i in range(50) %}{% set n.x = n.x * n.x %}{% endfor %}",
            "too large",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% for i in range(70) %}{{ 'x' * 1000000 }}{% endfor %}", "grows beyond"),
        ("{% for i in [1] %}" * 25 + "{% endfor %}" * 25, "too many statically nested blocks"),
    ],
)
def test_failing_template_is_one_line_with_the_reason(template: str, reason: str) -> None:
    with pytest.raises(PromptError) as caught:
        render(template)
    message = str(caught.value)
    assert reason in message
    assert message.startswith("the chat template failed")
    assert "\n" not in message
    assert message.endswith("fix it, or use a raw prompt")


def test_range_budget_is_per_rendering() -> None:
    template = "{{ range(60000) | length }}"
    assert render(template) == render(template) == "60000"


def test_chat_prompt_has_bos_once_when_the_template_prints_it() -> None:
    encoded = encode_prompt(TOY, "ab")
    assert encoded.rendered == "<s><|turn|>user\nab<|end|>\n<|turn|>assistant\n"
    assert encoded.ids[:2] == (1, 3)
    assert encoded.ids.count(1) == 1
    assert encoded.notes == ()


@pytest.mark.parametrize(("template", "add_bos", "count"), [
    (TEMPLATE.removeprefix("{{ bos_token }}"), True, 1),
    (TEMPLATE.removeprefix("{{ bos_token }}"), False, 0),
    (TEMPLATE, False, 1),
    ("{{ bos_token }}" + TEMPLATE, True, 1),
])  # fmt: skip
def test_bos_count_follows_the_model_and_the_template(template: str, add_bos: bool, count: int) -> None:
    encoded = encode_prompt(replace(TOY, chat_template=template, add_bos=add_bos), "ab")
    assert encoded.ids.count(1) == count
    assert encoded.ids[count] == 3


def test_chat_prompt_never_ends_with_eos_even_if_plain_tokenization_does() -> None:
    assert encode_prompt(replace(TOY, add_eos=True), "ab").ids[-1] == TOY.id_of("\n")


def test_raw_prompt_gets_bos_and_its_control_tokens_are_parsed() -> None:
    encoded = encode_prompt(TOY, "<|turn|>ab", raw=True)
    assert encoded == EncodedPrompt((1, 3, TOY.id_of("ab")), "<|turn|>ab", ())
    assert encode_prompt(replace(TOY, add_bos=False), "ab", raw=True).ids == (TOY.id_of("ab"),)


def test_without_template_the_prompt_goes_raw_with_a_note() -> None:
    bare = replace(TOY, chat_template=None)
    encoded = encode_prompt(bare, "ab", system="abc")
    assert encoded.rendered == "abc\n\nab"
    assert encoded.ids == (1, *TOY.ids_of("abc", "\n\n", "ab"))
    assert encoded.notes == ("the model has no chat template: the prompt goes as plain text",)


def test_system_text_is_rendered_where_the_template_knows_it() -> None:
    encoded = encode_prompt(TOY, "ab", system="abc")
    assert encoded.rendered.startswith("<s><|turn|>system\nabc<|end|>\n<|turn|>user\nab<|end|>\n")
    assert encoded.notes == ()


@pytest.mark.parametrize(("template", "rendered"), [
    (NO_SYSTEM_ROLE, "<s>[user]abc\n\nab"),
    (DROPS_SYSTEM, "[abc\n\nab]"),
])  # fmt: skip
def test_system_text_is_folded_where_the_template_refuses_or_drops_it(template: str, rendered: str) -> None:
    encoded = encode_prompt(replace(TOY, chat_template=template), "ab", system=" abc ")
    assert encoded.rendered == rendered
    assert encoded.notes == ("the chat template has no system role: its text leads the first user message",)


def test_folding_skips_messages_before_the_first_user_message() -> None:
    messages = [{"role": "system", "content": "abc"}, {"role": "assistant", "content": "b"}, *USER]
    assert encode_messages(replace(TOY, chat_template=DROPS_SYSTEM), messages).rendered == "[b][abc\n\nab]"


def test_vocabulary_without_bos_gets_none() -> None:
    encoded = encode_prompt(replace(TOY, bos_id=None), "ab")
    assert encoded.rendered.startswith("<|turn|>")
    assert encoded.ids[0] == TOY.id_of("<|turn|>")


def test_template_that_fails_either_way_reports_the_first_failure() -> None:
    tokenizer = replace(TOY, chat_template="{{ raise_exception(messages[0].role) }}")
    with pytest.raises(PromptError, match="the chat template failed: system;"):
        encode_prompt(tokenizer, "ab", system="abc")


def test_system_text_without_any_user_message_is_not_lost_silently() -> None:
    tokenizer = replace(TOY, chat_template=DROPS_SYSTEM)
    with pytest.raises(PromptError, match="drops the system text; add a user message"):
        encode_messages(tokenizer, [{"role": "system", "content": "abc"}])


def test_conversation_of_several_turns() -> None:
    messages = [*USER, {"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]
    rendered = encode_messages(TOY, messages).rendered
    assert rendered == (
        "<s><|turn|>user\nab<|end|>\n<|turn|>assistant\nb<|end|>\n<|turn|>user\na<|end|>\n<|turn|>assistant\n"
    )


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "the conversation is empty"),
        ([{"role": "user", "content": " \n"}], "user message 1 is empty"),
        (
            [*USER, {"role": "robot", "content": "x"}],
            "message 2 has role 'robot'; allowed: system, user, assistant",
        ),
        ([{"role": "user"}], "message 1 has content None; allowed: text"),
        ([{"content": "x"}], "message 1 has role None"),
    ],
)
def test_unusable_conversations_are_named(messages: list[dict[str, str]], reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        encode_messages(TOY, messages)


def test_empty_prompts_and_raw_system_text_are_refused() -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        encode_prompt(TOY, "", raw=True)
    with pytest.raises(PromptError, match="user message 1 is empty"):
        encode_prompt(TOY, "")
    with pytest.raises(PromptError, match="a raw prompt has no system text"):
        encode_prompt(TOY, "ab", system="abc", raw=True)


def test_template_that_renders_nothing_is_refused() -> None:
    with pytest.raises(PromptError, match="has no tokens"):
        encode_prompt(replace(TOY, chat_template="{# nothing #}", add_bos=False), "ab")


@given(st.text(min_size=1))
def test_any_user_text_is_rendered_unchanged(text: str) -> None:
    if not text.strip():
        return
    rendered = render_chat("{{ messages[0].content }}", [{"role": "user", "content": text}], bos="", eos="")
    assert rendered == text
