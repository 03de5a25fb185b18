"""The page of `mpicoll explore` in a real browser: opened from a file, with the network cut off."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from support.browser import DESKTOP, PHONE, Explored
from unit.mutants import adhoc
from unit.test_explore import Snapshots, late
from unit.test_measured import beside, played, saved

from mpicoll.cost.network import network
from mpicoll.describe.explore import choose, page
from mpicoll.describe.explore.presets import PRESETS
from mpicoll.describe.explore.timing import Clock
from mpicoll.describe.text import draw
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import schedule

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
RING = "#allreduce/ring/p=5/step="
SHOWN = [entry.name for entry in registered() if entry.collective.name == "allreduce"]
NODES = {p: by_blocks(p, 1) for p in range(1, 17)}
MARKUP = "<img src=x onerror=alert(1)>"
FRAMES = """() => Object.fromEntries(Object.entries(explore.data.schedules).map(([key, schedule]) => [key,
  Array.from({ length: schedule.steps + 1 }, (_, t) => Object.fromEntries(
    [...explore.frame(explore.data, schedule, t)].map(([place, held]) => [place, held.value])))]))"""

DRAW_ALL = """async (positions) => {
  const wrong = [];
  for (const [key, schedule] of Object.entries(explore.data.schedules)) for (const position of positions) {
    const followed = new Promise((done) => addEventListener("hashchange", () => setTimeout(done), { once: true }));
    if (location.hash === explore.link([key], position)) continue;
    location.hash = explore.link([key], position);
    await followed;
    const drawn = [".board", ".spacetime", "#cost"].map((at) => document.querySelector(at).outerHTML).join("");
    const isRight = document.querySelector(".side h2").textContent === schedule.headline;
    if (!isRight || /NaN|Infinity|undefined/.test(drawn)) wrong.push([key, position]);
  }
  return wrong;
}"""


@pytest.fixture(scope="module")
def wanted() -> list:
    chosen = list(choose.schedules(choose.wanted(), (3, 5)))
    chosen += choose.schedules(choose.wanted(["allreduce"], ["ring", "parameter_server", "halving_doubling"]), (8, 13))
    tours = [key for tour in PRESETS for key in (tour.left, tour.right) if key]
    return chosen + choose.missing(tours, chosen, (5, 8, 13), NODES)


@pytest.fixture(scope="module")
def file(wanted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explore") / "page.html"
    clock = Clock(network("infiniband"), 1 << 20, NODES)
    path.write_text(page.build(wanted, f"Title {MARKUP}", clock=clock), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser, file, request):
    with closing(Explored(browser, file, *getattr(request, "param", ()))) as view:
        yield view


def held(visit: Explored, rank: int) -> dict[str, str]:
    """Return the contributors that the board shows in a rank, by place."""
    cells = visit.page.locator(f'.board .cell[data-rank="{rank}"]').all()
    return {cell.get_attribute("data-place"): cell.get_attribute("data-value") for cell in cells}


def step(visit: Explored) -> str:
    return visit.page.locator("#count").inner_text()


def test_every_frame_of_every_algorithm_is_the_symbolic_execution(visit, wanted):
    frames = visit.page.evaluate(FRAMES)
    assert len(frames) == len(wanted)
    for key, own in wanted:
        executed = Snapshots(own)
        for t, shown in enumerate(frames[str(key)]):
            expected = {f"{rank}|{buffer}|{list(own.blocks).index(block) if own.blocks else 0}": value
                        for rank, state in enumerate(executed.frame(t)) for (buffer, block), value in state.items()}
            assert shown == expected, (str(key), t)


@pytest.mark.parametrize("visit", [(DESKTOP, "light", RING + "3")], indirect=True)
def test_a_learner_finds_what_each_rank_holds_after_step_3_of_the_ring(visit):
    assert held(visit, 1)["value|2"] == "0-1,3-4" and held(visit, 0)["value|1"] == "0,2-4"
    assert visit.page.locator(".board .message.reduces").count() == 5
    assert visit.page.locator(".board .cell.new").count() == 5
    assert visit.page.locator(".spacetime .band.lit").get_attribute("data-step") == "3"
    words = visit.page.locator("#words").inner_text()
    assert words.startswith("Step 3 of 8: 5 messages, all reduced: 0 to 1 b2, 1 to 2 b3")
    visit.page.locator("summary", has_text="The same as a table").click()
    row = visit.page.locator("table.held tr", has=visit.page.locator("th", has_text="b2"))
    row.wait_for()  # it is drawn as the table opens
    assert row.locator("td").all_inner_texts() == ["0,3-4", "0-1,3-4", "2", "3", "3-4"]


def test_a_learner_finds_why_the_parameter_server_is_slow(visit):
    visit.page.get_by_role("button", name="Parameter server or ring").click()
    visit.page.locator("#next").click()
    loads = visit.page.locator("svg.load").first.get_attribute("aria-label")
    assert "rank 0 sent 0, received 7 n" in loads and "rank 5 sent n, received 0" in loads
    visit.page.locator("#last").click()
    totals = visit.page.locator('table.numbers tr[data-name="bytes per rank"] td:nth-of-type(2)').all_inner_texts()
    assert totals == ["7 n", "1.75 n"]
    loads = visit.page.locator("svg.load").first.get_attribute("aria-label")
    assert "rank 0 sent 7 n, received 7 n" in loads and "rank 5 sent n, received n" in loads


def test_a_learner_finds_what_extra_ranks_do(visit):
    visit.page.get_by_role("button", name="13 servers by halving-doubling").click()
    visit.page.locator("#next").click()
    assert "8 to 0" in words_of(visit) and "12 to 4" in words_of(visit)
    assert visit.page.locator(".board .message").count() == 5
    visit.page.locator("#last").click()
    assert "0 to 8" in words_of(visit) and "4 to 12" in words_of(visit)
    assert held(visit, 12) == held(visit, 0) and set(held(visit, 12).values()) == {"0-12"}


def test_a_learner_finds_which_messages_of_a_hierarchy_cross_between_nodes(visit):
    visit.page.get_by_role("button", name="Hierarchical on 4 × 2").click()
    crossing, last = 0, visit.page.evaluate("explore.data.schedules['allreduce/hierarchical(groups=2)/p=8'].steps")
    for number in range(1, last + 1):
        visit.page.locator("#next").click()
        pairs = re.findall(r"(\d) to (\d)", words_of(visit))
        crosses = {int(source) // 2 != int(destination) // 2 for source, destination in pairs}
        assert len(crosses) == 1, "a step is within nodes or between them"
        crossing += crosses == {True}
        assert crosses == {number not in (1, last)}
    assert 0 < crossing == last - 2


def test_a_learner_compares_the_steps_of_two_algorithms(visit):
    """Find the algorithm of two with fewer steps, and the one that sends fewer bytes, with the formulas of both."""
    visit.page.locator('[data-field="algorithm"]').select_option("parameter_server")
    visit.page.locator("#compare").click()
    visit.page.locator('.side:last-of-type [data-field="algorithm"]').select_option("recursive_doubling")
    rows = {name: visit.page.locator(f'table.numbers tr[data-name="{name}"]') for name in ("steps", "bytes per rank")}
    assert visit.page.locator(".side").count() == 2
    shown = {name: [row.locator("td").all_inner_texts() for row in rows[name].all()] for name in rows}
    assert [[cells[1], cells[3]] for cells in shown["steps"]] == [["2", "2"], ["4", "4"]]
    assert [[cells[1], cells[3]] for cells in shown["bytes per rank"]] == [["4 n", "4 n"], ["3 n", "3 n"]]


def test_numbers_are_those_of_show(visit):
    for collective, spec, p in (("allreduce", "ring", 5), ("bcast", "knomial(k=2)", 5), ("barrier", "tree", 3)):
        visit.page.evaluate("link => { location.hash = link; }", f"{collective}/{spec}/p={p}/step=99")
        headline = draw(schedule(collective, spec, p)).partition("\n")[0]
        visit.page.wait_for_function("said => document.querySelector('.side h2').textContent === said", arg=headline)
        steps = visit.page.locator('table.numbers tr[data-name="steps"] td').all_inner_texts()
        assert steps[0] == steps[1] == steps[3] and f" {steps[0]} step" in headline


def test_play_slider_and_buttons_step(visit):
    visit.page.locator("#speed").select_option("200")
    visit.page.locator("#play").click()
    visit.page.wait_for_function("document.getElementById('count').textContent === 'step 8 / 8'")
    visit.page.wait_for_function("document.getElementById('play').ariaLabel === 'Play'")
    assert "step=8" in visit.page.url
    visit.page.locator("#slider").fill("2")
    assert step(visit) == "step 2 / 8"
    visit.page.locator("#back").click()
    assert step(visit) == "step 1 / 8"
    visit.page.locator('.spacetime .band[data-step="6"]').click()
    assert step(visit) == "step 6 / 8" and held(visit, 0)["value|3"] != "0"


def test_keys_step_and_play(visit):
    press = visit.page.keyboard.press
    for key, count in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 8), ("Home", 0)):
        press(key)
        assert step(visit) == f"step {count} / 8"
    press("Space")
    visit.page.wait_for_function("document.getElementById('play').ariaLabel === 'Pause'")
    press("Space")
    before = visit.page.evaluate("document.documentElement.dataset.theme")
    press("t")
    assert visit.page.evaluate("document.documentElement.dataset.theme") != before
    press("c")
    assert visit.page.locator(".side").count() == 2


def test_choices_are_kept_in_the_address_and_followed(browser, file, visit):
    page = visit.page
    page.locator('[data-field="collective"]').select_option("reduce")
    page.locator('[data-field="algorithm"]').select_option("knomial")
    page.locator('[data-field="p"]').select_option("5")
    page.locator('[data-field="root"]').select_option("2")
    page.locator('[data-field="order"]').select_option("rank")
    page.locator("#next").click()
    assert page.url.endswith("#reduce/knomial/p=5/root=2/order=rank/step=1")
    again = Explored(browser, file, PHONE, "dark", page.url[page.url.index("#"):])
    assert again.page.locator(".side h2").inner_text() == page.locator(".side h2").inner_text()
    assert step(again) == step(visit)
    again.close()


def test_time_plays_and_ends_where_steps_do(visit):
    visit.page.locator("#last").click()
    after_steps = [held(visit, rank) for rank in range(5)]
    visit.page.locator("#mode").click()
    assert step(visit).startswith("0 µs / ") and visit.page.url.endswith("/us=0")
    assert held(visit, 0) == {f"value|{block}": "0" for block in range(5)}
    visit.page.locator("#next").click()
    assert visit.page.locator(".board .message").count() == 5 and "5 messages in flight" in words_of(visit)
    assert visit.page.locator('table.numbers tr[data-name="messages"] td').first.inner_text() == "0"
    visit.page.locator("#last").click()
    assert [held(visit, rank) for rank in range(5)] == after_steps and words_of(visit).endswith("ended.")
    assert visit.page.locator(".costs .curve").count() == len(SHOWN)
    visit.page.get_by_role("button", name="Parameter server or ring").click()
    link = "allreduce/parameter_server/p=8/us=1000&allreduce/ring/p=8"
    visit.page.evaluate("link => { location.hash = link; }", link)
    visit.page.wait_for_function("document.getElementById('mode').ariaPressed === 'true'")
    visit.page.wait_for_function("document.getElementById('words').textContent.includes('Right: ')")
    assert "reducing or copying: rank 0" in words_of(visit) and words_of(visit).endswith("ended.")
    visit.page.evaluate("link => { location.hash = link; }", f"{RING}2")
    visit.page.wait_for_function("document.getElementById('count').textContent === 'step 2 / 8'")


def words_of(visit: Explored) -> str:
    return visit.page.locator("#words").inner_text()


def test_every_schedule_is_drawn_on_one_rank_too(browser, tmp_path):
    wanted = list(choose.schedules(choose.wanted(), (1, 2, 6)))
    file = tmp_path / "page.html"
    clock = Clock(network("infiniband"), 8, NODES)
    file.write_text(page.build(wanted[::7], clock=clock), encoding="utf-8")
    visit = Explored(browser, file)
    assert visit.page.evaluate(DRAW_ALL, ["step=0", "step=99", "us=0", "us=3"]) == []
    visit.close()


def test_a_link_to_what_is_not_there_says_so(visit):
    visit.page.evaluate("link => { location.hash = link; }", f"allreduce/{MARKUP}/p=5/step=1")
    visit.page.wait_for_function("document.getElementById('words').textContent.startsWith('This page has no')")
    assert MARKUP in visit.page.locator("#words").inner_text() and visit.page.locator("img").count() == 0
    assert MARKUP in visit.page.title()


@pytest.mark.parametrize("visit", [(size, scheme, link)
    for link in (RING + "4", "#alltoall/bruck/p=5/step=2", "#allreduce/parameter_server/p=8/step=1&allreduce/ring/p=8")
    for size, scheme in ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"))], indirect=True)  # fmt: skip
def test_nothing_is_wider_than_the_screen_and_all_is_named(visit, tmp_path):
    page = visit.page
    visit.check_layout()
    assert page.locator("#words[aria-live=polite]").count() == 1
    assert len(page.screenshot(path=tmp_path / "page.png")) > 20_000


# -- recorded calls ---------------------------------------------------------------------------------------------------

PAIR = "#allreduce/ring/p=5/bytes=40/measured=Call/us=0&allreduce/ring/p=5/bytes=40/model=Call"
OTHER = "allreduce/halving_doubling/p=6/bytes=4096"


@pytest.fixture(scope="module")
def measured_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with two recorded calls: a ring on 5 ranks whose third step is slow, and another algorithm."""
    folder = tmp_path_factory.mktemp("measured")
    ring, other = schedule("allreduce", "ring", 5), schedule("allreduce", "halving_doubling", 6)
    calls = [
        played(ring, late=20, took=lambda number: 45 if number == 2 else 5),
        played(other, number=2, begin=900, nbytes=4096),
        played(ring, number=3, begin=2000, spec=MARKUP),
    ]
    present = list(choose.schedules(choose.wanted(["allreduce"], ["ring", "naive"]), (5,)))
    laid, new = beside(saved(folder / "t.json", *calls), present)
    clock, file = Clock(network("infiniband"), 1 << 20, NODES), folder / "page.html"
    file.write_text(page.build([*present, *new], clock=clock, measured=laid), encoding="utf-8")
    return file


