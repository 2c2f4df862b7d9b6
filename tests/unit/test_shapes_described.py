"""Models without a file: weights counted tensor by tensor, presets, descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.catalogue import CATALOGUE
from foredraft.errors import InvalidValue, UnknownName
from foredraft.modelfile import ModelShape
from foredraft.shapes import describe, preset_names, read_shape
from foredraft.shapes.presets import presets
from foredraft.shapes.weights import Sizes, count, parameters, weights_named

QWEN_HALF = Sizes(24, 896, 14, 2, 64, 4864, 151936, tied=False, qkv_bias=True)
QWEN_ONE_AND_A_HALF = Sizes(28, 1536, 12, 2, 128, 8960, 151936, tied=False, qkv_bias=True)


def cache_bytes(shape: ModelShape, tokens: int) -> int:
    """Keys and values of ``tokens`` positions in f16."""
    return 2 * tokens * sum(shape.kv_heads_by_layer) * (shape.head_size_k + shape.head_size_v)


# --- counting ----------------------------------------------------------------------------------------------


PUBLISHED = {
    "gemma3-1b": 999_885_952,
    "gemma3-270m": 268_098_176,
    "gemma3-4b": 3_880_263_168,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "phi-3-mini": 3_821_079_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "tinyllama-1.1b": 1_100_048_384,
}
"""Numbers of parameters as the models' pages on the hub show them; one that is off in any size would not meet them."""


def test_presets_have_the_published_number_of_parameters() -> None:
    assert {preset.name: parameters(preset.sizes()) for preset in presets().values()} == PUBLISHED


def test_every_preset_says_where_it_was_read() -> None:
    for preset in presets().values():
        assert "config.json" in preset.source or "GGUF" in preset.source
        assert preset.heads % preset.kv_heads == 0


@pytest.mark.parametrize(
    ("sizes", "total"),
    [(QWEN_HALF, 485_452_288), (QWEN_ONE_AND_A_HALF, 1_111_370_240)],
    ids=["0.5b", "1.5b"],
)
def test_the_mix_is_that_of_real_files(sizes: Sizes, total: int) -> None:
    """Bytes of all tensors in Qwen's own Q4_K_M files (qwen2.5-coder-*.gguf), which store the output matrix apart."""
    counted = count(sizes, weights_named("q4_k_m"))
    assert sum(counted.by_type.values()) == total


def test_the_mix_of_a_real_gemma(gemma3: Path) -> None:
    """Tensor types and bytes, rows that are no whole blocks of 256 included."""
    stored = read_shape(str(gemma3))
    counted = count(presets()["gemma3-270m"].sizes(), weights_named("Q4-K-M"))
    assert counted.by_type == dict(stored.quantization)
    assert (counted.parameters, counted.embedding) == (stored.parameters, stored.embedding_bytes)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("q4_0", 4.5),
        ("Q8_0", 8.5),
        ("f16", 16),
        ("bf16", 16),
        ("f32", 32),
        ("q4_k", 4.5),
        ("q6_k", 6.5625),
        ("int4", 4),
        ("int8", 8),
        ("int4-g32", 4.5),
        ("INT4_G32", 4.5),
    ],
)
def test_bits(name: str, bits: float) -> None:
    assert weights_named(name).bits(QWEN_HALF) == bits


def test_bits_of_the_mix() -> None:
    assert 4.8 < float(weights_named("q4_k_m").bits(presets()["llama-2-7b"].sizes())) < 4.9


def test_rows_that_are_no_whole_blocks() -> None:
    """As llama.cpp: Q4_K becomes Q5_0 for rows of 32·n, and F16 for other rows; norms stay F32."""
    sizes = Sizes(1, 96, 2, 1, 48, 50, 64, tied=True)
    by_type = count(sizes, weights_named("q4_k")).by_type
    assert by_type == {
        "Q5_0": (64 + 96 + 48 + 48 + 96 + 50 + 50) * 96 * 22 // 32,
        "F16": 96 * 50 * 2,
        "F32": 96 * 3 * 4,
    }


@pytest.mark.parametrize("name", ["i8", "q8_k", "q4", "", "int5", "q4_k_m_x"])
def test_unknown_weights(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"weights is .*; allowed: a GGUF type, q4_k_m, int4, int8 or int4-g32"):
        weights_named(name)


