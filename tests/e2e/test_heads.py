"""Draft heads end to end: exported beside a tiny target, and in torch. The text is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from foredraft.control import CostAware, Fixed
from foredraft.control.base import Controller
from foredraft.engines.executorch import ExecutorchEngine
from foredraft.engines.opening import Settings, open_model
from foredraft.errors import InvalidValue, ModelFileError
from foredraft.pipeline import Pipeline, Request, Setup
from foredraft.types import Budget, Rule, SamplingParams
from tests.support.exports import exported, write_tiny
from tests.support.tiny_heads import taps_of, write_head
from tests.support.tiny_models import VOCAB

TEXT = tuple(np.random.default_rng(1).integers(3, VOCAB, 30).tolist())
CONTROLLERS: dict[str, Callable[[Pipeline], Controller]] = {
    "chain": lambda pipeline: Fixed(Budget.chain(4)),
    "tree": lambda pipeline: Fixed(Budget(8, 4, 3)),
    "dynamic": lambda pipeline: Fixed(Budget(8, 4, 3, dynamic=True)),
    "cost": lambda pipeline: CostAware(pipeline.priors()),
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.exports("llama-head")) for name in ("torch", "executorch")]
)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Setup:
    if request.param == "executorch":
        return Setup(exported("llama-head"), ("head",), Settings(threads=1))
    model = write_tiny("llama", tmp_path)
    return Setup(model, (write_head(model, tmp_path / "head"),), Settings(context=512), engine_name="pytorch")


@pytest.fixture
def pipeline(setup: Setup) -> Iterator[Pipeline]:
    with Pipeline.open(setup) as opened:
        yield opened


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_plain_decodings(pipeline: Pipeline, controller: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=60, seed=5)
    request = Request(TEXT, params, CONTROLLERS[controller](pipeline), max_tokens=60)
    drafted, plain = pipeline.run(request).summary, pipeline.run(request.plain).summary
    assert drafted.ids == plain.ids
    if controller != "cost":
        assert drafted.drafted > 50
        assert "head" in drafted.sources


@pytest.mark.parametrize("rule", ["residual", "relaxed"])
def test_other_rules(pipeline: Pipeline, rule: Rule) -> None:
    params = SamplingParams(temperature=1.0, min_tokens=40, seed=2)
    request = Request(TEXT, params, Fixed(Budget.chain(3)), rule, 0.05 if rule == "relaxed" else 0.0, max_tokens=40)
    found = pipeline.run(request).summary
    assert found.drafted > 20 and len(found.ids) == 40


def test_behind_lookup(setup: Setup) -> None:
    both = Setup(setup.target, ("ngram", *setup.drafts), setup.engine, engine_name=setup.engine_name)
    with Pipeline.open(both) as pipeline:
        assert list(pipeline.priors().sources) == ["ngram", "head"]
        request = Request(TEXT[:6] * 4, controller=Fixed(Budget.chain(4)), max_tokens=60)
        drafted, plain = pipeline.run(request).summary, pipeline.run(request.plain).summary
    assert drafted.ids == plain.ids


def test_a_text_longer_than_a_pass_and_a_second_request(pipeline: Pipeline) -> None:
    """Several passes of the prompt; then nothing of it is left."""
    controller = Fixed(Budget.chain(3))
    first = pipeline.run(Request(TEXT * 10, controller=controller, max_tokens=20)).summary
    second = pipeline.run(Request(TEXT[:9], controller=controller, max_tokens=20)).summary
    again = pipeline.run(Request(TEXT * 10, controller=controller, max_tokens=20)).summary
    assert (first.ids, first.accepted) == (again.ids, again.accepted)
    assert second.ids == pipeline.run(Request(TEXT[:9], max_tokens=20)).summary.ids


@pytest.mark.exports("llama-head")
def test_an_export_knows_its_head() -> None:
    engine = ExecutorchEngine(exported("llama-head"))
    facts = engine.manifest.head
    assert facts is not None and facts.rows == len(engine.head().info.ids)
    assert engine.manifest.taps == taps_of(engine.manifest.shape.layers) and engine.manifest.exact
    engine.close()


@pytest.mark.exports("llama", "llama-head")
def test_heads_that_cannot_be_had(tmp_path: Path) -> None:
    model = write_tiny("llama", tmp_path)
    head = write_head(model, tmp_path / "head")
    for path, name, draft, words in (
        (model, "auto", head, "with the engines pytorch and executorch only"),
        (model, "pytorch", "head", "the directory of a head"),
        (exported("llama-head"), "auto", head, "head for an export's own head"),
    ):
        with pytest.raises(InvalidValue, match=words):
            open_model(path, Settings(), name, draft)
    with pytest.raises(ModelFileError, match="holds no draft head"):
        open_model(exported("llama"), Settings(), "auto", "head")
    with pytest.raises(ModelFileError, match="the head was trained for"):
        open_model(write_tiny("qwen2", tmp_path), Settings(), "pytorch", _narrower(head))
    with pytest.raises(InvalidValue, match="allowed: one head"):
        Pipeline.open(Setup(model, (head, "head"), engine_name="pytorch"))


def _narrower(head: Path) -> Path:
    """The same head, said to be of a model with another vocabulary."""
    about = head / "head.json"
    about.write_text(about.read_text().replace(f'"vocab_size": {VOCAB}', f'"vocab_size": {VOCAB + 1}'))
    return head
