"""The tokenizer's files of a Hugging Face directory: copied from another one, or made from a GGUF file.

What ``tokenizer_from_directory`` reads of them is compared with the source: not a fact gets lost without a word.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from foredraft.gguf_types import fail
from foredraft.hf_tokenizer import BYTE, CONTROL, UNUSED, TokenizerFacts, read_json
from foredraft.modelfile import read_gguf
from foredraft.tokenizer_json import Converted, tokenizer_from_directory, tokenizer_from_gguf

_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
_SPECIAL = ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id")


def write_tokenizer(source: Path, folder: Path, rows: int) -> dict[str, object]:
    """Write the tokenizer of ``source``, a GGUF file or a Hugging Face directory, into ``folder``.

    ``rows``: the model's vocabulary, padding included. Returns the keys of config.json that name special tokens. A
    config.json with ``vocab_size`` and these keys is written too, for the comparison. ModelFileError: the tokenizer
    cannot be read, or is one of the rare ones of which a tokenizer.json cannot say all.
    """
    wanted, special = _copied(source, folder) if source.is_dir() else _made(source, folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": rows, **special}), "utf-8")
    wanted = replace(wanted, types=wanted.types.ljust(rows, UNUSED))
    found = tokenizer_from_directory(folder).facts
    names = [
        field.name for field in fields(TokenizerFacts) if getattr(found, field.name) != getattr(wanted, field.name)
    ]
    if names:
        listed = ", ".join(name.replace("_", " ") for name in names)
        fail(source, f"has a tokenizer that tokenizer.json cannot describe ({listed} would differ); use another copy")
    return special


def _copied(source: Path, folder: Path) -> tuple[TokenizerFacts, dict[str, object]]:
    facts = tokenizer_from_directory(source).facts
    for name in _COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    config = read_json(source / "config.json") if (source / "config.json").exists() else {}
    return facts, {key: config[key] for key in _SPECIAL if key in config}


def _made(source: Path, folder: Path) -> tuple[TokenizerFacts, dict[str, object]]:
    converted = tokenizer_from_gguf(read_gguf(source))
    facts = converted.facts
    _write(folder / "tokenizer.json", _plain(converted))
    named = {"bos": facts.bos_id, "eos": facts.eos_id}
    texts = {f"{role}_token": converted.tokenizer.id_to_token(id) for role, id in named.items() if id is not None}
    ids: dict[str, object] = {f"{role}_token_id": id for role, id in named.items() if id is not None}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **texts,
        "add_bos_token": facts.add_bos,
        "add_eos_token": facts.add_eos,
        **({} if facts.chat_template is None else {"chat_template": facts.chat_template}),
    }
    _write(folder / "tokenizer_config.json", config)
    _write(folder / "generation_config.json", ids | {"eos_token_id": sorted(facts.eog_ids)})
    return facts, ids


def _plain(converted: Converted) -> dict[str, Any]:
    """The tokenizer.json without entries that only pad the vocabulary, and without an unknown token where the file
    calls it a control token and every byte has an entry, so that nothing is unknown."""
    data: dict[str, Any] = json.loads(converted.tokenizer.to_str())
    model, types = data["model"], converted.facts.types
    model["vocab"] = {text: id for text, id in model["vocab"].items() if types[id] != UNUSED or text != f"[PAD{id}]"}
    unknown = model["vocab"].get(model.get("unk_token"))
    if unknown is not None and types[unknown] == CONTROL and types.count(BYTE) == 256:
        model["unk_token"] = None
    return data


def _write(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", "utf-8")
