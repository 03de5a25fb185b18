"""Communicators: which keep the class, what their end leaves, and that no user's receive matches our messages."""

from __future__ import annotations

import re
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, collectives
from support.calls import complete, works
from support.in_form import FORMS, in_form

import mpicoll
from mpicoll.errors import CommError
from mpicoll.runtime import comm_state

parametrize = pytest.mark.parametrize


class Mine(mpicoll.Comm):
    """A user's own class."""


@pytest.fixture(params=[mpicoll.Comm, Mine], ids=["Comm", "subclass"])
def ours(comm, request):
    return request.param(comm)


# -- a Comm is a communicator


def test_is_an_intracomm(ours):
    assert isinstance(ours, MPI.Intracomm) and isinstance(ours, mpicoll.Comm)
    assert ours.size == MPI.COMM_WORLD.size and ours.rank == MPI.COMM_WORLD.rank
    works(ours)


def test_equals_the_communicator_it_was_made_of(comm):
    ours = mpicoll.Comm(comm)
    assert ours == comm and MPI.Comm.Compare(ours, comm) == MPI.IDENT


def test_pickled_methods_and_messages_still_work(ours):
    p, rank = ours.size, ours.rank
    assert ours.allreduce(rank + 1) == p * (p + 1) // 2
    assert ours.bcast({"a": [1, 2]} if rank == 0 else None) == {"a": [1, 2]}
    assert ours.gather("x" * rank, root=p - 1) == (["x" * r for r in range(p)] if rank == p - 1 else None)
    assert ours.sendrecv(rank, (rank + 1) % p, source=(rank - 1) % p) == (rank - 1) % p


def test_two_objects_on_one_communicator_share_their_state(comm):
    """So what one says by using() holds for the communicator."""
    first, live = mpicoll.Comm(comm), len(comm_state.LIVE)
    second = mpicoll.Comm(comm)
    assert len(comm_state.LIVE) == live
    with first.trace() as records, first.using(allreduce="naive"):
        works(second)
    assert records[0].algorithm == "naive"
    assert second.explain("allreduce", 1 << 20).algorithm != "naive"


def test_one_rank(comm):
    alone = mpicoll.Comm(MPI.COMM_SELF)
    with cases.Checks() as checks:
        for collective, spec in collectives.specs():
            for engine in collectives.ENGINES:
                case = cases.Case(collective, 4)
                with alone.using(engine=engine, **{collective: spec}), alone.trace() as records:
                    checks.call(case.run(alone), spec, engine)
                checks.equal([(r.algorithm, r.messages) for r in records], [(spec, 0)], collective)


# -- communicators out of communicators


def completed(copy_and_request):
    copy, request = copy_and_request
    request.Wait()
    return copy


COPIES = {      # each of a communicator and an info object
    "Dup": lambda comm, info: comm.Dup(),
    "Dup of an info": lambda comm, info: comm.Dup(info),
    "Dup_with_info": lambda comm, info: comm.Dup_with_info(info),
    "Clone": lambda comm, info: comm.Clone(),
    "Idup": lambda comm, info: completed(comm.Idup()),
    "Idup_with_info": lambda comm, info: completed(comm.Idup_with_info(info)),
}


@pytest.fixture
def info():
    new_info = MPI.Info.Create()
    yield new_info
    new_info.Free()


@parametrize("how", COPIES)
def test_copies(ours, info, how):
    copy = COPIES[how](ours, info)
    assert type(copy) is type(ours) and MPI.Comm.Compare(copy, ours) == MPI.CONGRUENT
    with copy.using(allreduce="naive"):
        assert copy.explain("allreduce").forced and not ours.explain("allreduce").forced
    works(copy)
    copy.Free()
    works(ours)


