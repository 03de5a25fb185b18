"""Derived datatypes: our packing against MPI's own Pack, which of the two packed, and facts that go with the type."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from recipes import elements, meaning, random_recipes
from support import types
from support.calls import together
from support.collectives import algorithms
from support.types import KINDS, Room, bottom, committed

from mpicoll import errors
from mpicoll.buffers import datatypes, packing, parse, runs, vector
from mpicoll.buffers.packing import ByMPI, ByRuns

parametrize = pytest.mark.parametrize
of_every_kind = parametrize("recipe", KINDS.values(), ids=KINDS)
DENSE = ("contiguous", "vector in disguise", "struct in disguise", "whole subarray", "no blocks", "no elements")
PACK, UNPACK = ByMPI.pack, ByMPI.unpack     # when tests count calls, these go uncounted


def counted(monkeypatch, where, name, calls):
    """Append a function's name to `calls` at every call from now on."""
    function = getattr(where, name)

    def noted(*arguments):
        calls.append(name)
        return function(*arguments)

    monkeypatch.setattr(where, name, noted)


@pytest.fixture
def own_packs(monkeypatch):
    """Return a list of the calls of MPI's own Pack and Unpack."""
    calls = []
    counted(monkeypatch, ByMPI, "pack", calls)
    counted(monkeypatch, ByMPI, "unpack", calls)
    return calls


def both_ways(first, second, datatype, n, unpacks=True):
    """Return memory packed by two packers, and unpacked again."""
    source, size = Room(datatype, n, fill=n), n * datatype.Get_size()
    packed = [np.full(size + 8, types.GUARD, np.uint8) for _ in range(2)]
    for packer, into in zip((first, second), packed):
        packer.pack(MPI.Get_address(into), source.address, n)
    assert packed[0].tolist() == packed[1].tolist()
    if unpacks:
        targets = [Room(datatype, n) for _ in range(2)]
        for packer, target in zip((first, second), targets):
            packer.unpack(MPI.Get_address(packed[0]), target.address, n)
        assert targets[0].bytes.tolist() == targets[1].bytes.tolist()


# -- bytes


@of_every_kind
def test_packs_as_mpi_does(recipe):
    with committed(recipe) as datatype:
        facts = datatypes.facts(datatype)
        ours = packing.packer(facts)
        assert type(ours) is ByRuns
        for n in (0, 1, 2, 5):
            both_ways(ours, ByMPI(facts), datatype, n)


def predefined(recipe):
    """Return the names of the predefined datatypes of a recipe."""
    return {recipe} if isinstance(recipe, str) else set().union(*map(predefined, recipe[1]))


