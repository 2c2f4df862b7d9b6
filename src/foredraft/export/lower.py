"""torch module -> ExecuTorch program: quantize, export with symbolic sizes, hand everything that can be to XNNPACK.

Knows nothing about files, manifests or tokenizers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.dialects._ops import ops
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.sym_shape_eval_pass import ConstraintBasedSymShapeEvalPass
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx.passes.infra.pass_base import PassResult
from torchao.quantization import quantize_
from torchao.quantization.granularity import PerAxis
from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

from foredraft.export.head_program import FuseProgram, HeadProgram
from foredraft.export.program import FixedLinear, Program
from foredraft.export.rounding import Importance, quantize_int4

WeightType = Literal["int4", "int8", "float32"]
WEIGHT_TYPES: tuple[WeightType, ...] = ("int4", "int8", "float32")


@dataclass(frozen=True, slots=True)
class Precision:
    """Types of the inner matrices and of the output matrix; ``group``: int4 weights of a row that share a scale."""

    weights: WeightType = "int4"
    head: WeightType = "int4"
    group: int = 32


@dataclass(frozen=True, slots=True)
class Sizes:
    """Upper bounds of the symbolic sizes: ``width`` tokens a pass, ``rows`` scored, ``context`` slots."""

    width: int
    rows: int
    context: int


def quantize(program: nn.Module, config: Precision, importance: Importance | None = None) -> None:
    """Replace the weights of all linear layers, in place: int4 in groups of columns (``rounding``), or int8 per row;
    activations are quantized to int8 per token at run time."""
    for kind, chosen in ((config.weights, _is_inner), (config.head, _is_head)):
        if kind == "int4":
            quantize_int4(program, chosen, config.group, importance)
        elif kind == "int8":
            per_row = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int8, weight_granularity=PerAxis(0))
            quantize_(program, per_row, chosen)


def _is_head(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and name == "head"


def _is_inner(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear) and not isinstance(module, FixedLinear) and name != "head"


def export(program: Program, bounds: Sizes) -> ExportedProgram:
    """Trace ``program`` with symbolic N, R and C; the caches are arguments that it changes."""
    config = program.config
    width, rows = Dim("width", min=1, max=bounds.width), Dim("rows", min=1, max=bounds.rows)
    slots = Dim("slots", min=2, max=bounds.context)
    n, r, c = 5, 3, 128  # any sizes that differ
    masks = [torch.zeros(n, c) for _ in range(2 if program.windowed else 1)]  # one object twice would be one input
    count = 2 * config.layers
    caches = [torch.zeros(config.kv_heads, c, config.head_dim) for _ in range(count)]
    tokens = tuple(torch.arange(n) for _ in range(3))
    arguments = ((*tokens, torch.arange(r)), masks, torch.ones(config.kv_heads, c, 1), caches)
    by_token = {0: width}
    shapes = (
        (by_token, by_token, by_token, {0: rows}),
        [{0: width, 1: slots}] * len(masks),
        {1: slots},
        [{1: slots}] * count,
    )
    with torch.no_grad():
        return torch.export.export(program.eval(), arguments, dynamic_shapes=shapes, strict=False)


FORWARD, HEAD, FUSE = "forward", "head", "fuse"
"""Names of a program's methods: the target's pass, and those of a draft head."""


def export_head(head: HeadProgram, fuse: FuseProgram, bounds: Sizes) -> dict[str, ExportedProgram]:
    """Trace the methods of a draft head with symbolic N, R and C."""
    config = head.config
    width, rows = Dim("width", min=1, max=bounds.width), Dim("rows", min=1, max=bounds.rows)
    slots = Dim("slots", min=2, max=bounds.context)
    n, r, c = 5, 3, 128  # any sizes that differ
    tokens = tuple(torch.arange(n) for _ in range(3))
    caches = [torch.zeros(config.kv_heads, c, config.head_dim) for _ in range(2)]
    state = torch.zeros(n, config.hidden_size)
    arguments = ((*tokens, torch.arange(r)), state, [torch.zeros(n, c)], torch.ones(config.kv_heads, c, 1), caches)
    by_token = {0: width}
    shapes = (
        (by_token, by_token, by_token, {0: rows}),
        by_token,
        [{0: width, 1: slots}],
        {1: slots},
        [{1: slots}] * 2,
    )
    states = torch.zeros(n, fuse.parts * config.hidden_size)
    with torch.no_grad():
        return {
            HEAD: torch.export.export(head.eval(), arguments, dynamic_shapes=shapes, strict=False),
            FUSE: torch.export.export(fuse.eval(), (states,), dynamic_shapes=(by_token,), strict=False),
        }


def lower(exported: Mapping[str, ExportedProgram]) -> Any:
    """XNNPACK for all that it takes, the portable operators for the rest; an ``ExecutorchProgramManager`` with a method
    of each name. What methods have in common is in the file once."""
    partitioner = XnnpackPartitioner()
    # Only the pass that this program needs; the full list would walk every one of its ~100 parts 17 times.
    partitioner.delegation_spec = DelegationSpec("XnnpackBackend", [CompileSpec("dqlinear_partitioner", b"")])
    edge = to_edge_transform_and_lower(
        dict(exported),
        transform_passes=[_infer_symbolic_size],
        partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    for name in exported:
        _write_in_place(edge.exported_program(name))
    return edge.to_executorch(
        ExecutorchBackendConfig(
            run_reinplace_pass=True,
            memory_planning_pass=_Planning(alloc_graph_input=False),
            sym_shape_eval_pass=ConstraintBasedSymShapeEvalPass(),
        )
    )


def _infer_symbolic_size(module: torch.fx.GraphModule) -> PassResult:
    """View shapes with one symbolic size get -1 there, which XNNPACK can infer."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target == ops.edge.aten.view_copy.default:
            shape = list(node.args[1])
            symbolic = [i for i, size in enumerate(shape) if not isinstance(size, int)]
            if len(symbolic) == 1 and -1 not in shape:
                shape[symbolic[0]] = -1
                node.args = (node.args[0], shape)
    module.graph.eliminate_dead_code()
    module.recompile()
    return PassResult(module, True)