@pytest.mark.mpi(min_size=2)
def test_the_first_call_on_a_nonblocking_copy_does_not_block(ours):
    """Rank 1 sends, in a way that waits for the receive, before it makes a call that rank 0 has begun."""
    copy = completed(ours.Idup())
    word = np.zeros(1)
    if ours.rank == 1:
        ours.Ssend(word, 0)
    begun = copy.Ibarrier()
    if ours.rank == 0:
        ours.Recv(word, 1)
    begun.Wait()
    if ours.rank == 0:
        assert copy.explain("allreduce", 8).collective == "allreduce"
    works(copy)
    copy.Free()


def test_parts(ours):
    color, p = ours.rank % 2, ours.size
    part = ours.Split(color, -ours.rank)
    assert type(part) is type(ours)
    assert part.size == (p + 1 - color) // 2 and part.rank == part.size - 1 - ours.rank // 2
    works(part)
    part.Free()


def test_parts_that_some_are_not_in(ours):
    part = ours.Split(MPI.UNDEFINED if ours.rank else 0)
    assert type(part) is type(ours)
    if ours.rank:
        assert part == MPI.COMM_NULL
        with pytest.raises(CommError):
            part.Allreduce(np.zeros(1), np.zeros(1))
    else:
        works(part)
        part.Free()
    works(ours)


def test_parts_by_type(ours):
    part = ours.Split_type(MPI.COMM_TYPE_SHARED)
    assert type(part) is type(ours) and part.size == ours.size
    works(part)
    part.Free()
    nothing = ours.Split_type(MPI.UNDEFINED)
    assert type(nothing) is type(ours) and nothing == MPI.COMM_NULL


@parametrize("method", ["Create", "Create_group"])
def test_groups(ours, method):
    """The even ranks, backwards."""
    members = list(range(0, ours.size, 2))[::-1]
    group = ours.Get_group().Incl(members)
    if method == "Create" or ours.rank in members:
        part = getattr(ours, method)(group)
        assert type(part) is type(ours)
        if ours.rank in members:
            assert part.rank == members.index(ours.rank)
            works(part)
            part.Free()
        else:
            assert part == MPI.COMM_NULL
    works(ours)
    group.Free()


def test_of_a_group_alone(ours):
    """Create_from_group needs no parent communicator."""
    group = ours.Get_group()
    try:
        native = MPI.Intracomm.Create_from_group(group, "native")
    except (MPI.Exception, NotImplementedError):
        group.Free()
        pytest.skip("group: needs an MPI that makes a communicator of a group alone")
    native.Free()
    new_comm = type(ours).Create_from_group(group, stringtag="ours")
    assert type(new_comm) is type(ours) and new_comm.size == ours.size
    works(new_comm)
    new_comm.Free()
    group.Free()


# -- topologies

TOPOLOGIES = {
    "Cartcomm": lambda comm: comm.Create_cart([comm.size], [True]),
    "Graphcomm": lambda comm: comm.Create_graph([2 * r + 2 for r in range(comm.size)], neighbors(comm)),
    "Distgraphcomm": lambda comm: comm.Create_dist_graph([comm.rank], [1], [(comm.rank + 1) % comm.size]),
    "Distgraphcomm, adjacent": lambda c: c.Create_dist_graph_adjacent(*neighbors(c).reshape(-1, 2, 1)[c.rank]),
}


def neighbors(comm):
    """Return the edges of a ring: of each rank to the one before, and to the one after."""
    return np.array([((r - 1) % comm.size, (r + 1) % comm.size) for r in range(comm.size)]).ravel()


def edges(comm):
    return comm.topology, comm.inedges, comm.outedges


@pytest.fixture(params=TOPOLOGIES)
def topology(request):
    """Return (the class's name, a function that creates such a communicator)."""
    return request.param.split(",")[0], TOPOLOGIES[request.param]


