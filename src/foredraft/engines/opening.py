"""Which engine runs a model file, and opening it with its tokenizer. Engines are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from foredraft.engines.base import Engine
from foredraft.engines.executorch import ExecutorchConfig, ExecutorchEngine, exported_tokenizer
from foredraft.engines.head_base import HeadEngine
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.llama_vocab import load_vocab
from foredraft.errors import InvalidValue, MissingExtra, ModelFileError
from foredraft.hf_tokenizer import HfTokenizer
from foredraft.manifest import is_export, read_manifest
from foredraft.modelfile import check_path, model_shape, read_gguf
from foredraft.tokenizer_json import tokenizer_from_directory, tokenizer_from_gguf
from foredraft.tokens import Tokenizer

Settings = LlamaConfig
"""Settings of every engine; those that only llama.cpp has are refused by the others unless left alone."""
AUTO = "auto"
HEAD = "head"
"""As a draft: the head that an export holds."""


@dataclass(frozen=True)
class Opened:
    """A loaded model, its tokenizer, and the draft head that was asked for."""

    engine: Engine
    tokenizer: Tokenizer
    head: HeadEngine | None = None


def engine_name(path: Path) -> str:
    """ "executorch" for an export, "pytorch" for a Hugging Face directory, else "llama_cpp"."""
    if is_export(path):
        return "executorch"
    return "pytorch" if (path / "config.json").is_file() else "llama_cpp"


def open_model(path: Path, settings: Settings, name: str = AUTO, head: str | Path | None = None) -> Opened:
    """Load ``path`` with the engine ``name``, and its draft head: a directory of ``foredraft tune head``, or HEAD for
    the one that an export holds. Raises what that engine raises, or InvalidValue for settings it lacks."""
    chosen = engine_name(path) if name == AUTO else name
    opener = _OPENERS.get(chosen)
    if opener is None:
        raise InvalidValue("engine", name, ", ".join((AUTO, *_OPENERS)))
    if chosen != "llama_cpp":
        check_path_exists(path)
        if settings.kv_type != Settings().kv_type:
            raise InvalidValue("--kv-type", settings.kv_type, f"only with llama.cpp; {chosen} keeps its own")
    return opener(path, settings) if head is None else _open_with_head(chosen, path, settings, head)


def _open_with_head(chosen: str, path: Path, settings: Settings, head: str | Path) -> Opened:
    if chosen == "pytorch":
        return _open_pytorch(path, settings, head)
    if chosen != "executorch":
        raise InvalidValue(
            "--draft",
            str(head),
            "a head with the engines pytorch and executorch only, which give hidden states; export the model with "
            "`foredraft export executorch --head`, or use --engine pytorch",
        )
    if head != HEAD:
        raise InvalidValue(
            "--draft", str(head), f"{HEAD} for an export's own head; `foredraft export executorch --head` puts it there"
        )
    opened = _open_executorch(path, settings)
    assert isinstance(opened.engine, ExecutorchEngine)
    try:
        return replace(opened, head=opened.engine.head())
    except ModelFileError:
        opened.engine.close()
        raise


@contextmanager
def open_vocabulary(path: Path) -> Iterator[Tokenizer]:
    """The tokenizer of any model file, without its weights."""
    if is_export(path):
        yield exported_tokenizer(path.parent if path.is_file() else path, read_manifest(path))
    elif path.is_dir():
        yield _converted_tokenizer(path)
    else:
        with load_vocab(path) as vocabulary:
            yield vocabulary


def _converted_tokenizer(path: Path) -> HfTokenizer:
    converted = tokenizer_from_directory(path) if path.is_dir() else tokenizer_from_gguf(read_gguf(path))
    return HfTokenizer(converted.tokenizer, converted.facts)


def draft_settings(path: Path, settings: Settings, context: int, target_context: int) -> Settings:
    """Settings for a draft: its context is ``context`` tokens, or else the target's, at most what it was made for."""
    if is_export(path):
        most = read_manifest(path).bounds.context
    elif path.is_dir():
        most = target_context
    else:
        most = model_shape(read_gguf(check_path(path))).context_length or target_context
    return replace(settings, context=context or min(target_context, most), repack=None, strict=False)


def check_path_exists(path: Path) -> None:
    """Raise ModelFileError for a file or directory that is not there."""
    if not path.exists():
        check_path(path)


def _open_llama(path: Path, settings: Settings) -> Opened:
    if is_export(path):
        raise ModelFileError(f"{path}: is an ExecuTorch export; run it with --engine executorch or auto")
    engine = LlamaEngine(path, settings)
    return Opened(engine, engine.tokenizer)


def _open_executorch(path: Path, settings: Settings) -> Opened:
    if not is_export(path):
        raise ModelFileError(
            f"{path}: is not an ExecuTorch export; make one with `foredraft export executorch`, or use --engine auto"
        )
    engine = ExecutorchEngine(path, ExecutorchConfig(settings.context, settings.threads))
    if settings.strict and not engine.manifest.exact:
        engine.close()
        raise InvalidValue("--strict", True, "an export that passed its bit check; this one was made with --no-exact")
    return Opened(engine, engine.tokenizer)


def _open_pytorch(path: Path, settings: Settings, head: str | Path | None = None) -> Opened:
    try:
        from foredraft.engines.pytorch import TorchConfig, TorchEngine
        from foredraft.engines.torch_head import TorchHead
        from foredraft.models.head_file import load_head
        from foredraft.models.load import read_config
    except ImportError as error:
        raise MissingExtra(
            "the pytorch engine needs torch; install it with: pip install 'foredraft[export]'"
        ) from error
    if settings.strict:
        raise InvalidValue("--strict", True, "the engines llama_cpp and executorch; torch's sums depend on the width")
    config = TorchConfig(context=settings.context, threads=settings.threads)
    if head is None:
        return Opened(TorchEngine(path, config), _converted_tokenizer(path))
    if head == HEAD:
        raise InvalidValue(
            "--draft", HEAD, "with the pytorch engine: the directory of a head, from `foredraft tune head`"
        )
    stored = load_head(Path(head))
    stored.check_target(read_config(path), path.name)
    engine = TorchEngine(path, config, stored.head.config.taps)
    shared = TorchHead(stored.head, stored.ids, engine.decoder, engine.info.max_context)
    return Opened(engine, _converted_tokenizer(path), shared)


def is_head_draft(draft: str | Path) -> bool:
    """Whether a draft is a head: HEAD, or a directory made by `foredraft tune head`."""
    return draft == HEAD or (Path(draft) / "head.json").is_file()


_OPENERS: Mapping[str, Callable[[Path, Settings], Opened]] = {
    "llama_cpp": _open_llama,
    "executorch": _open_executorch,
    "pytorch": _open_pytorch,
}
ENGINES = (AUTO, *_OPENERS)
