"""Texts that a toy target writes: none twice, none lost, whatever interrupts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foredraft.chat import user_opening
from foredraft.errors import PromptError, TrainingDataError
from foredraft.models.decoder import Decoder
from foredraft.prompts import Prompt
from foredraft.sampling import History, Sampler
from foredraft.tokens import TextStream
from foredraft.train import data
from foredraft.train.conversations import OWN
from foredraft.train.data import Asker, Progress, make_texts, prompts_hash
from foredraft.train.texts import (
    DataSettings,
    Text,
    part_files,
    read_texts,
    split_of,
    write_part,
)
from foredraft.types import SamplingParams
from tests.support.tiny_torch import forward
from tests.support.toy_tokenizer import ToyTokenizer
from tests.support.training import tiny_decoder


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TrainingDataError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 600
    return message


def prompt(words: str, kind: str = "chat", line: int = 1, system: str = "") -> Prompt:
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    return Prompt(line, kind, (*messages, {"role": "user", "content": words}), None, f"{line}-{words}-{system}")


# --- making them -------------------------------------------------------------------------------------------

TOY = DataSettings("toy.gguf", "ab" * 32, temperatures=(0.0, 0.9), max_tokens=12, context=100, seed=3)
OWN_QUESTIONS = replace(TOY, questions=14, context=180)


def toy_decoder() -> Decoder:
    """It can say what the toy tokenizer knows, and ends its turns often."""
    decoder = tiny_decoder(num_hidden_layers=1, vocab_size=ToyTokenizer().vocab_size)
    decoder.head.weight[4] = 0.4 * decoder.head.weight[4:20].sum(0)
    return decoder


@pytest.fixture(scope="module")
def asker() -> Asker:
    return Asker(toy_decoder(), ToyTokenizer())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PART", 3)


def all_texts(directory: Path) -> list[Text]:
    return [text for _, texts in read_texts(directory) for text in texts]


def with_prompts(asker: Asker) -> tuple[Asker, DataSettings]:
    prompts = [prompt(f"a cat {number}", "chat" if number % 2 else "code", number) for number in range(9)]
    return replace(asker, prompts=prompts), replace(TOY, prompts=prompts_hash(prompts), samples=2)


def cases(asker: Asker) -> Iterator[tuple[Asker, DataSettings, int]]:
    yield (*with_prompts(asker), 18)
    yield asker, OWN_QUESTIONS, 14


class Interrupted(Exception):
    pass


class Hears:
    """``told`` that ends the run when it hears for the ``limit``-th time."""

    def __init__(self, limit: int = -1, error: type[BaseException] = Interrupted) -> None:
        self.limit, self.error = limit, error
        self.heard: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.heard.append(replace(progress))
        if len(self.heard) == self.limit:
            raise self.error


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("case", [0, 1], ids=["prompts", "own questions"])
@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
@pytest.mark.parametrize("seed", range(4))
def test_interrupted_runs_end_with_every_text_once(
    case: int, error: type[BaseException], seed: int, asker: Asker, tmp_path: Path
) -> None:
    """Its texts are those of a run that was not interrupted, whenever it is interrupted and however often."""
    asker, settings, count = list(cases(asker))[case]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    make_texts(asker, settings, whole, 4, Hears())
    kept = interrupted = 0
    for moment in np.random.default_rng(seed).geometric(0.015 if settings.questions else 0.1, 12).tolist():
        told = Hears(moment, error)
        try:
            make_texts(asker, settings, parts, 4, told)
        except error:
            interrupted += 1
            assert kept <= (kept := len(all_texts(parts))) == told.heard[-1].texts
    progress = make_texts(asker, settings, parts, 4, Hears())
    got, want = all_texts(parts), all_texts(whole)
    assert Counter(text.number for text in got) == Counter(range(count)) and interrupted
    assert sorted(got, key=lambda text: text.number) == sorted(want, key=lambda text: text.number)
    assert (progress.of, progress.texts) == (count, count)
    assert progress.skipped == sum(bool(text.skipped) for text in got)


def test_nothing_is_left_to_do(asker: Asker, tmp_path: Path) -> None:
    asker, settings = with_prompts(asker)
    make_texts(asker, settings, tmp_path, 4, Hears())
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    told = Hears()
    progress = make_texts(asker, settings, tmp_path, 4, told)
    assert (progress.texts, progress.of, progress.tokens, told.heard) == (18, 18, 0, [])
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}


def test_progress(asker: Asker, tmp_path: Path) -> None:
    told = Hears()
    asker, settings = with_prompts(asker)
    make_texts(asker, settings, tmp_path, 4, told)
    texts = all_texts(tmp_path)
    assert told.heard[-1] == Progress(18, 18, 0, sum(len(text) - text.prompt_tokens for text in texts))
    for name in ("texts", "tokens"):
        values = [getattr(progress, name) for progress in told.heard]
        assert values == sorted(values)


def test_what_is_on_disk_is_what_was_asked_for(asker: Asker, tmp_path: Path) -> None:
    """Each text is the answer to its prompt, at the temperature whose turn it is."""
    asker, settings = with_prompts(asker)
    make_texts(asker, settings, tmp_path, 5, Hears())
    for text in all_texts(tmp_path):
        own = asker.prompts[text.number // 2]
        prompt_ids = own.encoded(asker.tokenizer).ids
        assert text.ids[: text.prompt_tokens] == prompt_ids and text.kind == own.kind
        assert text.temperature == settings.temperatures[text.number % 2]
        answer = text.ids[text.prompt_tokens :]
        assert text.ended == (answer[-1] in asker.tokenizer.eog_ids) and not text.skipped
        assert 1 <= len(answer) <= 12 and (text.ended or len(answer) == 12 or len(text) == settings.context)
        if text.temperature == 0:
            for place in range(len(answer)):
                row = forward(asker.decoder, text.ids[: text.prompt_tokens + place], 1)[0]
                assert int(row.argmax()) == answer[place]
    sampled = [text for text in all_texts(tmp_path) if text.temperature]
    assert len({text.ids[text.prompt_tokens :] for text in sampled}) > len(sampled) / 2


def test_own_questions(asker: Asker, tmp_path: Path) -> None:
    """The question is what the target says behind the beginning of a user's turn, asked as a user would ask it."""
    make_texts(asker, OWN_QUESTIONS, tmp_path, 5, Hears())
    texts, tokenizer = all_texts(tmp_path), asker.tokenizer
    start = user_opening(tokenizer)
    assert "".join(tokenizer.piece(id, special=True).decode() for id in start) == "<s><|turn|>user\n"
    skipped = [text for text in texts if text.skipped]
    assert 0 < len(skipped) < len(texts)
    assert all(len(text) == 0 and text.skipped for text in skipped)
    for text in texts:
        if text.skipped:
            continue
        stream = TextStream(tokenizer, special=True)
        asked_text = stream.push(text.ids[: text.prompt_tokens]) + stream.finish()
        words = asked_text.removeprefix("<s><|turn|>user\n").removesuffix("<|end|>\n<|turn|>assistant\n")
        assert text.kind == OWN and text.split == split_of(words) and len(words) >= 2


