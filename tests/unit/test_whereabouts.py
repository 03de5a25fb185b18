"""What ranks tell each other of themselves, and what a report makes of it."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from mpicoll.errors import CountMismatch
from mpicoll.whereabouts import LINES, LONG, Answer, Standing, describe, ending, place, tell

MINE = Standing(7, 0, "Allreduce")
STARTED = Standing(3, 2, "Allreduce_init")


def one(answer: Answer | None, mine: Standing = MINE, waited_for: tuple[int, ...] = (1,)) -> str:
    """What is said where rank 1 gave this answer."""
    (line,) = tell(mine, [1], waited_for, {} if answer is None else {1: answer})
    return line


def here(**said: object) -> Answer:
    return Answer(**{"calls": 6, "place": "a.py, line 1, in f", **said})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "rank 1 has not answered"),
        (here(), "rank 1 has not made this call: now at a.py, line 1, in f"),
        (here(refused="E: x"), "rank 1 has not made this call: raised E: x; now at a.py"),
        (here(refused="E: x", ended="ended with E: x"), "rank 1 has not made this call: ended with E: x"),
        (here(under_way=[Standing(6, 0, "Bcast")]), "not made this call: now in Bcast (call 6), at a.py"),
        (here(calls=7, under_way=[Standing(7, 0, "Bcast")]), "rank 1 has made another call here: Bcast, at a.py"),
        (here(calls=7, under_way=[MINE]), "every rank has made this call"),
        (here(calls=9, under_way=[Standing(9, 0, "Scan")]), "or with other counts: now in Scan (call 9)"),
        (here(calls=7, inside=True), "every rank has made this call"),
    ],
)
def test_what_is_said_of_a_rank(answer, words):
    assert words in one(answer)


def test_a_rank_that_did_its_part_is_not_told_of():
    assert "every rank" in one(here(calls=9), waited_for=())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (here(started={3: 1}), "has not started this call"),
        (here(started={3: 2}), "another call here"),
        (here(calls=2), "has not started this call"),
        (here(calls=5, started={3: 2}, under_way=[STARTED]), "every rank has made this call"),
        (here(calls=5, started={3: 1}, under_way=[STARTED._replace(start=1)]), "has not started this call"),
    ],
)
def test_persistent_collectives_are_counted_by_their_starts(answer, words):
    assert words in one(answer, STARTED)


def test_ranks_in_one_place_share_a_line():
    told = {r: here(ended="reached the end of the program") for r in (1, 2, 5)} | {4: here(calls=7, under_way=[MINE])}
    lines = tell(MINE, [1, 2, 3, 4, 5], (), told)
    assert lines[0] == "ranks 1-2, 5 have not made this call: reached the end of the program"
    assert lines[1].startswith("rank 3 has not answered") and len(lines) == 2


def test_a_report_stays_short():
    told = {r: here(place=f"a.py, line {r}, in f") for r in range(30)}
    lines = tell(MINE, range(30), (), told)
    assert len(lines) == LINES + 1 and lines[-1] == f"and {30 - LINES} lines more of the kind"


def test_an_answer_travels():
    answer = here(under_way=[MINE, STARTED], started={3: 2}, refused="Ä" * 9, inside=True, ended="so")
    assert Answer.unpack(answer.pack()) == answer


def test_an_error_is_one_short_line():
    error = CountMismatch("3\n  and 4")
    error.rank = 2
    assert describe(error) == "CountMismatch: 3 and 4"
    assert describe(KeyError()) == "KeyError" and len(describe(ValueError("x" * 999))) == LONG


def test_the_place_is_that_of_the_main_thread_in_the_program():
    found = []
    thread = threading.Thread(target=lambda: found.append(place()))
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
    thread.join()
    where, inside = found[0]
    assert ("test_whereabouts.py" in where or "threading.py" in where) and not inside


def test_how_a_program_ended(monkeypatch):
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(sys, name, None, raising=False)
    assert ending() == "reached the end of the program"
    try:
        raise ValueError("bad row")
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert ending().startswith("ended with ValueError: bad row (test_whereabouts.py, line ")
