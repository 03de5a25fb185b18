"""Training steps of `mpicoll train --explore` in a real browser: opened from a file, with the network cut off."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest
from support.browser import DESKTOP, PHONE, Explored
from unit.test_explore_training import WHOLE, call, of, two_ranks

from mpicoll.describe.explore import training as steps
from mpicoll.describe.explore.training import Training

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
ZERO = "#training/zero3/step="
MARKUP = "<img src=x onerror=alert(1)>"


def pipeline():
    """Return two stages: a forward, a message, a forward."""
    sent = call(1, 0.3, 0.6, collective="", algorithm="", root=0, blocking=False, moves="activations")
    return [of(0, [sent], [("forward", 0.1, 0.2)]), of(1, [sent], [("forward", 0.7, 0.8)])]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("training") / "page.html"
    trainings = [Training("zero3", MARKUP, two_ranks(), WHOLE), Training("pipeline", "stages", pipeline(), WHOLE)]
    path.write_text(steps.build(trainings), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser, file, request):
    with closing(Explored(browser, file, *getattr(request, "param", ()))) as view:
        yield view


def held(visit, rank):
    """Return the words of each kind of memory of a rank."""
    return visit.page.locator(f'.traincell[data-rank="{rank}"] b').all_inner_texts()


def words_of(visit):
    return visit.page.locator("#words").inner_text()


def test_a_learner_finds_what_ranks_hold_as_the_gradients_are_reduced(visit):
    """Play to the end of the forward pass, then to the call that reduces gradients."""
    assert held(visit, 0) == ["whole", "none", "whole", "none"]
    for _ in range(2):
        visit.page.locator("#next").click()
    assert visit.page.locator("#count").inner_text() == "moment 2 / 10"
    assert words_of(visit) == (
        "Moment 2 of 10, 200 ms: forward ends on ranks 0-1. "
        "Ranks hold parameters whole, gradients none, optimizer state whole, activations 50 %.")
    for _ in range(2):
        visit.page.keyboard.press("ArrowRight")
    assert "Iallreduce of gradients, ring, 64 B: posted on ranks 0-1" in words_of(visit)
    assert held(visit, 1) == ["whole", "whole", "whole", "50 %"]
    assert visit.page.locator(".moment.lit").get_attribute("data-moment") == "4"
    assert visit.page.locator(".traincell.changed").count() == 2
    assert visit.page.locator(".callrow.lit").count() == 1
    visit.page.locator("#last").click()
    assert "the step ends" in words_of(visit) and visit.page.url.endswith("#training/zero3/step=10")


def test_a_collective_leads_to_its_algorithm_and_back(visit):
    page = visit.page
    page.locator("a.comm").first.click()
    page.wait_for_function("document.querySelector('.side h2').textContent.startsWith('allreduce ring')")
    assert page.url.endswith("#allreduce/ring/p=2/step=0") and page.locator(".board .cell").count() > 0
    page.locator("#next").click()
    assert words_of(visit).startswith("Step 1 of 2")
    page.locator("#tours button", has_text="A step of zero3").click()
    assert page.locator("svg.training").count() == 1 and page.url.endswith("#training/zero3/step=0")
    page.locator(".calls a").first.click()
    page.wait_for_function("location.hash.startsWith('#allreduce')")
    page.go_back()
    page.wait_for_function("location.hash.startsWith('#training')")
    assert page.locator("svg.training").count() == 1


def test_a_message_names_its_ends_and_goes_to_its_moment(visit):
    page = visit.page
    page.locator('[data-field="training"]').select_option("training/pipeline")
    assert page.url.endswith("#training/pipeline/step=0") and page.locator("a.comm").count() == 0
    page.locator("g.comm").first.click()
    assert words_of(visit).startswith("Moment 3 of 7, 300 ms: message of activations, 64 B, rank 0 to 1: sent.")
    page.locator(".moment").nth(4).locator(".ms").click()
    assert "rank 0 to 1: received" in words_of(visit)
    row = page.locator(".calls tbody tr").inner_text().split("\t")
    assert row[:5] == ["message", "–", "64 B", "activations", "0 → 1"]


def test_two_patterns_are_side_by_side(visit):
    visit.page.locator("#compare").click()
    assert visit.page.locator("svg.training").count() == 2
    assert visit.page.url.endswith("#training/zero3/step=0&training/pipeline")
    visit.page.locator("#last").click()
    assert words_of(visit).startswith("Left: Moment 10 of 10") and "Right: Moment 7 of 7" in words_of(visit)
    visit.page.locator("#compare").click()
    assert visit.page.locator("svg.training").count() == 1


def test_it_plays_to_the_end(visit):
    visit.page.locator("#speed").select_option("200")
    visit.page.locator("#play").click()
    visit.page.wait_for_function("document.getElementById('count').textContent === 'moment 10 / 10'")
    visit.page.wait_for_function("document.getElementById('play').ariaLabel === 'Play'")
    assert held(visit, 0) == ["whole", "whole", "whole", "none"]


@pytest.mark.parametrize("visit", [(DESKTOP, "light", ZERO + "6")], indirect=True)
def test_a_link_opens_its_moment(visit):
    assert visit.page.locator("#count").inner_text() == "moment 6 / 10"
    visit.page.evaluate("link => { location.hash = link; }", "training/none/step=1")
    visit.page.wait_for_function("document.getElementById('words').textContent.startsWith('This page has no')")


@pytest.mark.parametrize("visit", [(size, scheme, link) for link in (ZERO + "4", ZERO + "4&training/pipeline")
    for size, scheme in ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"))], indirect=True)  # fmt: skip
def test_nothing_is_wider_than_the_screen_and_all_is_named(visit):
    page = visit.page
    visit.check_layout()
    assert page.locator("img").count() == 0
    drawn = page.locator("#sides").evaluate("node => node.outerHTML")
    assert not any(word in drawn for word in ("NaN", "Infinity", "undefined"))


def test_a_run_of_two_ranks_is_played(browser, mpiexec, tmp_path):
    path = tmp_path / "page.html"
    words = "-m", "mpicoll", "train", "zero3", "--steps", "2", "--width", "16", "--batch", "12", "--explore", path
    done = mpiexec(2, sys.executable, *words, limit=120)
    assert done.status == 0, done.output
    view = Explored(browser, path, PHONE, "dark")
    assert held(view, 1) == ["shard 1/2", "none", "shard 1/2", "none"]
    last = view.page.evaluate("explore.data.trainings['training/zero3'].moments.length - 1")
    for moment in range(1, last + 1):
        view.page.locator("#next").click()
        assert words_of(view).startswith(f"Moment {moment} of {last}")
    assert held(view, 1) == ["shard 1/2", "none", "shard 1/2", "none"]
    view.close()
