"""Decoders written as Hugging Face directories, with their tokenizer: read as they were by us and by transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engines.pytorch import TorchEngine
from foredraft.errors import InvalidValue, ModelFileError
from foredraft.export.source import open_source
from foredraft.hf_tokenizer import HfTokenizer, TokenizerFacts, byte_of_character
from foredraft.modelfile import read_gguf
from foredraft.models import hf_write
from foredraft.models.config import DecoderConfig, Rope
from foredraft.models.decoder import Decoder
from foredraft.models.hf_write import check_writable, write_hugging_face
from foredraft.models.load import load_decoder, read_config
from foredraft.tokenizer_json import tokenizer_from_directory, tokenizer_from_gguf
from tests.support import tiny_models, tiny_torch
from tests.support.gguf_writer import Typed, tiny_metadata, write_gguf

SIZE = tiny_torch.SIZES["vocab_size"]
TOKENS = (torch.arange(40) * 7 % SIZE).tolist()
LLAMA = DecoderConfig(
    architecture="llama",
    vocab_size=SIZE,
    hidden_size=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=8,
    ffn_size=24,
    context_length=64,
    norm_eps=1e-5,
    rope=Rope(10000.0),
    tied=True,
    query_scale=8**-0.5,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file with a vocabulary of the tiny models' size, and nothing else."""
    return write_gguf(tmp_path_factory.mktemp("tokenizer") / "vocab.gguf", tiny_metadata(SIZE))


def made(config: DecoderConfig = LLAMA) -> Decoder:
    torch.manual_seed(1)
    decoder = Decoder(config)
    decoder.eval()
    return decoder


def assert_same(one: Decoder, other: Decoder) -> None:
    assert one.config == other.config
    other_state = other.state_dict()
    for name, value in one.state_dict().items():
        assert torch.equal(value, other_state[name]), name


def logits_of(model: Any) -> np.ndarray:
    with torch.inference_mode():
        values: np.ndarray = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    return values


# --- all families -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny_torch.VARIANTS)
def test_what_transformers_wrote_is_written_again(name: str, tokenizer: Path, tmp_path: Path) -> None:
    """Shape and weights are the same bits, and transformers computes the same logits from them."""
    import transformers

    model = tiny_torch.save(name, tmp_path / "theirs")
    decoder = load_decoder(tmp_path / "theirs")
    write_hugging_face(decoder, tokenizer, tmp_path / "ours", "float32")
    assert_same(load_decoder(tmp_path / "ours"), decoder)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    assert type(again) is type(model)
    np.testing.assert_allclose(logits_of(again), logits_of(model), rtol=0, atol=1e-5)
    np.testing.assert_allclose(tiny_torch.forward(decoder, TOKENS), logits_of(again), rtol=1e-3, atol=1e-3)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "linear": tiny_models.write_linear,
    "qwen2": tiny_models.write_qwen2,
    "qwen3": tiny_models.write_qwen3,
    "gemma2": tiny_models.write_gemma2,
    "gemma3": tiny_models.write_gemma3,
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_gguf_held(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "model.gguf")
    decoder = load_decoder(path)
    write_hugging_face(decoder, path, tmp_path / "ours", "float32")
    assert_same(load_decoder(tmp_path / "ours"), replace_config(decoder, window=None, local=()))
    assert tokenizer_from_directory(tmp_path / "ours").facts == tokenizer_from_gguf(read_gguf(path)).facts
    source = open_source(tmp_path / "ours")
    assert source.config == read_config(tmp_path / "ours") and source.facts().bytes > 0
    engine = TorchEngine(tmp_path / "ours")
    text = np.array([3, 1, 4, 1, 5], np.int32)
    scores = engine.open().extend(text, np.arange(-1, 4, dtype=np.int32), 5)
    np.testing.assert_allclose(scores.logits, tiny_torch.forward(decoder, text.tolist()), rtol=1e-3, atol=1e-3)


