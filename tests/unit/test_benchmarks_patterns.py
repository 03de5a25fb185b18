"""The buffers: the right answer, worked out here from the definitions, is accepted; a wrong one is not."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

import mpicoll
from mpicoll.benchmarks.cases import counts as shares
from mpicoll.benchmarks.cases.case import Case
from mpicoll.benchmarks.cases.contents import DTYPES, OPERATORS
from mpicoll.benchmarks.cases.patterns import PATTERNS, Shape
from mpicoll.schedules.collectives import ALIASES, PLAIN, is_of_neighbours

COLLECTIVES = [c for c in PATTERNS if c != "barrier"]
ROOTED = [c for c in COLLECTIVES if PATTERNS[c].meaning.rooted]
HAVE_COUNTS = [c for c in COLLECTIVES if c in PLAIN]
GATHERS = ("gather", "allgather", "gatherv", "allgatherv")
EXCHANGES = ("alltoall", "alltoallv", "alltoallw")


class MPI:
    """Stands for mpi4py.MPI."""

    IN_PLACE = "in place"
    SUM, PROD, MAX, MIN, BAND, BOR, BXOR, LAND, LOR, LXOR = (name.upper() for name in OPERATORS)

    class Datatype:
        fromcode = staticmethod(np.dtype)


def cases(p: int, nbytes: int = 800, **shape) -> list[Case]:
    of_ranks = [Case(Shape(**shape), nbytes, rank, p) for rank in range(p)]
    for case in of_ranks:
        case.poison()
    return of_ranks


# -- the collectives, by their definitions, on what each rank would pass


def blocks(message, p: int, collective: str) -> list[np.ndarray]:
    """Return the memory of each of p blocks, at the place that the argument names."""
    if isinstance(message, np.ndarray):
        return np.split(message, p)
    array, counts, places, types = message
    assert len(counts) == len(places) == p
    if collective == "alltoallw":
        assert types == [array.dtype] * p and not any(place % array.itemsize for place in places)
        places = [place // array.itemsize for place in places]
    else:
        assert types == array.dtype
    return [array[place : place + n] for place, n in zip(places, counts)]


def fold(arrays: list[np.ndarray], op: str) -> np.ndarray:
    total = arrays[0]
    for other in arrays[1:]:
        total = OPERATORS[op][0](total, other).astype(total.dtype)
    return total


def inputs(of_ranks: list[Case]) -> list:
    """Return each rank's contribution, from the buffer that the method reads: a list if it has a block per rank."""
    collective, p, root, contributions = of_ranks[0].shape.collective, of_ranks[0].p, of_ranks[0].shape.root, []
    for case in of_ranks:
        send, recv = case.arguments(MPI)[:2]
        if collective == "bcast":
            contributions.append(send.copy())
        elif collective in ("scatter", "scatterv"):
            contributions.append([b.copy() for b in blocks(send, p, collective)] if case.rank == root else None)
        elif collective in EXCHANGES:
            source = recv if send is MPI.IN_PLACE else send
            contributions.append([b.copy() for b in blocks(source, p, collective)])
        elif send is not MPI.IN_PLACE:
            contributions.append(send.copy())
        elif collective in GATHERS:
            contributions.append(blocks(recv, p, collective)[case.rank].copy())
        else:
            contributions.append(recv.copy())
    return contributions


def outputs(of_ranks: list[Case], contributions: list) -> list:
    """Return each rank's expected blocks by source, None where nothing is expected."""
    shape, p = of_ranks[0].shape, of_ranks[0].p
    name, op, root, ranks = shape.collective, shape.op, shape.root, range(p)
    if name == "reduce_scatter":
        ends = list(accumulate(of_ranks[0].arguments(MPI)[2]))
        return np.split(fold(contributions, op), ends[:-1])
    if name == "reduce_scatter_block":
        return np.split(fold(contributions, op), p)
    answers = {
        "bcast": lambda d: contributions[root],
        "scatter": lambda d: contributions[root][d],
        "gather": lambda d: contributions if d == root else None,
        "allgather": lambda d: contributions,
        "reduce": lambda d: fold(contributions, op) if d == root else None,
        "allreduce": lambda d: fold(contributions, op),
        "scan": lambda d: fold(contributions[: d + 1], op),
        "exscan": lambda d: fold(contributions[:d], op) if d else None,
        "alltoall": lambda d: [contributions[s][d] for s in ranks],
    }[name.rstrip("vw")]
    return [answers(d) for d in ranks]


def flat(answer) -> np.ndarray:
    return np.concatenate(answer) if isinstance(answer, list) else answer


def perform(of_ranks: list[Case]) -> None:
    """Carry out the collective: write the right result into every rank's receive buffer."""
    name, p = of_ranks[0].shape.collective, of_ranks[0].p
    for case, answer in zip(of_ranks, outputs(of_ranks, inputs(of_ranks))):
        recv = case.arguments(MPI)[0 if name == "bcast" else 1]
        if answer is None or recv is MPI.IN_PLACE:
            continue
        if isinstance(answer, list):
            for place, block in zip(blocks(recv, p, name), answer):
                place[:] = block
        else:
            recv[: len(answer)] = answer