def test_topologies(ours, comm, topology, info):
    """Of mpi4py's class and of ours, and so are copies; parts are plain."""
    name, make = topology
    ring, plain = make(ours), make(comm)
    kind = getattr(mpicoll, name)
    assert type(ring) is kind and isinstance(ring, getattr(MPI, name)) and isinstance(ring, mpicoll.Comm)
    assert edges(ring) == edges(plain) and ring.rank == plain.rank
    works(ring)
    for copy in (make_copy(ring, info) for make_copy in COPIES.values()):
        assert type(copy) is kind and edges(copy) == edges(plain)
        assert MPI.Comm.Compare(copy, ring) == MPI.CONGRUENT
        works(copy)
        copy.Free()
    group = ring.Get_group()
    for part in (ring.Split(), ring.Split_type(MPI.COMM_TYPE_SHARED), ring.Create(group), ring.Create_group(group)):
        assert type(part) is mpicoll.Comm
        works(part)
        part.Free()
    for freed in (group, ring, plain):
        freed.Free()
    with pytest.raises(CommError):
        ring.Barrier()


@parametrize("make", [
    lambda c: c.Create_cart([1]),
    lambda c: c.Create_graph([1], [0]),
    lambda c: c.Create_cart([c.size]).Sub([False]),
], ids=["cart", "graph", "sub"])
def test_topologies_that_some_are_not_in(ours, comm, make):
    new_comm, plain = make(ours), make(comm)
    assert isinstance(new_comm, mpicoll.Comm) and issubclass(type(new_comm), type(plain))
    assert (new_comm == MPI.COMM_NULL) == (plain == MPI.COMM_NULL)
    if new_comm == MPI.COMM_NULL:
        with pytest.raises(CommError):
            new_comm.Allreduce(np.zeros(1), np.zeros(1))
        assert mpicoll.Cartcomm(MPI.COMM_NULL) == MPI.COMM_NULL
    else:
        works(new_comm)
        new_comm.Free()
        plain.Free()
    works(ours)


def test_plain_topologies_can_be_made_ours(comm, topology):
    """By Comm, which does not know of the topology, or by the class that does; no other topology's takes it."""
    name, make = topology
    plain = make(comm)
    ring, without = getattr(mpicoll, name)(plain), mpicoll.Comm(plain)
    assert ring == plain == without and edges(ring) == edges(plain) and not isinstance(without, MPI.Topocomm)
    with ring.using(allreduce="naive"):
        assert without.explain("allreduce").forced
    works(ring)
    for other in {"Cartcomm", "Graphcomm", "Distgraphcomm"} - {name}:
        with pytest.raises(TypeError):
            getattr(mpicoll, other)(plain)
    with pytest.raises(TypeError):
        getattr(mpicoll, name)(comm)
    plain.Free()


class MyGrid(mpicoll.Cartcomm):
    """A user's own class."""


def test_subclasses_of_topologies(comm):
    grid = MyGrid(comm.Create_cart(MPI.Compute_dims(comm.size, 2)))
    rows = grid.Sub([False, True])
    assert type(grid.Dup()) is type(rows) is MyGrid and rows.dims == grid.dims[1:]
    works(rows)
    assert type(grid.Split()) is mpicoll.Comm


HANDLES = {"fromhandle", "fromint", "f2py"}     # whatever the handle is of


def test_every_method_that_makes_an_intracommunicator_is_ours():
    """By what mpi4py says that its methods return, of the version that is installed."""
    methods = set()
    for name in ("Comm", "Cartcomm", "Graphcomm", "Distgraphcomm"):
        plain = getattr(MPI, "Intracomm" if name == "Comm" else name)
        for method in dir(plain):
            says = (getattr(plain, method).__doc__ or "").strip().partition("\n")[0].rpartition("-> ")[2]
            if re.match(r"(tuple\[)?(Self|Comm|\w+comm)\b", says) and "Intercomm" not in says:
                methods.add(method)
                classes = [c for c in getattr(mpicoll, name).__mro__ if c.__module__.startswith("mpicoll")]
                own = any(method in vars(c) for c in classes)
                assert own == (method not in HANDLES), method
    assert {"Dup", "Split", "Create_group", "Create_cart", "Sub"} <= methods


# -- the end of a communicator


