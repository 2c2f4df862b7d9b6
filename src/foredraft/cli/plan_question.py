"""What ``foredraft plan`` is asked, out of its options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from foredraft.cli.options import Choices
from foredraft.errors import InvalidValue, ModelFileError, UsageError
from foredraft.manifest import is_export
from foredraft.memory import runtime_for
from foredraft.modelfile import ModelShape
from foredraft.plan import Alphas, Candidate, Question, Setting
from foredraft.plan.options import HEAD, NGRAM, NONE
from foredraft.plan.sizes import read_size
from foredraft.profile.report import read_summary
from foredraft.profile.report.shape import ALL
from foredraft.shapes import describe, read_shape

SHAPE_KEYS = ("params", "layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "weights")
_CONTEXT = 4096
_MOST = {"--ctx": 1 << 24, "--requests": 256, "--width": 4096, "--chunk": 1 << 16}


def read_question(given: Choices) -> tuple[Question, list[str]]:
    """The question, and notes about candidates that were left out."""
    target = _target(given)
    runtime = given.runtime or ("executorch" if target.source == "export" else "llama_cpp")
    drafts, notes = _drafts(given, target)
    return Question(target, drafts, _setting(given, target, runtime), _alphas(given, drafts)), notes


def _setting(given: Choices, target: ModelShape, runtime: str) -> Setting:
    context = _whole("--ctx", given.ctx) if given.ctx else min(target.context_length or _CONTEXT, _CONTEXT)
    if target.source == "export" and context > target.context_length:
        raise InvalidValue("--ctx", context, f"1 to {target.context_length}, the bound this program was exported with")
    return Setting(
        context=context,
        runtime=runtime,
        kv_type=given.kv_type or runtime_for(runtime).kv_types[0],
        draft_kv_type=given.draft_kv_type,
        sequences=_whole("--requests", given.requests),
        rows=_whole("--width", given.width),
        chunk=None if given.chunk is None else _whole("--chunk", given.chunk),
        reserve=read_size("--reserve", given.reserve),
        windows=given.windowed_cache,
    )


def _whole(name: str, value: int) -> int:
    if not 1 <= value <= _MOST[name]:
        raise InvalidValue(name, value, f"1 to {_MOST[name]}")
    return value


def _target(given: Choices) -> ModelShape:
    described = {key.replace("_", "-"): getattr(given, key) for key in SHAPE_KEYS if getattr(given, key) is not None}
    if given.target is not None and described:
        raise UsageError(f"--target names a model and --{next(iter(described))} describes one; give one of the two")
    if given.target is not None:
        return read_shape(given.target)
    if not described:
        raise UsageError(
            "no target: give --target MODEL, or describe one with --params, --layers, --hidden, --kv-heads"
        )
    return describe(described)


# --- drafts ------------------------------------------------------------------------------------------------


def _drafts(given: Choices, target: ModelShape) -> tuple[tuple[Candidate, ...], list[str]]:
    asked = [] if given.draft is None else [_candidate(given.draft, target)]
    others, notes = ([], []) if given.candidates is None else _candidates(given.candidates, target)
    found = asked + sorted(others, key=lambda each: -each.nbytes)
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidValue("--draft, --candidates", name, "every draft once")
    return tuple(found) or (Candidate(NGRAM),), notes


def _candidates(text: str, target: ModelShape) -> tuple[list[Candidate], list[str]]:
    """Those of a directory that can be read, with a note for each of the others; or all that are named."""
    if not os.path.isdir(text) or is_export(Path(text)) or _is_model(Path(text)):
        names = [name for name in text.split(";" if "=" in text else ",") if name.strip()]
        if not names:
            raise InvalidValue("--candidates", text, "a directory of models, or names with commas")
        return [_candidate(name, target) for name in names], []
    found, notes = list[Candidate](), list[str]()
    for path in sorted(Path(text).iterdir()):
        if path.suffix.lower() == ".gguf" or is_export(path) or _is_model(path):
            try:
                found.append(_candidate(str(path), target))
            except ModelFileError as error:
                notes.append(f"left out: {error}")
    if not found:
        raise InvalidValue("--candidates", text, "a directory with .gguf files, exports or models that can be read")
    return found, notes


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file()


def _candidate(name: str, target: ModelShape) -> Candidate:
    name = name.strip()
    if name.casefold() in (NGRAM, NONE):
        return Candidate(name.casefold())
    if name.casefold() in ("head", HEAD):
        return Candidate.head(target)
    shape = read_shape(name)
    return Candidate(os.path.basename(name.rstrip("/")) if os.path.exists(name) else name, shape)


# --- acceptance --------------------------------------------------------------------------------------------


def _alphas(given: Choices, drafts: tuple[Candidate, ...]) -> Alphas:
    by_name: dict[str, float] = {}
    default, origin = None, "as given"
    if given.profile is not None:
        summary = read_summary(Path(given.profile))
        by_name = _measured(summary)
        origin = f"measured on your prompts at temperature {summary['settings']['temperature']:g}"
    known = {each.name for each in drafts} | {NGRAM, HEAD}
    for text in given.alphas:
        name, equals, number = text.rpartition("=")
        value, name = _share(text, number), HEAD if name == "head" else name
        if not equals and default is not None:
            raise InvalidValue("--alpha", text, "one number for all drafts; others as NAME=0.7")
        if equals and name not in known:
            raise InvalidValue("--alpha", text, f"NAME=0.7 with one of {', '.join(sorted(known - {NONE}))}")
        if equals:
            by_name[name] = value
        else:
            default = value
    return Alphas(by_name, default, origin)


def _measured(summary: Any) -> dict[str, float]:
    """α of all kinds together under the recorded setting, by draft, with and without the ending of its file."""
    settings, found = summary["settings"], {}
    for row in summary["acceptance"]:
        same = (row["rule"], row["temperature"], row["kind"]) == (settings["rule"], settings["temperature"], ALL)
        if same and row["alpha"]["value"] is not None:
            found[row["draft"]] = found[row["draft"].removesuffix(".gguf")] = row["alpha"]["value"]
    return found


def _share(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise InvalidValue("--alpha", text, "a number from 0 to 1, alone or as NAME=0.7")
    return value
