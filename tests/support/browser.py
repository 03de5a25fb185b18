"""A page in a real browser, opened from a file with the network cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

UNNAMED = """() => [...document.querySelectorAll("button, select, input, svg:not([aria-hidden])")]
  .filter((node) => !(node.ariaLabel || node.textContent.trim() || node.closest("label"))).length"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
WAIT = 100_000  # milliseconds, for anything on a busy machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, f"none of {', '.join(BROWSERS)} is on PATH"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """The page as a visitor sees it, and what went wrong on the way."""

    def __init__(self, browser: Any, file: Path, viewport: dict[str, int], scheme: str, link: str = "") -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        self.context.set_default_timeout(WAIT)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        self.page.goto(file.as_uri() + link)

    def close(self) -> None:
        """Close it; nothing may have gone wrong, and nothing may have been asked of a network."""
        self.context.close()
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))] == []


class Explored(Visit):
    """A page of mpicoll explore, ready for use."""

    def __init__(
        self, browser: Any, file: Path, viewport: dict[str, int] = DESKTOP, scheme: str = "light", link: str = ""
    ) -> None:
        super().__init__(browser, file, viewport, scheme, link)
        self.page.wait_for_selector("html[data-ready]")

    def check_layout(self) -> None:
        """Check that nothing is wider than the screen, and that screen readers have a name for every control."""
        assert self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert self.page.evaluate(UNNAMED) == 0

    def close(self) -> None:
        """Close it; no part of its script may have failed."""
        failures = self.page.evaluate("explore.failures")
        super().close()
        assert failures == []
