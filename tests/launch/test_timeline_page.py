"""The page of `mpicoll timeline -o` in a real browser, opened from a file."""

from __future__ import annotations

from contextlib import closing

import pytest
from support import command
from support.browser import DESKTOP, PHONE, Visit
from unit.test_timeline import exchange, saved

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["wide", "narrow"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_are_shown_in_the_colours_of_the_system(browser, tmp_path, viewport, scheme):
    saved(tmp_path / "t.json", exchange(late=100))
    page = tmp_path / "page.html"
    assert command.run("timeline", str(tmp_path / "t.json"), "-o", str(page)).exit_code == 0
    with closing(Visit(browser, page, viewport, scheme)) as visit:
        for theme in ("light", "dark"):
            pictures = visit.page.locator(f".{theme} svg").all()
            assert [picture.is_visible() for picture in pictures] == [theme == scheme] * 3
        widths = visit.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1], "nothing is wider than the page"
        assert visit.page.locator("tbody tr").count() == 1 + 1 + 4