@parametrize("call", [
    lambda c: c.Barrier(),
    lambda c: c.Bcast(np.zeros(1)),
    lambda c: c.Allreduce(np.zeros(1), np.zeros(1)),
    lambda c: c.Iallreduce(np.zeros(1), np.zeros(1)),
    lambda c: c.explain("allreduce"),
    lambda c: c.using(allreduce="ring").__enter__(),
], ids=["Barrier", "Bcast", "Allreduce", "Iallreduce", "explain", "using"])
def test_a_freed_communicator_is_refused(comm, call):
    ours = mpicoll.Comm(comm).Dup()
    ours.Free()
    assert ours == MPI.COMM_NULL
    with pytest.raises(CommError) as caught:
        call(ours)
    assert caught.value.Get_error_class() == MPI.ERR_COMM and isinstance(caught.value, MPI.Exception)


@parametrize("plain", [MPI.COMM_WORLD, MPI.COMM_SELF], ids=["world", "self"])
def test_lower_case_free_leaves_what_is_not_the_users(comm, plain):
    """As mpi4py's own does; another communicator is freed, and a null one stays null."""
    ours = mpicoll.Comm(plain)
    ours.free()
    assert ours != MPI.COMM_NULL
    works(ours)
    copy = ours.Dup()
    copy.free()
    assert copy == MPI.COMM_NULL
    copy.free()


def test_a_null_communicator_is_refused(comm):
    null = mpicoll.Comm(MPI.COMM_NULL)
    assert null == MPI.COMM_NULL
    with pytest.raises(CommError):
        null.Barrier()


def test_another_object_of_a_freed_communicator_is_refused(comm):
    """The other handle does not know; the state does, and gives what it has of MPI's back a little later."""
    first = comm.Dup()
    second = mpicoll.Comm(first)
    state = second._state
    first.Free()
    assert state.freed
    assert second._fast_call(mpicoll.dispatch.methods.BARRIER, None, None, None, 0) == 1
    mpicoll.Comm(comm.Dup()).Free()
    assert state.queue.closed and state.comm == MPI.COMM_NULL


def test_a_communicator_that_goes_with_its_last_request(comm):
    """MPICH keeps it for a persistent collective of its own, and says that it is gone in the middle of freeing that."""
    plain = comm.Dup()
    ours, result = mpicoll.Comm(plain), np.zeros(3)
    with ours.using(bcast="native"):
        native = ours.Bcast_init(np.ones(3))
    with ours.using(engine="mpi4py"):
        messages = ours.Allreduce_init(np.ones(3), np.zeros(3))     # has requests of MPI's
    short, state = ours.Scan_init(np.ones(3), np.zeros(3)), ours._state
    for request in (native, messages, short):
        complete(request)
    under_way = ours.Iallreduce(np.ones(3), result)
    plain.Free()
    native.Free()
    assert state.freed and not state.queue.closed
    for request in (messages, short):
        with pytest.raises(CommError):
            request.Start()
    under_way.Wait()
    assert (result == comm.size).all()
    messages.Free()
    mpicoll.Comm(comm.Dup()).Free()
    assert state.queue.closed and state.comm == MPI.COMM_NULL
    short.Free()


@pytest.mark.mpi(min_size=2)
def test_calls_in_flight_on_a_communicator_that_is_freed(comm):
    """The free completes in the background, and creating another communicator meanwhile does not wait for it."""
    plain, result = comm.Dup(), np.zeros(3)
    ours = mpicoll.Comm(plain)
    state = ours._state
    if comm.rank:
        comm.recv(source=0)     # this rank begins when rank 0 has done all that
    request = ours.Iallreduce(np.ones(3), result)
    plain.Free()
    other = mpicoll.Comm(MPI.COMM_SELF.Dup())
    if comm.rank == 0:
        assert state.freed and not state.queue.closed
        for rank in range(1, comm.size):
            comm.send(None, rank)
    MPI.Request.Waitall([request])
    assert (result == comm.size).all()
    other.Free()
    mpicoll.Comm(comm.Dup()).Free()
    assert state.queue.closed


