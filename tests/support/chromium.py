"""A real Chromium, driven by Playwright. A missing browser is a failure, never a skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from foredraft.profile.report import Summary, check_summary, to_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip


def executable() -> str:
    """FOREDRAFT_CHROMIUM, or the first of the usual names on the path."""
    found = os.environ.get("FOREDRAFT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("Chromium is missing: install the system's package chromium, or set FOREDRAFT_CHROMIUM to one")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that talks to nobody."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page with what it complained about and what it asked for."""

    page: Page
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def value(self) -> float:
        """The prediction shown, as a number."""
        return float(self.page.locator("#speedup").get_attribute("data-value") or "nan")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def settle(self) -> None:
        """Three frames, after which the page has been told its width and has drawn its pictures."""
        for _ in range(3):
            self.page.evaluate("() => new Promise(requestAnimationFrame)")


Open = Callable[..., Opened]


def show(browser: Browser, file: Path, made: Summary, width: int = 1280, **options: Any) -> Opened:
    """The summary's page in a window of this width, drawn."""
    file.write_text(to_page(check_summary(made)), "utf-8")
    found = Opened(browser.new_context(viewport={"width": width, "height": 800}, **options).new_page())
    found.page.on("console", lambda message: found.faults.append(message.text))
    found.page.on("pageerror", lambda error: found.faults.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(file.as_uri())
    return found
