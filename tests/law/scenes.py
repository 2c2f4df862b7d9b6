"""Small worlds for the law tests: a target, a draft and settings over 3 or 4 tokens, and three ways to run them:
one call of ``verify`` alone, that call completed to a text of fixed length, and the whole ``decode`` loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from foredraft.control import Fixed, fixed
from foredraft.decode import Limits, Parts, decode
from foredraft.drafters.base import Drafter
from foredraft.drafters.chain import ChainDrafter
from foredraft.drafters.model import ModelDrafter
from foredraft.drafters.ngram import NgramConfig, NgramDrafter
from foredraft.engines.scripted import ScriptedEngine, Table, markov_table
from foredraft.noise import Noise
from foredraft.sampling import History, Sampler
from foredraft.trees import children, depths, path_to
from foredraft.types import Budget, Draft, Law, Logits, Rule, SamplingParams, Step
from foredraft.verify import verify
from tests.law.reference import Tokens, joint_law

SHAPES: dict[str, tuple[int, ...]] = {
    "chain of 1": (-1,),
    "chain of 2": (-1, 0),
    "chain of 3": (-1, 0, 1),
    "2 siblings": (-1, -1),
    "3 siblings, the whole support": (-1, -1, -1),
    "2 siblings, first one deeper": (-1, -1, 0),
    "2 siblings, second one deeper": (-1, -1, 1),
    "2 siblings of 2": (-1, -1, 0, 0, 1, 1),
    "more siblings than tokens": (-1, -1, -1, -1, -1, 0),
}

PARAMS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=1.0, top_k=2),
    "top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "min-p": SamplingParams(temperature=1.1, min_p=0.3),
    "penalties": SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8),
    "window": SamplingParams(temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.7, penalty_window=2),
    "logit bias": SamplingParams(temperature=1.0, logit_bias={0: 1.5, 1: -0.7}),
    "barred token": SamplingParams(temperature=1.0, logit_bias={1: -np.inf}),
    "everything": SamplingParams(
        temperature=0.9,
        top_k=3,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        penalty_window=3,
        logit_bias={2: 0.4},
    ),
}


def masked(table: Table, allowed: Sequence[int]) -> Table:
    """``table`` with every other token impossible."""

    def only(text: Tokens) -> Logits:
        row = np.full_like(table(text), -np.inf)
        row[list(allowed)] = table(text)[list(allowed)]
        return row

    return only


def constant(*logits: float) -> Table:
    """The same logits after every text."""
    return lambda text: np.array(logits, np.float32)


def world(seed: int, vocab: int = 3, sharpness: float = 4.0) -> tuple[Table, Table]:
    """A target and an unrelated draft, both depending on the last two tokens."""
    return (
        markov_table(vocab, seed=2 * seed, sharpness=sharpness),
        markov_table(vocab, seed=2 * seed + 1, sharpness=sharpness),
    )


@dataclass(frozen=True)
class Scene:
    """``draft`` is sampled with ``draft_params`` (default: the target's own), or, where ``points`` is given, the
    proposals after a text are the listed tokens: a deterministic draft. ``shape``: the parents of the drafted tree."""

    target: Table
    draft: Table
    params: SamplingParams = SamplingParams(temperature=1.0)  # noqa: RUF009  frozen
    rule: Rule = "residual"
    shape: tuple[int, ...] = (-1,)
    points: Callable[[Tokens], Sequence[int]] | None = None
    draft_params: SamplingParams | None = None
    max_tv: float = 0.0
    prompt: Tokens = (0, 1)
    history: type[History] = field(default=History)

    @property
    def length(self) -> int:
        """Tokens of a full round: the deepest path and the bonus token."""
        return int(depths(np.array(self.shape, np.int32)).max(initial=0)) + 1

    def expected(self, length: int | None = None, eog: Tokens = ()) -> dict[Tokens, float]:
        """The target's own law of the next tokens."""
        return joint_law(self.target, self.prompt, self.params, length or self.length, eog)


def propose(scene: Scene, noise: Noise, history: History) -> Draft:
    """Draw a tree of the scene's shape; where fewer children exist than planned, the last ones are left out."""
    sampler = Sampler(scene.draft_params or scene.params, rule=scene.rule, noise=noise)
    planned = children(np.array(scene.shape, np.int32))
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Law | None] = []
    queue = [(-1, -1)]  # (node of the shape, node of the draft)
    for slot, node in queue:
        kids = planned.get(slot, [])
        if not kids:
            continue
        drawn, law = _children(scene, sampler, history, [tokens[up] for up in path_to(parents, node)], len(kids))
        for kid, token in zip(kids, drawn, strict=False):
            queue.append((kid, len(tokens)))
            tokens.append(token)
            parents.append(node)
            laws.append(law)
    known = tuple(law for law in laws if law is not None)
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32), known or None, "scene")


