"""MPICOLL_CHECK=1: where the ranks call different things, every rank raises and the communicator lives on."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, collectives, differing_buffers, ops, vectors
from support.calls import collective_calls
from support.calls import works as all_works
from support.in_form import FORMS, in_form

import mpicoll
from mpicoll import errors
from mpicoll.comm.objects import NAMES
from mpicoll.dispatch.check_mode import SignatureExchange
from mpicoll.dispatch.methods import METHODS
from mpicoll.errors import MismatchError

parametrize = pytest.mark.parametrize
several = pytest.mark.mpi(min_size=2)
works = partial(all_works, algorithms=("ring", "auto", "native"))


@pytest.fixture
def checked(comm, check_mode):
    """Return a Comm in check mode."""
    wrapped = mpicoll.Comm(comm)
    assert "check mode" in wrapped.explain("allreduce").slow
    return wrapped


@pytest.fixture(autouse=True)
def check_mode(monkeypatch):
    monkeypatch.setenv("MPICOLL_CHECK", "1")


def checked_in_form(comm, form):
    """Return a Comm in check mode whose blocking calls are carried out in a form."""
    return in_form(mpicoll.Comm, form)(comm)


def z(n, dtype="d"):
    return np.zeros(n, dtype)


def odd(comm):
    """Return whether this is the last rank, which makes the call that differs."""
    return comm.rank == comm.size - 1


def choosing(choice, other):
    """Return an Allreduce under one choice on the last rank and another on the rest."""

    def call(c):
        with c.using(**(choice if odd(c) else other)):
            c.Allreduce(z(64), z(64))

    return call


def by(c, collective, spec, call):
    with c.using(**{collective: spec}):
        call(c)


def user_and_sum(c):
    with ops.user_op(ops.ADD, commute=True) as op:
        c.Allreduce(z(3, "i8"), z(3, "i8"), op if odd(c) else MPI.SUM)


RING = {"allreduce": "ring"}
DIFFER = {      # what: (call, what the message calls it, the two values in it)
    "collective": (lambda c: c.Barrier() if odd(c) else c.Bcast(z(1)), "collective", "'barrier' 'bcast'"),
    "collective of one shape": (lambda c: c.Allreduce(z(2), z(2)) if odd(c) else c.Reduce(z(2), z(2)), "collective",
                                "'allreduce' 'reduce'"),
    **{f"root of {name}": (lambda c, name=name: cases.Case(name, root=int(odd(c))).run(c), "root", "1 0")
       for name in collectives.EQUAL_METHODS if collectives.meaning(name).rooted},
    **{f"count of {name}": (lambda c, name=name: cases.Case(name, 3 + odd(c)).run(c), "", "")
       for name in collectives.EQUAL_METHODS},
    "counts of reduce_scatter": (lambda c: c.Reduce_scatter(*unequal(c)), "", ""),
    "op of exscan": (lambda c: c.Exscan(z(3), z(3), MPI.MAX if odd(c) else MPI.SUM), "op", "'MAX' 'SUM'"),
    "v or not": (lambda c: c.Gatherv(z(1), z(c.size)) if odd(c) else c.Gather(z(1), z(c.size)), "collective",
                 "'gatherv' 'gather'"),
    "root of gatherv": (lambda c: c.Gatherv(z(1), z(c.size), int(odd(c))), "root", "1 0"),
    "type of scatterv": (lambda c: c.Scatterv(z(c.size), z(1, "i8" if odd(c) else "d")), "type", "DOUBLE"),
    "counts of allgatherv": (
        lambda c: c.Allgatherv(z(2), [z(3 * c.size), [3 if odd(c) and r != c.rank else 2 for r in range(c.size)]]),
        "count", "24"),
    **{f"{spec} of {name}": (lambda c, name=name, call=call, spec=spec: by(c, name, spec, call), "the bytes", words)
       for name, specs, call, words in (
           ("gatherv", ("linear", "binomial"), lambda c: c.Gatherv(z(2 + odd(c)), z(2 * c.size)), "sends 24 16"),
           ("scatterv", ("linear", "binomial"), lambda c: c.Scatterv(z(2 * c.size), z(2 + odd(c))), "receives 24 16"),
           ("alltoallv", ("pairwise", "bruck"),
            lambda c: c.Alltoallv([z(3 * c.size), [2 + (odd(c) and r == 0) for r in range(c.size)]], z(2 * c.size)),
            "sends 24 rank 0, 16"),
           ("alltoallw", ("pairwise", "bruck"),
            lambda c: c.Alltoallw([z(3), [MPI.FLOAT if odd(c) and r == 0 else MPI.DOUBLE for r in range(c.size)]],
                                  [z(c.size), [1] * c.size, [8 * r for r in range(c.size)], [MPI.DOUBLE] * c.size]),
            "sends 4 rank 0, 8"))
       for spec in specs},
    "op": (lambda c: c.Allreduce(z(3), z(3), MPI.MAX if odd(c) else MPI.SUM), "op", "'MAX' 'SUM'"),
    "user op": (user_and_sum, "op", "'SUM'"),
    "dtype": (lambda c: c.Allreduce(*[z(6, "f") if odd(c) else z(3) for _ in "sr"]), "", ""),
    "dtype of one size": (lambda c: c.Allreduce(*[z(3, "i8") if odd(c) else z(3) for _ in "sr"]), "type", "DOUBLE"),
    "algorithm": (choosing({"allreduce": "rabenseifner"}, RING), "algorithm", "'rabenseifner' 'ring'"),
    "native or not": (choosing({"allreduce": "native"}, RING), "algorithm", "'native' 'ring'"),
    "parameter": (choosing(*({"allreduce": f"reduce_bcast(bcast={name})"} for name in ("chain", "binomial"))),
                  "algorithm", "chain binomial"),
    "chunk": (choosing(*({**RING, "chunk_bytes": n} for n in (16, 32))), "chunk_bytes", "16 32"),
    "kernel or not": (lambda c: c.Allreduce(*[z(2, "S1") if odd(c) else z(4) for _ in "sr"]), "", ""),
    "characters": (lambda c: c.Allreduce(*[z(2 + odd(c), "S1") for _ in "sr"]), "", ""),
}


def unequal(c):
    """Return send, recv and counts that differ between the ranks, though their sum is the same."""
    counts = [2] * c.size
    if odd(c):
        counts[0], counts[-1] = 1, 3
    return z(2 * c.size), z(counts[c.rank]), counts


@several
@parametrize("what", DIFFER)
@parametrize("form", FORMS)
def test_a_difference_raises_on_every_rank(comm, form, engine, what):
    checked = checked_in_form(comm, form)
    call, field, words = DIFFER[what]
    with checked.using(engine=engine), checked.trace() as records:
        with pytest.raises(MismatchError) as caught:
            call(checked)
        assert not records
        works(checked)
    error = caught.value
    others = "0" if checked.size == 2 else f"0-{checked.size - 2}"
    assert f"on rank {others}" in str(error) and f"on rank {checked.size - 1};" in str(error)
    assert len(error.values) == checked.size and error.what.startswith(field)
    assert all(word in str(error) for word in words.split()), str(error)


@several
def test_three_groups_are_named(checked):
    with pytest.raises(MismatchError) as caught:
        checked.Bcast(z(1 + checked.rank))
    assert len(caught.value.groups) == checked.size
    works(checked)


OWN = {         # what a rank may get wrong alone: (its call, its error, the others' call)
    "counts": (lambda c: c.Allreduce(z(3), z(4)), errors.CountMismatch, lambda c: c.Allreduce(z(3), z(3))),
    "root": (lambda c: c.Bcast(z(3), c.size), errors.RootError, lambda c: c.Bcast(z(3))),
    "operator": (lambda c: c.Allreduce(z(3), z(3), MPI.BAND), errors.OperatorError, lambda c: c.Allreduce(z(3), z(3))),
    "read-only": (lambda c: c.Allgather(z(3), bytes(24 * c.size)), errors.BufferAccessError,
                  lambda c: c.Allgather(z(3), z(3 * c.size))),
    "before a native one": (lambda c: c.Allreduce(z(3, "S1"), z(4, "S1")), errors.CountMismatch,
                            lambda c: c.Allreduce(z(3, "S1"), z(3, "S1"))),
    "gatherv": (lambda c: c.Gatherv(z(2), [z(c.size), [1] * (c.size + 1)], c.size - 1), errors.MessageSpecError,
                lambda c: c.Gatherv(z(2), None, c.size - 1)),
    "alltoallv": (lambda c: c.Alltoallv(z(c.size), [z(c.size), [2] * c.size]), errors.BufferTooSmallError,
                  lambda c: c.Alltoallv(z(c.size), z(c.size))),
    "reduce_scatter": (lambda c: c.Reduce_scatter(z(2 * c.size), bytes(16), [2] * c.size), errors.BufferAccessError,
                       lambda c: c.Reduce_scatter(z(2 * c.size), z(2), [2] * c.size)),
    "reduce_scatter without counts": (lambda c: c.Reduce_scatter(z(2 * c.size), bytes(16)), errors.BufferAccessError,
                                      lambda c: c.Reduce_scatter(z(2 * c.size), z(2))),
}


@several
@parametrize("what", list(OWN))
@parametrize("form", FORMS)
def test_a_rank_that_refuses_its_own_arguments_tells_the_others(comm, form, what):
    checked = checked_in_form(comm, form)
    wrong, error, right = OWN[what]
    with pytest.raises(error if odd(checked) else MismatchError) as caught:
        (wrong if odd(checked) else right)(checked)
    if not odd(checked):
        assert f"rank {checked.size - 1}" in str(caught.value) and "refused" in str(caught.value)
    works(checked)


@several
def test_two_ranks_wrong_in_different_ways(checked):
    mine = {0: errors.RootError, checked.size - 1: errors.NotABufferError}.get(checked.rank, MismatchError)
    with pytest.raises(mine):
        checked.Bcast(17 if odd(checked) else z(3), 0 if checked.rank else 99)
    works(checked)


@parametrize("name", differing_buffers.CALLS)
def test_correct_calls_pass(comm, checked, name):
    """Different layouts of one type signature too."""
    assert np.array_equal(np.array(differing_buffers.CALLS[name](checked)), differing_buffers.expected(name, comm))


@parametrize("form", FORMS)
def test_every_algorithm_passes(comm, form, engine):
    checked = checked_in_form(comm, form)
    with cases.Checks() as checks:
        for collective, spec in collectives.specs():
            for in_place in (False, collectives.has_in_place(collective)):
                case = cases.Case(collective, 5, 0, in_place)
                cases.check(checks, checked, case, spec, engine)


@parametrize("form", FORMS)
def test_every_algorithm_with_counts_passes(comm, form, engine):
    checked = checked_in_form(comm, form)
    with cases.Checks() as checks:
        for collective, spec in collectives.specs(collectives.VECTOR):
            for in_place in (False, True):
                case = vectors.VectorCase(collective, root=comm.size - 1, in_place=in_place)
                cases.check(checks, checked, case, spec, engine)


def test_other_types_of_one_length_pass(checked):
    """Accept data sent as bytes of one type and received as another of the same length."""
    p, got = checked.size, z(2 * checked.size)
    two = MPI.DOUBLE.Create_contiguous(2).Commit()
    mine = np.full(2, checked.rank + 1.0)
    checked.Gatherv([mine, 1, two] if checked.rank else mine, [got, [2] * p, None, MPI.DOUBLE])
    assert checked.rank or np.array_equal(got[::2], np.arange(1.0, p + 1))
    checked.Alltoallw([np.repeat(mine, p), [1] * p, [16 * r for r in range(p)], [two] * p],
                      [got, [2] * p, [16 * r for r in range(p)], [MPI.DOUBLE] * p])
    assert np.array_equal(got[1::2], np.arange(1.0, p + 1))
    two.Free()


def test_nonblocking_passes(checked):
    got = [z(4) for _ in range(6)]
    requests = [checked.Iallreduce(np.full(4, float(i)), got[i]) for i in range(6)]
    for request in requests[::-1]:
        request.Wait()
    assert all((got[i] == i * checked.size).all() for i in range(6))


@several
def test_engines_may_differ(checked):
    """A fact of each rank: both send the same messages."""
    with checked.using(engine=collectives.ENGINES[checked.rank % 2]):
        works(checked)


def test_long_signatures_are_compared():
    """Counts of a thousand ranks, and what a rank says in letters of several bytes."""
    for signature in ({"count": (1_000_000,) * 1_200}, {"error": "ж" * 1_000, "sequence": 1}, {"algorithm": "é" * 999}):
        exchange = SignatureExchange(MPI.COMM_SELF, signature)
        try:
            while not exchange.advance(0.0):
                pass
        except MismatchError as error:
            assert "error" in signature, error


@several
def test_rank_0_decides_about_the_mode(comm, monkeypatch):
    if comm.rank:
        monkeypatch.delenv("MPICOLL_CHECK")
    ours = mpicoll.Comm(comm)
    with pytest.raises(MismatchError):
        ours.Bcast(z(1 + odd(ours)))
    works(ours)


@several
@parametrize("theirs", FORMS)
@parametrize("ours", FORMS)
def test_forms_that_differ_raise_on_every_rank(checked, ours, theirs):
    """A blocking Allreduce does not match an Iallreduce, nor either of them an Allreduce_init."""
    form = theirs if odd(checked) else ours
    x, y = np.ones(3), z(3)
    call = {"blocking": lambda: checked.Allreduce(x, y), "nonblocking": lambda: checked.Iallreduce(x, y).Wait(),
            "persistent": lambda: checked.Allreduce_init(x, y)}[form]
    if ours == theirs:
        call()
    else:
        with pytest.raises(MismatchError, match=f"differ in form: .*{ours}.*{theirs}"):
            call()
    works(checked)


@several
def test_object_and_array_collectives_differ(checked):
    """A lowercase method on one rank, and its namesake, or another lowercase one, on the others."""
    objects = {
        "bcast": lambda: checked.bcast(1),
        "gather": lambda: checked.gather(1),
        "scatter": lambda: checked.scatter([1] * checked.size),
        "allgather": lambda: checked.allgather(1),
        "alltoall": lambda: checked.alltoall([1] * checked.size),
        "reduce": lambda: checked.reduce(1),
        "allreduce": lambda: checked.allreduce(1),
        "scan": lambda: checked.scan(1),
        "exscan": lambda: checked.exscan(1),
    }
    assert sorted(objects) == sorted(NAMES)
    arrays = collective_calls(checked, "blocking")
    names = list(objects)
    for name, other in zip(names, names[1:] + names[:1]):
        objects[name]()
        for theirs in (arrays[name.capitalize()], objects[other]):
            with pytest.raises(MismatchError, match=f"differ in collective: .*{name} of objects"):
                (theirs if odd(checked) else objects[name])()
    checked.barrier() if odd(checked) else checked.Barrier()  # MPI has one for both
    works(checked)


@several
@parametrize("form", FORMS)
def test_every_method_is_compared(checked, form):
    """One rank is a call ahead, all the way through."""
    if form == "persistent":
        calls = {name: lambda m=m: _made(checked, m) for name, m in METHODS.items()}
    else:
        calls = collective_calls(checked, form)
    names = list(calls)
    for name, other in zip(names, names[1:] + names[:1]):
        if {name.lower(), other.lower()} <= {"reduce_scatter_block", "ireduce_scatter_block"}:
            continue
        with pytest.raises(MismatchError):
            request = calls[other if odd(checked) else name]()
            if form == "nonblocking":
                request.Wait()
    works(checked)


def _made(comm, method):
    return next(iter(collective_calls(comm, "persistent", only=method.name).values()))


@several
@parametrize("algorithm", ["auto", "native"])
def test_a_nonblocking_call_never_waits(checked, algorithm):
    """Rank 1 makes its call only once it has heard from rank 0, which has made its own: legal, native or not."""
    x, y, word = np.ones(3), z(3), z(1)
    if checked.rank == 1:
        checked.Recv(word, 0)
    with checked.using(allreduce=algorithm):
        request = checked.Iallreduce(x, y)
    if checked.rank == 0:
        checked.Send(np.ones(1), 1)
    request.Wait()
    assert (y == checked.size).all()


@several
def test_a_nonblocking_call_that_is_refused_does_not_wait_either(checked):
    word = z(1)
    if checked.rank == 1:
        checked.Recv(word, 0)
    if checked.rank == 0:
        with pytest.raises(errors.CountMismatch):
            checked.Iallreduce(z(3), z(4))
        checked.Send(np.ones(1), 1)
    else:
        with pytest.raises(MismatchError, match="a rank refused its own"):
            checked.Iallreduce(z(3), z(3)).Wait()
    works(checked)


@parametrize("method", ["Gatherv", "Allgatherv"])
def test_nothing_is_of_any_type(checked, method):
    """Rank 0 contributes nothing, of another type: MPI asks only that signatures match, and there is none."""
    counts = [0] + [2] * (checked.size - 1)
    sent = np.full(2, checked.rank, "i") if checked.rank else np.zeros(0)
    getattr(checked, method)(sent, [np.zeros(sum(counts), "i"), counts])
    works(checked)
