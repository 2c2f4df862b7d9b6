"""Is a draft head faster with one program call per level, or with several levels in one call?

Builds head programs of the sizes of two real targets with random weights, int4: ``step`` is what an export holds (one
level a call, tokens chosen outside), ``chain`` drafts four levels in one call and chooses greedily inside. Both are
timed in turns. A chain inside one call cannot draw with the target's noise, stop early where the draft is unsure, or
make a tree.

    python benchmarks/head_levels.py --out benchmarks/results/head-levels.json
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foredraft.devices.machine import this_machine
from foredraft.engines.executorch_program import load_runtime
from foredraft.export import lower
from foredraft.export.head_program import FuseProgram, HeadProgram
from foredraft.export.program import QuantizedEmbedding
from foredraft.models.config import DecoderConfig, Rope
from foredraft.models.decoder import Decoder
from foredraft.models.head import DraftHead, HeadConfig

LEVELS, SLOTS, VOCABULARY = 4, 320, 20_000
"""Levels of a chain; slots of the cache in use; tokens of the embedding (lookups cost the same whatever its size)."""


@dataclass(frozen=True)
class Sizes:
    """Of a target and of its head's draft vocabulary."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rows: int


TARGETS = (
    Sizes("SmolLM2-135M", 576, 9, 3, 64, 1536, 10_240),
    Sizes("Qwen2.5-Coder-1.5B", 1536, 12, 2, 128, 8960, 16_384),
)


class Chain(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Four levels of a head program, greedily, in one call."""

    def __init__(self, step: HeadProgram, ids: Tensor) -> None:
        super().__init__()
        self.step = step
        self.config = step.config
        self.register_buffer("ids", ids)

    def forward(
        self, first: tuple[Tensor, Tensor, Tensor], state: Tensor, masks: Tensor, ones: Tensor, caches: list[Tensor]
    ) -> Tensor:
        """first: token, position and slot, int64[1]; masks float32[LEVELS, C] -> tokens int64[LEVELS]."""
        token, position, slot = first
        row, found = torch.zeros(1, dtype=torch.int64), []
        for level in range(LEVELS):
            fed = (token, position + level, slot + level, row)
            logits, state = self.step(fed, state, [masks[level : level + 1]], ones, caches)
            token = self.ids[logits.argmax(-1)]
            found.append(token)
        return torch.cat(found)


def programs(sizes: Sizes, folder: Path) -> None:
    """Write ``step.pte`` and ``chain.pte``."""
    torch.manual_seed(0)
    config = DecoderConfig(
        "llama", VOCABULARY, sizes.hidden, 1, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.ffn, 512, 1e-5,
        Rope(10000.0), False, sizes.head_dim**-0.5,
    )  # fmt: skip
    target = Decoder(config)
    head = DraftHead(HeadConfig.of(config, (0,), sizes.rows)).requires_grad_(False)
    embedding = QuantizedEmbedding(target.embedding.weight, 4, 32)
    step = HeadProgram(head, range(sizes.rows), (target, embedding), 512)
    lower.quantize(step, lower.Precision())
    bounds = lower.Sizes(8, 8, 512)
    exported = lower.export_head(step, FuseProgram(head), bounds)
    with (folder / "step.pte").open("wb") as file:
        lower.lower({"forward": exported[lower.HEAD]}).write_to_file(file)
    chain = Chain(step, torch.arange(sizes.rows))
    caches = [torch.zeros(sizes.kv_heads, 128, sizes.head_dim) for _ in range(2)]
    one = torch.zeros(1, dtype=torch.int64)
    arguments = (
        (one, one.clone(), one.clone()), torch.zeros(1, sizes.hidden), torch.zeros(LEVELS, 128),
        torch.ones(sizes.kv_heads, 128, 1), caches,
    )  # fmt: skip
    slots = torch.export.Dim("slots", min=2, max=512)
    shapes: Any = (({}, {}, {}), {}, {1: slots}, {1: slots}, [{1: slots}] * 2)
    with torch.no_grad():
        traced = torch.export.export(chain.eval(), arguments, dynamic_shapes=shapes, strict=False)
    with (folder / "chain.pte").open("wb") as file:
        lower.lower({"forward": traced}).write_to_file(file)


class Runner:
    """One loaded program and its caches."""

    def __init__(self, path: Path, sizes: Sizes) -> None:
        _, self.runtime = load_runtime()
        self.program = self.runtime._load_program(str(path), program_verification=self.runtime.Verification.Minimal)
        self.method = self.program.load_method("forward")
        self.caches = [torch.zeros(sizes.kv_heads, SLOTS, sizes.head_dim) for _ in range(2)]
        self.ones = torch.ones(sizes.kv_heads, SLOTS, 1)
        self.hidden = sizes.hidden

    def call(self, *inputs: Any) -> list[Any]:
        return self.method.call([*inputs, self.ones, *self.caches], False)  # type: ignore[no-any-return]

    def steps(self) -> float:
        """Seconds of four levels, one call each, with the choice and a new mask in between, as a drafter has them."""
        start = perf_counter()
        state, token = np.zeros((1, self.hidden), np.float32), 1
        for level in range(LEVELS):
            mask = np.full((1, SLOTS), -1e9, np.float32)
            mask[0, : 256 + level] = 0
            at = np.array([256 + level])
            logits, out = self.call(
                *(torch.from_numpy(x) for x in (np.array([token]), at, at.copy(), np.array([0]), state, mask))
            )
            token = int(logits.numpy()[0].argmax())
            state = out.numpy().copy()
        return perf_counter() - start

    def chain(self) -> float:
        """Seconds of one call of four levels."""
        start = perf_counter()
        masks = np.full((LEVELS, SLOTS), -1e9, np.float32)
        for level in range(LEVELS):
            masks[level, : 256 + level] = 0
        at = np.array([256])
        state = np.zeros((1, self.hidden), np.float32)
        self.call(*(torch.from_numpy(x) for x in (np.array([1]), at, at.copy(), state, masks)))
        return perf_counter() - start


def main() -> None:
    """Time both and keep the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=60)
    arguments = parser.parse_args()
    rows = []
    for sizes in TARGETS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with lower.quiet():
                programs(sizes, folder)
            step, chain = Runner(folder / "step.pte", sizes), Runner(folder / "chain.pte", sizes)
            seen: dict[str, list[float]] = {"step": [], "chain": []}
            for run in range(arguments.runs + 5):
                pair = step.steps(), chain.chain()
                if run >= 5:
                    seen["step"].append(pair[0])
                    seen["chain"].append(pair[1])
        middle = {name: median(times) for name, times in seen.items()}
        rows.append(
            {"sizes": asdict(sizes), "seconds": seen, "median": middle, "ratio": middle["step"] / middle["chain"]}
        )
        print(f"{sizes.name}: {LEVELS} calls {1e3 * middle['step']:.2f} ms, one call {1e3 * middle['chain']:.2f} ms")
    document = {"machine": asdict(this_machine()), "python": platform.python_version(), "levels": LEVELS, "rows": rows}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
