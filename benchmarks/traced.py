"""Controllers on recorded real texts, in virtual time: what would each setting have taken?

    python benchmarks/traced.py TRACE --prompts FILE --target MODEL --profile DEVICE.json [--tokens N] [--out FILE]

TRACE is what `foredraft profile` keeps, PROMPTS the file it was made from, DEVICE.json what `foredraft doctor` measured
with the same pair. The loop, the gates, the controllers and the n-gram drafter are the real ones; passes advance a
clock by the measured curve instead of being made. All settings see the same texts and the same guesses, so that
differences of one per cent are visible, which runs on a busy machine do not show.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.measure import write
from foredraft.control import Controller, CostAware, Fixed, Threshold, fixed
from foredraft.devices import DeviceProfile, read_profile
from foredraft.drafters.base import Drafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.engines.opening import AUTO, Settings, open_model
from foredraft.profile.store import read_trace
from foredraft.profile.trace import TextTrace
from foredraft.prompts import read_prompts
from foredraft.types import Step
from tests.support.simulator import SimDrafter, Source, VirtualClock, World, run

NOISE, OVERHEAD = 0.03, 0.01
"""Spread of single passes, and the time of a round outside passes as a share of a step, as measured on the machine."""
FIXED: list[tuple[str, Controller, tuple[str, ...]]] = [
    (f"model:fixed:{k}", fixed(k), ("model",)) for k in (1, 2, 3, 4, 7)
]
FIXED += [(f"ngram:fixed:{k}", fixed(k), ("ngram",)) for k in (2, 4, 7, 15)]
FIXED += [(f"ngram+model:fixed:{k}", fixed(k), ("ngram", "model")) for k in (2, 4, 7)]


def worlds(args: argparse.Namespace, profile: DeviceProfile) -> list[tuple[str, World]]:
    """Every recorded text with its kind, as a world whose model draft guesses what the recorded one guessed."""
    trace = read_trace(args.trace)
    prompts = read_prompts(args.prompts).prompts
    opened = open_model(args.target, Settings(), AUTO)
    try:
        found = []
        for text in trace.texts:
            ids = prompts[text.facts.index].encoded(opened.tokenizer, raw=trace.settings.raw).ids
            found.append((text.facts.kind, _world(text, ids, profile)))
        return found
    finally:
        opened.engine.close()


def _world(text: TextTrace, prompt: Sequence[int], profile: DeviceProfile) -> World:
    assert text.ids is not None, "a redacted trace holds no text"
    whole = [*prompt, *text.ids.tolist()]
    dense = {token: number for number, token in enumerate(dict.fromkeys(whole))}
    sources = []
    for draft in text.drafts[:1]:
        assert draft.laws is not None, "a redacted trace holds no laws"
        sure = np.exp(draft.laws.scores[:, 0].astype(np.float64))
        cost = profile.cost() * profile.step_seconds
        sources.append(Source("model", cost, draft.rank.astype(np.int32), sure, np.ones(len(text), np.bool_)))
    return World(
        profile.verify_curve().scaled(profile.step_seconds),
        tuple(sources),
        np.ones(len(text)),
        NOISE,
        OVERHEAD * profile.step_seconds,
        text.facts.index,
        len(prompt),
        max(64, len(dense) + 2),
        tuple(dense[token] for token in whole),
    )


def seconds(world: World, controller: Controller, names: Sequence[str]) -> tuple[float, list[Step]]:
    """Virtual seconds of one text, and its rounds."""
    clock = VirtualClock()
    drafters: list[Drafter] = [NgramDrafter()] if "ngram" in names else []
    drafters += [SimDrafter(source, world, clock) for source in world.sources if source.name in names]
    steps = run(world, controller, clock, drafters)
    return clock.now, steps


def settings(profile: DeviceProfile) -> Iterator[tuple[str, Controller, tuple[str, ...]]]:
    """All that are compared; a controller learns from one text to the next."""
    yield "plain", Fixed(), ()
    yield from FIXED
    for names in (("ngram", "model"), ("ngram",), ("model",)):
        yield f"{'+'.join(names)}:cost", CostAware(profile.as_priors(names)), names
    yield "ngram+model:threshold", Threshold(), ("ngram", "model")


def main() -> None:
    """Parse, replay, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    for name in ("prompts", "target", "profile"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--order", choices=("file", "mixed"), default="file")
    args = parser.parse_args()
    profile = read_profile(args.profile)
    texts = worlds(args, profile)
    if args.order == "mixed":
        texts = [texts[at] for at in np.random.default_rng(0).permutation(len(texts))]
    rows: dict[str, Any] = {}
    for name, controller, names in settings(profile):
        rows[name] = [(kind, *_spent(seconds(world, controller, names))) for kind, world in texts]
    write("traced", rows, args.out)
    show(rows)


def _spent(run: tuple[float, list[Step]]) -> tuple[float, dict[str, int]]:
    rungs: dict[str, int] = {}
    for step in run[1]:
        rungs[step.rung] = rungs.get(step.rung, 0) + 1
    return run[0], rungs


def show(rows: dict[str, Any]) -> None:
    """Speed-ups by kind: geometric means over texts of the time per token."""
    kinds = [*dict.fromkeys(row[0] for row in rows["plain"]), "all"]
    print(f"{'':24}" + "".join(f"{kind:>11}" for kind in kinds))
    for name, found in rows.items():
        means = []
        for kind in kinds:
            logs = [np.log(plain[1] / row[1]) for plain, row in zip(rows["plain"], found, strict=True)
                    if kind in ("all", row[0])]  # fmt: skip
            means.append(float(np.exp(np.mean(logs))))
        print(f"{name:24}" + "".join(f"{mean:11.3f}" for mean in means))


if __name__ == "__main__":
    main()
