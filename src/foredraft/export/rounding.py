"""Rounds weights to 4 bits so that little is lost: scales by search, weighted by what enters the layer, after moving
scale from the columns that matter into the operation before. Costs nothing at run time: same kernels, same bytes.

Knows nothing about texts or files. Shapes: groups of ``group`` columns of a row share one scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torchao.quantization import IntxUnpackedToInt8Tensor

from foredraft.errors import InvalidValue
from foredraft.export.program import FixedLinear, Layer, Program

Importance = Mapping[str, Tensor]
"""By a linear layer's name: the mean square of each of its inputs, float32[columns]."""
LOW, HIGH = -8, 7
_DIVISORS = (5.75, 6.5, 7.0, 7.5, 8.0, 8.5, 9.25)
"""Tried scales are a group's largest magnitude divided by these; 7 and 8 are the ends of the range."""
_SMALLEST = 2.0**-60
"""XNNPACK refuses scales that are negative, zero or denormal, so a group of zeros has this one."""
_FLOOR = 1e-6
"""Of the mean importance: a column that was never used still counts a little."""
_PIECE = 1 << 17
"""Weights searched at once: they and two copies fit into a core's cache."""


def best_scales(weight: Tensor, group: int, importance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """weight [rows, columns] -> values int8[rows, columns] in -8..7, scales float32[rows, columns / group].

    Minimizes Σ importance · (value · scale − weight)² in each group: over a grid of scales, then with the scale that is
    best for the values found (linear least squares). Scales are positive and exact in bfloat16, as XNNPACK stores them.
    ``importance`` float32[columns]; None = all alike. InvalidValue if ``group`` does not divide the columns.
    """
    rows, columns = weight.shape
    if columns % group:
        raise InvalidValue("group", group, f"a divisor of the layer's {columns} columns")
    weights = _weights(torch.ones(columns) if importance is None else importance).view(-1, 1, group)
    values = torch.empty(rows, columns, dtype=torch.int8)
    scales = torch.empty(rows, columns // group)
    for start in range(0, rows, step := max(16, _PIECE // columns)):
        piece = slice(start, start + step)
        x = weight[piece].detach().float().t().contiguous().view(columns // group, group, -1)
        scale = _search(x, weights)
        values[piece] = _rounded(x, scale).view(columns, -1).t()
        scales[piece] = scale[:, 0].t()
    return values, scales


def _weights(importance: Tensor) -> Tensor:
    floor = max(float(importance.mean()) * _FLOOR, 1e-30)
    return importance.float().clamp_min(floor)


def _search(x: Tensor, weights: Tensor) -> Tensor:
    """x [groups, group, rows], weights [groups, 1, group] -> the best scales [groups, 1, rows]."""
    largest = x.abs().amax(1, keepdim=True)
    scale, error = _exact(largest / _DIVISORS[0]), torch.full_like(largest, torch.inf)
    for divisor in _DIVISORS:
        scale, error = _better(x, weights, (scale, error), largest / divisor)
    q = _rounded(x, scale)
    fitted = torch.bmm(weights, q * x) / torch.bmm(weights, q * q).clamp_min(1e-30)
    return _better(x, weights, (scale, error), fitted)[0]


def _better(x: Tensor, weights: Tensor, best: tuple[Tensor, Tensor], tried: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and errors, each the better one of ``best`` and ``tried``."""
    tried = _exact(tried)
    scaled = x / tried
    off = torch.round(scaled).clamp_(LOW, HIGH).sub_(scaled).square_()
    error = torch.bmm(weights, off) * tried * tried
    wins = error < best[1]
    return torch.where(wins, tried, best[0]), torch.where(wins, error, best[1])


def _exact(scale: Tensor) -> Tensor:
    """The nearest scale that XNNPACK can store."""
    return scale.bfloat16().float().clamp_min_(_SMALLEST)


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    return torch.round(x / scale).clamp_(LOW, HIGH)


def quantize_int4(
    program: nn.Module, chosen: Callable[[nn.Module, str], bool], group: int, importance: Importance | None = None
) -> None:
    """Replace the weights of the ``chosen`` linear layers by int4 with ``best_scales``; activations are quantized to
    int8 per token at run time, as torchao's ``Int8DynamicActivationIntxWeightConfig`` does it; in place.

    A layer that ``importance`` lacks is rounded without it.
    """
    importance = importance or {}
    for name, module in program.named_modules():
        if chosen(module, name):
            with _one_thread():  # the pieces are too small to share, and waiting for each other costs minutes
                values, scales = best_scales(module.weight, group, importance.get(name))
            weight = IntxUnpackedToInt8Tensor(
                qdata=values,
                scale=scales,
                zero_point=torch.zeros_like(scales, dtype=torch.int8),
                target_dtype=torch.int4,
                block_size=(1, group),
                dtype=torch.float32,
                activation_quantization="int8_asym_per_token",
            )
            module.weight = nn.Parameter(weight, requires_grad=False)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def observed(program: nn.Module) -> Iterator[dict[str, Tensor]]:
    """While the block runs ``program`` on some text, fills the ``Importance`` that it gives."""
    means: dict[str, Tensor] = {}
    counts: dict[str, int] = {}

    def watcher(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def watch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].detach().float().flatten(0, -2)
            counts[name] = counts.get(name, 0) + len(x)
            mean = means.setdefault(name, torch.zeros(x.shape[-1]))
            mean += (x.square().sum(0) - len(x) * mean) / counts[name]

        return watch

    layers = [(name, module) for name, module in program.named_modules() if _is_product(module)]
    handles = [module.register_forward_pre_hook(watcher(name)) for name, module in layers]
    try:
        yield means
    finally:
        for handle in handles:
            handle.remove()


def _is_product(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and not isinstance(module, FixedLinear)


def balance(program: Program, importance: Importance, power: float = 0.25) -> dict[str, Tensor]:
    """Multiply the columns that matter and divide the operation before by the same factors, so that the function stays
    and rounding hurts less (activation-aware scaling, arXiv 2306.00978, section 3.2); gives the new importance.

    The factor of a column is its root mean square to the ``power``; a layer pairs with its norm, ``down`` with ``up``,
    ``out`` with the values. Before quantization; weights are replaced, not changed, so a decoder that shares them
    stays as it is.
    """
    result = dict(importance)
    for index, layer in enumerate(program.layers):
        _balance_layer(layer, f"layers.{index}.", result, power)
    factors = _factors(result["head"], power)
    _divide(program.norm, factors)
    _multiply(program, "head", factors, result)
    return result


def _balance_layer(layer: Layer, prefix: str, importance: dict[str, Tensor], power: float) -> None:
    """The four places of one layer at which a factor can move."""
    config = layer.config
    for norm, names in ((layer.norm, ("qkv",)), (layer.ffn_norm, ("gate", "up"))):
        factors = _factors(importance[prefix + names[0]], power)
        _divide(norm, factors)
        for name in names:
            _multiply(layer, name, factors, importance, prefix)
    factors = _factors(importance[prefix + "down"], power)
    _divide(layer.up, factors)
    _multiply(layer, "down", factors, importance, prefix)
    by_head = importance[prefix + "out"].view(config.kv_heads, -1, config.head_dim)
    factors = _factors(by_head.mean(1), power)  # one for all query heads that read a value
    untouched = torch.ones((config.heads + config.kv_heads) * config.head_dim)
    _divide(layer.qkv, torch.cat([untouched, factors.flatten()]))
    _multiply(layer, "out", factors[:, None].expand_as(by_head).flatten(), importance, prefix)


def _factors(importance: Tensor, power: float) -> Tensor:
    """Same shape; the product of the largest and the smallest is 1."""
    factors = _weights(importance) ** (power / 2)
    return factors / (factors.max() * factors.min()).sqrt()


def _divide(module: nn.Module, factors: Tensor) -> None:
    """The outputs of a norm or a linear layer."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        shape = (-1, 1) if parameter.dim() == 2 else (-1,)
        setattr(module, name, nn.Parameter(parameter.detach() / factors.view(shape), requires_grad=False))


def _multiply(owner: nn.Module, name: str, factors: Tensor, importance: dict[str, Tensor], prefix: str = "") -> None:
    """The columns of linear layer ``name``; its inputs become as much smaller."""
    layer = getattr(owner, name)
    layer.weight = nn.Parameter(layer.weight.detach() * factors, requires_grad=False)
    importance[prefix + name] = importance[prefix + name] / factors.square()
