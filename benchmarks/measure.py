"""Measurements behind the claims in README and docs. Each prints a table and keeps its raw JSON.

    python benchmarks/measure.py overhead            loop overhead and peak memory, Qwen pair
    python benchmarks/measure.py equality MODEL      20 prompts x 200 tokens, greedy and seeded .8, against plain
    python benchmarks/measure.py speed               speed-up by prompt kind, plain and speculative in turns
    python benchmarks/measure.py curve MODEL...      verify curve v(N), plain passes in turns

Absolute times drift with the machine; ratios inside one run hold. Options: --out FILE, --prompts N, --tokens N.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from foredraft.catalogue import resolve
from foredraft.chat import encode_prompt
from foredraft.cli.compare import compare
from foredraft.cli.view import View
from foredraft.control import fixed
from foredraft.engines.base import Engine, EngineInfo, Session
from foredraft.engines.llama_cpp import LlamaConfig, LlamaEngine
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.types import Ids, SamplingParams, Scores

HERE = Path(__file__).parent
TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32)


def prompts(count: int, kinds: Sequence[str] = ()) -> list[dict[str, str]]:
    """The first ``count`` prompts of prompts.jsonl, of these kinds only if any are given."""
    lines = (HERE / "prompts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if not kinds or row["kind"] in kinds][:count]


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    from llama_cpp import __version__ as version
    from llama_cpp import llama_cpp

    info = llama_cpp.llama_print_system_info().decode()
    return {
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "llama_cpp_python": version,
        "features": info,
        "date": time.strftime("%Y-%m-%d"),
    }


def write(name: str, rows: Any, out: Path | None) -> None:
    """Keep the raw numbers."""
    path = out or HERE / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"benchmark": name, **machine(), "rows": rows}, indent=1) + "\n")
    temporary.replace(path)
    print(f"raw numbers: {path}")


@dataclass
class TimedSession:
    """Counts the seconds spent inside an engine's session."""

    inner: Session
    clock: list[float]

    @property
    def length(self) -> int:
        return self.inner.length

    def _timed(self, call: Any, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            self.clock[0] += time.perf_counter() - start

    def extend(self, tokens: Ids, parents: Ids, rows: int) -> Scores:
        return self._timed(self.inner.extend, tokens, parents, rows)  # type: ignore[no-any-return]

    def keep(self, path: Sequence[int]) -> None:
        self._timed(self.inner.keep, path)

    def rewind(self, length: int) -> int:
        return self._timed(self.inner.rewind, length)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.inner.close()


@dataclass
class TimedEngine:
    """An engine whose sessions share one clock."""

    inner: Engine
    clock: list[float]

    @property
    def info(self) -> EngineInfo:
        return self.inner.info

    def open(self) -> TimedSession:
        return TimedSession(self.inner.open(), self.clock)

    def close(self) -> None:
        self.inner.close()


def _rounds(pipeline: Pipeline, sampling: SamplingParams, clock: list[float], args: argparse.Namespace) -> list[Any]:
    """(seconds of a round, seconds of it spent in engines) for every round of some prompts."""
    rounds = []
    for row in prompts(args.prompts or 4, ("code", "chat")):
        ids = encode_prompt(pipeline.tokenizer, row["prompt"]).ids
        steps = pipeline.stream(Request(ids, sampling, fixed(4), max_tokens=args.tokens or 128))
        while True:
            clock[0], start = 0.0, time.perf_counter()
            step = next(steps, None)
            if step is None:
                break
            if step.generated:
                rounds.append((time.perf_counter() - start, clock[0]))
    return rounds


def _overhead_row(name: str, rounds: list[Any]) -> dict[str, Any]:
    outside = sorted(total - inside for total, inside in rounds)
    return {
        "sampling": name,
        "rounds": len(rounds),
        "outside_ms_median": 1e3 * median(outside),
        "outside_ms_p90": 1e3 * outside[int(len(outside) * 0.9)],
        "round_ms_median": 1e3 * median(total for total, _ in rounds),
        "share": sum(outside) / sum(total for total, _ in rounds),
    }


def overhead(args: argparse.Namespace) -> None:
    """Time outside engine calls per round, and peak memory against the size of the files."""
    setup = Setup(resolve(TARGET), (resolve(DRAFT),), LlamaConfig(context=2048, threads=args.threads))
    kinds = {"greedy": SamplingParams(), "temperature .8, top-p .95": SamplingParams(temperature=0.8, top_p=0.95)}
    with Pipeline.open(setup) as pipeline:
        clock = [0.0]
        pipeline.engine = TimedEngine(pipeline.engine, clock)
        drafter: Any = pipeline.drafter
        drafter._engine = TimedEngine(drafter._engine, clock)
        rows = [_overhead_row(name, _rounds(pipeline, kind, clock, args)) for name, kind in kinds.items()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    files = sum(resolve(name).stat().st_size for name in (TARGET, DRAFT)) / 2**20
    rows.append({"peak_rss_mib": peak, "model_files_mib": files})
    print(*rows, sep="\n")
    write("overhead", rows, args.out)


def _equality_row(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    plain, other = pipeline.run(request.plain).summary, pipeline.run(request).summary
    found = pipeline.explain(request, plain.ids, other.ids)
    return {
        "temperature": request.sampling.temperature,
        "tokens": len(plain.ids),
        "accepted": other.accepted,
        "identical": found is None,
        "index": found and found.index,
        "gap": found and found.gap,
        "noise": found and found.noise,
    }


def equality(args: argparse.Namespace) -> None:
    """Ids with drafts against plain decoding, on every prompt; differences with their gap and the noise."""
    rows: list[dict[str, Any]] = []
    config = LlamaConfig(context=2048, threads=args.threads, strict=args.strict)
    with Pipeline.open(Setup(resolve(args.models[0]), drafts(args), config)) as pipeline:
        for number, row in enumerate(prompts(args.prompts or 20)):
            ids = encode_prompt(pipeline.tokenizer, row["prompt"]).ids
            for sampling in (SamplingParams(), SamplingParams(temperature=0.8, seed=number)):
                request = Request(ids, sampling, fixed(args.max_draft, args.tree), max_tokens=args.tokens or 200)
                found = _equality_row(pipeline, request)
                rows.append({"prompt": number, "kind": row["kind"], **found})
                print(rows[-1], flush=True)
    same = sum(bool(row["identical"]) for row in rows)
    unexplained = [row for row in rows if not row["identical"] and row["gap"] > row["noise"]]
    print(f"{args.models[0]}: {same} of {len(rows)} identical, {len(unexplained)} unexplained by rounding")
    suffix = ("-strict" if args.strict else "") + (f"-tree{args.tree}" if args.tree else "")
    write(f"equality-{args.models[0]}{suffix}", rows, args.out)


def drafts(args: argparse.Namespace) -> tuple[str | Path, ...]:
    """The drafts named, n-gram lookup by default."""
    names = args.drafts or ["ngram"]
    return tuple(name if name in ("ngram", "none") else resolve(name) for name in names)


def _speed_row(pipeline: Pipeline, prompt: str, args: argparse.Namespace) -> dict[str, Any]:
    ids = encode_prompt(pipeline.tokenizer, prompt).ids
    request = Request(ids, SamplingParams(), fixed(args.max_draft, args.tree), max_tokens=args.tokens or 160)
    result = compare(pipeline, request, args.runs, lambda step: None, View(quiet=True, as_json=True).status)
    run = result.speculative
    return {
        "prompt_tokens": len(ids),
        "tokens": run.generated,
        "rounds": run.rounds,
        "alpha": run.alpha,
        "mean_accepted_length": run.mean_accepted_length,
        "drafted": run.drafted,
        "evaluated": run.evaluated,
        "accepted": run.accepted,
        "speedup": result.speedup,
        "identical": result.identical,
        **result.as_json()["runs"],
    }


def speed(args: argparse.Namespace) -> None:
    """Plain and speculative in turns, by prompt kind."""
    name = args.models[0] if args.models else TARGET
    config = LlamaConfig(context=2048, threads=args.threads, strict=args.strict)
    with Pipeline.open(Setup(resolve(name), drafts(args), config)) as pipeline:
        rows: list[dict[str, Any]] = []
        for row in prompts(args.prompts or 20, args.kinds or ()):
            rows.append({"kind": row["kind"], **_speed_row(pipeline, row["prompt"], args)})
            print(rows[-1], flush=True)
    for kind in dict.fromkeys(row["kind"] for row in rows):
        ratios = [row["speedup"] for row in rows if row["kind"] == kind]
        print(f"{kind}: speed-up {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    write(f"speed-{name}-{'+'.join(args.drafts or ['ngram'])}-K{args.max_draft}", rows, args.out)


def _curve_row(name: str, config: LlamaConfig, repeats: int) -> dict[str, Any]:
    engine = LlamaEngine(resolve(name), config)
    session = engine.open()
    ids = (np.arange(256) * 37 % 5000 + 100).astype(np.int32)
    session.extend(ids, np.arange(-1, 255, dtype=np.int32), 0)
    session.keep(range(256))
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(repeats):
        for width in WIDTHS:
            start = time.perf_counter()
            session.extend(ids[:width], np.arange(-1, width - 1, dtype=np.int32), width)
            times[width].append(1e3 * (time.perf_counter() - start))
            session.keep([])
    exact = engine.exact_width()
    session.close()
    engine.close()
    curve = {width: round(median(times[width]) / median(times[1]), 3) for width in WIDTHS}
    return {
        "model": name,
        "repack": config.repack,
        "time1_ms": median(times[1]),
        "exact_width": exact,
        "v": curve,
        "raw_ms": times,
    }


def curve(args: argparse.Namespace) -> None:
    """time(N) / time(1) after 256 tokens of context, all widths in turns."""
    rows = []
    for name in args.models:
        for repack in (False, True) if args.repack else (None,):
            config = LlamaConfig(context=1024, threads=args.threads, repack=repack)
            rows.append(_curve_row(name, config, args.runs * 3))
            print({key: value for key, value in rows[-1].items() if key != "raw_ms"}, flush=True)
    write("curve", rows, args.out)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "equality", "speed", "curve"])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--drafts", nargs="*")
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--max-draft", type=int, default=4)
    parser.add_argument("--tree", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--repack", action="store_true", help="curve: also with repacked weights")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.what in ("equality", "curve") and not args.models:
        sys.exit("name a model")
    {"overhead": overhead, "equality": equality, "speed": speed, "curve": curve}[args.what](args)


if __name__ == "__main__":
    main()
