"""The benchmarks on however many ranks there are: everybody agrees, right is valid, wrong is not."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner
from mpi4py import MPI

import mpicoll
from mpicoll.benchmarks.cli import bench
from mpicoll.benchmarks.contenders import Contender, line_up
from mpicoll.benchmarks.driver import Job
from mpicoll.benchmarks.patterns import ROOTED, WITHOUT_IN_PLACE, Case, Shape
from mpicoll.benchmarks.session import Session
from mpicoll.benchmarks.train_digits import HIDDEN, Digits, Trainer

COLLECTIVES = list(mpicoll.algorithms())
ALL = ("native", "auto")


def lines_of(comm, jobs) -> tuple[bool, list[dict]]:
    """Run jobs for two rounds each; whether all was right, and rank 0's lines of JSON."""
    file = io.StringIO() if comm.rank == 0 else None
    with Session(file, {"a": 1}, world=comm) as session:
        right = session.run([job(session) for job in jobs], [1.0] * len(jobs), rounds=2)
    return right, [json.loads(line) for line in file.getvalue().splitlines()] if file else []


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_algorithm_of_a_collective(comm, collective, capsys):
    names = (*ALL, *mpicoll.algorithms()[collective])
    root = comm.size - 1 if collective in ROOTED else 0
    shapes = [Shape(collective, root=root), Shape(collective, "int32", "max")]
    if collective not in WITHOUT_IN_PLACE:
        shapes.append(Shape(collective, root=root, in_place=True))
    jobs = [lambda session, shape=shape: session.job(shape, (0, 8, 4000), names, ("auto",)) for shape in shapes]
    right, lines = lines_of(comm, jobs)
    assert right
    if comm.rank == 0:
        results = [line for line in lines if line["kind"] == "result"]
        sizes = 1 if collective == "barrier" else 3
        assert len(results) == len(shapes) * sizes * len(names)
        assert all(line["valid"] and line["rounds"] == 2 for line in results if not line["note"])
        assert lines[0]["environment"]["ranks"] == comm.size
        assert collective in capsys.readouterr().out


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES if c != "barrier"])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_patterns_against_this_mpi(comm, collective, in_place):
    """MPI's own answer is right, in every dtype, and nothing but the call makes it so."""
    if in_place and collective in WITHOUT_IN_PLACE:
        return
    for dtype in ("float32", "float64", "int8", "uint64", "complex128"):
        for root in {0, comm.size - 1} if collective in ROOTED else {0}:
            case = Case(Shape(collective, dtype, root=root, in_place=in_place), 1000, comm.rank, comm.size)
            for _ in range(2):
                case.poison()
                getattr(comm, case.method)(*case.arguments(MPI))
                assert case.is_right(), (dtype, root)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "band", "bor", "bxor", "land", "lor", "lxor"])
def test_operators_against_this_mpi(comm, op):
    case = Case(Shape("allreduce", "int32", op), 4000, comm.rank, comm.size)
    case.poison()
    comm.Allreduce(*case.arguments(MPI))
    assert case.is_right()


class WrongOnOneRank:
    """An Allreduce whose last rank gets one element wrong."""

    def __init__(self, comm) -> None:
        self.comm = comm

    def Allreduce(self, send, recv, op):
        self.comm.Allreduce(send, recv, op)
        if self.comm.rank == self.comm.size - 1:
            recv[-1] += 1


def test_what_is_wrong_on_one_rank_is_wrong(comm, capsys):
    def job(session):
        contenders = line_up("allreduce", ["native"], ["auto"], session.plain, session.ours)
        return Job(Shape("allreduce"), (8, 64), [*contenders, Contender("broken", None, WrongOnOneRank(session.plain))])

    right, lines = lines_of(comm, [job])
    assert not right
    if comm.rank == 0:
        valid = {(line["algorithm"], line["valid"]) for line in lines[1:]}
        assert valid == {("native", True), ("broken", False)}
        assert capsys.readouterr().out.count("NO") == 2


def invoke(*words: str):
    """`mpicoll bench` on all ranks."""
    return CliRunner().invoke(bench, words, catch_exceptions=False)


def test_command(comm, tmp_path):
    path = tmp_path / "out.jsonl"
    done = invoke("allreduce", "--sizes", "8,1K", "--iterations", "2", "--json", str(path))
    assert done.exit_code == 0, done.output
    assert path.exists() == (comm.rank == 0)
    assert ("recursive_doubling" in done.output) == (comm.rank == 0)


def test_command_with_a_wrong_answer(comm, monkeypatch):
    monkeypatch.setattr(mpicoll.Comm, "Allreduce", lambda self, send, recv, op: recv.fill(0))
    done = invoke("allreduce", "--sizes", "64", "--iterations", "2", "--algorithms", "native,auto")
    assert done.exit_code == 1
    assert ("NO" in done.output) == (comm.rank == 0)


@pytest.mark.parametrize("words", [
    "allreduce --sizes 8:x", "allreduce --algorithms rign", "allreduce --dtype float99", "nothing", "allreduce --no",
    "allreduce --sizes 8 --json /nowhere/at/all",
])
def test_command_with_bad_input(comm, words):
    done = invoke(*words.split())
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == (1 if comm.rank == 0 else 0)


def test_training_does_not_depend_on_the_number_of_ranks(comm):
    import numpy as np

    draw = np.random.default_rng(0)
    x, y = draw.random((131, 64)), draw.integers(0, 10, 131)       # batches of 128 and of 3
    alone = Trainer(mpicoll.Comm(MPI.COMM_SELF), Digits(x, y, x, y))
    together = Trainer(mpicoll.Comm(comm), Digits(x, y, x, y))
    assert len(together.all) > 64 * HIDDEN
    for _ in range(3):
        assert together.epoch() == pytest.approx(alone.epoch(), rel=1e-12)
    assert np.allclose(together.model.parameters, alone.model.parameters, rtol=1e-9, atol=1e-12)
