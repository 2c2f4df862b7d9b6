"""Prompts from parquet: columns, files that are none or damaged, and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from foredraft.errors import MissingExtra, PromptError
from foredraft.prompts import PromptFile, read_prompts, reading

TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def write(folder: Path, columns: Mapping[str, Any], name: str = "p.parquet", **options: Any) -> Path:
    path = folder / name
    parquet.write_table(pa.table(columns), path, **options)
    return path


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)


def texts(found: PromptFile) -> list[list[str]]:
    return [[message["content"] for message in prompt.messages] for prompt in found.prompts]


def test_rows_become_prompts(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a", "Grüße", "a"],
        "kind": pa.array(["x", None, "y"]).dictionary_encode(),  # what pandas calls a categorical
        "system": [None, "s", None],
        "max_tokens": [5.0, None, None],  # what pandas makes of integers where some are missing
        "id": [1, 2, 3],
    }
    found = read_prompts(write(tmp_path, columns))
    assert texts(found) == [["a"], ["s", "Grüße"], ["a"]]
    assert [(prompt.kind, prompt.max_tokens) for prompt in found.prompts] == [("x", 5), ("other", None), ("y", None)]
    assert [prompt.warm for prompt in found.prompts] == [False, False, True]
    assert [prompt.where for prompt in found.prompts] == ["row 1", "row 2", "row 3"]
    assert (found.format, found.notes) == ("parquet", ("columns of p.parquet that mean nothing here: id",))


def test_the_same_prompt_has_the_same_key_in_every_format(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "max_tokens": 3}')
    (tmp_path / "p.csv").write_text("prompt,max_tokens\na,3\n")
    paths = (tmp_path / "p.jsonl", tmp_path / "p.csv", write(tmp_path, {"prompt": ["a"], "max_tokens": [3]}))
    assert len({read_prompts(path).prompts[0].key for path in paths}) == 1


@pytest.mark.parametrize(
    "messages",
    [
        TALK,
        json.dumps(TALK),
        {key: [message[key] for message in TALK] for key in ("role", "content")},
    ],
    ids=["structs", "JSON text", "Sequence of datasets"],
)
def test_messages(messages: object, tmp_path: Path) -> None:
    found = read_prompts(write(tmp_path, {"messages": [messages], "n": [1]}))
    assert found.prompts[0].messages == tuple(TALK)


def test_columns_of_data_sets(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "a", "weight": None}, {"from": "gpt", "value": "b", "weight": 1.0}]
    found = read_prompts(write(tmp_path, {"conversations": [talk, talk[:1]], "id": [1, 2]}))
    assert texts(found) == [["a"], ["a"]] and found.distinct == 1
    assert found.notes == (
        "conversations is read as messages (2 of 2 prompts)",
        "the assistant's answer at the end of messages is left out (1 of 2 prompts)",
        "columns of p.parquet that mean nothing here: id, weight of a message",
    )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"question": ["a"], "answer": ["b"]},
            "p.parquet: give either prompt or messages; there are: question, answer",
        ),
        ({"text": ["a"], "conversations": [["a"]]}, "p.parquet: conversations and text: which"),
        ({"prompt": [["a"]]}, "p.parquet row 1: prompt is a list"),
        ({"prompt": ["a", None]}, "p.parquet row 2: give either prompt or messages; this one is empty"),
        ({"prompt": [b"a"]}, "p.parquet row 1: prompt is of the type bytes"),
        ({"messages": [[("user", "a")]]}, "p.parquet row 1: message 1 has the role"),
        ({"prompt": ["a"], "kind": [1]}, "p.parquet row 1: kind is 1"),
        ({"prompt": ["a", "b\0"]}, "p.parquet row 2: prompt holds a NUL character"),
        ({"prompt": pa.array([], pa.string())}, "p.parquet: holds no prompt"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_an_error_names_the_row_or_the_columns(columns: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    if columns.get("messages"):
        columns = {"messages": pa.array(columns["messages"], pa.list_(pa.list_(pa.string())))}
    with pytest.raises(PromptError) as found:
        read_prompts(write(tmp_path, columns))
    assert words in str(found.value) and "\n" not in str(found.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    data = b"fine" * 5 + b"caf\xe9"
    offsets = pa.array([0, 4, 8, 12, 16, 20, len(data)], pa.int32()).buffers()[1]
    array = pa.Array.from_buffers(pa.string(), 6, [None, offsets, pa.py_buffer(data)])
    with pytest.raises(PromptError, match=r"p.parquet row 6: not UTF-8 text"):
        read_prompts(write(tmp_path, {"prompt": array}))


# --- files that are none ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no prompt"),
        (b"prompt\na\n", r"is no parquet file \(it begins with b'prom'\)"),
        (b"PAR1", "is a damaged parquet file"),
        (b"PAR1PAR1", "is a damaged parquet file"),
        (b"PAR1\0\0\0\0PAR1", "is a damaged parquet file"),
        (b"PAR1\xff\xff\xff\xffPAR1", "is a damaged parquet file"),
        (b"PAR1\x04\0\0\0PAR1", "is a damaged parquet file"),
        (b"PAR1junk\x04\0\0\0PAR1", "pyarrow cannot read it"),
        (b"PAR1junk\x04\0\0\0PARE", "is an encrypted parquet file"),
        (b"PAREjunk\x04\0\0\0PARE", "is an encrypted parquet file"),
    ],
)
def test_a_file_that_is_no_parquet(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(content)
    with pytest.raises(PromptError, match=words):
        read_prompts(path)


def test_the_frame_is_checked_before_pyarrow_sees_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path, {"prompt": ["a"]})
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    with pytest.raises(MissingExtra, match=r"pip install 'foredraft\[profile\]'"):
        read_prompts(whole)
    part = tmp_path / "part.parquet"
    part.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(PromptError, match="damaged"):
        read_prompts(part)


def test_the_content_counts_not_the_ending(tmp_path: Path) -> None:
    assert read_prompts(write(tmp_path, {"prompt": ["a"]}, "p.bin")).format == "parquet"
    assert read_prompts(write(tmp_path, {"prompt": ["a"]}, "p.csv")).format == "parquet"


READ_ALL = """
import sys
from pathlib import Path
from foredraft.errors import PromptError
from foredraft.prompts import read_prompts
refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        assert read_prompts(path).prompts
    except PromptError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 300, error
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_damaged_bytes_end_in_prompts_or_in_one_line(compression: str, tmp_path: Path) -> None:
    """In a process of its own, because some of what pyarrow offers ends the process on a damaged footer."""
    columns = {"messages": [TALK] * 40, "kind": [f"k{row}" for row in range(40)]}
    whole = write(tmp_path, columns, compression=compression).read_bytes()
    (tmp_path / "damaged").mkdir()
    random = np.random.default_rng(5)
    for number in range(200):
        data = bytearray(whole)
        for place in random.integers(4, len(data) - 8, size=1 + number % 4):
            data[place] = random.integers(256)
        (tmp_path / "damaged" / f"{number}.parquet").write_bytes(data)
    done = run(READ_ALL, tmp_path / "damaged")
    assert done.returncode == 0, done.stderr
    assert 20 < int(done.stdout) < 200