@pytest.fixture
def measured(browser, measured_page, request):
    with closing(Explored(browser, measured_page, *getattr(request, "param", ()))) as view:
        yield view


def test_a_recorded_call_is_beside_the_models_in_time(measured):
    """The page opens with it: one time axis and one cursor, the ratio, and the step that differs most."""
    shown = measured.page
    assert shown.url.endswith(PAIR) and shown.locator("#mode").get_attribute("aria-pressed") == "true"
    heads = shown.locator(".side h2").all_inner_texts()
    assert heads[0].startswith("Measured, call 1, 40 B: allreduce ring") and heads[1].startswith("Model of infiniband")
    model = shown.evaluate("explore.data.schedules['allreduce/ring/p=5'].measured[0].took[1]")
    text = shown.locator("#measured").inner_text()
    assert "Call 1 on ranks [0, 1, 2, 3, 4], the only such call, took 80 µs" in text
    assert "the last began 20 µs after the first" in text and f"{float(f'{80 / model:.3g}'):g} × the model" in text
    assert "Step 3 differs most: 45 µs, by the model" in text and shown.locator("img").count() == 0
    assert shown.locator("#measured li").text_content().startswith(f"Call of 40 B by {MARKUP} on 5 ranks: ")
    assert step(measured) == "0 µs / 100 µs"
    shown.locator("#slider").fill("192")
    assert step(measured) == "80 µs / 100 µs"
    cursors = [line.get_attribute("y1") for line in shown.locator(".spacetime .now").all()]
    axes = [svg.locator("text.row").all_text_contents() for svg in shown.locator(".spacetime").all()]
    assert len(cursors) == 2 and cursors[0] == cursors[1]
    assert axes[0] == axes[1] == ["0 µs", "25 µs", "50 µs", "75 µs", "100 µs"]
    moving = "[...document.querySelectorAll('.side')].map((side) => side.querySelectorAll('.board .message').length)"
    assert shown.evaluate(moving) == [5, 0] and words_of(measured).endswith("ended.")
    tops = [[card.bounding_box()["y"] for card in shown.locator(kind).all()] for kind in (".timecard", ".boardcard")]
    assert tops[0][0] == tops[0][1] < tops[1][0] == tops[1][1]
    first = shown.locator(".spacetime").first
    assert first.locator(".inside").count() == 5 and shown.locator(".spacetime").last.locator(".inside").count() == 0
    assert first.locator(".message title").first.text_content().endswith("20 µs to 23 µs")