def variants(collective: str):
    for p in (1, 2, 3, 4, 5):
        for root in {0, p // 2, p - 1} if collective in ROOTED else {0}:
            for in_place in {False, collective != "bcast"}:
                for counts in ("even", "uneven") if collective in HAVE_COUNTS else ("even",):
                    yield p, {"collective": collective, "root": root, "in_place": in_place, "counts": counts}


def needs_no_call(case: Case) -> bool:
    """Tell whether the answer is in place before the call: the rank's own contribution."""
    if not case.in_place:
        return False
    alone = case.shape.collective in GATHERS and case.send.size == case.recv.size
    return case.p == 1 or alone or (case.shape.collective == "scan" and case.rank == 0)


def test_every_collective_has_a_pattern():
    """But those of neighbourhoods, which the communicators of benchmarks do not have."""
    served = [name for name in mpicoll.list_algorithms() if not is_of_neighbours(name)]
    assert sorted(PATTERNS) == sorted([*served, *ALIASES])


def test_equal_blocks_are_rounded_up():
    """The second name of reduce_scatter takes no counts."""
    shape = Shape("reduce_scatter_block")
    of_ranks = [Case(shape, 8 * n, 0, 3) for n in (0, 1, 3, 4)]
    assert [(case.lengths, case.nbytes, case.recv.size) for case in of_ranks] == [
        ([n] * 3, 24 * n, n) for n in (0, 1, 1, 2)]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_right_answer_is_accepted_and_poison_is_not(collective):
    for p, shape in variants(collective):
        of_ranks = cases(p, **shape)
        answers = outputs(of_ranks, inputs(of_ranks))
        for case, answer in zip(of_ranks, answers):
            if (collective in ("scatter", "scatterv") and case.in_place) or answer is None:
                assert case.expected() is None, (p, shape, case.rank)
                continue
            assert np.array_equal(case.expected(), flat(answer)), (p, shape, case.rank)
            is_source = collective == "bcast" and case.rank == shape["root"]
            there = is_source or flat(answer).size == 0 or needs_no_call(case)
            assert case.is_right() == there, (p, shape, case.rank)
        perform(of_ranks)
        assert all(case.is_right() for case in of_ranks), (p, shape)


@pytest.mark.parametrize("op", OPERATORS)
def test_operators_reduce_exactly(op):
    for dtype, kind in DTYPES.items():
        if kind in OPERATORS[op][1]:
            for p in (1, 3, 8):
                for collective in ("allreduce", "scan"):
                    of_ranks = cases(p, collective=collective, dtype=dtype, op=op)
                    perform(of_ranks)
                    assert all(case.is_right() for case in of_ranks), (dtype, p)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "band", "lor", "land", "bxor", "lxor"])
@pytest.mark.parametrize("collective", ["allreduce", "scan", "exscan"])
def test_a_contribution_left_out_or_counted_twice_shows(op, collective):
    """Operators for which twice is once need not show the latter."""
    of_ranks = cases(5, 16000, collective=collective, op=op, dtype="int64")
    contributions, last = inputs(of_ranks), of_ranks[-1]
    counted = contributions if collective != "exscan" else contributions[:-1]
    for rank in range(len(counted)):
        last.recv[:] = fold(counted[:rank] + counted[rank + 1 :], op)
        assert not last.is_right(), rank
        last.recv[:] = fold(counted + [counted[rank]], op)
        assert last.is_right() == (op in ("max", "band", "lor", "land")), rank
    last.recv[:] = fold(counted, op)
    assert last.is_right()
    if collective != "allreduce":                   # one rank too many or too few
        of_ranks[2].recv[:] = outputs(of_ranks, contributions)[1]
        assert not of_ranks[2].is_right()
        of_ranks[2].recv[:] = outputs(of_ranks, contributions)[3]
        assert not of_ranks[2].is_right()


@pytest.mark.parametrize("collective", [*GATHERS, *EXCHANGES])
def test_blocks_swapped_or_shifted_show(collective):
    of_ranks = cases(4, 1024, collective=collective)
    perform(of_ranks)
    case = of_ranks[0]
    right = case.recv.copy()
    case.recv[: case.count], case.recv[case.count : 2 * case.count] = (
        right[case.count : 2 * case.count], right[: case.count])
    assert not case.is_right()
    case.recv[:] = np.roll(right, 1)
    assert not case.is_right()


@pytest.mark.parametrize("collective", EXCHANGES)
def test_a_block_says_who_it_is_for(collective):
    """Exchange between the wrong pairs: every rank sends the block for rank 0 to all ranks."""
    of_ranks = cases(4, 1024, collective=collective)
    contributions = inputs(of_ranks)
    for case in of_ranks[1:]:
        case.recv[:] = np.concatenate([contribution[0] for contribution in contributions])
        assert not case.is_right()


