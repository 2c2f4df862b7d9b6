"""Fixtures of the whole suite: hypothesis profiles, real small models, an empty model cache; exports begin early."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch, whose threads would fight ExecuTorch's

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """The marker of tests that need exports (see ``tests/support/exports.py``); programs started by tests hear Ctrl-C
    even where the whole run was started in the background, which ignores it. Of several processes that run tests each
    keeps to a processor of its own: engines then take one thread, and two of them do not wait for each other's."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "exports(name, ...): needs these ExecuTorch exports")
    worker = getattr(config, "workerinput", None)
    if worker is not None and hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[int(worker["workerid"].removeprefix("gw")) % len(processors)]})


class Distributed:
    """Only where tests run in several processes."""

    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process that will run tests where exports are made."""
        from tests.support import exports

        node.workerinput["exports"] = str(exports.folder())


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """xdist's hooks exist only where it does."""
    if type(plugin).__name__ == "DSession":
        manager.register(Distributed())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need exports run last."""
    from tests.support import exports

    exports.last(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the tests need is exported while others run."""
    from tests.support import exports

    if not session.config.option.collectonly:
        worker = getattr(session.config, "workerinput", None)
        exports.start(session.items, Path(worker["exports"]) if worker is not None else None)


def pytest_unconfigure() -> None:
    """Nothing stays behind."""
    from tests.support import exports

    exports.stop()


def _model(name: str) -> Path:
    from tests.support.models import ensure_model

    return ensure_model(name)


@pytest.fixture
def all_processors() -> Iterator[None]:
    """For a test that needs several threads at once: without it each process of tests keeps to one processor."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF: the embedded default target."""
    return _model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M as GGUF: a sliding-window model."""
    return _model("gemma3-270m")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model cache of the test's own, empty; FOREDRAFT_CACHE points there."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("FOREDRAFT_CACHE", str(cache))
    return cache
