"""Learn from calls: turns, eligible calls, results, and the file."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mpicoll.cost.network import network
from mpicoll.errors import ArgumentError, TuningError
from mpicoll.schedules.collectives import COLLECTIVES, base_collective
from mpicoll.schedules.grouping import by_blocks
from mpicoll.selection import learning, tables
from mpicoll.selection.learning import (
    MARGIN,
    SURE,
    TIMED,
    UNTIMED,
    Candidate,
    Kind,
    Lesson,
    Lessons,
    candidates,
    overlaid,
    same_bits,
    size_class,
)
from mpicoll.selection.rules import UNKNOWN_TO_ALL, Rule
from mpicoll.selection.select import NATIVE, Overrides, choose
from mpicoll.selection.settings import read
from mpicoll.selection.tables import parse, row, write

NET = network("infiniband")
THREE = (Candidate("ring", None, 2), Candidate("tree", 4096, 2), Candidate(NATIVE, None, 1))


def lesson_of(nbytes, what=THREE):
    return Lesson(Kind("allreduce", size_class(nbytes)[0], "any", overlapping=False), what)


def taught(seconds, what=THREE, nbytes=1000):
    """Return a lesson in which each candidate took `seconds`, and ten times as long in its untimed calls."""
    lesson = lesson_of(nbytes, what)
    while not lesson.is_over:
        at = what.index(lesson.current)
        lesson.note(lesson.take_turn(), seconds[at] * (10 if lesson.calls <= UNTIMED * len(what) else 1))
    return lesson


# -- lessons -------------------------------------------------------------------------------------------------


def test_candidates_take_turns_and_the_first_turns_do_not_count():
    lesson = lesson_of(8)
    order = []
    while not lesson.is_over:
        order.append(lesson.current)
        turn = lesson.take_turn()
        lesson.note(turn, 1.0 if turn >= UNTIMED * 3 else 1e9)
    assert order == [*THREE] * (UNTIMED + TIMED)
    assert lesson.measured() == pytest.approx(np.full((3, TIMED), 1e6))


@pytest.mark.parametrize(
    ("seconds", "wins"),
    [
        ((3e-6, 2e-6, 4e-6), 1),
        ((3e-6, 4e-6, 2e-6), 2),
        ((1e-6, 2e-6, 3e-6), 0),
        ((2e-6 * (MARGIN - 0.01), 2e-6, 3e-6), 0),
        ((2e-6 * (MARGIN + 0.01), 2e-6, 3e-6), 1),
    ],
)
def test_the_fastest_wins_unless_what_auto_chooses_is_as_fast(seconds, wins):
    lesson = taught(seconds)
    rule = lesson.rule(lesson.measured())
    assert (rule.above, rule.algorithm, rule.chunk_bytes, rule.window) == (512, *THREE[wins])
    assert (
        rule.why
        == f"learned: calls of 512 to 1023 bytes took {1e6 * seconds[wins]:.3g} µs, native's {1e6 * seconds[2]:.3g}"
    )


def test_one_slow_call_changes_nothing():
    lesson = taught((2e-6, 3e-6, 4e-6))
    lesson.seconds[0, UNTIMED : UNTIMED + 2] = 1.0
    assert lesson.rule(lesson.measured()).algorithm == "ring"


def test_another_must_be_faster_in_most_rounds():
    """Require more faster rounds than a busy machine may give, since the medians alone mislead then."""
    lesson = taught((3e-6, 2e-6, 4e-6))
    for i in range(TIMED - SURE):
        lesson.seconds[1, UNTIMED + i] = 9e-6
    assert lesson.rule(lesson.measured()).algorithm == "tree"
    lesson.seconds[1, UNTIMED + TIMED - SURE] = 9e-6
    assert lesson.rule(lesson.measured()).algorithm == "ring"


def test_a_lesson_begins_again():
    lesson = taught((2e-6, 3e-6, 4e-6))
    lesson.is_in_doubt = True
    lesson.begin()
    assert lesson.current == THREE[0]
    assert not (lesson.is_over or lesson.is_in_doubt or np.isfinite(lesson.seconds).any())


@pytest.mark.parametrize(
    ("nbytes", "bounds"), [(0, (0, 0)), (1, (1, 1)), (3, (2, 3)), (4, (4, 7)), (1 << 40, (1 << 40, (2 << 40) - 1))]
)
def test_sizes_are_learned_by_powers_of_two(nbytes, bounds):
    assert size_class(nbytes) == bounds


def test_classes_take_the_place_of_a_table_s_rules():
    def of(above, name):
        return Rule(above, name, None, name)

    table, learned = [of(0, "a"), of(100, "b")], {64: of(64, "x"), 256: of(256, "y"), 512: of(512, "z")}
    rules = overlaid(table, learned)
    assert [(rule.above, rule.algorithm) for rule in rules] == [
        (0, "a"),
        (64, "x"),
        (100, "x"),
        (128, "b"),
        (256, "y"),
        (512, "z"),
        (1024, "b"),
    ]
    assert [rule.algorithm for rule in overlaid((), {0: of(0, "x")})] == ["x", "auto"]


def test_doubtful_rules_serve_and_are_not_kept():
    lessons, sure, doubtful = Lessons(), taught((3e-6, 2e-6, 4e-6)), taught((3e-6, 2e-6, 4e-6), nbytes=5000)
    doubtful.is_in_doubt = True
    for lesson in (sure, doubtful):
        lessons.active[lesson.kind] = lesson
        lessons.end(lesson, lesson.rule(lesson.measured()))
    assert not lessons.active
    rules = [[rule[:2] for rule in get("allreduce", "any", ())] for get in (lessons.measured, lessons.to_keep)]
    assert rules == [[(0, "auto"), (512, "tree"), (1024, "auto"), (4096, "tree"), (8192, "auto")],
                     [(0, "auto"), (512, "tree"), (1024, "auto")]]


# -- candidates ----------------------------------------------------------------------------------------------


def of(collective, nbytes, p, learns, nodes=None):
    nodes = nodes or by_blocks(p, p)
    choice = choose(collective, nbytes, p, True, Overrides(), "compiled", nodes, (), NET)
    return choice, candidates(choice, nbytes, p, nodes, NET, learns)


@pytest.mark.parametrize("learns", ["bits", "any"])
@pytest.mark.parametrize("p", [2, 4, 7, 40])
@pytest.mark.parametrize("collective", [*(name for name in COLLECTIVES if name not in UNKNOWN_TO_ALL), "allgatherv"])
@pytest.mark.parametrize("nbytes", [8, 1 << 20])
def test_candidates(collective, p, nbytes, learns):
    choice, what = of(collective, nbytes, p, learns)
    assert what[0] == (choice.algorithm, choice.chunk_bytes, choice.window)
    assert len(set(what)) == len(what) <= learning.MOST + 1
    reduces = COLLECTIVES[base_collective(collective)].reduces
    assert (NATIVE in [candidate.algorithm for candidate in what]) == (learns == "any" or not reduces)
    if learns == "any" and collective not in ("barrier", "scan"):
        assert len(what) == learning.MOST + 1
    if reduces and learns == "bits":
        nodes = by_blocks(p, p)
        assert all(same_bits(collective, what[0].algorithm, other.algorithm, p, nodes) for other in what)


def test_bits_follow_from_the_order_of_additions():
    nodes = by_blocks(2, 2)
    assert same_bits("allreduce", "ring", "recursive_doubling", 2, nodes)  # a + b is b + a
    nodes = by_blocks(4, 4)
    assert not same_bits("allreduce", "ring", "recursive_doubling", 4, nodes)
    assert same_bits("allreduce", "rabenseifner", "halving_doubling", 4, nodes)
    assert not same_bits("allreduce", "recursive_doubling", "naive", 4, nodes)
    nodes = by_blocks(64, 64)
    assert not same_bits("allreduce", "rabenseifner", "halving_doubling", 64, nodes)  # not compared
    assert same_bits("allreduce", "ring", "ring", 64, nodes)


def test_algorithms_of_the_same_bits_give_the_same_sums():
    """Evaluate the reduction trees of two algorithms on float32 and compare, where they are said to be the same."""
    from mpicoll.proofs.determinism import ReductionTrees
    from mpicoll.schedules.schedule import schedule

    rng, compared = np.random.default_rng(1), 0
    for p in (3, 4, 6):
        values = rng.standard_normal(p).astype(np.float32)
        sums = {}
        for name in ("recursive_doubling", "naive", "reduce_bcast", "butterfly"):
            trees = ReductionTrees(schedule("allreduce", name, p))
            block = trees.schedule.blocks[0]
            sums[name] = trees.forest.evaluate(trees.tree(0, block), np.float32.__add__, values)
        for first in sums:
            for other in sums:
                if same_bits("allreduce", first, other, p, by_blocks(p, p)):
                    compared += first != other
                    assert sums[first] == sums[other]
    assert compared


# -- settings and files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "learn"), [("", "no"), ("0", "no"), ("1", "bits"), ("bits", "bits"), ("any", "any"), ("no", "no")]
)
def test_the_environment(value, learn):
    assert read({"MPICOLL_LEARN": value}).learn == learn
    assert read({}).learn == "no"


@pytest.mark.parametrize("value", ["2", "yes", "BITS"])
def test_another_value_is_an_error(value):
    with pytest.raises(ArgumentError, match=f"MPICOLL_LEARN is '{value}'; it must be one of bits, any, no"):
        read({"MPICOLL_LEARN": value})
    with pytest.raises(ArgumentError, match="learn is"):
        Overrides().merged({}, None, None, None, learn=value)


def test_using_takes_words_and_truth():
    assert [Overrides().merged({}, None, None, None, learn=x).learn for x in (True, False, "any", None)] == [
        "bits",
        "no",
        "any",
        None,
    ]
    assert Overrides(learn="any").merged({"bcast": "chain"}, None, None, None).learn == "any"
    assert [Overrides(learn=x).learns for x in ("bits", "any", "no", None)] == [True, True, False, False]


def test_a_table_that_is_to_come_may_be_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "READ", {})
    path = str(tmp_path / "t.json")
    with pytest.raises(TuningError, match="cannot read"):
        read({"MPICOLL_TUNING": path})
    assert read({"MPICOLL_TUNING": path, "MPICOLL_LEARN": "1"}).tuning == tables.Tuning(path, ())


def test_learned_rules_are_a_table(tmp_path):
    lesson = taught((3e-6, 2e-6, 4e-6))
    rules = overlaid((), {512: lesson.rule(lesson.measured())})
    path = tmp_path / "t.json"
    write(path, {"mpi": "M 1", "nodes": ["0-3"], "rules": {"allreduce": [row(rule) for rule in rules]}})
    (table,) = parse(path.read_text(), "t").tables
    assert [rule[:3] for rule in table.rules["allreduce"]] == [
        (0, "auto", None),
        (512, "tree", 4096),
        (1024, "auto", None),
    ]
    assert json.loads(path.read_text())["tables"][0]["rules"]["allreduce"][1]["window"] == 2
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]
