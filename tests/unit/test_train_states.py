"""What the target thinks of the texts: the same as the engine says, kept beside them, refused where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from foredraft.engines.pytorch import TorchEngine
from foredraft.errors import TrainingDataError
from foredraft.models.decoder import Decoder
from foredraft.train import states
from foredraft.train.batches import Batches, Corpus, collated
from foredraft.train.states import TextStates, missing, read_states, states_file, texts_of
from foredraft.train.texts import DataSettings, Text, write_about, write_part
from tests.support.tiny_torch import VARIANTS
from tests.support.training import random_ids, text_of, tiny_decoder

SKIPPED = Text(90, "own", "train", 0.0, 0, (), ended=False, skipped="the question did not end")
LENGTHS = (7, 21, 3, 21, 12, 2, 16, 30)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(TrainingDataError) as caught:
        call()
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and len(message) < 600
    return message


def texts(lengths: Sequence[int] = LENGTHS, first: int = 0) -> list[Text]:
    """All of them to train with, but for the second."""
    return [
        text_of(
            first + number,
            random_ids(length, first + number),
            max(1, length // 3),
            "validation" if first + number == 1 else "train",
        )
        for number, length in enumerate(lengths)
    ]


@dataclass(frozen=True)
class Kept:
    """A directory with texts in two files, one of them skipped, and their states."""

    directory: Path
    parts: tuple[Path, Path]
    taps: tuple[int, ...]

    @staticmethod
    def of(directory: Path, decoder: Decoder) -> Kept:
        write_about(directory, DataSettings("toy.gguf", "00"))
        first, second = texts(), texts((9, 4), 20)
        parts = (write_part(directory, [*first[:3], SKIPPED, *first[3:]]), write_part(directory, second))
        taps = (0, decoder.config.layers - 1)
        assert missing(directory, taps) == list(parts)
        heard: list[int] = []
        read_states(decoder, taps, parts, heard.append)
        assert heard == [sum(LENGTHS), 13] and missing(directory, taps) == []
        return Kept(directory, parts, taps)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept.of(tmp_path, tiny_decoder())


def assert_engines(decoder: Decoder, taps: Sequence[int], found: TextStates) -> None:
    """The states, log-sum-exp and best next tokens are those that the engine gives for the text alone."""
    engine = TorchEngine(decoder, taps=taps)
    session = engine.open()
    ids = np.array(found.text.ids, np.int32)
    scores = session.extend(ids, np.arange(-1, len(ids) - 1, dtype=np.int32), len(ids))
    assert scores.hidden is not None
    assert found.states.dtype == torch.float16 and found.states.shape == scores.hidden.shape
    np.testing.assert_allclose(found.states.float(), scores.hidden, rtol=1e-3, atol=1e-4)
    peak = scores.logits.max(-1)
    totals = peak + np.log(np.exp(scores.logits.astype(np.float64) - peak[:, None]).sum(-1))
    assert found.log_totals.dtype == torch.float32
    np.testing.assert_allclose(found.log_totals, totals, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.best, scores.logits.argmax(-1))
    session.close()


@pytest.mark.parametrize("family", VARIANTS)
def test_states_are_the_engines(family: str, tmp_path: Path) -> None:
    """Of every text of a file, whatever stands beside it and however long that is."""
    decoder = tiny_decoder(family)
    kept = Kept.of(tmp_path, decoder)
    found = [one for part in kept.parts for one in texts_of(part)]
    assert [one.text for one in found] == [*texts(), *texts((9, 4), 20)]
    for one in found:
        assert_engines(decoder, kept.taps, one)


@pytest.mark.parametrize("at_once", [1, 30, 45, 64])
def test_padding_does_not_matter(at_once: int, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text a pass, and several."""
    sizes: list[tuple[int, int]] = []
    before, read = texts_of(kept.parts[0]), states._read

    def spy(*asked: object) -> object:
        group = asked[2]
        assert isinstance(group, list)
        sizes.append((len(group), max(len(text) for text in group)))
        return read(*asked)

    monkeypatch.setattr(states, "_AT_ONCE", at_once)
    monkeypatch.setattr(states, "_read", spy)
    read_states(tiny_decoder(), kept.taps, kept.parts[:1], lambda count: None)
    assert sum(count for count, _ in sizes) == len(LENGTHS)
    assert all(count == 1 or count * longest <= at_once for count, longest in sizes)
    for one, other in zip(before, texts_of(kept.parts[0]), strict=True):
        assert one.text == other.text and torch.equal(one.best, other.best)
        torch.testing.assert_close(one.states, other.states, rtol=2e-3, atol=1e-4)
        torch.testing.assert_close(one.log_totals, other.log_totals, rtol=1e-5, atol=1e-5)


