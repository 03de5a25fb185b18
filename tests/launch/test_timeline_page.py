"""The page of `mpicoll timeline -o` in a real browser, opened from a file."""

from __future__ import annotations

from contextlib import closing

import pytest
from support import command
from support.browser import DESKTOP, PHONE, Visit
from unit.test_timeline import RECV, SEND, call, exchange, message, of, saved

SOON = 10_000  # milliseconds

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


def test_a_timeline_of_512_ranks_opens_in_10_seconds(browser, tmp_path):
    """Recursive doubling, five times, with 23,040 messages: its page, and its file, which a viewer reads."""
    ranks = []
    for rank in range(512):
        calls = []
        for start in range(0, 500, 100):
            steps = [(kind, rank ^ (1 << step), start + 10 * step, start + 10 * step + 9 + rank % 2, None, step)
                     for step in range(9) for kind in (SEND, RECV)]
            calls.append(call(start, start + 99, *(message(*words) for words in steps), number=start + 1))
        ranks.append(of(rank, *calls))
    file, page = tmp_path / "t.json", tmp_path / "page.html"
    recorded = saved(file, ranks)
    assert recorded.facts["messages"] == 512 * 9 * 5 and recorded.facts["unmatched_messages"] == 0
    assert command.run("timeline", str(file), "-o", str(page)).exit_code == 0
    with closing(Visit(browser, page, DESKTOP, "light")) as visit:
        loaded = "performance.getEntriesByType('navigation')[0].loadEventEnd"
        assert 0 < visit.page.evaluate(loaded) < SOON
        assert visit.page.locator(".light svg").count() == 2  # no rank was late
        visit.page.set_content("<input type=file>")
        visit.page.locator("input").set_input_files(file)
        ids, took = visit.page.evaluate("""async () => {
          const began = performance.now(), text = await document.querySelector("input").files[0].text();
          const ids = new Set(JSON.parse(text).traceEvents.map((event) => event.pid));
          return [ids.size, performance.now() - began];
        }""")
        assert ids == 512 and took < SOON
