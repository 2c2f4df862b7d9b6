"""Golden sizes of caches, the reference budget of articles, and what every line of a plan must say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft.errors import InvalidValue
from foredraft.memory import (
    APP,
    HERE,
    KV_TYPES,
    Member,
    Use,
    cache_bytes,
    draft_use,
    head_shape,
    kv_bytes_per_token,
    model_lines,
    plan_memory,
    runtime_for,
    size,
)
from foredraft.modelfile import ModelShape
from foredraft.shapes import read_shape

MIB = 1 << 20
LLAMA = APP["llama_cpp"]


@pytest.mark.parametrize(
    ("model", "context", "mebibytes"),
    [
        ("llama-2-7b", 4096, 2048),  # log of llama.cpp, llmaz#402
        ("qwen2.5-3b", 4096, 144),  # llama.cpp#10547
        ("qwen2.5-1.5b", 8192, 224),  # llama.cpp#10664
        ("gemma3-270m", 2048, 36),  # llama.cpp with a full cache for all layers, as foredraft's engine keeps it
    ],
)
def test_caches_are_those_that_llama_cpp_reports(model: str, context: int, mebibytes: int) -> None:
    assert cache_bytes(read_shape(model), Use(context), 256) == mebibytes * MIB


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("qwen2.5-0.5b", 12288),
        ("qwen2.5-7b", 57344),
        ("llama-3.2-1b", 32768),
        ("llama-3.2-3b", 114688),
        ("smollm2-135m", 23040),
        ("smollm2-1.7b", 196608),
    ],
)
def test_bytes_of_one_token(model: str, expected: int) -> None:
    assert kv_bytes_per_token(read_shape(model)) == expected


@pytest.mark.parametrize(("kind", "bits"), [("f32", 32.0), ("f16", 16.0), ("q8_0", 8.5), ("q5_1", 6.0), ("q4_0", 4.5)])
def test_smaller_types_take_their_bits(kind: str, bits: float) -> None:
    shape = read_shape("llama-2-7b")
    elements = 2 * 32 * 32 * 128 * 512
    assert cache_bytes(shape, Use(512, kind)) == elements * bits / 8
    assert kind in KV_TYPES


def test_the_budget_of_articles() -> None:
    """1B INT4 0.5 GB + 0.1 GB KV and 7B INT4 3.5 GB + 0.4 GB KV at 2K, together 4.5 GB. Weights at exactly 4 bits.
    Caches of .1 and .4 GB come out with a KV head for every query head and 6 bits an element (q5_1), or with 12 KV
    heads at f16; with 8 KV heads, as today's models have, f16 takes .067 and .268 GB."""
    target = read_shape("params=7B,layers=32,hidden=4096,heads=32,kv-heads=32,weights=int4")
    draft = read_shape("params=1B,layers=16,hidden=2048,heads=32,kv-heads=32,head-size=64,weights=int4")
    assert (target.weight_bytes, draft.weight_bytes) == (3_500_000_000, 500_000_000)
    use = Use(2048, "q5_1")
    caches = [cache_bytes(shape, use) for shape in (target, draft)]
    assert [round(nbytes / 1e9, 2) for nbytes in caches] == [0.40, 0.10]
    assert round((sum(caches) + 4e9) / 1e9, 1) == 4.5
    twelve = [replace(shape, kv_heads_by_layer=(12,) * shape.layers) for shape in (target, draft)]
    assert [round(cache_bytes(shape, Use(2048)) / 1e9, 2) for shape in twelve] == [0.40, 0.10]
    grouped = [replace(shape, kv_heads_by_layer=(8,) * shape.layers) for shape in (target, draft)]
    assert [round(cache_bytes(shape, Use(2048)) / 1e9, 3) for shape in grouped] == [0.268, 0.067]


def test_windows_cut_the_cache_only_where_the_runtime_cuts_it() -> None:
    shape = read_shape("gemma3-1b")
    use = Use(8192, chunk=512)
    whole, cut = cache_bytes(shape, use, 256), cache_bytes(shape, replace(use, windows=True), 256)
    seeing_all = sum(window is None for window in shape.windows)
    one = whole // shape.layers
    assert cut == seeing_all * one + (shape.layers - seeing_all) * one * 1024 // 8192
    assert 0 < seeing_all < shape.layers
    small = Use(256, chunk=512)
    assert cache_bytes(shape, replace(small, windows=True), 256) == cache_bytes(shape, small, 256)


def lines(shape: ModelShape, use: Use, runtime: str = "llama_cpp") -> dict[str, int]:
    return {line.name: line.nbytes for line in model_lines(shape, use, runtime_for(runtime), "target")}


