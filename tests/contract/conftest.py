"""Fixtures of the contract suite: engines by name, each loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from foredraft.engines.base import Session
from tests.support.engine_cases import Case, makers


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Case]]:
    """The engines by name, each loaded once."""
    make = makers(tmp_path_factory.mktemp("models"))
    made: dict[str, Case] = {}

    def get(name: str) -> Case:
        if name not in made:
            made[name] = make[name]()
        return made[name]

    yield get
    for case in made.values():
        case.engine.close()


@pytest.fixture
def case(request: pytest.FixtureRequest, cases: Callable[[str], Case]) -> Case:
    """The engine of this test."""
    return cases(request.param)


@pytest.fixture
def session(case: Case) -> Iterator[Session]:
    """An empty session of ``case``."""
    opened = case.engine.open()
    yield opened
    opened.close()