@pytest.mark.mpi(min_size=2)
def test_intercommunicators_are_refused(comm):
    half = comm.Split(comm.rank % 2)
    inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    with pytest.raises(CommError, match="intercommunicator") as caught:
        mpicoll.Comm(inter)
    assert caught.value.Get_error_class() == MPI.ERR_COMM
    merged = mpicoll.Comm(inter.Merge())
    works(merged)
    merged.Free()
    inter.Free()
    half.Free()


def test_cycles_leave_nothing_behind(comm):
    """More of them than there can be communicators: MPICH has 2,046."""
    ours, live = mpicoll.Comm(comm), len(comm_state.LIVE)
    for _ in range(1_100 if ours.size < 5 else 300):
        copy = ours.Dup()
        copy.Free()
    for _ in range(30):
        copy = ours.Dup()
        works(copy)
        copy.Free()
    assert len(comm_state.LIVE) == live


def test_cycles_of_the_users_own_communicator(comm):
    live = len(comm_state.LIVE)
    for _ in range(50):
        plain = comm.Dup()
        works(mpicoll.Comm(plain))
        plain.Free()
    assert len(comm_state.LIVE) == live


# -- the program's attributes


def duplicate_without_waiting(comm):
    copy, request = comm.Idup()
    request.Wait()
    return copy


ATTRIBUTE_USES = {
    "nothing": lambda comm: None,
    "Allreduce": lambda comm: comm.Allreduce(np.ones(3), np.zeros(3)),
    "Iallreduce": lambda comm: comm.Iallreduce(np.ones(3), np.zeros(3)).Wait(),
    "Allreduce_init": lambda comm: comm.Allreduce_init(np.ones(3), np.zeros(3)).Free(),
    "Allgather of long doubles": lambda comm: comm.Allgather(np.ones(1, "g"), np.zeros(comm.size, "g")),
    "Split": lambda comm: comm.Split(0).Free(),
    "Create": lambda comm: comm.Create(comm.Get_group()).Free(),
    "Create_cart": lambda comm: comm.Create_cart([comm.size]).Free(),
    "Dup": lambda comm: comm.Dup().Free(),
    "Idup": lambda comm: duplicate_without_waiting(comm).Free(),
    "Clone": lambda comm: comm.Clone().Free(),
    "Free": lambda comm: comm.Free(),
}


@pytest.mark.parametrize("check", ["0", "1"], ids=["", "check-mode"])
def test_attributes_are_copied_and_deleted_as_natively(comm, monkeypatch, check):
    """Programs count references by them: a copy for each Dup of the program's, a delete at each Free, nothing else."""
    monkeypatch.setenv("MPICOLL_CHECK", check)
    log = []

    def copy(comm, keyval, value):
        log.append("copy")
        return value

    keyval = MPI.Comm.Create_keyval(copy_fn=copy, delete_fn=lambda comm, keyval, value: log.append("delete"))

    def calls(make):
        base = comm.Dup()
        base.Set_attr(keyval, "a value")
        used, seen = make(base), {}
        for name, use in ATTRIBUTE_USES.items():
            use(used)
            seen[name] = tuple(log)
            log.clear()
        return seen

    natively = calls(lambda base: base)
    assert natively["Dup"] == ("copy", "delete") and natively["Free"][-1:] == ("delete",)
    assert calls(mpicoll.Comm) == natively
    MPI.Comm.Free_keyval(keyval)


def test_an_attribute_that_cannot_be_copied(comm, capfd):
    """It spoils the program's own Dup, and nothing of ours."""
    def copy(comm, keyval, value):
        raise ValueError("not to be copied")

    base, keyval = comm.Dup(), MPI.Comm.Create_keyval(copy_fn=copy)
    base.Set_attr(keyval, 1)
    works(mpicoll.Comm(base))
    assert "not to be copied" not in capfd.readouterr().err
    base.Delete_attr(keyval)
    base.Free()
    MPI.Comm.Free_keyval(keyval)


