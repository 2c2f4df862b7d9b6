"""The harness finds rules that are wrong: each fault below was, or could have been, made in a real program. Every
scene is exact before its fault is planted and visibly biased afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import foredraft.decode
import foredraft.verify
import tests.law.scenes
from foredraft.drafters.growth import Nodes
from foredraft.drafters.model import ModelDrafter
from foredraft.noise import TARGET, GumbelNoise
from foredraft.sampling import Children, History, Sampler
from foredraft.trees import children
from foredraft.types import Budget, Draft, Floats, Logits, SamplingParams, Verdict
from foredraft.verify import _Trial
from tests.law.enumerate import EnumeratedNoise, difference, law_of
from tests.law.reference import Tokens
from tests.law.scenes import LoopScene, Scene, constant, text_of_round, world
from tests.law.test_relaxed_law import assert_mixture
from tests.support.gates import Believing

SOFT = SamplingParams(temperature=1.0)
PENALISED = SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8)
TARGET_TABLE, DRAFT_TABLE = world(11)
WIDE = constant(*np.log([0.4, 0.3, 0.2, 0.1])), constant(*np.log([0.1, 0.2, 0.3, 0.4]))
CHAIN = Scene(*WIDE, SOFT, "residual", (-1,))
CHAIN_2 = Scene(TARGET_TABLE, DRAFT_TABLE, SOFT, "residual", (-1, 0))
SIBLINGS = replace(CHAIN, shape=(-1, -1))
COUPLED = replace(CHAIN_2, rule="coupled")
PENALTIES = replace(CHAIN_2, params=PENALISED)


class CountsTwice(History):
    """A pushed token counts twice in the penalties."""

    def push(self, token: int) -> None:
        super().push(token)
        self._slide(len(self) - 1, 1)

    def pop(self) -> int:
        self._slide(len(self) - 1, -1)
        return super().pop()


class ForgetsDrafts(History):
    """A pushed token reaches the text, but not the penalties."""

    def push(self, token: int) -> None:
        super().push(token)
        self._slide(len(self) - 1, -1)

    def pop(self) -> int:
        self._slide(len(self) - 1, 1)
        return super().pop()


def error(scene: Scene) -> float:
    """Largest error of one round's law."""
    return difference(law_of(lambda noise: text_of_round(scene, noise)), scene.expected())


def loop_error(loop: LoopScene) -> float:
    """Largest error of the whole loop's law."""
    return difference(law_of(loop.text), loop.expected())


def keep_target(self: _Trial, index: int, proposal: Floats) -> None:
    """After a rejection draw from p itself, not from the residual."""


def keep_proposal(self: _Trial, index: int, proposal: Floats) -> None:
    """The next sibling's law keeps the token just rejected."""
    residual = np.maximum(self.target - proposal, 0.0)
    self.target = residual / residual.sum()


def no_renormalisation(self: _Trial, index: int, proposal: Floats) -> None:
    """The next sibling's law loses the rejected token, but its rest is not scaled to 1."""
    keep_proposal(self, index, proposal)
    assert self.proposal is not None
    self.proposal = np.where(np.arange(len(self.ids)) == index, 0.0, self.proposal)


def one_number_for_all(self: EnumeratedNoise, probability: float, position: int, index: int) -> bool:
    """All siblings are tested against the same uniform."""
    return self._draw(("accept", position, 0, 0), np.array([probability, 1.0 - probability])) == 0


def likely_enough(draft: Draft, logits: Logits, sampler: Sampler, history: History) -> Verdict:
    """Coupled, but a draft with a fair probability passes without being the target's choice."""
    kids = children(draft.parents).get(-1, [])
    law = sampler.law(logits[0], history)
    for kid in kids:
        if law.prob(int(draft.tokens[kid])) > 0.25:
            history.push(int(draft.tokens[kid]))
            return Verdict((kid,), sampler.choose(logits[kid + 1], history), 1, (0.0, 0.0))
    return Verdict((), sampler.choose(logits[0], history), 1, (0.0,))


def row_of_the_parent(scene: Scene, draft: Draft) -> Logits:
    """Each node is judged by the row one place too early."""
    good = ROWS(scene, draft)
    return good[[0, *(int(parent) + 1 for parent in draft.parents)]]


ROWS = tests.law.scenes.rows

Plant = Callable[[pytest.MonkeyPatch], None]


def swap(owner: object, name: str, value: object) -> Plant:
    """A fault that replaces one attribute."""
    return lambda patch: patch.setattr(owner, name, value)


PLANTS: dict[str, tuple[Scene, Plant]] = {
    "residual replaced by p": (CHAIN, swap(_Trial, "_reject", keep_target)),
    "sibling stays in the proposal": (SIBLINGS, swap(_Trial, "_reject", keep_proposal)),
    "no sibling renormalisation": (SIBLINGS, swap(_Trial, "_reject", no_renormalisation)),
    "one uniform for all siblings": (SIBLINGS, swap(EnumeratedNoise, "accept", one_number_for_all)),
    "draft and residual share noise": (CHAIN, swap(Sampler, "draft_stream", TARGET)),
    "likely drafts pass (coupled)": (replace(CHAIN, rule="coupled"), swap(foredraft.verify, "_coupled", likely_enough)),
    "row of the parent (coupled)": (COUPLED, swap(tests.law.scenes, "rows", row_of_the_parent)),
    "row of the parent (residual)": (CHAIN_2, swap(tests.law.scenes, "rows", row_of_the_parent)),
}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, plant = PLANTS[name]
    assert error(scene) < 1e-12
    plant(monkeypatch)
    assert error(scene) > 1e-6