def test_states_too_large_for_their_type_stay_finite(tmp_path: Path) -> None:
    """The law's normaliser is of the target's own numbers all the same."""
    decoder = tiny_decoder()
    decoder.embedding.weight[:, 3] = 3e5
    write_about(tmp_path, DataSettings("toy.gguf", "00"))
    part = write_part(tmp_path, texts((9,)))
    read_states(decoder, [0, 2], [part], lambda count: None)
    (found,) = texts_of(part)
    assert torch.isfinite(found.states).all() and (found.states.float().abs() == 65504).any()
    engine = TorchEngine(decoder).open()
    ids = np.array(found.text.ids, np.int32)
    logits = torch.from_numpy(engine.extend(ids, np.arange(-1, 8, dtype=np.int32), 9).logits)
    torch.testing.assert_close(found.log_totals, logits.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_a_file_of_skipped_texts_alone(tmp_path: Path) -> None:
    """A run that was interrupted may leave one."""
    write_about(tmp_path, DataSettings("toy.gguf", "00"))
    parts = [write_part(tmp_path, [SKIPPED]), write_part(tmp_path, texts((5,)))]
    read_states(tiny_decoder(), [0, 2], parts, lambda count: None)
    assert missing(tmp_path, [0, 2]) == []
    assert texts_of(parts[0]) == [] and len(texts_of(parts[1])) == 1


# --- what is missing, and what does not fit ----------------------------------------------------------------


def test_only_missing_states_are_read(kept: Kept) -> None:
    states_file(kept.parts[0]).unlink()
    assert missing(kept.directory, kept.taps) == [kept.parts[0]]


def test_an_interrupted_reading_goes_on(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in kept.parts:
        states_file(part).unlink()

    def interrupted(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_states(tiny_decoder(), kept.taps, kept.parts, interrupted)
    assert missing(kept.directory, kept.taps) == [kept.parts[1]]

    def fails(tensors: object, path: Path, about: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states, "save_file", fails)
    with pytest.raises(OSError, match="No space left"):
        read_states(tiny_decoder(), kept.taps, kept.parts[1:], lambda count: None)
    assert missing(kept.directory, kept.taps) == [kept.parts[1]]
    assert [path.name for path in states_file(kept.parts[0]).parent.iterdir()] == ["000000.safetensors"]


def test_states_of_other_layers_are_refused(kept: Kept) -> None:
    path = states_file(kept.parts[0])
    message = refusal(lambda: missing(kept.directory, (1, 2)))
    assert message == (f"{path}: holds states of layers [0, 2], not of [1, 2]; remove {path.parent} to read them again")


def resaved(path: Path, change: Callable[[dict[str, torch.Tensor]], object], taps: str | None = "[0, 2]") -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, None if taps is None else {"taps": taps})


def test_states_of_other_texts_are_refused(kept: Kept) -> None:
    """More or fewer tokens than the texts have; tensors that differ in their length."""
    path = states_file(kept.parts[0])
    states_file(kept.parts[1]).replace(path)
    want = f"{path}: does not fit the texts in {kept.parts[0].name}; remove it to read the states again"
    assert refusal(lambda: texts_of(kept.parts[0])) == want
    read_states(tiny_decoder(), kept.taps, kept.parts, lambda count: None)
    resaved(path, lambda tensors: tensors.update(best=tensors["best"][:-1]))
    assert refusal(lambda: texts_of(kept.parts[0])) == want
    kept.parts[1].unlink()
    write_part(kept.directory, texts((9, 5), 20))
    assert "does not fit the texts in 000001.jsonl" in refusal(lambda: texts_of(kept.parts[1]))


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no safetensors": lambda path: path.write_bytes(b"\xff" * 100),
    "truncated header": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 64),
    "a directory": directory,
    "no states": lambda path: resaved(path, lambda tensors: tensors.pop("states")),
    "no best": lambda path: resaved(path, lambda tensors: tensors.pop("best")),
    "a number": lambda path: resaved(path, lambda tensors: tensors.update(best=torch.tensor(3))),
    "narrow": lambda path: resaved(path, lambda tensors: tensors.update(states=tensors["states"][:, :31].contiguous())),
    "flat": lambda path: resaved(path, lambda tensors: tensors.update(states=tensors["states"][:, 0].contiguous())),
    "another type": lambda path: resaved(path, lambda tensors: tensors.update(best=tensors["best"].bool())),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_states(what: str, kept: Kept) -> None:
    """Found when they are looked for, or when they are read, before anything is trained."""
    path = states_file(kept.parts[0])
    DAMAGE[what](path)

    def found() -> Corpus:
        missing(kept.directory, kept.taps)
        return Corpus.read(kept.directory)

    assert refusal(found).startswith(f"{path}: ")


TAPS: dict[str, str | None] = {
    "missing": None,
    "no JSON": "0, 2",
    "a number": "5",
    "null": "null",
    "an object": '{"0": 2}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("what", TAPS)
def test_damaged_list_of_layers(what: str, kept: Kept) -> None:
    path = states_file(kept.parts[0])
    resaved(path, lambda tensors: None, TAPS[what])
    assert refusal(lambda: missing(kept.directory, kept.taps)).startswith(f"{path}: ")


def test_the_layers_are_written_down(kept: Kept) -> None:
    with safe_open(states_file(kept.parts[1]), "pt") as file:
        assert file.metadata() == {"taps": "[0, 2]"} and set(file.keys()) == {"states", "log_totals", "best"}


# --- corpus and batches ------------------------------------------------------------------------------------


def corpus(directory: Path, splits: Sequence[str]) -> Corpus:
    write_about(directory, DataSettings("toy.gguf", "00"))
    each = [replace(text, split=split) for text, split in zip(texts(LENGTHS[: len(splits)]), splits, strict=True)]
    part = write_part(directory, [*each, SKIPPED])
    read_states(tiny_decoder(), [2], [part], lambda count: None)
    return Corpus.read(directory)


def test_a_corpus_by_split(tmp_path: Path) -> None:
    """Texts whose prompt is a single token give nothing to guess from, and are left out."""
    found = corpus(tmp_path, ["train", "validation", "train", "test", "train", "train"])
    numbers = {split: [one.text.number for one in each] for split, each in found.texts.items()}
    assert numbers == {"train": [0, 4], "validation": [1], "test": [3]}  # texts 2 and 5 have a prompt of one token


@pytest.mark.parametrize(("there", "word"), [("train", "validate"), ("validation", "train"), ("test", "train")])
def test_a_corpus_without_a_split(there: str, word: str, tmp_path: Path) -> None:
    message = refusal(lambda: corpus(tmp_path, [there] * 2))
    assert message == f"{tmp_path}: holds no text to {word} with; make more"


def test_a_corpus_without_states(kept: Kept) -> None:
    states_file(kept.parts[1]).unlink()
    assert refusal(lambda: Corpus.read(kept.directory)).startswith(f"{states_file(kept.parts[1])}: ")


def many(count: int, seed: int = 0) -> list[TextStates]:
    lengths = np.random.default_rng(seed).integers(3, 60, count).tolist()
    return [
        TextStates(text, torch.full((len(text), 4), float(text.number)), torch.zeros(len(text)), torch.zeros(len(text)))
        for text in texts(lengths)
    ]


@pytest.mark.parametrize("tokens", [64, 200, 1000])
def test_an_epoch_has_every_text_once(tokens: int) -> None:
    each = many(100)
    orders = []
    for number in range(3):
        groups = Batches(each, tokens, seed=5).epoch(number)
        order = [one.text.number for group in groups for one in group]
        assert sorted(order) == list(range(100))
        assert all(len(group) * max(len(one.text) for one in group) <= tokens for group in groups)
        padding = 1 - sum(len(one.text) for one in each) / sum(
            len(group) * max(len(one.text) for one in group) for group in groups
        )
        assert padding < 0.35
        orders.append(order)
        assert order == [one.text.number for group in Batches(each, tokens, seed=5).epoch(number) for one in group]
    assert orders[0] != orders[1] != orders[2]
    assert orders[0] != [one.text.number for group in Batches(each, tokens, seed=6).epoch(0) for one in group]


def test_a_text_longer_than_a_batch_stands_alone() -> None:
    each = many(6)
    groups = Batches(each, 2, seed=0).epoch(0)
    assert [len(group) for group in groups] == [1] * 6


def test_a_batch_of_texts() -> None:
    each = many(3)
    batch = collated(each, torch.device("cpu"), torch.float32)
    lengths = [len(one.text) for one in each]
    assert batch.ids.shape == (3, max(lengths)) and batch.states.shape == (3, max(lengths), 4)
    for row, one in enumerate(each):
        count = len(one.text)
        assert batch.ids[row, :count].tolist() == list(one.text.ids) and not batch.ids[row, count:].any()
        assert (batch.states[row, :count] == one.text.number).all() and not batch.states[row, count:].any()
    assert batch.first.tolist() == [one.text.prompt_tokens for one in each] and batch.end.tolist() == lengths