def test_the_first_question_is_sampled_behind_the_opening(asker: Asker, tmp_path: Path) -> None:
    settings = replace(OWN_QUESTIONS, questions=3)
    make_texts(asker, settings, tmp_path, 1, Hears())
    for text in all_texts(tmp_path):
        params = SamplingParams(temperature=1.0, top_p=0.98, seed=(settings.seed << 32) + 2 * text.number)
        history, sampler = History(user_opening(asker.tokenizer)), Sampler(params)
        while history.generated < 128:
            token = sampler.choose(forward(asker.decoder, history.tokens, 1)[0], history)
            history.push(token)
            if token in asker.tokenizer.eog_ids:
                break
        stream = TextStream(asker.tokenizer)
        words = (stream.push(history.tokens[-history.generated :]) + stream.finish()).strip()
        if text.skipped:
            assert token not in asker.tokenizer.eog_ids or len(words) < 2 or "tokens" in text.skipped
        else:
            assert text.split == split_of(words)
            assert text.ids[: text.prompt_tokens] == prompt(words).encoded(asker.tokenizer).ids


def test_a_prompt_beyond_the_context_is_skipped(asker: Asker, tmp_path: Path) -> None:
    prompts = [prompt("a cat" * count, line=count) for count in (1, 60, 2)]
    settings = replace(TOY, prompts=prompts_hash(prompts))
    progress = make_texts(replace(asker, prompts=prompts), settings, tmp_path, 2, Hears())
    texts = sorted(all_texts(tmp_path), key=lambda text: text.number)
    assert [bool(text.skipped) for text in texts] == [False, True, False] and progress.skipped == 1
    assert texts[1].skipped == f"the prompt has {len(prompts[1].encoded(asker.tokenizer).ids)} tokens"


