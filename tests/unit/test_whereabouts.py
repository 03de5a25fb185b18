"""Exchange peer status, and make reports of it."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mpicoll.diagnostics.status import (
    MAX_ACTIVE,
    MAX_ERROR_LENGTH,
    MAX_LINES,
    MAX_OTHER_THREADS,
    Answer,
    CallId,
    Failure,
    describe,
    ending,
    find,
    find_absent,
    last_error,
    location,
    report_lines,
)
from mpicoll.errors import CountMismatch

MINE = CallId(7, 0, "Allreduce")
STARTED = CallId(3, 2, "Allreduce_init")
REFUSED = Failure(*MINE, "E: x", was_made=False)
LEFT = Failure(*MINE, "E: x")


def report(answer: Answer | None, mine: CallId = MINE, waited_for: tuple[int, ...] = (1,), own: tuple = ()) -> str:
    """Return the report for this answer of rank 1, with "!" before it if it is certain."""
    whereabouts = find(mine, [1], waited_for, {} if answer is None else {1: answer}, own)
    (line,) = report_lines(whereabouts)
    return "!" * any(place.certain for place in whereabouts.values()) + line


def here(**fields: object) -> Answer:
    return Answer(**{"calls": 6, "location": "a.py, line 1, in f", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "rank 1 has not answered"),
        (here(), "rank 1 has not made this call: now at a.py, line 1, in f"),
        (here(failures=[REFUSED]), "!rank 1 has not made this call: raised E in Allreduce (call 7): x; now at a.py"),
        (here(failures=[REFUSED], ended="ended with E: x"), "!rank 1 has not made this call: ended with E: x"),
        (here(failures=[REFUSED], ended="so"), "!rank 1 has not made this call: raised E in Allreduce (call 7): x; so"),
        (here(failures=[REFUSED._replace(call=6)]), "rank 1 has not made this call: now at"),
        (here(ended="reached the end"), "!rank 1 has not made this call: reached the end"),
        (here(under_way=[CallId(6, 0, "Bcast")]), "rank 1 has not made this call: now in Bcast (call 6), at a.py"),
        (here(calls=7, under_way=[CallId(7, 0, "Bcast")]), "!rank 1 has made another call here: Bcast, at a.py"),
        (here(calls=7, under_way=[CallId(7, 0, "Iallreduce")]), "rank 1 has made another call here: Iallreduce, at"),
        (here(calls=7, under_way=[CallId(7, 0, "Bcast")], failures=[REFUSED]),
         "!rank 1 has made another call here: Bcast, at a.py, line 1, in f; raised E in Allreduce (call 7): x"),
        (here(calls=7, under_way=[MINE]), "every rank has made this call"),
        (here(calls=7, under_way=[MINE], failures=[LEFT]), "!rank 1 has raised E in Allreduce (call 7): x; now in"),
        (here(calls=8, inside=True, failures=[LEFT]), "!rank 1 has raised E in Allreduce (call 7): x; now at a.py"),
        (here(calls=7, under_way=[MINE], failures=[REFUSED]), "!rank 1 has made this call, having raised E in"),
        (here(calls=9, under_way=[CallId(9, 0, "Scan")]), "!rank 1 has made another call here, or with other"),
        (here(calls=9, inside=True), "!rank 1 has made another call here, or with other counts: now at"),
        (here(calls=99, under_way=[CallId(8 + n, 0, "Scan") for n in range(MAX_ACTIVE)]), "every rank has made this"),
        (here(calls=7, inside=True), "every rank has made this call"),
        (here(calls=7, under_way=[MINE], silence="stopped"), "rank 1 has made this call: stopped, last in Allreduce"),
        (here(calls=7, silence="stopped"), "!rank 1 has made another call here, or with other counts: stopped, last"),
        (here(silence="stopped"), "rank 1 has not made this call: stopped, last at a.py, line 1, in f"),
    ],
)
def test_reports_of_a_rank(answer, words):
    assert report(answer).startswith(words)


def test_a_rank_that_did_its_part_is_not_told_of():
    assert "every rank" in report(here(calls=9), waited_for=())


def test_an_error_of_all_ranks_explains_no_stall():
    assert report(here(failures=[REFUSED]), own=(REFUSED,)).startswith("rank 1 has not made this call: now at")
    twice = here(failures=[REFUSED, REFUSED])
    assert report(twice, own=(REFUSED,)).startswith("!rank 1 has not made this call: raised E")
    assert report(here(failures=[LEFT]), own=(REFUSED,)).startswith("!rank 1")


def test_a_call_that_was_refused_keeps_later_ones_waiting():
    """Some methods take more than one number, and several may be in flight."""
    assert report(here(failures=[REFUSED]), CallId(9, 0, "Scan")).startswith("!rank 1 has not made this call: raised E")


def test_an_error_before_the_call_is_reported_only_if_no_rank_is_missing():
    answers = {1: here(calls=7, under_way=[MINE], failures=[REFUSED]), 2: here()}
    whereabouts = find(MINE, [1, 2], (), answers)
    assert list(whereabouts) == [2] and not whereabouts[2].certain
    assert list(find(MINE, [1, 2, 3], (), {1: answers[1], 2: here(calls=7, under_way=[MINE])})) == [3]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (here(started={3: 1}), "rank 1 has not started this call"),
        (here(started={3: 1}, failures=[Failure(3, 2, "Allreduce_init", "E: x", False)]), "!rank 1 has not started"),
        (here(started={3: 2}), "!rank 1 has made another call here"),
        (here(started={3: 3}, inside=True), "!rank 1 has made another call here"),
        (here(calls=9, started={3: 2}, inside=True), "every rank has made this call"),
        (here(calls=2), "rank 1 has not started this call"),
        (here(calls=5, started={3: 2}, under_way=[STARTED]), "every rank has made this call"),
        (here(calls=5, started={3: 1}, under_way=[STARTED._replace(start=1)]), "rank 1 has not started this call"),
    ],
)
def test_persistent_collectives_are_counted_by_their_starts(answer, words):
    assert report(answer, STARTED).startswith(words)


def test_ranks_in_one_place_share_a_line():
    answers = {r: here(ended="reached the end of the program") for r in (1, 2, 5)}
    answers[4] = here(calls=7, under_way=[MINE])
    lines = report_lines(find(MINE, [1, 2, 3, 4, 5], (), answers))
    assert lines[0] == "ranks 1-2, 5 have not made this call: reached the end of the program"
    assert lines[1].startswith("rank 3 has not answered") and len(lines) == 2


def test_a_report_stays_short():
    answers = {r: here(location=f"a.py, line {r}, in f") for r in range(30)}
    lines = report_lines(find(MINE, range(30), (), answers))
    assert len(lines) == MAX_LINES + 1 and lines[-1] == f"and {30 - MAX_LINES} lines more of the kind"


def test_an_answer_travels():
    answer = here(under_way=[MINE, STARTED], started={3: 2}, failures=[LEFT], inside=True, ended="so")
    assert Answer.unpack(answer.pack()) == answer


def test_an_error_is_one_short_line():
    error = CountMismatch("3\n  and 4")
    error.rank = 2
    assert describe(error) == "CountMismatch: 3 and 4"
    assert describe(KeyError()) == "KeyError" and len(describe(ValueError("x" * 999))) == MAX_ERROR_LENGTH


def test_the_place_is_that_of_the_main_thread_in_the_program():
    locations = []
    thread = threading.Thread(target=lambda: locations.append(location()))
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
    thread.join()
    where, inside = locations[0]
    assert where.startswith("test_whereabouts.py, line ") and not inside
    assert "_in_the_program; thread " in where and ", in <lambda>" in where


def test_other_threads_have_places_if_they_are_in_the_program():
    """One that waits in the standard library for work of a pool is not."""
    event, pool = threading.Event(), ThreadPoolExecutor(1)
    pool.submit(int).result()
    threads = [threading.Thread(target=lambda: event.wait(), name=name) for name in ("loader", "a\nb", "c", "d", "e")]
    try:
        assert "; thread" not in location()[0]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        where, _ = location()
        assert where.count("; thread ") == MAX_OTHER_THREADS and "\n" not in where
        assert "; thread loader at test_whereabouts.py, line " in where and "; thread ? at test_whereabouts.py" in where
    finally:
        event.set()
        pool.shutdown()
        for thread in threads:
            thread.join()


def test_the_end_of_a_program(monkeypatch):
    for name in ("last_exc", "last_value"):
        monkeypatch.setattr(sys, name, None, raising=False)
    assert ending(last_error()) == "reached the end of the program"
    try:
        raise ValueError("bad row")
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert ending(last_error()).startswith("ended with ValueError: bad row (test_whereabouts.py, line ")


def test_ranks_that_are_not_in_a_recovery_are_reported():
    answers = {1: here(recovery="Agree"), 2: here(), 3: here(recovery="Shrink"), 4: here(ended="ended with E: x")}
    absent = find_absent("Agree", [1, 2, 3, 4, 5], answers)
    assert report_lines(absent) == [
        "ranks 2-3 have not called it: now at a.py, line 1, in f",
        "rank 4 has not called it: ended with E: x",
        "rank 5 has not answered: no thread there could (see docs/TROUBLESHOOTING.md)",
    ]
    assert [rank for rank, finding in absent.items() if finding.certain] == [4]