@pytest.mark.parametrize("history", [CountsTwice, ForgetsDrafts])
@pytest.mark.parametrize("scene", [PENALTIES, replace(PENALTIES, rule="coupled")], ids=["residual", "coupled"])
def test_penalties_of_the_wrong_history_are_caught(scene: Scene, history: type[History]) -> None:
    assert error(scene) < 1e-12
    assert error(replace(scene, history=history)) > 1e-6


def test_greedy_draft_with_a_soft_law_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft is its argmax, but is accepted as if it had been sampled (case D1, with its numbers)."""
    scene = Scene(constant(2.0, 1.5, 1.0, 0.5), constant(1.0, 2.0, 0.0, 0.5), SOFT, "residual", (-1,))
    expected = {(0,): 0.4551, (1,): 0.2760, (2,): 0.1674, (3,): 0.1015}
    first = {(token,): sum(p for t, p in scene.expected().items() if t[0] == token) for token in range(4)}
    assert first == pytest.approx(expected, abs=5e-5)
    assert error(scene) < 1e-12
    assert error(replace(scene, draft_params=SamplingParams())) < 1e-12
    drawn = Sampler.children

    def greedy(self: Sampler, logits: Logits, history: History, k: int) -> Children:
        return drawn(self, logits, history, k)._replace(ids=np.argsort(-logits)[:k].astype(np.int32))

    monkeypatch.setattr(Sampler, "children", greedy)
    assert error(scene) > 1e-6


def test_filters_on_one_side_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """top_k is applied to the draft, but not to the target (case D7)."""
    params = SamplingParams(temperature=1.0, top_k=2)
    scene = replace(CHAIN, params=params, draft_params=params)
    assert error(scene) < 1e-12
    plain = Sampler(SOFT, rule="residual", noise=GumbelNoise(0))
    monkeypatch.setattr(Sampler, "law", lambda self, logits, history: plain._truncated(logits))
    assert error(scene) > 1e-6


class TestInTheLoop:
    LOOP = LoopScene(Scene(TARGET_TABLE, DRAFT_TABLE, SOFT, "residual"), 3, (2, 0, 1))

    def test_history_that_counts_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = replace(self.LOOP, scene=replace(self.LOOP.scene, params=PENALISED))
        assert loop_error(loop) < 1e-12
        monkeypatch.setattr(foredraft.decode, "History", CountsTwice)
        assert loop_error(loop) > 1e-6

    def test_draft_withheld_for_what_was_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A drafter that draws and then keeps back unlikely tokens: what it shows is no longer drawn from its law."""
        loop = replace(self.LOOP, budget=(1, 0, 1))
        assert loop_error(loop) < 1e-12
        honest = ModelDrafter.propose

        def picky(self: ModelDrafter, context: History, budget: Budget, sampler: Sampler) -> Draft:
            draft = honest(self, context, budget, sampler)
            assert draft.laws is not None
            if draft.laws[0].prob(int(draft.tokens[0])) < 0.3:
                self.observe(())
                return Draft.empty()
            return draft

        monkeypatch.setattr(ModelDrafter, "propose", picky)
        assert loop_error(loop) > 1e-6

    @pytest.mark.parametrize(
        "budget",
        [
            Budget(2, 2, 1, gate=Believing(keeps=0.3)),
            Budget(1, 1, 1, gate=Believing(keeps=0.4)),
            Budget(3, 2, 2, dynamic=True),
            Budget(3, 2, 2, dynamic=True, gate=Believing(keeps=0.2)),
        ],
    )
    def test_gate_and_dynamic_tree_that_choose_among_what_was_drawn(
        self, budget: Budget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Harmless under ``coupled``; under accept-reject the same fault as the one above."""
        loop = replace(self.LOOP, budget=budget)
        assert loop_error(loop) < 1e-12
        monkeypatch.setattr(Nodes, "droppable", True)
        assert loop_error(loop) > 1e-6

    def test_accepted_token_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last accepted token is dropped, and what follows it is emitted in its place."""
        assert loop_error(self.LOOP) < 1e-12

        def late(draft: Draft, logits: Logits, sampler: Sampler, history: History, max_tv: float = 0.0) -> Verdict:
            verdict = foredraft.verify.verify(draft, logits, sampler, history, max_tv)
            return replace(verdict, path=verdict.path[:-1])

        monkeypatch.setattr(foredraft.decode, "verify", late)
        assert loop_error(self.LOOP) > 1e-6

    def test_deterministic_draft_believed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lookup's draft is accepted half of the time, whatever the target says."""

        def points(text: Tokens) -> Sequence[int]:
            return [text[-1]]

        loop = replace(self.LOOP, scene=replace(self.LOOP.scene, points=points, shape=(-1,)), budget=(1, 0, 1))
        assert loop_error(loop) < 1e-12
        honest = EnumeratedNoise.accept
        monkeypatch.setattr(EnumeratedNoise, "accept", lambda self, probability, *key: honest(self, 0.5, *key))
        assert loop_error(loop) > 1e-6


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_misreported_bias_is_caught(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = replace(CHAIN, rule="relaxed", max_tv=0.1)
    assert assert_mixture(scene) == pytest.approx(0.1, abs=1e-12)
    honest = _Trial.relax
    monkeypatch.setattr(_Trial, "relax", lambda self, max_tv: factor * honest(self, max_tv))
    with pytest.raises(AssertionError):
        assert_mixture(scene)


def test_bound_that_is_overspent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = replace(CHAIN, rule="relaxed", max_tv=0.1)
    honest = _Trial.relax
    monkeypatch.setattr(_Trial, "relax", lambda self, max_tv: honest(self, 1.5 * max_tv))
    with pytest.raises(AssertionError):
        assert_mixture(scene)