def test_texts_of_other_settings_are_not_mixed(asker: Asker, tmp_path: Path) -> None:
    asker, settings = with_prompts(asker)
    make_texts(asker, settings, tmp_path, 4, Hears())
    message = refusal(lambda: make_texts(asker, replace(settings, seed=4), tmp_path, 4, Hears()))
    assert "other settings (seed)" in message
    assert len(all_texts(tmp_path)) == 18


def test_a_damaged_file_is_named_when_a_run_goes_on(asker: Asker, tmp_path: Path) -> None:
    asker, settings = with_prompts(asker)
    make_texts(asker, settings, tmp_path, 4, Hears())
    (path,) = part_files(tmp_path)
    path.write_text(path.read_text()[:-30])
    message = refusal(lambda: make_texts(asker, settings, tmp_path, 4, Hears()))
    assert message.startswith(f"{path}, line 18: is damaged (")


def test_a_full_disk_loses_nothing_that_was_kept(
    asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_parts: None
) -> None:
    asker, settings = with_prompts(asker)
    left = [2]

    def write(directory: Path, texts: list[Text]) -> Path:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return write_part(directory, texts)

    monkeypatch.setattr(data, "write_part", write)
    with pytest.raises(OSError, match="No space left"):
        make_texts(asker, settings, tmp_path, 4, Hears())
    assert len(all_texts(tmp_path)) == 6
    monkeypatch.undo()
    make_texts(asker, settings, tmp_path, 4, Hears())
    assert Counter(text.number for text in all_texts(tmp_path)) == Counter(range(18))


def test_who_cannot_ask_itself(asker: Asker) -> None:
    """Without a template, or with one that hides where the user's words begin."""
    with pytest.raises(PromptError, match="has no chat template, so it cannot ask its own questions; give --prompts"):
        user_opening(replace(ToyTokenizer(), chat_template=None))
    for template in ("{{ messages[0]['content'] }}", "hello", "{{ messages[0]['content'] | length }}"):
        with pytest.raises(PromptError, match="does not show where the user's words begin; give --prompts FILE"):
            user_opening(replace(ToyTokenizer(), chat_template=template))


def test_the_opening_begins_with_one_bos() -> None:
    tokenizer = ToyTokenizer()
    without = replace(tokenizer, chat_template="<|turn|>user\n{{ messages[0]['content'] }}<|end|>")
    assert user_opening(without) == user_opening(tokenizer) and user_opening(tokenizer)[0] == 1
    assert user_opening(replace(without, add_bos=False)) == user_opening(tokenizer)[1:]


def test_prompts_are_told_apart_by_their_hash() -> None:
    one, two = prompt("a", line=1), prompt("b", line=2)
    found = [prompts_hash(each) for each in ([], [one], [two], [one, two], [two, one])]
    assert found[0] == "" and len(set(found)) == 5


def test_the_same_prompt_is_in_one_split_whatever_the_settings(tmp_path: Path) -> None:
    """Other samples, temperatures, kinds, systems and numbers."""
    decoder, tokenizer = toy_decoder(), ToyTokenizer()
    words = [f"{'ab' * (number % 3)} cat {number}" for number in range(20)]
    want = {f"{word}": split_of(word) for word in words}
    for run, samples in enumerate((1, 2)):
        order = words if run else words[::-1]
        prompts = [prompt(word, f"kind {run}", number, "ha" * run) for number, word in enumerate(order)]
        settings = replace(TOY, prompts=prompts_hash(prompts), samples=samples, max_tokens=3)
        make_texts(Asker(decoder, tokenizer, prompts), settings, tmp_path / str(run), 8, lambda progress: None)
        for text in all_texts(tmp_path / str(run)):
            assert text.split == want[order[text.number // samples]]
            assert text.kind == f"kind {run}"
    assert set(want.values()) > {"train"}
