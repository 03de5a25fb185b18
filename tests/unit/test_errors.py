"""The errors, without MPI.  What needs mpi4py is in tests/mpi/test_buffers.py."""

import builtins
import inspect
import pickle
import re
import subprocess
import sys

import pytest

from mpicoll import errors

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
}

SAMPLES = {
    errors.UnknownAlgorithm: ("allreduce algorithm", "rinng", ("ring", "tree")),
    errors.MismatchError: ("root", (0, 0, 1)),
    errors.ProcFailedError: ("Allreduce (call 7), ring", (2,), ("a",)),
    errors.RevokedError: ("Allreduce (call 7), ring", (2,), ("a",)),
    errors.VerifyError: ("ring", 5, 2, 0, 3, "Recv(4, b1)", "{0,1}", "{0}"),
}


def drawn():
    """Yield (name, parent, other bases, MPI error class) of each line of the tree in the docstring."""
    path = []
    for line in errors.__doc__.splitlines():
        if match := re.match(r"    ( *)(\w+)(?: \[([^\]]*)\])?(?:  |$)", line):
            indent, name, extra = match.groups()
            depth = len(indent) // 4
            path[depth:] = [name]
            bases, _, code = (extra or "").partition(":")
            bases = [base.strip() for base in bases.split(",") if base.strip()]
            yield name, path[depth - 1] if depth else "Exception", bases, code.strip()


def test_the_drawn_tree_is_the_tree():
    tree = {name: rest for name, *rest in drawn()}
    assert set(tree) == set(CLASSES) == set(errors.__all__)
    for name, (parent, bases, code) in tree.items():
        cls = CLASSES[name]
        assert cls.__bases__[0].__name__ == parent, name
        for base in bases:
            assert issubclass(cls, RuntimeError if base == "MPI.Exception" else getattr(builtins, base)), name
        if code:
            assert cls.mpi_class == code, name


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_errors_survive_the_trip_to_another_rank(cls):
    error = cls(*SAMPLES.get(cls, ("what, and what to do",)))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls and str(copy) == str(error) and vars(copy) == vars(error)


def test_rank_leads_the_message():
    error = errors.CountMismatch("3 is not 4")
    error.rank = 7
    assert str(error) == "rank 7: 3 is not 4"
    assert str(errors.TypecodeError("no such code")) == "no such code"  # a KeyError would quote it


def test_unknown_algorithm_names_what_is_near_or_all():
    error = errors.UnknownAlgorithm("allreduce algorithm", "rinng", ["ring", "tree", "ring_segmented"])
    assert error.near[0] == "ring"
    assert "did you mean 'ring'" in str(error)
    assert "'ring', 'tree'" in str(errors.UnknownAlgorithm("bcast algorithm", "xyz", ["ring", "tree"]))


def test_mismatch_groups_ranks_by_what_they_passed():
    error = errors.MismatchError("root", [0, 0, 1, 0])
    assert error.groups == {0: [0, 1, 3], 1: [2]}
    assert "root: 0 on rank 0-1, 3; 1 on rank 2" in str(error)


def test_verify_error_has_coordinates():
    error = errors.VerifyError("ring", 5, rank=2, strand=0, step=3, op="Recv", expected="a", got="b")
    assert [getattr(error, name) for name in error.FIELDS] == ["ring", 5, 2, 0, 3, "Recv", "a", "b"]
    assert str(error) == "rank 2: ring on p=5, strand 0, step 3, op Recv: expected a, got b"
    assert "strand" not in str(errors.VerifyError("ring", 5, expected="a", got="b"))


def test_errors_need_no_mpi():
    code = "import sys; sys.modules['mpi4py'] = None; from mpicoll import errors; print(errors.RootError())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "\n"


def test_failed_ranks_are_named():
    error = errors.ProcFailedError("Allreduce (call 7), ring", [2])
    assert str(error).startswith("rank 2 has failed, which ended Allreduce (call 7), ring; ") and error.ranks == (2,)
    assert str(errors.ProcFailedError("a call", [4, 0, 1])).startswith("ranks 0-1, 4 have failed, which ended a call")
    assert str(errors.ProcFailedError("a call", ())).startswith("a rank not named by MPI has failed, which ended")
    assert str(errors.RevokedError("a call")).startswith("the communicator was revoked, which ended a call; ")


def test_hosts_of_failed_ranks_are_named():
    error = errors.ProcFailedError("a call", [0, 1, 4], ["a", "a", "b"])
    assert str(error).startswith("ranks 0-1 on host a, 4 on host b have failed, which ended a call; ")
    assert error.hosts == ("a", "a", "b")
    assert str(errors.ProcFailedError("a call", [0, 4], ["", "b"])).startswith("ranks 0, 4 on host b have failed")
    many = range(errors.MAX_HOSTS + 2)
    assert f"{many[-3]} on host h7, and those of 2 more hosts have failed" in str(
        errors.ProcFailedError("a call", many, [f"h{rank}" for rank in many]))
    revoked = errors.RevokedError("a call", [3], ["b"])
    assert str(revoked).startswith(
        "the communicator was revoked, which ended a call; of MPI.COMM_WORLD rank 3 on host b has failed; every")
