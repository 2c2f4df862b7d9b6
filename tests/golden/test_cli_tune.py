"""``foredraft tune`` as its user sees it: from prompts to a draft that decodes, with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.models.head_file import load_head
from foredraft.train.states import states_file
from foredraft.train.texts import part_files, read_part
from tests.support.command_line import Foredraft, in_process
from tests.support.exports import write_tiny

PROMPTS = [f"Tell me {word} about {thing}" for word in ("all", "a bit", "less") for thing in "abcdefghij"]


@pytest.fixture
def foredraft(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Foredraft:
    return in_process(monkeypatch, capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tune")
    write_tiny("llama", found)
    (found / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    (found / "some.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS[:4]))
    return found


COMMON = ("--dtype", "float32", "-q")


def made(folder: Path, foredraft: Foredraft) -> Path:
    """Texts of the tiny model, written once."""
    data = folder / "data"
    if not data.exists():
        command = ("tune", "data", "--target", folder / "llama.gguf", "--prompts", folder / "prompts.jsonl", "-o", data)
        more = ("--exclude", folder / "some.jsonl", "--max-tokens", "12", "--samples", "2", "--rows", "8")
        code, out, err = foredraft(*map(str, (*command, *more, *COMMON)))
        assert code == 0, err
        assert out == ""
    return data


def test_data(folder: Path, foredraft: Foredraft) -> None:
    data = made(folder, foredraft)
    texts = [text for part in part_files(data) for text in read_part(part)]
    assert len(texts) == 2 * (len(PROMPTS) - 4), "excluded prompts are left out"
    assert sorted(text.number for text in texts) == list(range(len(texts)))
    assert {text.temperature for text in texts} == {0.0, 0.8}
    assert all(len(text) - text.prompt_tokens <= 12 for text in texts)
    before = [part.read_bytes() for part in part_files(data)]
    made(folder, foredraft)
    assert [part.read_bytes() for part in part_files(data)] == before, "nothing is written twice"


def test_head(folder: Path, foredraft: Foredraft) -> None:
    data, head, target = made(folder, foredraft), folder / "head", folder / "llama.gguf"
    command = ["tune", "head", "--target", target, "--data", data, "-o", head, "--steps", "6", "--every", "3"]
    command += ["--depth", "2", "--batch-tokens", "256", "--draft-vocabulary", "24", "--dtype", "float32"]
    code, out, err = foredraft(*map(str, command))
    assert code == 0, err
    assert out == "" and "greedy acceptance by depth" in err and "test: " in err
    log = [json.loads(line) for line in (head / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log if line["measured"]] == [3, 6]
    stored = load_head(head)
    assert stored.target.name == "llama.gguf" and stored.card["draft_vocabulary"]["size"] == 24
    assert {"train", "validation", "test"} <= stored.card.keys()
    assert (head / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert all(states_file(part).exists() for part in part_files(data))
    question = ["generate", "--target", target, "--engine", "pytorch", "--draft", head, "--controller", "fixed"]
    question += ["-t", "0", "--max-tokens", "16", "--json", "Tell me all about a"]
    code, out, err = foredraft(*map(str, question))
    assert code == 0, err
    drafted = json.loads(out)
    plain = [part if part != head else "none" for part in question]
    assert json.loads(foredraft(*map(str, plain))[1])["ids"] == drafted["ids"]
    assert drafted["draft"] == "head" and drafted["drafted"] > 0


def test_going_on_with_a_head(folder: Path, foredraft: Foredraft) -> None:
    """It is measured first, so that what comes out is not worse."""
    data, target, first, second = made(folder, foredraft), folder / "llama.gguf", folder / "first", folder / "second"
    common = ["tune", "head", "--target", target, "--data", data, "--every", "2", "--batch-tokens", "256", *COMMON]
    done = foredraft(*map(str, [*common, "-o", first, "--steps", "8", "--depth", "2", "--draft-vocabulary", "24"]))
    assert done[0] == 0, done[2]
    more = ["--from", first, "-o", second, "--steps", "4", "--depth", "2", "--learning-rate", "0.1"]
    code, _, err = foredraft(*map(str, [*common, *more]))
    assert code == 0, err
    one, two = load_head(first), load_head(second)
    assert two.card["before"]["accepted"] == pytest.approx(one.card["validation"]["accepted"], abs=0.02), (
        "but for float16"
    )
    assert two.card["from"] == "first" and two.ids == one.ids
    assert two.card["validation"]["accepted"] >= two.card["before"]["accepted"]


@pytest.mark.parametrize("draft", [True, False])
def test_draft(draft: bool, folder: Path, foredraft: Foredraft) -> None:
    """Fewer layers of another model, or the target's own first ones."""
    data, output, target = made(folder, foredraft), folder / f"draft-{draft}", folder / "llama.gguf"
    command = ["tune", "draft", "--target", target, "--data", data, "-o", output, "--steps", "4", "--every", "2"]
    command += ["--keep-layers", "1", "--batch-tokens", "256", *COMMON, *(["--draft", target] if draft else [])]
    code, _, err = foredraft(*map(str, command))
    assert code == 0, err
    assert (output / "model" / "config.json").exists()
    assert (output / "layers.json").exists() == draft
    card = json.loads((output / "card.json").read_text())
    assert card["layers"] == 1 and card["validation"]["accepted"] >= 0.0
    code, _, err = foredraft(
        *map(str, ["generate", "--target", target, "--engine", "pytorch", "--draft", output / "model"]),
        *["-t", "0", "--max-tokens", "8", "--json", "Tell me all about a"],
    )
    assert code == 0, err
    code, _, err = foredraft(*map(str, command))
    assert code == 2 and "model" in err, "what is there is not overwritten"