def test_the_steps_of_both_are_a_table(measured):
    measured.page.locator("summary", has_text="Step by step").click()
    rows = measured.page.locator("table.steps tbody tr")
    assert rows.count() == 11 and rows.last.locator("td").first.inner_text() == "80 µs"
    worst = measured.page.locator("table.steps .worst")
    assert worst.count() == 1 and worst.locator("th").inner_text() == "step 3"
    assert worst.locator("td").first.inner_text() == "45 µs" and worst.locator("td").last.inner_text()[0] == "+"


def test_recorded_calls_are_chosen_by_keyboard_and_kept_in_the_address(browser, measured, measured_page):
    shown = measured.page
    options = shown.locator("#recorded option").all_inner_texts()
    assert len(options) == 3 and options[2].startswith("Call, 4 KiB, halving_doubling on 6 ranks: ")
    shown.locator("#recorded").focus()
    shown.keyboard.press("ArrowDown")
    shown.wait_for_function("location.hash.includes('halving_doubling')")
    assert shown.evaluate("document.activeElement.id") == "recorded" and shown.locator(".side").count() == 2
    shown.locator("#slider").fill("120")
    again = Explored(browser, measured_page, PHONE, "dark", shown.url[shown.url.index("#"):])
    assert step(again) == step(measured) and again.page.locator("#recorded").input_value() == f"{OTHER}/measured=Call"
    again.check_layout()
    again.close()