# --- presets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes", "tokens", "mebibytes"),
    [
        ("llama-2-7b", (32, 32, 128), 4096, 2048),
        ("qwen2.5-3b", (36, 2, 128), 4096, 144),
        ("qwen2.5-coder-3b", (36, 2, 128), 4096, 144),
        ("qwen2.5-1.5b", (28, 2, 128), 8192, 224),
    ],
)
def test_caches_of_known_models(name: str, sizes: tuple[int, int, int], tokens: int, mebibytes: int) -> None:
    """Layers, heads of keys and their size; and what they make of a context."""
    shape = read_shape(name)
    assert (shape.layers, shape.kv_heads, shape.head_size_k) == sizes and shape.head_size_v == shape.head_size_k
    assert cache_bytes(shape, tokens) == mebibytes << 20


def test_a_preset_with_weights() -> None:
    shape, plain = read_shape("llama-3.2-3b@q4_k_m"), read_shape(" Llama-3.2-3B ")
    assert (shape.name, plain.name) == ("llama-3.2-3b q4_k_m", "llama-3.2-3b q4_0")
    assert set(shape.quantization) == {"Q4_K", "Q6_K", "F32"} and set(plain.quantization) == {"Q4_0", "F32"}
    assert plain.weight_bytes == plain.file_bytes == sum(plain.quantization.values())
    assert (shape.embedding_bytes, shape.output_bytes) == (128256 * 3072 * 210 // 256, 0)
    assert (shape.source, shape.state_bytes, shape.recurrent, shape.chat_template) == ("description", 0, False, None)


def test_a_separate_output_matrix() -> None:
    shape = read_shape("llama-2-7b@q4_k_m")
    assert (shape.embedding_bytes, shape.output_bytes) == (32000 * 4096 * 144 // 256, 32000 * 4096 * 210 // 256)


def test_windows_of_presets() -> None:
    shape = read_shape("gemma3-1b")
    assert shape.windows == ((512,) * 5 + (None,)) * 4 + (512, 512)
    assert shape.sliding_window == 512
    assert read_shape("mistral-7b").windows == read_shape("llama-2-7b").windows == ()


def test_all_presets_can_be_read() -> None:
    for name in preset_names():
        shape = read_shape(f"{name}@int4")
        assert shape.weight_bytes == -(-shape.parameters // 2)
        assert len(shape.kv_heads_by_layer) == shape.layers and shape.context_length >= 2048


def test_a_catalogue_model_before_its_download(empty_cache: Path) -> None:
    """Its weights count as its whole file, whose size is known; with weights named it is a preset like others."""
    for name, model in CATALOGUE.items():
        shape = read_shape(name)
        assert (shape.name, shape.weight_bytes, shape.file_bytes, shape.source) == (
            name,
            model.size,
            model.size,
            "description",
        )
        assert read_shape(f"{name}@f16").weight_bytes > model.size


def test_a_catalogue_model_that_is_there(smollm2: Path) -> None:
    shape, preset = read_shape("smollm2-135m"), read_shape("smollm2-135m@q4_1")
    assert (shape.source, shape.file_bytes) == ("gguf", smollm2.stat().st_size)
    for field in ("layers", "heads", "kv_heads_by_layer", "head_size_k", "feed_forward_length", "vocab_size"):
        assert getattr(shape, field) == getattr(preset, field)
    assert (shape.parameters, shape.context_length) == (preset.parameters, preset.context_length)


@pytest.mark.parametrize("spec", ["lama-3.2-3b", "lama-3.2-3b@q4_0", "llama", "", "x" * 5000])
def test_unknown_names(spec: str) -> None:
    with pytest.raises(UnknownName) as caught:
        read_shape(spec)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 1200 and "qwen3-0.6b" in message
    assert ("did you mean llama-3.2-3b" in message) == ("3b" in spec)


# --- descriptions ------------------------------------------------------------------------------------------


def test_a_described_model() -> None:
    spec = "params=7B,layers=32,hidden=4096,heads=32,kv-heads=8,head-size=128,vocab=32000,tied=no,ctx=2048,weights=int4"
    shape = read_shape(spec)
    assert (shape.weight_bytes, shape.parameters) == (3_500_000_000, 7_000_000_000)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_size_k) == (32, 32, 8, 128)
    assert (shape.embedding_length, shape.vocab_size, shape.context_length) == (4096, 32000, 2048)
    assert (shape.name, shape.source, dict(shape.quantization)) == ("7B int4", "description", {"INT4": 3_500_000_000})
    counted = parameters(Sizes(32, 4096, 32, 8, 128, shape.feed_forward_length, 32000, tied=False))
    assert counted == pytest.approx(7e9, rel=1e-4)


def test_options_and_text_say_the_same() -> None:
    text = read_shape("Layers = 16, HIDDEN=2048, kv_heads=8, weights=Q8_0 ,params=1.2b")
    assert text == describe({"params": "1.2B", "kv-heads": "8", "layers": "16", "hidden": "2048", "weights": "q8_0"})
    assert (text.heads, text.head_size_k, text.vocab_size, text.context_length) == (16, 128, 32000, 131072)
    assert text.weight_bytes == 1_200_000_000 * 34 // 32


def test_without_a_number_of_parameters_tensors_are_counted() -> None:
    shape = describe({"layers": "32", "hidden": "4096", "heads": "32", "weights": "f16", "name": "like Llama"})
    assert (shape.parameters, shape.feed_forward_length) == (6_738_415_616, 11008)
    assert (shape.kv_heads, shape.name) == (32, "like Llama")
    assert dict(shape.quantization) == {"F16": 2 * (6_738_415_616 - 65 * 4096), "F32": 4 * 65 * 4096}


@pytest.mark.parametrize(
    ("window", "windows"),
    [
        ("none", ()),
        ("512", (512,) * 6),
        ("512/3", (512, 512, None) * 2),
        ("7/2", (7, None) * 3),
    ],
)
def test_windows_in_words(window: str, windows: tuple[int | None, ...]) -> None:
    assert describe({"layers": "6", "hidden": "256", "heads": "2", "window": window}).windows == windows


@pytest.mark.parametrize(
    ("params", "number"), [("7B", 7 * 10**9), ("0.5b", 5 * 10**8), ("135M", 135 * 10**6), ("6738415616", 6738415616)]
)
def test_numbers_of_parameters(params: str, number: int) -> None:
    values = {"params": params, "layers": "2", "hidden": "512", "heads": "4", "vocab": "1000", "weights": "int8"}
    shape = describe(values)
    assert (shape.parameters, shape.weight_bytes) == (number, number)


def test_odd_bytes_are_rounded_up() -> None:
    values = {"params": "100000001", "layers": "2", "hidden": "512", "heads": "4", "weights": "int4"}
    assert describe(values).weight_bytes == 50_000_001


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("layers=32", "hidden is 'missing'; allowed: a whole number from 1 to 1048576"),
        ("hidden=4096,heads=32", "layers is 'missing'"),
        ("layers=32,hidden=4096", "kv-heads is 'missing'; allowed: a whole number from 1 to 16384 (or give heads)"),
        ("layers=0,hidden=4096,heads=32", "layers is '0'"),
        ("layers=513,hidden=4096,heads=32", "layers is '513'; allowed: a whole number from 1 to 512"),
        ("layers=1e3,hidden=4096,heads=32", "layers is '1e3'"),
        ("layers=٣,hidden=4096,heads=32", "layers is"),
        ("layers=2,hidden=100,kv-heads=2", "heads is 'missing'; allowed: must be given where hidden, 100"),
        ("layers=2,hidden=100,heads=3", "head-size is 'missing'; allowed: must be given where hidden, 100"),
        ("layers=2,hidden=4096,heads=32,kv-heads=5", "kv-heads is '5'; allowed: a divisor of the 32 query heads"),
        ("layers=2,hidden=4096,heads=32,layer=3", "description key is 'layer'; allowed: did you mean layers?"),
        ("layers=2,layers=3", "each key once (this one is given twice)"),
        ("layers=2,hidden", "KEY=VALUE, each key once (this one is without a value)"),
        ("layers=2,hidden=512,heads=4,tied=maybe", "tied is 'maybe'"),
        ("layers=2,hidden=512,heads=4,window=-1", "window is '-1'"),
        ("layers=2,hidden=512,heads=4,window=5/1", "window is '5/1'"),
        ("layers=2,hidden=512,heads=4,params=many", "params is 'many'; allowed: a number up to 10T"),
        ("layers=2,hidden=512,heads=4,params=0", "params is '0'"),
        ("layers=2,hidden=512,heads=4,weights=q5", "weights is 'q5'"),
        ("layers=32,hidden=4096,heads=32,params=1B", "params is '1B'; allowed: more than the 2.41B that attention"),
        ("layers=1,hidden=8,heads=1,params=9T", "params is '9T'; allowed: fewer (the feed-forward would be"),
        (
            "layers=32,hidden=4096,heads=32,params=8B,ffn=11008,vocab=32000",
            "params is '8B'; allowed: about the 6.74B that the given layers, sizes and vocab have",
        ),
        ("layers=" + "9" * 10_000 + ",hidden=1,heads=1", "layers is"),
    ],
)
def test_descriptions_that_cannot_be(spec: str, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        read_shape(spec)
    assert words in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_parameters_within_a_tenth_are_believed() -> None:
    shape = read_shape("layers=32,hidden=4096,heads=32,params=7B,ffn=11008,vocab=32000,weights=int8")
    assert (shape.parameters, shape.weight_bytes) == (7 * 10**9, 7 * 10**9)