def _children(
    scene: Scene, sampler: Sampler, history: History, path: list[int], count: int
) -> tuple[list[int], Law | None]:
    length = len(history)
    for token in path:
        history.push(token)
    text = tuple(history.tokens)
    if scene.points is not None:
        drawn, law = list(scene.points(text))[:count], None
    else:
        ids, law, _ = sampler.children(scene.draft(text), history, count)
        drawn = ids.tolist()
    history.shrink(length)
    return drawn, law


def rows(scene: Scene, draft: Draft) -> Logits:
    """What the target's one pass over the tree returns, float32[N + 1, V]."""
    paths = [path_to(draft.parents, node) for node in range(-1, len(draft))]
    return np.stack([scene.target((*scene.prompt, *draft.tokens[path].tolist())) for path in paths])


@dataclass(frozen=True)
class Round:
    """Outcome of one call of ``verify``. ``slots``: accepted nodes; ``open``: the last one has children."""

    slots: tuple[int, ...]
    accepted: Tokens
    token: int
    bias: tuple[float, ...]
    open: bool


def one_round(scene: Scene, noise: Noise) -> Round:
    """Draft and verify once."""
    history = scene.history(scene.prompt, scene.params.penalty_window)
    sampler = Sampler(scene.params, rule=scene.rule, noise=noise)
    draft = propose(scene, noise, history)
    verdict = verify(draft, rows(scene, draft), sampler, history, scene.max_tv)
    assert tuple(history.tokens) == scene.prompt
    last = verdict.path[-1] if verdict.path else -1
    accepted = tuple(int(draft.tokens[node]) for node in verdict.path)
    return Round(verdict.path, accepted, verdict.token, verdict.bias, bool((draft.parents == last).any()))


def text_of_round(scene: Scene, noise: Noise) -> Tokens:
    """One round, then plain decoding up to the scene's length, so that all outcomes are comparable."""
    result = one_round(scene, noise)
    text = [*result.accepted, result.token]
    sampler = Sampler(scene.params, rule=scene.rule, noise=noise)
    while len(text) < scene.length:
        history = History(scene.prompt, scene.params.penalty_window)
        for token in text:
            history.push(token)
        text.append(sampler.choose(scene.target((*scene.prompt, *text)), history))
    return tuple(text)


class PointDrafter:
    """Proposes what ``scene.points`` lists, along a tree of the scene's shape; like an n-gram lookup."""

    name = "points"

    def __init__(self, scene: Scene, noise: Noise) -> None:
        self._scene, self._noise = scene, noise

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to prepare."""

    def propose(self, context: History, budget: Budget, sampler: Sampler) -> Draft:
        """The scene's tree, cut to the budget's depth."""
        draft = propose(self._scene, self._noise, context)
        fits = depths(draft.parents) <= budget.depth
        assert int(fits.sum()) <= budget.nodes and fits[: int(fits.sum())].all()
        return Draft(draft.tokens[fits], draft.parents[fits], None, self.name)

    def observe(self, accepted: Sequence[int]) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to free."""


@dataclass(frozen=True)
class LoopScene:
    """A scene for the whole loop: ``length`` tokens are generated within ``budget``, or (max_draft, tree, branches).
    ``copies``: an n-gram lookup over the text stands before the scene's drafter; ``temperature``: the draft model's."""

    scene: Scene
    length: int = 3
    budget: Budget | tuple[int, int, int] = (2, 0, 1)
    eog: Tokens = ()
    copies: bool = False
    temperature: float | None = None

    def steps(self, noise: Noise) -> list[Step]:
        """Decode once; the drafter is a model, or the scene's deterministic one."""
        scene = self.scene
        vocab = len(scene.target(scene.prompt))
        engine = ScriptedEngine(scene.target, vocab)
        drafter: Drafter = ModelDrafter(ScriptedEngine(scene.draft, vocab), temperature=self.temperature)
        if scene.points is not None:
            drafter = PointDrafter(scene, noise)
        if self.copies:
            drafter = ChainDrafter([NgramDrafter(NgramConfig(min_n=1, cautious=False)), drafter])
        sampler = Sampler(scene.params, rule=scene.rule, noise=noise, eog_ids=self.eog)
        controller = Fixed(self.budget) if isinstance(self.budget, Budget) else fixed(*self.budget)
        parts = Parts(engine.open(), engine.info, sampler, drafter, controller)
        limits = Limits(self.length, frozenset(self.eog), max_tv=scene.max_tv)
        steps = list(decode(parts, list(scene.prompt), limits))
        expected = {None, "budget 0", "model: not sure enough"}
        assert {step.reason for step in steps} <= expected, [step.reason for step in steps]
        return steps

    def text(self, noise: Noise) -> Tokens:
        """The text of one run."""
        return tuple(token for step in self.steps(noise) for token in step.ids)

    def expected(self) -> dict[Tokens, float]:
        """The target's own law of the text."""
        return self.scene.expected(self.length, self.eog)