def test_the_two_sides_of_a_recorded_call_go_and_come_back(measured):
    press, shown = measured.page.keyboard.press, measured.page
    press("c")
    assert shown.locator(".side").count() == 1 and "Step 3 differs most" in shown.locator("#measured").inner_text()
    press("c")
    assert [head.split()[0] for head in shown.locator(".side h2").all_inner_texts()] == ["Measured,", "Model"]
    assert shown.locator(".costs .curve").count() == 2 and shown.locator(".costs .curve.side0").count() == 1
    shown.locator('.side:first-of-type [data-field="algorithm"]').select_option("naive")
    text = shown.locator("#measured").inner_text()
    assert "Times of other schedules are the model's, of 1 MiB." in text and "differs most" not in text


@pytest.mark.parametrize("measured", [(DESKTOP, "dark", ""), (PHONE, "light", "")], indirect=True)
def test_all_of_a_measured_page_is_drawn_and_named(measured):
    evaluate = measured.page.evaluate
    measured.check_layout()
    assert evaluate("document.getElementById('recorded').labels[0].textContent").startswith("recorded calls of ")
    assert evaluate(DRAW_ALL, ["step=2", "us=0", "us=33"]) == []


def test_a_fault_is_played(browser, tmp_path):
    wrong = adhoc("allreduce", late, 4, blocks=4)
    wrong.algorithm = type(wrong.algorithm)(**{**vars(wrong.algorithm), "name": "late"})
    file = tmp_path / "page.html"
    file.write_text(page.build([(choose.Key("allreduce", "late", 4), wrong)], broken=True), encoding="utf-8")
    visit = Explored(browser, file)
    assert step(visit) == "step 6 / 6"
    text = visit.page.locator(".faulty").inner_text()
    assert "expected {0, 1, 2, 3}, got {0}" in text and "Rank 0, b0: misses the contribution of 1-3." in text
    assert visit.page.locator(".board .fault").count() == 16
    visit.page.locator("#first").click()
    assert visit.page.locator(".board .fault").count() == 0
    visit.page.locator(".faulty button").click()
    assert step(visit) == "step 6 / 6"
    visit.close()
