"""Pictures show what the schedule does: every step, every message, and who has contributed to what."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support import golden

from mpicoll.algorithms import allreduce
from mpicoll.describe import svg as drawing
from mpicoll.describe import text
from mpicoll.describe.catalogue import served
from mpicoll.describe.picture import Picture
from mpicoll.proofs.symbolic import execute
from mpicoll.schedules.combinators import mirror, parallel, relabel, then
from mpicoll.schedules.ir import RecvReduce, Send
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule, schedule

SVG = "{http://www.w3.org/2000/svg}"


def ring(p=5):
    return schedule("allreduce", "ring", p)


def two_lines(p=5):
    """Return an allreduce in two strands: half the vector goes down the ranks and back, half goes up first."""

    def down(p, rank):
        to_zero = [RecvReduce(rank + 1, (0,))] * (rank < p - 1) + [Send(rank - 1, (0,))] * (rank > 0)
        return then(to_zero, mirror(to_zero))

    def both(p, rank):
        up = relabel(down(p, p - 1 - rank), lambda peer: p - 1 - peer, lambda b: (1,))
        return parallel(down(p, rank), up)

    return Schedule(replace(allreduce.ring, body=both, share=lambda p: 2, strand=lambda block: block), p)


# -- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("collective", "name", "p", "more"), [
    ("allreduce", "ring", 5, {}),
    ("allreduce", "rabenseifner", 5, {}),  # blocks of one message with the same contributors
    ("reduce", "chain", 4, {"root": 2}),
    ("barrier", "dissemination", 5, {}),
    ("alltoall", "bruck", 4, {}),
])
def test_pictures_in_text(collective, name, p, more):
    golden.compare(text.draw(schedule(collective, name, p, **more)), f"draw-{collective}-{name}.txt")


def test_the_first_line_has_the_bytes_that_were_measured():
    """Of all blocks for collectives whose vector is that, of a rank's for alltoall; a barrier moves none."""
    for collective, name, p, ending in (
        ("allreduce", "halving_doubling(form=fold)", 13, "at most 2.75 n bytes per rank"),
        ("alltoall", "pairwise", 4, "at most 0.75 n bytes per rank"),
        ("scatter", "linear", 1, "at most 0 bytes per rank"),
        ("bcast", "chain", 3, "at most n bytes per rank"),
        ("barrier", "dissemination", 4, "p = 4: 2 steps, 8 messages"),
    ):
        assert Picture(schedule(collective, name, p)).headline.endswith(ending)


@pytest.mark.parametrize("entry", list(registered()), ids=lambda a: f"{a.collective.name}-{a.name}")
@pytest.mark.parametrize("p", [1, 2, 7])
def test_every_algorithm_can_be_drawn(entry, p):
    wanted = schedule(entry.collective.name, entry.name, served(entry, p))
    total = len(execute(wanted).messages)
    drawn = text.draw(wanted)
    assert drawn.count("▶") + drawn.count("◀") == total
    assert len(arrows(drawing.svg(wanted))) == total
    assert str(text.render(wanted)) == drawn


def test_a_picture_too_wide_becomes_a_table_of_all_that_arrives():
    golden.compare(text.draw(ring(7), width=70), "draw-table.txt")


def test_a_long_table_names_the_rows_that_it_leaves_out():
    drawn = text.draw(ring(64), width=100)
    assert "steps 17-110 left out (6016 messages)" in drawn
    assert re.search(r"ranks \d+-\d+ left out", drawn)
    assert len(drawn.splitlines()) < 200


def test_complete_blocks_are_green():
    shown = text.render(ring())
    green = "".join(shown.plain[x.start : x.end] for x in shown.spans if str(x.style) == "bold green")
    assert green == "".join(f"b{(r + t - 4) % 5}: 0-4" for t in range(4, 9) for r in range(5))


def test_arrows_that_are_left_out_are_counted(monkeypatch):
    monkeypatch.setattr(text, "ARROWS_PER_STEP", 3)
    drawn = text.draw(schedule("allreduce", "naive", 12))
    arrows = drawn.count("▶") + drawn.count("◀")
    hidden = int(re.search(r"… (\d+) more messages in this step left out", drawn)[1])
    assert arrows + hidden == 12 * 11