@parametrize("kind", KINDS)
def test_parts_of_a_datatype(kind):
    """Dense is what lies in memory as it is packed; a signature is one predefined type's, or not known."""
    with committed(KINDS[kind]) as datatype:
        facts, (basic, *others) = datatypes.facts(datatype), predefined(KINDS[kind])
        assert facts.dense == (kind in DENSE)
        repeated = (basic, datatype.Get_size() // getattr(MPI, basic).Get_size())
        assert (facts.basic, facts.nbasic) == ((None, 0) if others else repeated)


@given(random_recipes, st.integers(0, 3))
def test_any_nesting_packs_as_mpi_does(recipe, n):
    typemap = meaning(recipe)
    with committed(recipe) as datatype:
        facts = datatypes.facts(datatype)
        assert facts.runs is not None and facts.runs.nbytes == facts.size == len(typemap.places)
        ours = [at + i for at, m in zip(*facts.runs.flat()) for i in range(m)]
        assert ours == typemap.places
        places = elements(typemap._replace(lb=facts.lb, ub=facts.lb + facts.extent), n)
        both_ways(packing.packer(facts), ByMPI(facts), datatype, n, unpacks=len(set(places)) == len(places))


@parametrize("name", [name for name in datatypes._PAIRS if getattr(MPI, name, MPI.DATATYPE_NULL) != MPI.DATATYPE_NULL])
def test_pairs(name):
    datatype = getattr(MPI, name)
    facts = datatypes.facts(datatype)
    assert type(packing.packer(facts)) is ByRuns
    both_ways(packing.packer(facts), ByMPI(facts), datatype, 3)


def test_every_predefined_datatype_has_runs():
    for facts in datatypes._by_handle.values():
        assert facts.runs is not None and facts.runs.nbytes == facts.size, facts.name


def test_types_without_runs_are_packed_by_mpi():
    datatype = types.darray()
    facts = datatypes.facts(datatype)
    assert facts.runs is None and not facts.dense and type(packing.packer(facts)) is ByMPI
    matrix = np.arange(24.0)
    buffer = parse.parse_buffer([matrix, 1, datatype])
    wanted = matrix.reshape(4, 6)[::2, 1::2].ravel()
    assert buffer.pack().view("d").tolist() == wanted.tolist()
    blank = np.zeros(24)
    parse.parse_buffer([blank, 1, datatype], True).unpack(buffer.pack())
    assert blank.tolist() == np.where(np.isin(matrix, wanted), matrix, 0).tolist()
    datatype.Free()


def test_too_many_runs_are_packed_by_mpi(monkeypatch):
    monkeypatch.setattr(runs, "LIMIT", 3)
    with committed(KINDS["indexed of vectors"]) as datatype:
        facts = datatypes.facts(datatype)
        assert type(packing.packer(facts)) is ByMPI
        assert (facts.basic, facts.nbasic) == ("DOUBLE", 9)


def test_a_million_rows_are_one_run_and_a_loop():
    column = MPI.DOUBLE.Create_vector(1 << 20, 1, 1 << 20).Commit()
    facts = datatypes.facts(column)
    assert facts.runs.run_count == 1 << 20 and facts.runs.offsets.size == 1
    column.Free()


def test_far_apart():
    """Over 2 GiB; memory that no process writes takes no room."""
    memory = np.zeros((2 << 30) + (1 << 20), np.uint8)
    memory[:: 1 << 30] = 1, 2, 3
    datatype = MPI.BYTE.Create_hvector(3, 1, 1 << 30).Commit()
    packed = parse.parse_buffer([memory, 1, datatype]).pack()
    assert packed.tolist() == [1, 2, 3]
    parse.parse_buffer([memory, 1, datatype], True).unpack(packed[::-1].copy())
    assert memory[:: 1 << 30].tolist() == [3, 2, 1]
    datatype.Free()


# -- collectives


METHODS = {     # of what a rank sends and what it receives
    "Bcast": lambda comm, send, recv: comm.Bcast(send if comm.rank == comm.size - 1 else recv, comm.size - 1),
    **{name: lambda comm, *sides, name=name: getattr(comm, name)(*sides, comm.size - 1)
       for name in ("Gather", "Scatter", "Gatherv", "Scatterv")},
    **{name: lambda comm, *sides, name=name: getattr(comm, name)(*sides)
       for name in ("Allgather", "Alltoall", "Allgatherv", "Alltoallv", "Alltoallw")},
}
COUNTED = [name for name in METHODS if name[-1] in "vw"]


def carried_out(comm, method, sends, receives):
    """Return (this rank's memory after a call, its expected contents), by MPI's own Pack.

    The two datatypes have one signature. Counts, where a method takes them, are uneven; the last rank's block is first.
    """
    p, rank, root, name, counted = comm.size, comm.rank, comm.size - 1, method.rstrip("vw"), method in COUNTED
    wide_send, wide_receive = name in ("Scatter", "Alltoall"), name in ("Gather", "Allgather", "Alltoall")

    def size(source, destination):
        return {"Scatter": destination, "Alltoall": source + 2 * destination}.get(name, source) % 4 if counted else 3

    def sent_by(source):
        return [size(source, destination) for destination in range(p if wide_send else 1)]

    def place(sizes, i):
        return sum(sizes[i + 1 :] if counted else sizes[:i])

    def message(datatype, room, sizes, wide):
        placed, extent = room.placed(datatype), datatype.Get_extent()[1]
        places = [place(sizes, i) for i in range(len(sizes))]
        datatypes_made.append(placed)
        if method == "Alltoallw":
            return [MPI.BOTTOM, sizes, [extent * at for at in places], [placed] * p]
        return [MPI.BOTTOM, sizes, places, placed] if wide and counted else bottom(placed, sizes[0])

    datatypes_made = []
    out, into = sent_by(rank), [size(s, rank) for s in range(p)] if wide_receive else [size(root, rank)]
    sent, got, want = Room(sends, sum(out), rank), Room(receives, sum(into)), Room(receives, sum(into))
    for source in range(p):
        from_root, to_root = name in ("Bcast", "Scatter"), name == "Gather"
        if (from_root and source != root) or (to_root and rank != root) or (name, rank) == ("Bcast", root):
            continue
        n, theirs = size(source, rank), sent_by(source)
        at = place(theirs, rank) if wide_send else 0
        to = place(into, source) if wide_receive else 0
        packed, room = np.zeros(n * sends.Get_size(), np.uint8), Room(sends, sum(theirs), source)
        PACK(ByMPI(datatypes.facts(sends)), MPI.Get_address(packed), room.address + at * sends.Get_extent()[1], n)
        address = want.address + to * receives.Get_extent()[1]
        UNPACK(ByMPI(datatypes.facts(receives)), MPI.Get_address(packed), address, n)
    METHODS[method](comm, message(sends, sent, out, wide_send), message(receives, got, into, wide_receive))
    for datatype in datatypes_made:
        datatype.Free()
    before = Room(sends, sum(out), rank)
    return (sent.bytes.tolist(), got.bytes.tolist()), (before.bytes.tolist(), want.bytes.tolist())


@parametrize("method", METHODS)
def test_collectives_of_every_kind(ours, own_packs, method):
    for kind, recipe in KINDS.items():
        with committed(recipe) as datatype, ours.trace() as records:
            got, want = carried_out(ours, method, datatype, datatype)
            assert got == want, kind
            assert records[0].algorithm != "native", kind
    assert not own_packs


@parametrize("method", METHODS)
def test_collectives_of_what_mpi_packs(ours, own_packs, method):
    datatype = types.darray()
    got, want = carried_out(ours, method, datatype, datatype)
    assert got == want
    assert own_packs or method in COUNTED or (method, ours.size) == ("Bcast", 1)
    datatype.Free()


@parametrize("method", COUNTED)
def test_collectives_of_two_kinds(ours, engine, method):
    """Holes at the senders, at the receivers, or at both; by every algorithm, in chunks too."""
    with committed(KINDS["vector"]) as holes, committed(KINDS["contiguous"]) as dense:
        for sends, receives in ((holes, dense), (dense, holes), (holes, holes)):
            for spec in algorithms(method.lower()):
                for how in ({}, {"chunk_bytes": 8, "window": 2}):
                    with ours.using(engine=engine, **{method.lower(): spec}, **how):
                        got, want = carried_out(ours, method, sends, receives)
                    assert got == want, (spec, how)


def test_blocks_of_several_kinds(own_packs):
    """Each block of an Alltoallw goes its own way: as it is, by runs, by MPI."""
    kinds = [MPI.DOUBLE.Dup().Commit(), types.make(KINDS["indexed"]), types.darray()]
    memory, places, counts = np.arange(100.0), [0, 160, 400], [3, 2, 1]
    message = [memory, counts, places, kinds]
    buffer = vector.parse_typed_vector(message, True, 3)
    packed = buffer.pack()
    parts = [parse.parse_buffer([memory[at // 8 :], n, kind]).pack() for n, at, kind in zip(counts, places, kinds)]
    assert packed.tobytes() == b"".join(part.tobytes() for part in parts)
    del own_packs[:]
    memory_before = memory.copy()
    memory[:] = 0
    buffer.unpack(packed)
    assert own_packs == ["unpack"]
    assert vector.parse_typed_vector(message, True, 3).pack().tobytes() == packed.tobytes()
    assert set(memory) - {0.0} == set(packed.view("d")) - {0.0} and np.isin(memory, [0.0, *memory_before]).all()
    for datatype in kinds:
        datatype.Free()


# -- facts that go with the datatype


@pytest.fixture
def described(monkeypatch):
    """Return the list of calls that derive a datatype's facts, and of calls that check that it is committed."""
    calls = []
    counted(monkeypatch, datatypes, "_describe", calls)
    counted(monkeypatch, parse, "_check_committed", calls)
    return calls


def test_facts_are_worked_out_once(described):
    memory = np.zeros(20)
    with committed(KINDS["vector"]) as datatype:
        facts = {id(parse.parse_buffer([memory, 1, datatype]).facts) for _ in range(5)}
        facts.add(id(parse.parse_buffer([memory, 1, MPI.Datatype(datatype)]).facts))      # another object, one handle
        facts.add(id(vector.parse_vector([memory, [1, 1], datatype], False, 2).facts))
        facts.update(id(known) for known in vector.parse_typed_vector([memory, [datatype] * 2], False, 2).types)
        assert len(facts) == 1
        assert described == ["_describe", "_check_committed"]


def test_facts_are_not_those_of_a_duplicate(described):
    memory = np.zeros(20)
    with committed(KINDS["vector"]) as datatype:
        first = parse.parse_buffer([memory, 1, datatype]).facts
        copy = datatype.Dup()
        second = parse.parse_buffer([memory, 1, copy]).facts
        assert first is not second and first.datatype == datatype and second.datatype == copy
        copy.Free()
        assert parse.parse_buffer([memory, 1, datatype]).facts is first


@parametrize("kind", ["vector", "darray"])
def test_facts_outlive_the_object_they_were_found_by(kind):
    """A datatype lives on in those made of it, and decode hands it out again."""
    memory = np.arange(60.0)
    datatype = types.make(KINDS["vector"]) if kind == "vector" else types.darray()
    packed = parse.parse_buffer([memory, 1, datatype]).pack()
    outer = datatype.Create_contiguous(2)
    datatype.Free()
    again = outer.decode()[0]
    again.Commit()
    buffer = parse.parse_buffer([memory, 1, again])
    assert buffer.datatype == again and buffer.pack().tobytes() == packed.tobytes()
    again.Free()
    outer.Free()


def test_uncommitted_types_are_checked_again(described):
    vector = MPI.DOUBLE.Create_vector(3, 1, 2)
    datatype = vector.Create_resized(0, 40)  # not known by how it was made, as other tests' vectors may be
    vector.Free()
    for _ in range(2):
        with pytest.raises(errors.DatatypeError, match="not committed"):
            parse.parse_buffer([np.zeros(5), 1, datatype])
    datatype.Commit()
    for _ in range(2):
        parse.parse_buffer([np.zeros(5), 1, datatype])
    assert described == ["_describe", "_check_committed"] * 3
    datatype.Free()


@parametrize("kind", ["vector", "darray"])
def test_a_handle_used_again_has_facts_of_its_own(kind):
    for n in range(1, 50):
        datatype = MPI.DOUBLE.Create_vector(n, 1, 2).Commit() if kind == "vector" else types.darray()
        assert parse.parse_buffer([np.zeros(100), 1, datatype]).size == datatype.Get_size()
        datatype.Free()


@parametrize("kind", ["vector", "darray"])
def test_a_datatype_freed_before_the_call_is_done(kind):
    """And its handle given to others, as in a nonblocking call of blocks with types of their own."""
    memory = np.arange(100.0)
    datatype = types.make(KINDS["vector"]) if kind == "vector" else types.darray()
    buffer = vector.parse_typed_vector([memory, [1, 1], [0, 400], [datatype] * 2], True, 2)
    packed = buffer.pack()
    datatype.Free()
    others = [MPI.INT.Create_contiguous(n + 1).Commit() for n in range(20)]
    memory[:] = -1
    buffer.unpack(packed)
    assert sorted(memory[memory >= 0]) == sorted(packed.view("d")) and buffer.pack().tobytes() == packed.tobytes()
    for other in others:
        other.Free()


@parametrize("kind", ["vector", "darray"])
@parametrize("method", ["Iallgather", "Allgather_init"])
def test_a_datatype_freed_while_a_collective_is_in_flight(ours, comm, kind, method):
    p = comm.size
    datatype = types.make(KINDS["vector"]) if kind == "vector" else types.darray()
    row = datatype.Create_resized(0, 240).Commit()      # each in 30 doubles of its own
    datatype.Free()
    sent, got, want = np.arange(30.0) + 100 * comm.rank, np.full(30 * p, -1.0), np.full(30 * p, -1.0)
    comm.Allgather([sent, 1, row], [want, 1, row])
    request = getattr(ours, method)([sent, 1, row], [got, 1, row])
    row.Free()
    others = [MPI.INT.Create_contiguous(n + 1).Commit() for n in range(20)]
    for _ in range(1 if method == "Iallgather" else 3):
        if method != "Iallgather":
            got[:] = -1
            request.Start()
        request.Wait()
        assert got.tolist() == want.tolist()
    if method != "Iallgather":
        request.Free()
    for other in others:
        other.Free()


@pytest.mark.mpi(max_size=1)
@pytest.mark.unsampled
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing tells how much memory there is")
@parametrize("kind", ["vector", "indexed", "darray"])
def test_many_datatypes_leave_nothing(kind):
    memory = np.zeros(200)
    recipe = KINDS["vector"] if kind == "vector" else ("INDEXED_BLOCK", ["DOUBLE"], {
        "blocklength": 1, "displacements": [i * i % 101 for i in range(100)]})

    def cycle():
        datatype = types.darray() if kind == "darray" else types.make(recipe)
        parse.parse_buffer([memory, 1, datatype], True).unpack(parse.parse_buffer([memory, 1, datatype]).pack())
        vector.parse_vector([memory, [1], datatype], True, 1).pack()
        datatype.Free()

    def held():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * 4, sum(isinstance(x, datatypes.TypeFacts | ByMPI) for x in gc.get_objects())

    for _ in range(1000):
        cycle()
    before = held()
    for _ in range(10_000):
        cycle()
    after = held()
    assert after[1] == before[1]
    assert after[0] - before[0] < 4000, "KiB more than before"


def test_threads_that_meet_a_datatype_for_the_first_time():
    memory, sizes = np.arange(40.0), []
    for _ in range(50):
        with committed(KINDS["indexed of vectors"]) as datatype:
            message = [memory, 1, datatype]
            together(*[lambda message=message: sizes.append(parse.parse_buffer(message).pack().size)] * 4)
    assert sizes == [72] * 200