def test_a_table_of_divisors_that_is_not_llama_3s(tmp_path: Path) -> None:
    path = tiny_models.write_llama3(tmp_path / "model.gguf")
    with pytest.raises(InvalidValue, match="rope of the llama decoder is 'Rope"):
        check_writable(read_config(path), path, tmp_path / "one")


def replace_config(decoder: Decoder, **changes: Any) -> Decoder:
    """The same decoder; where no layer is local it says so in one way only."""
    if not any(decoder.config.local):
        decoder.config = replace(decoder.config, **changes)
    return decoder


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, tokenizer: Path, tmp_path: Path) -> None:
    decoder = made(replace(LLAMA, tied=False))
    write_hugging_face(decoder, tokenizer, tmp_path / "half", dtype)
    found = load_decoder(tmp_path / "half")
    for name, value in found.state_dict().items():
        assert torch.equal(value, decoder.state_dict()[name].to(hf_write.DTYPES[dtype]).float())
    with (tmp_path / "half" / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    assert kinds == {{"bfloat16": "BF16", "float16": "F16"}[dtype]}


def test_norms_of_gemma_are_stored_as_what_is_beside_1(tokenizer: Path, tmp_path: Path) -> None:
    tiny_torch.save("gemma3", tmp_path / "theirs", max_shard_size="1GB")
    decoder = load_decoder(tmp_path / "theirs")
    write_hugging_face(decoder, tokenizer, tmp_path / "half")
    found = load_decoder(tmp_path / "half").blocks[0].attention_norm.weight
    want = (decoder.blocks[0].attention_norm.weight - 1).bfloat16().float() + 1
    assert torch.equal(found, want)


# --- rotary scaling ---------------------------------------------------------------------------------------------------


SHAPES = st.tuples(
    st.sampled_from([4, 16, 64, 128]),
    st.sampled_from([1e4, 5e5]),
    st.sampled_from([2.0, 8.0, 32.0]),
    st.integers(6, 17),
)


@given(SHAPES, st.booleans())
def test_llama_3_is_found_again_in_its_divisors(shape: tuple[int, float, float, int], single: bool) -> None:
    head_dim, theta, factor, power = shape
    divisors = llama3(head_dim, theta, factor, 1 << power)
    if single:  # as the tables of GGUF files
        divisors = tuple(float(np.float32(divisor)) for divisor in divisors)
    if len(set(divisors)) == 1 or max(divisors) != factor:
        return
    config = replace(LLAMA, head_dim=head_dim, query_scale=head_dim**-0.5, rope=Rope(theta, divisors))
    values = hf_write._settings(config)["rope_scaling"]
    found = llama3(head_dim, theta, values["factor"], values["original_max_position_embeddings"])
    np.testing.assert_allclose(found, divisors, rtol=2e-7 if single else 0)


def llama3(head_dim: int, theta: float, factor: float, original: int) -> tuple[float, ...]:
    """By our reader."""
    from foredraft.models.hf_config import _Settings

    numbers = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    values = numbers | {"rope_type": "llama3", "original_max_position_embeddings": original}
    found = _Settings(Path("x"), "llama", values).divisors(theta, head_dim)
    assert found is not None
    return found


# --- tokenizers -------------------------------------------------------------------------------------------------------


TEXTS = ("a b", "ab  c\r\n<s>x</s>", "äöü 日本 🎉", "<tool> Hello, world! 123")
WORDS = [*(letter for letter in "abcdefghijklmnop"), "▁", "▁a", "▁b", "ab"]
TEMPLATE = "{% for m in messages %}\r\n{{ m['content'] }}{% endfor %}é"


def bpe_file(path: Path, **more: object) -> Path:
    """Byte-level, with control, user-defined, reserved and padding entries."""
    characters = list(byte_of_character())
    return write_gguf(
        path,
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": [*characters, "ab", "<s>", "</s>", "<tool>", "<unused1>", "[PAD261]", "[PAD262]"],
            "tokenizer.ggml.merges": Typed(8, ["a b"], True),
            "tokenizer.ggml.token_type": np.array([1] * 257 + [3, 3, 4, 3, 5, 5], np.int32),
            "tokenizer.ggml.bos_token_id": 257,
            "tokenizer.ggml.eos_token_id": 258,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.chat_template": TEMPLATE,
            **more,
        },
    )


