"""Is the memory that `foredraft plan` predicts what this machine then uses?

    python benchmarks/memory.py MODEL [MODEL ...] [--pair TARGET DRAFT] [--contexts 512,2048,8192] [--out FILE]

Every model and pair is opened in a process of its own, with caches of the whole context, reads a prompt in full chunks
and scores a full pass; the peak of its resident memory is set beside the plan. MODEL is a GGUF file or an export.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.measure import write
from foredraft.engines.base import Session
from foredraft.engines.executorch import ExecutorchConfig, ExecutorchEngine
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.manifest import is_export, read_manifest
from foredraft.memory import KV_TYPES, Member, Use, plan_memory, runtime_for, size
from foredraft.shapes import read_shape

THREADS, PROMPT, ROWS = 2, 600, 64
CLOSE_BYTES, CLOSE_SHARE = 50e6, 0.05


def use(paths: list[Path], context: int) -> dict[str, Any]:
    """Open all models, fill what they reserve, and say how much was resident at most."""
    engines: list[ExecutorchEngine | LlamaEngine] = []
    sessions: list[Session] = []
    for path in paths:
        if is_export(path):
            program = ExecutorchEngine(path, ExecutorchConfig(context, THREADS))
            opened = program.open(context)
            for array in opened._caches.arrays if opened._caches is not None else ():
                array[:] = 0.0
            engines.append(program)
            sessions.append(opened)
        else:
            engine = LlamaEngine(path, LlamaConfig(context=context, threads=THREADS))
            engines.append(engine)
            sessions.append(engine.open())
        engines[-1].tokenizer.piece(1)
    for opened_engine, session in zip(engines, sessions, strict=True):
        count = min(PROMPT, context - ROWS)
        tokens = (np.arange(count) % opened_engine.info.vocab_size).astype(np.int32)
        session.extend(tokens, np.arange(-1, count - 1, dtype=np.int32), 1)
        session.keep(range(count))
        session.extend(tokens[:ROWS], np.arange(-1, ROWS - 1, dtype=np.int32), ROWS)
    status = Path("/proc/self/status").read_text("ascii").splitlines()
    return {"peak": next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))}


def predicted(paths: list[Path], context: int) -> dict[str, Any]:
    """The plan of all models in foredraft's own process."""
    members = []
    for path in paths:
        name = "executorch" if is_export(path) else "llama_cpp"
        shape, runtime = read_shape(str(path)), runtime_for(name, here=True)
        chunk, rows = shape.pass_width or 512, shape.pass_rows or ROWS
        members.append(Member(shape, Use(context, runtime.kv_types[0], 1, chunk, rows), runtime))
    assert all(member.use.kv_type in KV_TYPES for member in members)
    return plan_memory(members[0], members[1:]).as_json()


def row(paths: list[Path], context: int) -> dict[str, Any]:
    """Prediction and reality of one setting."""
    plan = predicted(paths, context)
    command = [sys.executable, __file__, "--child", *map(str, paths), "--contexts", str(context)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = json.loads(done.stdout.splitlines()[-1])["peak"]
    off = plan["total"] - peak
    return {
        "models": [path.name for path in paths],
        "context": context,
        "predicted": plan["total"],
        "measured": peak,
        "off": off,
        "close": abs(off) <= max(CLOSE_BYTES, CLOSE_SHARE * peak),
        "lines": [{key: line[key] for key in ("part", "name", "bytes", "kind")} for line in plan["lines"]],
    }


def longest(paths: list[Path]) -> int:
    """The largest context that all of them have."""
    return min(
        read_manifest(path).bounds.context if is_export(path) else read_shape(str(path)).context_length
        for path in paths
    )


def main() -> None:
    """Measure, print, keep the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--pair", nargs=2, type=Path, action="append", default=[])
    parser.add_argument("--contexts", default="512,2048,8192")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    contexts = [int(text) for text in args.contexts.split(",")]
    if args.child:
        print(json.dumps(use(args.models, contexts[0])))
        return
    rows = []
    for paths in [[path] for path in args.models] + args.pair:
        for context in sorted({min(context, longest(paths)) for context in contexts}):
            rows.append(row(paths, context))
            found = rows[-1]
            names = " + ".join(found["models"])
            print(
                f"{names}, {context} tokens: {size(found['predicted'])} predicted, {size(found['measured'])} measured, "
                f"{found['off'] / found['measured']:+.1%}{'' if found['close'] else '  NOT CLOSE'}",
                flush=True,
            )
            write("memory", rows, args.out)


if __name__ == "__main__":
    main()
