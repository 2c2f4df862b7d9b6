"""One browser for a module; pages of summaries, opened as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from foredraft.profile.report import Summary
from tests.support.chromium import Open, Opened, chromium, show
from tests.support.summaries import EVERYTHING


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    pages = []

    def opened(made: Summary, width: int = 1280, **options: Any) -> Opened:
        pages.append(show(browser, tmp_path / "report.html", made, width, **options))
        return pages[-1]

    yield opened
    for each in pages:
        each.page.context.close()


@pytest.fixture(scope="module", params=EVERYTHING)
def phone(
    browser: Browser, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Opened]:
    """Every summary on a small screen, once; nobody touches it."""
    found = show(browser, tmp_path_factory.mktemp("phone") / "report.html", EVERYTHING[request.param], 360)
    found.settle()
    yield found
    found.page.context.close()