def _write_in_place(program: ExportedProgram) -> None:
    """Drop the whole-cache copies that functionalization adds behind each write: the write itself is made in place."""
    graph = program.graph_module.graph
    output = graph.output_node()
    results = list(output.args[0])
    for index, spec in enumerate(program.graph_signature.output_specs):
        node = results[index]
        while node.target == ops.edge.aten.copy.default:
            node = node.args[1]
        results[index] = node
        spec.arg.name = node.name
    output.args = (tuple(results),)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


class _Planning(MemoryPlanningPass):
    """Plans memory for intermediate results and the real outputs; the caches are the caller's, and not outputs: a
    runtime would give each output memory of its own, and the rows would go there."""

    def run(self, graph_module: torch.fx.GraphModule, graph_signature: Any = None) -> PassResult:
        """See ``MemoryPlanningPass``."""
        output = graph_module.graph.output_node()
        changed = len(graph_signature.user_inputs_to_mutate)
        output.args = (tuple(output.args[0][changed:]),)
        output.meta["spec"] = output.meta["spec"][changed:]
        graph_module.recompile()
        return super().run(graph_module, graph_signature)


def operators(manager: Any) -> tuple[str, ...]:
    """Names of the operators that a runtime must have beside XNNPACK, such as ``aten::index_put_``."""
    plans = manager.executorch_program.execution_plan
    return tuple(
        sorted({op.name + (f".{op.overload}" if op.overload else "") for plan in plans for op in plan.operators})
    )


def arena(manager: Any) -> int:
    """Bytes of planned memory: intermediate results and outputs at the largest sizes."""
    return int(sum(sum(plan.non_const_buffer_sizes) for plan in manager.executorch_program.execution_plan))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that torch, torchao and ExecuTorch give about themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