@pytest.mark.parametrize(
    ("model", "context", "chunk", "rows", "reported"),
    [  # MiB as llama.cpp reports them (llama-cpp-python 0.3.36, flash attention, one sequence or 64)
        ("smollm2-135m", 512, 512, 64, 14.01),
        ("smollm2-135m", 2048, 512, 64, 15.51),
        ("smollm2-135m", 8192, 512, 64, 21.51),
        ("smollm2-135m", 32768, 512, 64, 45.51),
        ("smollm2-135m", 2048, 128, 64, 12.81),
        ("smollm2-135m", 2048, 512, 512, 102.51),
        ("qwen2.5-1.5b", 512, 512, 64, 65.01),
        ("qwen2.5-1.5b", 8192, 512, 64, 72.51),
        ("qwen2.5-1.5b", 2048, 64, 64, 37.84),
        ("qwen2.5-1.5b", 2048, 512, 512, 302.75),
        ("qwen2.5-0.5b", 512, 512, 64, 39.28),
        ("qwen2.5-0.5b", 8192, 512, 64, 43.51),
        ("gemma3-270m", 2048, 512, 64, 65.41),
        ("gemma3-270m", 32768, 512, 64, 81.77),
    ],
)
def test_compute_buffers_are_those_that_llama_cpp_reports(
    model: str, context: int, chunk: int, rows: int, reported: float
) -> None:
    found = lines(read_shape(model), Use(context, chunk=chunk, rows=rows))["compute buffer"] / MIB
    assert found == pytest.approx(reported, abs=5.0)


def test_every_line_says_how_and_whence() -> None:
    target, draft = read_shape("qwen2.5-1.5b@q4_k_m"), read_shape("qwen2.5-0.5b@q4_k_m")
    use = Use(2048, rows=16)
    plan = plan_memory(Member(target, use, LLAMA), [Member(draft, draft_use(use), LLAMA)], 100 * MIB)
    assert all(line.formula and line.source and line.nbytes > 0 for line in plan.lines)
    assert {line.part for line in plan.lines} == {"target", "draft", "app"}
    assert plan.total == sum(line.nbytes for line in plan.lines) == plan.dirty + plan.mapped
    assert plan.mapped == target.weight_bytes + draft.weight_bytes
    assert plan.of(part="draft", name="weights") == draft.weight_bytes
    assert plan.as_json()["total"] == plan.total
    assert sum(line.name.startswith("runtime") for line in plan.lines) == 1


def test_two_runtimes_have_two_bases() -> None:
    shape = read_shape("qwen2.5-0.5b")
    members = Member(shape, Use(512, "f32"), HERE["executorch"]), Member(shape, Use(512), HERE["llama_cpp"])
    plan = plan_memory(members[0], [members[1]])
    assert plan.of(part="app") == HERE["executorch"].base + HERE["llama_cpp"].base


def test_packed_weights_are_dirty() -> None:
    shape = read_shape("smollm2-135m")
    kinds = {line.name: line.kind for line in model_lines(shape, Use(512, "f32"), APP["executorch"], "target")}
    assert kinds["weights"] == "dirty"
    assert lines(replace(shape, arena_bytes=77), Use(512, "f32"), "executorch")["compute buffer"] == 77


def test_several_requests_have_caches_of_their_own() -> None:
    shape = read_shape("qwen2.5-0.5b")
    assert cache_bytes(shape, Use(1024, sequences=3)) == 3 * cache_bytes(shape, Use(1024))


def test_a_recurrent_model_keeps_a_snapshot() -> None:
    shape = replace(read_shape("qwen2.5-0.5b"), recurrent=True, state_bytes=1000)
    assert lines(shape, Use(512, sequences=2))["recurrent state"] == 4000
    assert "recurrent state" not in lines(replace(shape, state_bytes=None), Use(512))


def test_the_head_shares_the_target() -> None:
    """Counted by hand for Qwen2.5 1.5B: 3·1536² + 2·1536·1536 + 4·1536·256 + 1536² + 3·1536·8960 elements."""
    target = read_shape("qwen2.5-1.5b")
    head = head_shape(target)
    assert head.parameters == 3 * 1536**2 + 2 * 1536**2 + 4 * 1536 * 256 + 1536**2 + 3 * 1536 * 8960
    assert head.weight_bytes == head.parameters * 4.5 / 8
    assert kv_bytes_per_token(head) == kv_bytes_per_token(target) // target.layers
    assert head_shape(replace(target, feed_forward_length=0)).parameters > head.parameters // 2


def test_refusals() -> None:
    shape = read_shape("qwen2.5-0.5b")
    with pytest.raises(InvalidValue, match=r"type of keys and values.*f32 with executorch"):
        lines(shape, Use(512), "executorch")
    with pytest.raises(InvalidValue, match=r"type of keys and values.*'f8'.*f32, f16, q8_0, q5_1, q4_0"):
        Use(512, "f8")
    with pytest.raises(InvalidValue, match="context"):
        Use(0)
    with pytest.raises(InvalidValue, match="llama_cpp, executorch"):
        runtime_for("mlx")


def test_sizes_in_words_are_powers_of_two() -> None:
    assert [size(nbytes) for nbytes in (0, 1 << 20, 15 << 20, 1 << 30, -(3 << 20))] == [
        "0 MiB",
        "1.0 MiB",
        "15 MiB",
        "1.00 GiB",
        "-3.0 MiB",
    ]


def test_layers_of_different_kinds() -> None:
    """A layer without attention keeps nothing."""
    shape = replace(read_shape("qwen2.5-0.5b"), layers=3, kv_heads_by_layer=(2, 0, 1), windows=())
    assert cache_bytes(shape, Use(1)) == 3 * (64 + 64) * 2
    text = next(line for line in model_lines(shape, Use(1), LLAMA, "target") if line.name == "keys and values").formula
    assert text.startswith("3 KV heads × (64 + 64) × 256 tokens")
