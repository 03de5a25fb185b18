"""The buffers: the right answer, worked out here from the definitions, is accepted; a wrong one is not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpicoll.benchmarks.patterns import (
    DTYPES,
    OPERATORS,
    REDUCES,
    ROOTED,
    WITHOUT_IN_PLACE,
    Case,
    Shape,
    footprint,
)
from mpicoll.collectives import COLLECTIVES

MOVING = [c for c in COLLECTIVES if c not in (*REDUCES, "barrier")]


class InPlace:
    """Stands for mpi4py.MPI."""

    IN_PLACE = "in place"

    def __getattr__(self, name):
        return name


MPI = InPlace()


def cases(p: int, nbytes: int = 800, **shape) -> list[Case]:
    made = [Case(Shape(**shape), nbytes, rank, p) for rank in range(p)]
    for case in made:
        case.poison()
    return made


def inputs(made: list[Case]) -> list[np.ndarray]:
    """Each rank's contribution, from where the method would take it."""
    collective, root, found = made[0].shape.collective, made[0].shape.root, []
    for case in made:
        if collective == "scatter" and case.rank != root:
            found.append(None)
            continue
        if collective == "bcast":
            found.append(case.recv.copy())
            continue
        send, recv = case.arguments(MPI)[:2]
        if isinstance(send, str):
            own = case.rank * case.count if collective in ("gather", "allgather") else 0
            length = case.count * (case.p if collective == "alltoall" else 1)
            send = recv[own : own + length]
        found.append(send.copy())
    return found


def perform(made: list[Case]) -> None:
    """The collective, by its definition."""
    given, shape, p, n = inputs(made), made[0].shape, made[0].p, made[0].count
    if shape.collective in REDUCES:
        total = given[0]
        for other in given[1:]:
            total = OPERATORS[shape.op][0](total, other).astype(total.dtype)
    ends = list(itertools.accumulate(made[0].counts))
    for case in made:
        if case.recv is None or (case.in_place and shape.collective == "scatter"):
            continue
        if shape.collective in REDUCES:
            part = total
            if shape.collective == "reduce_scatter":
                part = total[ends[case.rank] - case.counts[case.rank] : ends[case.rank]]
        elif shape.collective == "bcast":
            part = given[shape.root]
        elif shape.collective == "scatter":
            part = given[shape.root][case.rank * n : (case.rank + 1) * n]
        elif shape.collective == "alltoall":
            part = np.concatenate([given[s][case.rank * n : (case.rank + 1) * n] for s in range(p)])
        else:
            part = np.concatenate(given)
        case.recv[: len(part)] = part


def variants(collective: str):
    for p in (1, 2, 3, 4, 5):
        for root in {0, p - 1} if collective in ROOTED else {0}:
            for in_place in {False, collective not in WITHOUT_IN_PLACE}:
                yield p, {"collective": collective, "root": root, "in_place": in_place}


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "barrier"])
def test_right_answer_is_accepted_and_poison_is_not(collective):
    for p, shape in variants(collective):
        made = cases(p, **shape)
        receivers = [c for c in made if c.expected() is not None and not (collective == "bcast" and c.is_root)]
        mistaken = [c.rank for c in receivers if c.is_right()]
        if shape["in_place"] and p == 1:
            mistaken = []       # what is contributed is the answer
        assert not mistaken, (p, shape)
        perform(made)
        assert all(case.is_right() for case in made), (p, shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_move(dtype):
    for collective in MOVING:
        made = cases(4, collective=collective, dtype=dtype)
        perform(made)
        assert all(case.is_right() for case in made)


@pytest.mark.parametrize("op", OPERATORS)
def test_operators_fold_exactly(op):
    for dtype, kind in DTYPES.items():
        if kind in OPERATORS[op][1]:
            for p in (1, 3, 8):
                made = cases(p, collective="allreduce", dtype=dtype, op=op)
                perform(made)
                assert all(case.is_right() for case in made), (dtype, p)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "band", "lor", "land", "bxor", "lxor"])
def test_a_contribution_left_out_or_counted_twice_shows(op):
    """Operators for which twice is once need not show the latter."""
    def fold(arrays):
        total = arrays[0]
        for other in arrays[1:]:
            total = OPERATORS[op][0](total, other).astype(total.dtype)
        return total

    made = cases(4, 8000, collective="allreduce", op=op, dtype="int64")
    given = inputs(made)
    for rank in range(4):
        made[0].recv[:] = fold(given[:rank] + given[rank + 1 :])
        assert not made[0].is_right(), rank
        made[0].recv[:] = fold(given + [given[rank]])
        assert made[0].is_right() == (op in ("max", "band", "lor", "land")), rank


@pytest.mark.parametrize("collective", ["gather", "allgather", "alltoall"])
def test_blocks_swapped_or_shifted_show(collective):
    made = cases(4, 1024, collective=collective)
    perform(made)
    case = made[0]
    right = case.recv.copy()
    case.recv[: case.count], case.recv[case.count : 2 * case.count] = (
        right[case.count : 2 * case.count], right[: case.count])
    assert not case.is_right()
    case.recv[:] = np.roll(right, 1)
    assert not case.is_right()


def test_a_block_says_who_it_is_for():
    """Alltoall between the wrong pairs, every rank giving everybody what is meant for rank 0."""
    made = cases(4, 1024, collective="alltoall")
    given, n = inputs(made), made[0].count
    for case in made[1:]:
        case.recv[:] = np.concatenate([block[:n] for block in given])
        assert not case.is_right()


def test_a_new_case_is_ready_to_be_called():
    made = [Case(Shape("allreduce", in_place=True), 80, rank, 3) for rank in range(3)]
    perform(made)
    assert all(case.is_right() for case in made)


@pytest.mark.parametrize("at", [0, 30, -1])
def test_one_wrong_element_shows(at):
    for collective in COLLECTIVES:
        if collective != "barrier":
            made = cases(3, collective=collective)
            perform(made)
            made[0].recv[at] += 1
            assert not made[0].is_right(), collective


def test_refill_restores_what_a_call_in_place_overwrote():
    for collective in set(COLLECTIVES) - set(WITHOUT_IN_PLACE):
        made = cases(3, collective=collective, in_place=True)
        before = inputs(made)
        perform(made)
        for case in made:
            case.refill()
        for a, b in zip(before, inputs(made)):
            assert np.array_equal(a, b), collective


def test_sizes_are_whole_elements():
    assert [Shape("bcast", "float64").elements(n) for n in (0, 1, 8, 15, 16)] == [0, 1, 1, 1, 2]
    assert Shape("barrier").elements(1024) == 0
    assert Case(Shape("bcast", "float64"), 15, 0, 2).nbytes == 8


def test_size_is_the_vector_or_a_share():
    """As in the OSU benchmarks."""
    lengths = {c: (len(case.send), len(case.recv)) for c in COLLECTIVES if c != "barrier"
               for case in [Case(Shape(c), 80, 0, 5)]}
    assert lengths == {
        "bcast": (10, 10), "scatter": (50, 10), "gather": (10, 50), "allgather": (10, 50), "reduce": (10, 10),
        "reduce_scatter": (10, 2), "allreduce": (10, 10), "alltoall": (50, 50),
    }


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "barrier"])
def test_footprint_is_what_the_root_allocates(collective):
    case = Case(Shape(collective), 8000, 0, 4)
    arrays = {id(a): a.nbytes for a in (case.send, case.recv) if a is not None}
    assert sum(arrays.values()) <= footprint(case.shape, 8000, 4) <= 2 * sum(arrays.values())