# -- private messages


@contextmanager
def flooded(comm):
    """Yield receives from any rank with any tag that are posted on comm; at the end, receive what users sent."""
    plain = comm.Dup()       # MPI's own collectives need not be so careful, and on one rank of MPICH they hang
    waiting = [np.zeros(1) for _ in range(8)]
    requests = [comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG) for buffer in waiting]
    yield requests
    plain.Barrier()
    for i in range(8):
        comm.Send(np.full(1, float(i)), (comm.rank + 1) % comm.size, 50 + i)
    MPI.Request.Waitall(requests)
    assert sorted(buffer[0] for buffer in waiting) == list(range(8))
    plain.Free()


SOME = ("bcast binomial", "allreduce ring", "reduce_scatter pairwise", "alltoall bruck", "gather binomial",
        "scatter linear", "scan linear", "barrier dissemination", "allgather ring")


@parametrize("check", ["0", "1"], ids=["", "check-mode"])
@parametrize("form", FORMS)
def test_user_messages_do_not_meet_ours(comm, engine, form, check, monkeypatch):
    """Receives from any rank with any tag wait, before, while and after our messages travel: of every algorithm, and in
    other forms of some. Nor does a probe see ours: counts that are asked for, signatures, tags of persistent requests.
    """
    monkeypatch.setenv("MPICOLL_CHECK", check)
    ours, p = in_form(mpicoll.Comm, form)(comm), comm.size
    every = (form, check) == ("blocking", "0")
    with flooded(comm) as requests, cases.Checks() as checks:
        for collective, spec in collectives.specs() if every else map(str.split, SOME):
            case = cases.Case(collective)
            cases.check(checks, ours, case, spec, engine)
            operation = ours.Iallreduce(np.ones(5), np.zeros(5))
            got, counts = np.zeros(2 * p), [2] * p
            with ours.using(engine=engine, alltoallv="bruck"):
                ours.Alltoallv([np.ones(2 * p), counts], [got, counts])
            checks.that((got == 1).all(), got)
            checks.that(not any(r.Test() for r in requests), "a message of ours reached the user", spec)
            checks.that(not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG), "a probe saw a message of ours", spec)
            operation.Wait()


def test_native_collectives_in_flight_on_the_same_communicator(comm, engine):
    """MPI's own, through mpi4py's handle, between ours and in another order of completion."""
    ours, p, n = mpicoll.Comm(comm), comm.size, 400
    with ours.using(engine=engine), cases.Checks() as checks:
        operations = []
        for i in range(12):
            got, want = np.zeros(n), np.full(n, float(i * p + p * (p - 1) // 2))
            mine = np.full(n, float(i + comm.rank))
            start = ours.Iallreduce if i % 2 else comm.Iallreduce
            operations.append((start(mine, got), got, want, mine))
            if i % 3 == 0:
                operations.append((ours.Ibarrier() if i % 2 else comm.Ibarrier(), want, want, mine))
        total = np.zeros(3)
        ours.Allreduce(np.ones(3), total)
        comm.Barrier()
        for at in np.random.default_rng(1).permutation(len(operations)):
            operations[at][0].Wait()
        checks.that((total == p).all(), total)
        for i, (_, got, want, _) in enumerate(operations):
            checks.that((got == want).all(), i, got)


def test_user_messages_wait_for_their_receive(comm, engine):
    """Sent before, received after our collectives."""
    ours, p = mpicoll.Comm(comm), comm.size
    requests = [comm.Isend(np.full(1, 7.0 + tag), (comm.rank + 1) % p, tag) for tag in range(4)]
    with ours.using(engine=engine):
        works(ours)
        ours.Barrier()
    for tag in range(4):
        got = np.zeros(1)
        comm.Recv(got, (comm.rank - 1) % p, tag)
        assert got[0] == 7.0 + tag
    MPI.Request.Waitall(requests)