REFUSALS: list[tuple[tuple[str, ...], str]] = [
    (("tune", "data", "-o", "{x}", "--questions", "0"), "--questions is 0; allowed: 1 to"),
    (("tune", "data", "-o", "{x}", "--temperature", "-1"), "temperature is -1.0"),
    (("tune", "data", "-o", "{x}", "--exclude", "{some}"), "--exclude is"),
    (("tune", "data", "-o", "{x}", "--prompts", "{some}", "--exclude", "{some}"), "--prompts is"),
    (("tune", "head", "-o", "{x}", "--data", "{x}"), "no such file; make the data with `foredraft tune data`"),
    (("tune", "head", "-o", "{x}", "--data", "{data}", "--depth", "0"), "depth is 0; allowed: 1 to 16"),
    (("tune", "head", "-o", "{x}", "--data", "{data}", "--layers", "1,x"), "--layers is '1,x'"),
    (
        ("tune", "head", "-o", "{x}", "--data", "{data}", "--layers", "0"),
        "tapped layers is [0]; allowed: layers from 0 to 1",
    ),
    (("tune", "head", "-o", "{x}", "--data", "{data}", "--device", "abacus"), "device is 'abacus'"),
    (("tune", "head", "-o", "{x}", "--data", "{data}", "--from", "{x}"), "no such file; name a directory made by"),
    (("tune", "draft", "-o", "{x}", "--data", "{data}"), "layers to keep is 0"),
    (("tune", "draft", "-o", "{x}", "--data", "{data}", "--keep-layers", "99"), "layers to keep is 99; allowed: 1 to"),
    (("tune", "draft", "-o", "{x}", "--data", "{data}", "--lora", "-1", "--keep-layers", "2"), "rank is -1"),
]


@pytest.mark.parametrize(("command", "words"), REFUSALS)
def test_mistakes_are_one_line(
    command: tuple[str, ...], words: str, folder: Path, tmp_path: Path, foredraft: Foredraft
) -> None:
    places = {"x": tmp_path / "x", "some": folder / "some.jsonl", "data": made(folder, foredraft)}
    given = [part.format(**places) for part in command]
    code, out, err = foredraft(*given, "--target", str(folder / "llama.gguf"), "-q")
    assert code == 2 and out == ""
    assert words in err and len(err.strip().splitlines()) == 1, err


def test_texts_of_another_target(folder: Path, tmp_path: Path, foredraft: Foredraft) -> None:
    data, other = made(folder, foredraft), write_tiny("qwen2", tmp_path)
    code, _, err = foredraft("tune", "head", "--target", other, "--data", data, "-o", tmp_path / "h", *COMMON)
    assert code == 2 and "was written by llama.gguf, another file than qwen2.gguf" in err