@pytest.mark.parametrize("collective", ["scatter", "scatterv"])
def test_somebody_elses_share_shows(collective):
    of_ranks = cases(4, 1024, collective=collective)
    perform(of_ranks)
    of_ranks[1].recv[:] = of_ranks[2].recv
    assert not of_ranks[1].is_right()


def test_a_new_case_is_ready_to_be_called():
    of_ranks = [Case(Shape("allreduce", in_place=True), 80, rank, 3) for rank in range(3)]
    perform(of_ranks)
    assert all(case.is_right() for case in of_ranks)


@pytest.mark.parametrize("at", [0, 30, -1])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_wrong_element_shows(collective, at):
    for counts in ("even", "uneven") if collective in HAVE_COUNTS else ("even",):
        of_ranks = cases(3, collective=collective, root=2 if collective in ROOTED else 0, counts=counts)
        perform(of_ranks)
        of_ranks[2].recv[at] += 1
        assert not of_ranks[2].is_right(), counts


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "bcast"])
def test_refill_restores_what_a_call_in_place_overwrote(collective):
    for counts in ("even", "uneven") if collective in HAVE_COUNTS else ("even",):
        of_ranks = cases(3, collective=collective, in_place=True, counts=counts)
        before = inputs(of_ranks)
        perform(of_ranks)
        for case in of_ranks:
            case.refill()
        for a, b in zip(before, inputs(of_ranks)):
            assert (a is b is None) or np.array_equal(flat(a), flat(b))


# -- sizes


def test_sizes_are_whole_elements():
    assert [Shape("bcast", "float64").elements(n) for n in (0, 1, 8, 15, 16)] == [0, 1, 1, 1, 2]
    assert Shape("barrier").elements(1024) == 0
    assert Case(Shape("bcast", "float64"), 15, 0, 2).nbytes == 8


def test_size_is_the_vector_or_a_share():
    """Sizes mean what they mean in the OSU benchmarks."""
    lengths = {c: (len(case.recv if case.send is None else case.send), len(case.recv))
               for c in COLLECTIVES for case in [Case(Shape(c), 80, 0, 5)]}
    assert lengths == {
        "bcast": (10, 10), "scatter": (50, 10), "gather": (10, 50), "allgather": (10, 50), "reduce": (10, 10),
        "reduce_scatter": (10, 2), "reduce_scatter_block": (10, 2),
        "allreduce": (10, 10), "scan": (10, 10), "exscan": (10, 10), "alltoall": (50, 50),
        "scatterv": (50, 10), "gatherv": (10, 50), "allgatherv": (10, 50), "alltoallv": (50, 50), "alltoallw": (50, 50),
    }


@pytest.mark.parametrize("n", [0, 1, 2, 10, 999])
@pytest.mark.parametrize("p", range(1, 10))
def test_uneven_shares(p, n):
    sizes = shares.uneven(n, p)
    assert len(sizes) == p and sum(sizes) == p * n
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == ((0, 2 * n) if p > 1 else (n, n))
    if n == 999 and p > 2:
        assert len(set(sizes)) == p


@pytest.mark.parametrize("collective", HAVE_COUNTS)
def test_counts_are_those_of_the_shares(collective):
    """Match send and receive counts of ranks, and those of each pair, so that it works in place."""
    p, n = 4, 10
    for name, make in shares.SHARES.items():
        built = [Case(Shape(collective, counts=name), 8 * n, rank, p) for rank in range(p)]
        counts = [[case.sends.counts, case.receives.counts] for case in built]
        want = make(n, p)
        if collective in ("alltoallv", "alltoallw"):
            table = [[want[(s + d) % p] for d in range(p)] for s in range(p)]
            assert table == [list(column) for column in zip(*table)]
            assert counts == [[row, row] for row in table]
        elif collective == "scatterv":
            assert counts == [[want if rank == 0 else [], [want[rank]]] for rank in range(p)]
        else:
            assert counts == [[[want[rank]], want if rank == 0 or collective == "allgatherv" else []]
                              for rank in range(p)]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_footprint_is_what_the_rank_that_has_most_allocates(collective):
    for counts in ("even", "uneven") if collective in HAVE_COUNTS else ("even",):
        root = 3 if collective in ROOTED else 0
        most = 0
        for rank in range(4):
            case = Case(Shape(collective, root=root, counts=counts), 8000, rank, 4)
            arrays = {id(a): a.nbytes for a in (case.send, case.recv) if a is not None}
            most = max(most, sum(arrays.values()))
        assert most <= case.shape.footprint(8000, 4) <= 2 * most


def test_titles():
    assert Shape("barrier").title == "barrier"
    assert Shape("bcast", root=1).title == "bcast float64 root 1"
    assert Shape("scan", "int32", "max", in_place=True).title == "scan int32 max in place"
    assert Shape("gatherv", counts="uneven").title == "gatherv float64 root 0 uneven counts"
