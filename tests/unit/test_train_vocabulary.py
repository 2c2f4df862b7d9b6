"""Which tokens a head can say, and where training runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from foredraft.errors import InvalidValue, ModelFileError
from foredraft.export.output_rows import needed_rows
from foredraft.tokens import Tokenizer
from foredraft.train import vocabulary
from foredraft.train.states import TextStates
from foredraft.train.target import Machine, check_trainable, open_target
from foredraft.train.texts import Text
from foredraft.train.vocabulary import covered_share, draft_vocabulary
from tests.support import tiny_models
from tests.support.toy_tokenizer import ToyTokenizer

NOTHING = torch.zeros(0)


def texts(*answers: list[int]) -> list[TextStates]:
    found = [Text(i, "own", "train", 0.0, 2, (0, 0, *answer), ended=True) for i, answer in enumerate(answers)]
    return [TextStates(text, NOTHING, NOTHING, NOTHING) for text in found]


def most_common(count: int, counted: Counter[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(sorted(id for id, _ in counted.most_common(count)))


def test_the_most_frequent_tokens_of_the_answers_and_what_is_needed() -> None:
    toy = ToyTokenizer()
    needed = needed_rows(toy)
    train = texts([270] * 5 + [271] * 4 + [272], [273, 273])
    found = draft_vocabulary(train, texts([270, 272]), toy, len(needed) + 2)
    assert set(found.ids) == needed | {270, 271} and list(found.ids) == sorted(found.ids)
    assert found.coverage == 0.5


def test_as_many_as_are_worth_their_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies halve from token to token: with steps of two tokens the gain falls to a quarter each time."""
    monkeypatch.setattr(vocabulary, "choose_rows", most_common)
    monkeypatch.setattr(vocabulary, "STEP", 2)
    monkeypatch.setattr(vocabulary, "WORTH", 0.05)
    answer = [100 + token for token in range(8) for _ in range(2 ** (8 - token))]
    found = draft_vocabulary(texts(answer), texts(answer), ToyTokenizer())
    shares = [covered_share(range(100, 100 + size), texts(answer)) for size in (2, 4, 6)]
    assert shares[1] - shares[0] > 0.05 > shares[2] - shares[1]
    assert len(found.ids) == 4 and found.coverage == shares[1]


def test_only_answers_count() -> None:
    assert covered_share([0], texts([1, 2])) == 0.0
    assert covered_share([1], texts([1, 2])) == 0.5
    assert covered_share([1], []) == 0.0


def test_where_training_runs() -> None:
    assert Machine.of("cpu", "float32") == Machine(torch.device("cpu"), torch.float32)
    assert Machine.of("cpu", "bfloat16").dtype == torch.bfloat16
    assert Machine.of().device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InvalidValue, match="dtype is 'float16'"):
        Machine.of("cpu", "float16")
    with pytest.raises(InvalidValue, match="device is 'abacus'"):
        Machine.of("abacus")


def test_a_target_is_a_file_that_torch_reads(tmp_path: Path) -> None:
    path = tiny_models.write_llama(tmp_path / "llama.gguf")
    target = open_target(check_trainable(path), Machine.of("cpu", "float32"))
    assert target.name == "llama.gguf" and len(target.sha256) == 64
    assert target.decoder.config.vocab_size == target.tokenizer.vocab_size == tiny_models.VOCAB
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "manifest.json").write_text("{}")
    with pytest.raises(ModelFileError, match="give the model that it was made from"):
        check_trainable(tmp_path / "export")