# --- size ---------------------------------------------------------------------------------------------------


def test_more_text_than_allowed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 20)
    text = ["x" * (1 << 19)]
    answers = [f"{number:07}" * 10**5 for number in range(5)]
    few = {"prompt": text, "answer": [answers[0] + answers[1]]}
    assert len(read_prompts(write(tmp_path, few)).prompts) == 1, "columns that are not read do not count"
    for columns in ({"prompt": answers}, {"prompt": text * 5}):  # the second is stored once and unfolds to 2.5 MB
        path = write(tmp_path, columns, use_dictionary=True)
        with pytest.raises(PromptError, match=r"p\.parquet: holds more than 1 MB of prompts"):
            read_prompts(path)


def test_a_huge_row_group_is_not_held_in_memory(tmp_path: Path) -> None:
    """24 MB of prompts in one row group with another column as large: pyarrow holds a few pages of 1 MB at a time."""
    random = np.random.default_rng(1)
    rows = [random.bytes(6000).hex() for _ in range(2000)]
    path = write(
        tmp_path, {"prompt": rows, "answer": rows}, row_group_size=len(rows), use_dictionary=False, write_batch_size=16
    )
    code = """
import sys
from pathlib import Path
import pyarrow
from foredraft.prompts import read_prompts
print(len(read_prompts(Path(sys.argv[1])).prompts), pyarrow.default_memory_pool().max_memory())
"""
    done = run(code, path)
    prompts, held = map(int, done.stdout.split())
    assert prompts == len(rows) and 0 < held < 8 << 20