def spm_file(path: Path, unknown: int = 3) -> Path:
    """SentencePiece with all bytes; ``unknown``: the type of its first entry, as Gemma's files have it."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    keys = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + [-float(i) for i in range(len(WORDS))], np.float32),
        "tokenizer.ggml.token_type": np.array([unknown, 3, 3] + [6] * 256 + [1] * len(WORDS), np.int32),
    }
    return write_gguf(path, keys)


@pytest.mark.parametrize("kind", ["bpe", "spm", "gemma"])
def test_the_tokenizer_of_a_gguf(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path = bpe_file(path) if kind == "bpe" else spm_file(path, 2 if kind == "spm" else 3)
    converted = tokenizer_from_gguf(read_gguf(path))
    rows = converted.facts.vocab_size
    write_hugging_face(made(replace(LLAMA, vocab_size=rows)), path, tmp_path / "one", "float32")
    found = tokenizer_from_directory(tmp_path / "one")
    assert found.facts == converted.facts
    assert found.facts.types.count("x") == (2 if kind == "bpe" else 0)
    # and once more, from the directory
    write_hugging_face(load_decoder(tmp_path / "one"), tmp_path / "one", tmp_path / "two", "float32")
    again = tokenizer_from_directory(tmp_path / "two")
    assert again.facts == converted.facts
    for other in (found, again):
        one, two = HfTokenizer(converted.tokenizer, converted.facts), HfTokenizer(other.tokenizer, other.facts)
        assert [one.text_of(id) for id in range(rows)] == [two.text_of(id) for id in range(rows)]
        for text in TEXTS:
            for flag in (False, True):
                ids = one.encode(text, add_special=flag, parse_special=flag)
                assert ids == two.encode(text, add_special=flag, parse_special=flag)


def test_transformers_reads_the_tokenizer(tmp_path: Path) -> None:
    import transformers

    path = bpe_file(tmp_path / "vocab.gguf")
    write_hugging_face(made(replace(LLAMA, vocab_size=263)), path, tmp_path / "one")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")
    own = tokenizer_from_directory(tmp_path / "one")
    ours = HfTokenizer(own.tokenizer, own.facts)
    assert theirs("ab<tool> c")["input_ids"] == ours.encode("ab<tool> c", add_special=True, parse_special=True)
    assert (theirs.bos_token, theirs.eos_token, theirs.chat_template) == ("<s>", "</s>", TEMPLATE)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert model.dtype == torch.bfloat16 and model.generation_config.eos_token_id == sorted(own.facts.eog_ids)


def test_the_text_part_of_a_model_that_also_sees_pads_its_vocabulary(tmp_path: Path) -> None:
    """There config.json does not name the rows on the outside, so that padding begins to count when it is written."""
    path = bpe_file(tmp_path / "vocab.gguf")
    write_hugging_face(made(replace(LLAMA, vocab_size=263)), path, tmp_path / "one")
    (tmp_path / "one" / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 270}}))
    before = tokenizer_from_directory(tmp_path / "one").facts
    write_hugging_face(made(replace(LLAMA, vocab_size=270)), tmp_path / "one", tmp_path / "two")
    after = tokenizer_from_directory(tmp_path / "two").facts
    assert after == replace(before, types=before.types + "x" * (270 - before.vocab_size))


@pytest.mark.parametrize("types", [[5, 1, 1], [1, 2, 1], [1, 1, 9]], ids=["unused with a text", "unknown", "undefined"])
def test_a_tokenizer_that_cannot_be_said_is_refused(types: list[int], tmp_path: Path) -> None:
    kinds = np.array([1] * 257 + [3, 3, 4, *types], np.int32)
    path = bpe_file(tmp_path / "vocab.gguf", **{"tokenizer.ggml.token_type": kinds})
    config = replace(LLAMA, vocab_size=263)
    message = rf"^{path}: has a tokenizer that tokenizer.json cannot describe \(types would differ\); use another copy$"
    with pytest.raises(ModelFileError, match=message):
        check_writable(config, path, tmp_path / "one")
    with pytest.raises(ModelFileError, match=message):
        write_hugging_face(made(config), path, tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vocab.gguf"]


# --- refusals ---------------------------------------------------------------------------------------------------------


CANNOT: dict[str, tuple[dict[str, Any], str]] = {
    "bias": ({"qkv_bias": True}, "qkv bias of the llama decoder is True; allowed: False: a config.json of this arch"),
    "scale": ({"query_scale": 0.2}, "query scale of the llama decoder is 0.2; allowed: 0.35355339059327373: a config"),
    "window": ({"window": 8, "local": (True, False)}, "window of the llama decoder is 8; allowed: None: a config.json"),
    "cap": ({"final_softcap": 30.0}, "final softcap of the llama decoder is 30.0; allowed: None"),
    "rope": ({"rope": Rope(1e4, (1.0, 3.0, 2.0, 8.0))}, "rope of the llama decoder is 'Rope"),
}


@pytest.mark.parametrize("what", CANNOT)
def test_shapes_that_no_class_of_transformers_has(what: str, tokenizer: Path, tmp_path: Path) -> None:
    changes, message = CANNOT[what]
    config = replace(LLAMA, **changes)
    for call in (check_writable, written):
        with pytest.raises(InvalidValue) as caught:
            call(config, tokenizer, tmp_path / "one")
        assert str(caught.value).startswith(message) and str(caught.value).isprintable()
    assert not list(tmp_path.iterdir())


def written(config: DecoderConfig, tokenizer: Path, target: Path, dtype: str = "bfloat16") -> None:
    write_hugging_face(made(config), tokenizer, target, dtype)


def test_all_architectures_but_those_are_writable(tokenizer: Path, tmp_path: Path) -> None:
    check_writable(LLAMA, tokenizer, tmp_path / "one")
    check_writable(replace(LLAMA, local=(False, False), window=8), tokenizer, tmp_path / "one")
    assert not list(tmp_path.iterdir())


def test_what_exists_stays(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "folder", "link"):
        for call in (written, check_writable):
            with pytest.raises(
                InvalidValue, match=f"output directory is '{tmp_path}/{name}'; allowed: a new name; remove"
            ):
                call(LLAMA, tokenizer, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link"]
    assert (tmp_path / "file").read_text() == "old" and not list((tmp_path / "folder").iterdir())


def test_types_of_weights(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="type is 'int8'; allowed: bfloat16, float32, float16"):
        written(LLAMA, tokenizer, tmp_path / "one", "int8")
    decoder = made()
    decoder.blocks[1].ffn.down.weight.data[3, 3] = 1e5
    with pytest.raises(
        InvalidValue, match=r"bfloat16 or float32: model.layers.1.mlp.down_proj.weight has larger value"
    ):
        write_hugging_face(decoder, tokenizer, tmp_path / "one", "float16")
    assert not list(tmp_path.iterdir())
    write_hugging_face(decoder, tokenizer, tmp_path / "deep" / "one")


def test_an_interrupted_write_leaves_nothing(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", interrupt)
        with pytest.raises(KeyboardInterrupt):
            written(LLAMA, tokenizer, tmp_path / "one")
    assert not list(tmp_path.iterdir())
    written(LLAMA, tokenizer, tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert isinstance(tokenizer_from_directory(tmp_path / "one").facts, TokenizerFacts)