def test_arrows_on_one_line_do_not_cross():
    messages = execute(schedule("allreduce", "naive", 6)).messages
    packed = text.pack(messages)
    assert sorted(id(m) for line in packed for m in line) == sorted(map(id, messages))
    for line in packed:
        spots = [x for m in line for x in range(min(m.source, m.destination), max(m.source, m.destination))]
        assert len(spots) == len(set(spots))


def test_strands_differ_in_colour():
    wanted = two_lines()
    styles = {str(span.style) for span in text.render(wanted).spans}
    assert {text.STRAND_STYLES[0], text.STRAND_STYLES[1]} <= styles
    for arrow in arrows(drawing.svg(wanted)):
        colour = drawing.STRAND_COLOURS["b1" in arrow.find(f"{SVG}title").text]
        assert {node.get("stroke") for node in arrow.iter() if node.get("stroke")} == {colour}


def test_strands_are_explained():
    """Explain strands in both pictures, and only if there are several."""
    shown = text.render(two_lines())
    golden.compare(shown.plain, "draw-strands.txt")
    styles = {shown.plain[x.start : x.end]: str(x.style) for x in shown.spans}
    assert styles["strand 1: b1"] == text.STRAND_STYLES[1]
    assert {"strand 0: b0", "strand 1: b1"} <= set(words(drawing.svg(two_lines())))
    assert "strand" not in text.draw(ring()) + drawing.svg(ring())


def test_concurrent_messages_of_strands_are_side_by_side():
    wanted = schedule("allreduce", "ring_bidirectional", 4)
    laid = drawing._Drawing(pytest.importorskip("drawsvg"), Picture(wanted))
    for messages in laid.picture.messages.values():
        ends = [laid.ends(message)[2:] for message in messages]
        assert len(ends) == len(set(ends)) == 8
        assert all(abs(x - laid.x(m.destination)) == 8 for m, (x, _) in zip(messages, ends))


# -- svg ----------------------------------------------------------------------------------------------------------


def arrows(document):
    """Return the groups that are messages, in well-formed XML."""
    return ElementTree.fromstring(document).findall(f".//{SVG}g[@class='message']")


def words(document):
    return [node.text for node in ElementTree.fromstring(document).iter(f"{SVG}text")]


def test_svg_escapes_what_xml_does_not_take():
    claims = replace(allreduce.ring.claims, idea="a < b & c")
    assert "a < b & c" in words(drawing.svg(Schedule(replace(allreduce.ring, claims=claims), 3)))


def test_svg_keeps_its_words_on_the_paper():
    for wanted in (ring(), ring(13), two_lines(), schedule("alltoall", "bruck", 5), schedule("bcast", "chain", 2)):
        sheet = ElementTree.fromstring(drawing.svg(wanted))
        width, height = float(sheet.get("width")), float(sheet.get("height"))
        centred = {node for group in sheet.iter() if group.get("text-anchor") == "middle" for node in group.iter()}
        for node in sheet.iter(f"{SVG}text"):
            size = float(node.get("font-size")) * drawing.ADVANCE * len(node.text)
            left = float(node.get("x")) - (size / 2 if node in centred else 0)
            assert left >= 0 and left + size <= width and 0 < float(node.get("y")) < height, node.text


def test_svg_labels_stand_apart():
    laid = drawing._Drawing(pytest.importorskip("drawsvg"), Picture(ring(13)))
    assert not any(a.hits(b) for i, a in enumerate(laid.labels) for b in laid.labels[:i])


def test_svg_says_when_labels_are_left_out():
    crowded = words(drawing.svg(schedule("allreduce", "naive", 32)))
    assert any("Too many messages to label" in w for w in crowded) and "b0" not in crowded
    some = drawing.svg(schedule("allreduce", "naive", 21))
    missing = int(re.search(r"(\d+) labels? had no room", some)[1])
    assert words(some).count("b0") == 2 * (21 * 20 - missing)
