"""The ExecuTorch engine beside llama.cpp, in turns, in one run. Each command prints a table and keeps its raw JSON.

    python benchmarks/mobile.py curve EXPORT GGUF           time(N) of both, and v(N), at 256 and 2048 tokens of context
    python benchmarks/mobile.py speculate EXPORT DRAFT GGUF  plain, draft model and n-gram, on code and edit prompts
    python benchmarks/mobile.py memory EXPORT               load time and peak memory, in a process of its own
    python benchmarks/mobile.py operators EXPORT            where the time of a pass goes (Linux perf)

EXPORT and DRAFT are directories made by `foredraft export executorch`. Options: --out FILE, --prompts N, --tokens N,
--runs N, --threads N. Bits: ``mobile_identity.py``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.measure import machine, prompts, write
from foredraft.catalogue import resolve
from foredraft.chat import encode_prompt
from foredraft.control import fixed
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.base import Engine, Session
from foredraft.engines.executorch import ExecutorchConfig, ExecutorchEngine
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.engines.opening import Settings
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.types import Ids, SamplingParams

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32)


# --- time by width -----------------------------------------------------------------------------------------


def _context(engine: Engine, length: int) -> tuple[Session, Ids]:
    """A session that holds ``length`` pseudo-random tokens."""
    text = np.random.default_rng(0).integers(0, engine.info.vocab_size, length).astype(np.int32)
    session = engine.open()
    for start in range(0, length, 512):
        part = text[start : start + 512]
        session.extend(part, np.arange(-1, len(part) - 1, dtype=np.int32), 0)
        session.keep(range(len(part)))
    return session, text


def _timed(session: Session, tokens: Ids) -> float:
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    start = time.perf_counter()
    session.extend(tokens, parents, len(tokens))
    seconds = time.perf_counter() - start
    session.keep([])
    return seconds


def curve(args: argparse.Namespace) -> None:
    """Passes of every width, one engine after the other, ``runs`` times."""
    engines: dict[str, Engine] = {
        "executorch": ExecutorchEngine(args.export, ExecutorchConfig(threads=args.threads)),
        "llama.cpp": LlamaEngine(resolve(args.gguf), LlamaConfig(threads=args.threads)),
    }
    rows: list[dict[str, Any]] = []
    for context in (256, 2048):
        opened = {name: _context(engine, context) for name, engine in engines.items()}
        seconds: dict[tuple[str, int], list[float]] = {}
        for _ in range(args.runs or 9):
            for name, (session, text) in opened.items():
                time.sleep(0.3)  # the other engine's threads wait actively for a while
                _timed(session, text[:1])
                for width in WIDTHS:
                    seconds.setdefault((name, width), []).append(_timed(session, text[:width]))
        for name in engines:
            single = median(seconds[name, 1])
            for width in WIDTHS:
                times = seconds[name, width]
                rows.append(
                    {"engine": name, "context": context, "width": width, "ms": [round(1e3 * t, 3) for t in times]}
                )
                middle, other = median(times), median(seconds["llama.cpp", width])
                print(
                    f"{name:11} {context:5} tokens  N={width:2}  {1e3 * middle:7.1f} ms  v={middle / single:5.2f}"
                    f"  {middle / other:5.2f} of llama.cpp"
                )
        for session, _ in opened.values():
            session.close()
    write("mobile-curve", rows, args.out)


# --- speculation -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """One way to generate."""

    name: str
    pipeline: Pipeline
    draft: int
    tree: int = 0

    def run(self, ids: Sequence[int], tokens: int) -> tuple[float, Any]:
        controller = fixed(self.draft, self.tree) if self.draft else None
        start = time.perf_counter()
        result = self.pipeline.run(Request(ids, SamplingParams(), controller, max_tokens=tokens))
        return time.perf_counter() - start, result


def speculate(args: argparse.Namespace) -> None:
    """Every arm on every prompt, in turns; seconds count the decoding of ``tokens`` tokens and the prompt."""
    settings = Settings(threads=args.threads)
    drafted = Pipeline.open(Setup(args.export, (args.draft,), settings))
    ngram = Pipeline(drafted.engine, drafted.tokenizer, NgramDrafter())
    plain = Pipeline(drafted.engine, drafted.tokenizer)
    llama = Pipeline.open(Setup(resolve(args.gguf), ("none",), settings))
    arms = [
        Arm("plain", plain, 0),
        Arm("draft K=3", drafted, 3),
        Arm("draft K=7", drafted, 7),
        Arm("n-gram K=7", ngram, 7),
        Arm("llama.cpp plain", llama, 0),
    ]
    rows = []
    for row in [row for kind in ("code", "edit") for row in prompts(args.prompts or 4, (kind,))]:
        ids = encode_prompt(drafted.tokenizer, row["prompt"]).ids
        found: dict[str, list[float]] = {arm.name: [] for arm in arms}
        results: dict[str, Any] = {}
        for _ in range(args.runs or 2):
            for arm in arms:
                gc.collect()
                time.sleep(0.5)  # the other engine's threads wait actively for a while
                seconds, results[arm.name] = arm.run(ids, args.tokens or 160)
                found[arm.name].append(seconds / max(1, results[arm.name].summary.generated))
        rows.append(_speculation_row(row["kind"], len(ids), found, results))
        _print_row(rows[-1])
        write("mobile-speculate", rows, args.out)
    for kind in ("code", "edit"):
        for arm in arms[1:-1]:
            ratios = [r["arms"][arm.name] for r in rows if r["kind"] == kind]
            if ratios:
                own, other = (median(r[key] for r in ratios) for key in ("speed_up", "over_llama"))
                print(f"{kind:5} {arm.name:11} {own:.2f}x plain, {other:.2f}x llama.cpp plain (medians)")


def _speculation_row(kind: str, length: int, found: dict[str, list[float]], results: dict[str, Any]) -> dict[str, Any]:
    plain, llama = median(found["plain"]), median(found["llama.cpp plain"])
    arms = {}
    for name, seconds in found.items():
        summary = results[name].summary
        arms[name] = {
            "seconds_per_token": seconds,
            "speed_up": plain / median(seconds),
            "over_llama": llama / median(seconds),
            "generated": summary.generated,
            "accepted": summary.accepted,
            "evaluated": summary.evaluated,
            "identical": summary.ids == results["plain"].summary.ids,
        }
    return {"kind": kind, "prompt_tokens": length, "arms": arms}


def _print_row(row: dict[str, Any]) -> None:
    print(f"{row['kind']}, {row['prompt_tokens']} prompt tokens", flush=True)
    for name, arm in row["arms"].items():
        alpha = arm["accepted"] / arm["evaluated"] if arm["evaluated"] else float("nan")
        same = "same text" if arm["identical"] else "OTHER TEXT"
        print(
            f"   {name:16} {arm['speed_up']:5.2f}x plain  {arm['over_llama']:5.2f}x llama.cpp  alpha {alpha:.2f}  "
            f"{arm['generated']} tokens, {same}",
            flush=True,
        )


# --- memory and operators ----------------------------------------------------------------------------------


def memory(args: argparse.Namespace) -> None:
    """A fresh process loads the export, reads 2048 tokens and decodes a few; twice, so that the second load is warm."""
    code = (
        "import sys,time,json,resource,numpy as np;from pathlib import Path;start=time.perf_counter();"
        "from foredraft.engines.executorch import ExecutorchEngine;e=ExecutorchEngine(Path(sys.argv[1]));"
        "loaded=time.perf_counter()-start;s=e.open();t=np.arange(2048,dtype=np.int32)%e.info.vocab_size;"
        "s.extend(t,np.arange(-1,2047,dtype=np.int32),1);s.keep(range(2048));"
        "[ (s.extend(t[:8],np.arange(-1,7,dtype=np.int32),8), s.keep([0])) for _ in range(4)];"
        "print(json.dumps({'load_seconds':loaded,'peak_bytes':resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024,"
        "'cache_bytes':s._caches.nbytes,'file_bytes':e.manifest.program.bytes,'source_bytes':e.manifest.source.bytes}))"
    )
    rows = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(args.export)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        over = row["peak_bytes"] - row["file_bytes"] - row["cache_bytes"]
        print(
            f"load {row['load_seconds']:.2f} s, file {row['file_bytes'] / 1e6:.0f} MB "
            f"({row['file_bytes'] / row['source_bytes']:.2f} of the source), peak {row['peak_bytes'] / 1e6:.0f} MB = "
            f"file + caches {row['cache_bytes'] / 1e6:.0f} MB + {over / 1e6:.0f} MB"
        )
    write("mobile-memory", rows, args.out)


def operators(args: argparse.Namespace) -> None:
    """Samples of `perf record` in passes of 1, 4 and 8 tokens, by library and by 4 KiB of its code."""
    rows = []
    for width in (1, 4, 8):
        found = _perf(args.export, width)
        rows.append({"width": width, "share": found})
        print(f"N={width}: " + ", ".join(f"{name} {share:.1%}" for name, share in list(found.items())[:8]))
    write("mobile-operators", rows, args.out)


def _perf(export: Path, width: int) -> dict[str, float]:
    code = (
        "import sys,gc,numpy as np;from pathlib import Path;from foredraft.engines.executorch import ExecutorchEngine;"
        "e=ExecutorchEngine(Path(sys.argv[1]));s=e.open();gc.disable();w=int(sys.argv[2]);t=np.arange(256,dtype=np.int32);"
        "s.extend(t,np.arange(-1,255,dtype=np.int32),1);s.keep(range(256));print('ready',flush=True)\n"
        "while True: s.extend(t[:w],np.arange(-1,w-1,dtype=np.int32),w);s.keep([])"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(export), str(width)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        data = Path(f".perf-{os.getpid()}.data")
        subprocess.run(
            ["perf", "record", "-q", "-F", "999", "-o", data, "-p", str(child.pid), "--", "sleep", "4"], check=True
        )
        shown = subprocess.run(
            ["perf", "script", "-i", data, "-F", "ip,dso"], capture_output=True, text=True, check=True
        ).stdout
        data.unlink()
    finally:
        child.kill()
        child.wait()
    counts: Counter[str] = Counter()
    for line in shown.splitlines():
        address, _, library = line.strip().partition(" ")
        name = Path(library.strip(" ()")).name
        counts[f"{name} +{address[-6:-3]}xxx" if "xnnpack" in name else name] += 1
    total = sum(counts.values())
    return {name: count / total for name, count in counts.most_common(20)}


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "curve": curve, "speculate": speculate, "memory": memory, "operators": operators,
}  # fmt: skip


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("export", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--out", type=Path)
    for name, default in (("prompts", 0), ("tokens", 0), ("runs", 0), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.command == "curve":
        (args.gguf,) = args.rest
    if args.command == "speculate":
        args.draft, args.gguf = Path(args.rest[0]), args.rest[1]
    print(json.dumps(machine()))
    COMMANDS[args.command](args)


if __name__ == "__main__":
    main()
