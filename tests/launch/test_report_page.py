"""The page of `mpicoll report` in a real browser: opened from a file, with the network cut off."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support.browser import DESKTOP, PHONE, Visit
from unit.report_data import result, results, write

from mpicoll.benchmarks.report import modelled
from mpicoll.benchmarks.report.read import read
from mpicoll.cost.network import network

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
IMB = Path(__file__).parents[1] / "unit" / "data" / "imb-4.txt"
SHOWN = 14  # contenders of the blocking allreduce with a right answer
MARKS = "svg .mark-symbol path, svg .mark-rect path, svg .mark-line path"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mpicoll.benchmarks.report.page import build

    folder = tmp_path_factory.mktemp("report")
    ours = write(folder / "ours.jsonl", results(("allreduce", "bcast", "barrier")))
    page = folder / "report.html"
    page.write_text(build([read(ours), read(IMB)], 'A title with <b> & "quotes"'), encoding="utf-8")
    return page


class Opened(Visit):
    """A report, and the charts in it."""

    def chart(self, section: str, kind: str):
        """Return a chart, scrolled into view, once it is drawn."""
        box = self.page.locator(f"#{section} .chart.{kind}")
        box.scroll_into_view_if_needed()
        self.page.wait_for_selector(f"#{section} .chart.{kind}[data-drawn] svg")
        return box

    def redrawn(self, section: str, kind: str, act) -> None:
        """Do something that draws a chart anew, and wait for that."""
        before = self.chart(section, kind).get_attribute("data-drawn")
        act()
        wanted = f"#{section} .chart.{kind}"
        self.page.wait_for_function(
            "([at, old]) => document.querySelector(at).dataset.drawn > old", arg=[wanted, before]
        )


    def has_marks(self, section: str, kind: str, wanted: str) -> None:
        """Wait until a chart's number of marks n is as wanted, for instance "n < 3"."""
        count = f"n => {wanted}"
        self.page.wait_for_function(
            f"([at, marks]) => ({count})(document.querySelector(at).querySelectorAll(marks).length)",
            arg=[f"#{section} .chart.{kind}", MARKS],
        )


@pytest.fixture
def opened(browser, report, request):
    viewport, scheme = getattr(request, "param", (DESKTOP, "light"))
    view = Opened(browser, report, viewport, scheme)
    yield view
    view.close()


def marks(box) -> int:
    return box.locator(MARKS).count()


@pytest.mark.parametrize(
    "opened", [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light")], indirect=True, ids=["desktop", "dark", "phone"]
)
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_screen(opened, tmp_path):
    page = opened.page
    assert page.title() == 'A title with <b> & "quotes"'
    assert marks(opened.chart("glance", "map")) >= 2 * 6 + 1
    assert marks(opened.chart("allreduce", "curves")) >= SHOWN * 6
    assert marks(opened.chart("allreduce", "map")) == 2 * 6
    assert marks(opened.chart("allreduce", "scaling")) >= SHOWN * 2
    assert marks(opened.chart("bcast", "curves")) >= 12 * 6
    assert marks(opened.chart("barrier", "curves")) == 7
    assert marks(opened.chart("pingpong", "curves")) >= 6
    assert page.locator("#pingpong .best").is_hidden()
    assert page.evaluate("window.reportFailures") == []
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")  # once nothing is drawn any more
    assert len(page.screenshot(path=tmp_path / "page.png")) > 20_000


def test_legend_hides_and_shows_everywhere_in_its_section(opened):
    curves, scaling = opened.chart("allreduce", "curves"), opened.chart("allreduce", "scaling")
    before = marks(curves), marks(scaling)
    chip = opened.page.locator("#allreduce .legend button", has_text="rabenseifner")
    chip.click()
    for kind, n in zip(("curves", "scaling"), before):
        opened.has_marks("allreduce", kind, f"n < {n}")
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    for kind, n in zip(("curves", "scaling"), before):
        opened.has_marks("allreduce", kind, f"n == {n}")


def test_a_point_tells_its_numbers(opened):
    chart = opened.chart("bcast", "curves")
    chart.locator(".mark-symbol path").first.hover(force=True)
    tooltip = opened.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    text = tooltip.inner_text()
    assert "algorithm" in text and "µs" in text and "8 B" in text
    assert "null" not in text and "NaN" not in text and "undefined" not in text


def test_auto_is_our_fastest_where_it_is(browser, tmp_path):
    """Measure another algorithm than the choice of auto: it is slower than native."""
    from mpicoll.benchmarks.report.page import build

    times = {"native": 10.0, "auto": 8.0, "linear": 12.0}
    lines = [result("bcast", name, 1024, 4, 1) | {"median_us": t, "interval_us": None, "ratio": 10 / t,
                                                  "ran": {"algorithm": "chain" if name == "auto" else name}}
             for name, t in times.items()]  # fmt: skip
    page = tmp_path / "report.html"
    page.write_text(build([read(write(tmp_path / "auto.jsonl", lines))], "auto"), encoding="utf-8")
    opened = Opened(browser, page, DESKTOP, "light")
    glance, best = opened.chart("glance", "map"), opened.chart("bcast", "map")
    assert "1.25×auto: chain" in glance.locator("svg").first.text_content()
    assert "auto: chain1.25× native" in best.locator("svg").first.text_content()
    opened.page.locator("#bcast summary", has_text="All numbers").click()
    opened.page.locator("#bcast .table tr.fastest", has_text="auto: chain").wait_for()
    opened.context.close()
    assert opened.errors == []


def test_choices_change_what_is_drawn(opened):
    section = opened.page.locator("#allreduce")
    title = opened.chart("allreduce", "curves").locator("text", has_text="time per call")
    assert title.count() == 1
    opened.redrawn("allreduce", "curves", section.get_by_role("button", name="speed against native").click)
    assert title.count() == 0
    opened.redrawn("allreduce", "curves", section.get_by_role("button", name="nonblocking").click)
    opened.redrawn("allreduce", "curves", section.get_by_role("button", name="overlap").click)
    assert section.locator(".legend button").count() == 5 + 1


def test_the_table_has_every_row_with_its_remarks(opened):
    section = opened.page.locator("#allreduce")
    opened.chart("allreduce", "curves")
    section.locator("summary", has_text="All numbers").click()
    rows = section.locator(".table tbody tr")
    rows.first.wait_for()  # made when it is opened
    assert rows.count() == 6 * 15
    text = section.locator(".table").inner_text()
    assert "wrong answer" in text and "unpaired" in text and "3 late" in text
    assert section.locator(".table tr.fastest").count() == 6


def test_theme_changes_colours(opened):
    page = opened.page
    opened.chart("allreduce", "curves")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    opened.redrawn("allreduce", "curves", page.locator("#theme").click)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_maps_by_the_model_are_drawn(browser, tmp_path):
    """The fastest and the price: a tile for each size and number of ranks."""
    from mpicoll.benchmarks.report.page import build

    page = tmp_path / "map.html"
    areas = modelled.areas(["allreduce"], [4, 16, 64], 4, [8, 4096, 1 << 20])
    page.write_text(build([modelled.run(network("leonardo"), areas, "mpich")], "Maps"), encoding="utf-8")
    with closing(Opened(browser, page, DESKTOP, "light")) as opened:
        for kind in ("map", "price"):
            opened.chart("allreduce", kind)
            opened.has_marks("allreduce", kind, "n === 9")
        assert "mpich:" in opened.page.locator("#allreduce .price").inner_text()
        opened.page.locator("#glance").scroll_into_view_if_needed()
        assert opened.page.evaluate("window.reportFailures") == []
