"""Rounding to 4 bits: what is found, what is promised, and that the program stays the same function."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from foredraft.errors import InvalidValue
from foredraft.models.config import DecoderConfig, Rope
from foredraft.models.decoder import Decoder

with warnings.catch_warnings():  # ExecuTorch and torchao use what Python and torch have deprecated
    warnings.simplefilter("ignore")
    import executorch.kernels.quantized  # noqa: F401
    from executorch.runtime import Runtime, Verification
    from torchao.quantization import IntxUnpackedToInt8Tensor, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

    from foredraft.export import lower
    from foredraft.export.program import FixedLinear, Program, ProgramSpec
    from foredraft.export.rounding import balance, best_scales, observed, quantize_int4

LLAMA = DecoderConfig(
    architecture="llama",
    vocab_size=96,
    hidden_size=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn_size=96,
    context_length=64,
    norm_eps=1e-5,
    rope=Rope(10000.0),
    tied=True,
    query_scale=0.25,
)
QWEN2 = replace(LLAMA, architecture="qwen2", qkv_bias=True, tied=False)
GEMMA3 = replace(
    LLAMA, architecture="gemma3", activation="gelu_tanh", qk_norm=True, post_norms=True, window=4, local=(True, False)
)
IDS = torch.arange(20) * 7 % 96


def make_decoder(config: DecoderConfig) -> Decoder:
    """Random, always the same; some channels are much larger than others, as in trained models."""
    torch.manual_seed(0)
    decoder = Decoder(config)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            size = parameter.shape[-1] if "embedding" not in name else 4
            parameter.normal_(0.0, size**-0.5)
            if "norm" in name:
                parameter.copy_(torch.exp(parameter * 10.0))
    decoder.eval()
    return decoder


def make_program(config: DecoderConfig = LLAMA) -> Program:
    return Program(make_decoder(config), ProgramSpec(context=64, embedding_bits=8))


def inputs(program: Program, ids: Tensor) -> tuple[object, ...]:
    config, count = program.config, len(ids)
    at = torch.arange(count)
    back = at[:, None] - at[None]
    windows = (count, config.window or count) if program.windowed else (count,)
    masks = [torch.where((back >= 0) & (back < window), 0.0, -1e9) for window in windows]
    caches = [torch.zeros(config.kv_heads, count, config.head_dim) for _ in range(2 * config.layers)]
    return (ids, at, at, at), masks, torch.ones(config.kv_heads, count, 1), caches


def run(program: Program, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        logits: Tensor = program(*inputs(program, ids))[0]
    return logits


def is_inner(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and not isinstance(module, FixedLinear) and name != "head"


def restored(values: Tensor, scales: Tensor) -> Tensor:
    return values * scales.repeat_interleave(values.shape[1] // scales.shape[1], 1)


def skewed(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Weights, and an importance that spans five orders of magnitude."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=random), torch.randn(columns, generator=random).mul(3).exp()


def weighted_error(weight: Tensor, found: tuple[Tensor, Tensor], importance: Tensor) -> float:
    return float(((restored(*found) - weight).square() * importance).sum())


@given(st.integers(1, 70), st.sampled_from([(32, 32), (96, 32), (128, 64)]), st.floats(-20, 20), st.integers(0, 9))
def test_values_and_scales_are_what_xnnpack_stores(rows: int, shape: tuple[int, int], size: float, seed: int) -> None:
    columns, group = shape
    weight = skewed(rows, columns, seed)[0] * 10.0**size
    values, scales = best_scales(weight, group)
    assert values.dtype == torch.int8 and values.shape == (rows, columns)
    assert scales.dtype == torch.float32 and scales.shape == (rows, columns // group)
    assert int(values.min()) >= -8 and int(values.max()) <= 7
    assert torch.equal(scales, scales.bfloat16().float()) and bool((scales > 2.0**-100).all())
    if size > -10:
        assert (restored(values, scales) - weight).norm() < 0.15 * weight.norm()


@given(st.integers(0, 30), st.sampled_from([-8, 7]), st.floats(-3, 3))
def test_weights_already_on_such_a_grid_come_back_exactly(seed: int, extreme: int, size: float) -> None:
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(-7, 8, (5, 64), generator=random).to(torch.int8)
    values[:, 0::32] = extreme
    scales = (torch.rand(5, 2, generator=random) + 0.5).mul(10**size).bfloat16().float()
    found = best_scales(restored(values, scales), 32)
    assert torch.equal(found[0], values) and torch.equal(found[1], scales)


def test_many_rows_are_searched_as_one_row_is() -> None:
    weight, importance = skewed(3000, 64)
    values, scales = best_scales(weight, 32, importance)
    for row in (0, 1, 2047, 2048, 2999):
        alone = best_scales(weight[row : row + 1], 32, importance)
        assert torch.equal(alone[0][0], values[row])
        assert torch.equal(alone[1][0], scales[row])


def test_errors_are_smaller_than_with_the_largest_value_at_the_end_of_the_range() -> None:
    weight, importance = skewed(64, 256)
    ends = (weight.view(64, 8, 32).abs().amax(-1) / 7.5).bfloat16().float()
    plain = (weight / ends.repeat_interleave(32, 1)).round().clamp(-8, 7), ends
    flat, weighted = best_scales(weight, 32), best_scales(weight, 32, importance)
    ones = torch.ones(256)
    assert weighted_error(weight, flat, ones) < 0.9 * weighted_error(weight, plain, ones)
    assert weighted_error(weight, weighted, importance) < 0.6 * weighted_error(weight, flat, importance)
    assert weighted_error(weight, weighted, ones) > weighted_error(weight, flat, ones)


def test_no_other_scale_is_much_better() -> None:
    weight, importance = skewed(500, 32)
    importance = importance ** (1 / 3)
    found = best_scales(weight, 32, importance)
    tried = []
    for divisor in torch.linspace(3, 14, 400):
        scales = weight.abs().amax(1, keepdim=True) / divisor
        values = (weight / scales).round().clamp(-8, 7)
        tried.append(((values * scales - weight).square() * importance).sum(1))
    best = torch.stack(tried).amin(0).sum()
    assert weighted_error(weight, found, importance) < 1.05 * float(best)


def test_zeros_and_columns_never_used() -> None:
    weight, _ = skewed(4, 64)
    weight[1, :32] = 0.0
    values, scales = best_scales(weight, 32, torch.zeros(64))
    assert torch.equal(values[1, :32], torch.zeros(32, dtype=torch.int8)) and float(scales[1, 0]) > 0
    flat = best_scales(weight, 32)
    assert torch.equal(flat[0], values) and torch.equal(flat[1], scales)
    half = torch.ones(64)
    half[16:32] = 0.0
    values, scales = best_scales(weight, 32, half)
    off = (restored(values, scales) - weight).abs()
    assert off[:, 16:32].max() < weight.abs().max()


def test_a_group_that_does_not_divide_the_columns() -> None:
    with pytest.raises(InvalidValue, match="group is 32; allowed: a divisor of the layer's 80 columns"):
        best_scales(torch.ones(2, 80), 32)


def test_the_weights_have_the_form_that_torchao_gives_them() -> None:
    ours, theirs = make_program(), make_program()
    quantize_int4(ours, is_inner, 32)
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
    quantize_(theirs, config, is_inner)
    for name, module in theirs.named_modules():
        if is_inner(module, name):
            left, right = ours.get_submodule(name).weight, module.weight
            assert isinstance(left, IntxUnpackedToInt8Tensor)
            for field in ("qdata", "scale", "zero_point"):
                mine, other = getattr(left, field), getattr(right, field)
                assert mine.dtype == other.dtype and mine.shape == other.shape
            for field in ("target_dtype", "block_size", "dtype", "activation_quantization", "requires_grad"):
                assert getattr(left, field) == getattr(right, field)
    assert type(ours.head.weight) is nn.Parameter


@pytest.mark.parametrize("config", [LLAMA, QWEN2, GEMMA3], ids=lambda c: c.architecture)
def test_balancing_keeps_the_function_and_the_decoder(config: DecoderConfig) -> None:
    decoder = make_decoder(config)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    program = Program(decoder, ProgramSpec(context=64, taps=(0,), embedding_bits=8))
    with observed(program) as importance:
        expected = run(program)
    found = balance(program, importance)
    assert torch.allclose(run(program), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    with observed(program) as again:
        run(program)
    assert found.keys() == again.keys()
    assert all(torch.allclose(found[name], again[name], rtol=1e-3) for name in found)
    spread = {name: float(value.max() / value.min()) for name, value in importance.items()}
    inner = [name for name in spread if not name.endswith("out")]
    assert all(float(found[name].max() / found[name].min()) < spread[name] for name in inner)
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())


def test_what_is_observed() -> None:
    program = make_program()
    seen: list[Tensor] = []
    handle = program.layers[1].down.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    with observed(program) as importance:
        run(program, IDS[:3])
        run(program, IDS)
    products = [name for name, module in program.named_modules() if is_inner(module, name) or name == "head"]
    assert sorted(importance) == sorted(products)
    assert torch.allclose(importance["layers.1.down"], torch.cat(seen).square().mean(0), rtol=1e-4)
    before = {name: value.clone() for name, value in importance.items()}
    handle.remove()
    run(program)
    assert all(torch.equal(before[name], value) for name, value in importance.items())


@pytest.mark.parametrize("config", [LLAMA, QWEN2, GEMMA3], ids=lambda c: c.architecture)
def test_importance_and_balancing_each_make_outputs_more_precise(config: DecoderConfig) -> None:
    def off(*, weighted: bool, balanced: bool) -> float:
        """Expected squared error of an output in units of its mean square, inputs taken as uncorrelated."""
        program = make_program(config)
        with observed(program) as importance:
            run(program)
        used = balance(program, importance) if balanced else importance
        weights = {name: module.weight for name, module in program.named_modules() if is_inner(module, name)}
        quantize_int4(program, is_inner, 32, used if weighted else None)
        errors = []
        for name, weight in weights.items():
            difference = program.get_submodule(name).weight.dequantize() - weight
            errors.append((difference.square() @ used[name] / (weight.square() @ used[name])).mean())
        return float(torch.stack(errors).mean())

    plain, weighted = off(weighted=False, balanced=False), off(weighted=True, balanced=False)
    assert weighted < 0.95 * plain
    assert off(weighted=True, balanced=True) < 0.95 * weighted


def test_the_lowered_program_runs_and_agrees(tmp_path: Path) -> None:
    def lowered(program: Program, name: str) -> Path:
        path = tmp_path / name
        path.write_bytes(lower.lower({lower.FORWARD: lower.export(program, lower.Sizes(32, 32, 256))}).buffer)
        return path

    ours, plain = make_program(QWEN2), make_program(QWEN2)
    with lower.quiet():
        with observed(ours) as importance:
            run(ours)
        quantize_int4(ours, is_inner, 32, balance(ours, importance))
        quantize_int4(plain, is_inner, 32)
        path = lowered(ours, "ours.pte")
        assert path.stat().st_size == lowered(plain, "plain.pte").stat().st_size
    method = Runtime.get().load_program(path, verification=Verification.Minimal).load_method("forward")
    fed, masks, ones, caches = inputs(ours, IDS)
    rows = torch.as_tensor(method._method.call([*fed, *masks, ones, *caches], False)[-1])  # type: ignore[misc]
    expected = run(ours)
    assert float((rows - expected).norm() / expected.norm()) < 1e-3  # scales are the same to the last bit
