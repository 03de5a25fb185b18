"""Training on ranks: each pattern has the losses of one rank, sends and holds what theory says, refuses in words."""

from __future__ import annotations

import gc
import os
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI
from support.cases import Checks

import mpicoll
from mpicoll import training
from mpicoll.benchmarks.train import compare, models
from mpicoll.benchmarks.train.cli import train
from mpicoll.benchmarks.train.data import Digits, text
from mpicoll.benchmarks.train.patterns import PATTERNS, Work
from mpicoll.benchmarks.train.timing import NATIVE, OURS, timed
from mpicoll.errors import TrainingError
from mpicoll.training import memory, transformer
from mpicoll.training.account import Account
from mpicoll.training.modules import Linear, Module, Parameter, Relu, Sequential
from mpicoll.training.tensor_parallel import share

DRAW = np.random.default_rng(2)
X, Y = DRAW.random((300, 64)), DRAW.integers(0, 10, 300)


@pytest.fixture(scope="module")
def work():
    return Work(Digits(X, Y, X, Y), text(), width=24, layers=2, batch=20, windows=6)


@pytest.fixture
def ours(comm):
    return mpicoll.Comm(comm)


# -- the same as on one rank


@pytest.mark.parametrize("name", PATTERNS)
def test_losses_are_those_of_one_rank(comm, work, name):
    """Step by step, the parts of a batch differing in size, with as many experts, heads and units as there are."""
    begin = PATTERNS[name].begin
    alone, together = begin(mpicoll.Comm(MPI.COMM_SELF), work), begin(mpicoll.Comm(comm), work)
    losses = [(together(number), alone(number)) for number in range(4)]
    assert all(loss == pytest.approx(expected, rel=1e-12) for loss, expected in losses), losses
    assert len({expected for _, expected in losses}) == 4


@pytest.mark.parametrize("name", ["data_parallel", "zero1", "zero2", "zero3"])
def test_without_overlap_it_is_the_same_to_the_last_bit(comm, work, name):
    ours = mpicoll.Comm(comm)
    hidden, waited = PATTERNS[name].begin(ours, work), PATTERNS[name].blocking(ours, work)
    assert [hidden(number) for number in range(3)] == [waited(number) for number in range(3)]


@pytest.mark.parametrize("optimizer", [lambda: training.Sgd(0.05), lambda: training.Adam(0.01)], ids=["sgd", "adam"])
def test_batches_smaller_than_the_number_of_ranks(ours, optimizer):
    """Ranks without samples take part all the same."""
    def trainers(comm):
        make = lambda: models.mlp(float, 8, 2)
        yield training.DataParallel(comm, make(), optimizer(), bucket_bytes=100)
        yield from (training.Zero(comm, make(), optimizer(), stage=stage) for stage in (1, 2, 3))

    alone = training.DataParallel(mpicoll.Comm(MPI.COMM_SELF), models.mlp(float, 8, 2), optimizer())
    every = list(trainers(ours))
    for n in (1, ours.size, 2 * ours.size + 1):
        x, y = X[:n], Y[:n]
        own = share(n, ours)
        expected = alone.step(x, y)
        assert all(trainer.step(x[own], y[own]) == pytest.approx(expected, rel=1e-11) for trainer in every)


class Counted(Module):
    """A unit whose gradient is whole numbers, other ones on every rank; sums of such are exact in any order."""

    def __init__(self, rank, n):
        self.weight = Parameter(np.arange(float(n)))
        self.own, self.rank = [self.weight], rank

    def forward(self, x):
        return x, None

    def backward(self, dy, saved):
        self.weight.grad += (np.arange(self.weight.size) * 7 + 3 * self.rank) % 64
        return dy


@pytest.mark.parametrize("n", [1, 7, 64])
def test_sums_are_exact_where_they_can_be(ours, n):
    """Parameters after a step, to the last bit: of data parallel ranks and of every stage of ZeRO."""
    total = sum((np.arange(n) * 7 + 3 * rank) % 64 for rank in range(ours.size))
    samples = 8 * ours.size
    expected = np.arange(float(n)) - 0.5 * (total / samples)
    x, labels = np.zeros((8, 4)), np.zeros(8, int)
    plain = lambda: training.Sgd(0.5, momentum=0.0)
    for make in (
        lambda unit: training.DataParallel(ours, [unit], plain()),
        lambda unit: training.DataParallel(ours, [unit], plain(), master=True),
        lambda unit: training.Zero(ours, [unit], plain(), stage=1),
        lambda unit: training.Zero(ours, [unit], plain(), stage=2),
        lambda unit: training.Zero(ours, [unit], plain(), stage=3),
    ):
        unit = Counted(ours.rank, n)
        trainer = make(unit)
        trainer.step(x, labels)
        if isinstance(trainer, training.Zero):
            trainer.units[0].use()
        assert np.array_equal(unit.weight.value, expected)


@pytest.mark.parametrize("by_positions", [False, True])
def test_every_grid(comm, ours, by_positions):
    """All divisions of the ranks, with more ranks than heads among them, and positions that do not divide."""
    shape = transformer.Shape(11, context=7, width=12, heads=3, blocks=3)
    tokens = np.random.default_rng(4).integers(0, 11, (2, 9, 8))

    def losses(comm, *divided, **how):
        grid = training.Grid(comm, *divided)
        trainer = training.Hybrid(grid, shape, training.Adam(0.01), **how)
        own = share(9, grid.data)
        values = [trainer.step(batch[own, :-1], batch[own, 1:]) for batch in tokens]
        grid.free()
        return values

    expected = losses(mpicoll.Comm(MPI.COMM_SELF), 1, 1, 1)
    p = comm.size
    with Checks() as checks:
        for divided in product(range(1, p + 1), repeat=3):
            if np.prod(divided) == p and divided[2] > shape.blocks + 2:
                with pytest.raises(TrainingError, match=f"{p} stages are too many for 5 units"):
                    losses(ours, *divided)
            elif np.prod(divided) == p:
                for parts in (1, 4):
                    values = losses(ours, *divided, by_positions=by_positions, parts=parts)
                    checks.that(np.allclose(values, expected, rtol=1e-12), divided, parts, values, expected)


def test_servers(ours):
    alone = training.ParameterServer(mpicoll.Comm(MPI.COMM_SELF), models.mlp(float, 8, 2), training.Sgd(0.05))
    every = [training.ParameterServer(ours, models.mlp(float, 8, 2), training.Sgd(0.05), servers=servers)
             for servers in range(1, ours.size + 1)]  # fmt: skip
    for n in (1, 13):
        expected = alone.step(X[:n], Y[:n])
        batch = (X[:n], Y[:n]) if ours.rank == 0 else (None, None)
        assert all(trainer.step(*batch) == pytest.approx(expected, rel=1e-12) for trainer in every)


# -- parts


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 5), (16, 3), (0, 4), (4, 0)])
def test_transposes_and_layouts(ours, rows, columns):
    whole = np.arange(rows * columns, dtype=float).reshape(rows, columns)
    own = whole[share(rows, ours)]
    features = training.to_features(ours, own, rows)
    assert np.array_equal(features, whole[:, share(columns, ours)])
    assert np.array_equal(training.to_samples(ours, features, columns), own)
    assert np.array_equal(training.transpose(ours, own, rows), whole.T[share(columns, ours)])


def test_variance_far_from_zero(ours):
    """float32, mean a million, variance one: a difference of sums of squares would have no right digit."""
    draw = np.random.default_rng(ours.rank)
    layer = training.BatchNorm(ours, 3, np.float32)
    x = (1e6 + draw.normal(size=(4000, 3))).astype(np.float32)
    for _ in range(2):
        y, _ = layer.forward(x)
    sums = np.array([y.sum(), (y.astype(float) ** 2).sum(), y.size])
    ours.Allreduce(MPI.IN_PLACE, sums)
    assert abs(sums[0] / sums[2]) < 0.05 and sums[1] / sums[2] == pytest.approx(1, abs=0.05)


def test_batch_norm_takes_one_allreduce_each_way(ours):
    layer = training.BatchNorm(ours, 3)
    x = X[:9, :3]
    layer.forward(x)
    for parameter in layer.parameters():
        parameter.zero_grad()
    with ours.trace() as records:
        y, saved = layer.forward(x)
        layer.backward(y, saved)
    assert [record.collective for record in records] == ["allreduce"] * 2


@pytest.mark.mpi(min_size=2)
def test_tensor_parallel_sends_two_allreduces_each_way_of_a_block(ours):
    shape = transformer.Shape(11, context=4, width=8, heads=4, blocks=1)
    trainer = training.Hybrid(training.Grid(ours, 1, ours.size, 1), shape, training.Sgd(0.1), parts=1)
    tensor = trainer.grid.tensor
    with tensor.trace() as records:
        trainer.step(np.zeros((2, 4), int), np.zeros((2, 4), int))
    assert [record.collective for record in records] == ["allreduce"] * 4


# -- what is sent, held and waited for


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", [name for name in PATTERNS if name not in ("master", "experts")])
def test_measured_beside_theory(comm, work, name):
    """Bytes sent about as they should be, memory no more than it should."""
    gc.collect()
    work = replace(work, width=200)  # enough for algorithms that send least
    measured = compare.run(MPI.Intracomm(comm), name, work, 2)
    expected, account = PATTERNS[name].expected(work, comm.size), measured.account
    sent = comm.allreduce(account.sent / account.steps, MPI.MAX)
    small = 64 * 8 * comm.size * max(1, account.calls.total())  # sums of losses, padding to equal shares
    assert expected.sent * 0.9 - small <= sent <= 1.3 * expected.sent + small
    held = {kind: comm.allreduce(measured.held[kind], MPI.MAX) for kind in memory.KINDS}
    for kind, most in zip(memory.KINDS, expected[1:]):
        assert 0 < held[kind] <= most + 8 * 8 * comm.size * 3, (kind, held[kind], most)


@pytest.mark.mpi(min_size=2)
def test_fully_sharded_ranks_hold_their_part_and_two_units(comm, ours):
    """Peak memory of a model of many equal units falls with the number of ranks."""
    gc.collect()
    units, width = 12, 40
    unit = (width * width + width) * 8
    make = lambda: (Sequential(Linear(np.eye(width), np.zeros(width)), Relu()) for _ in range(units))
    before = {kind: memory.held(kind) for kind in memory.KINDS}
    with memory.watched() as watch:
        trainer = training.Zero(ours, make(), training.Adam(1e-3))
        for _ in range(2):
            trainer.step(X[:8, :width], Y[:8])
    part = -(-units * unit // comm.size) + 8 * units * comm.size
    assert watch.peak["parameters"] - before["parameters"] <= part + 2 * unit + 100 * comm.size
    assert watch.peak["gradients"] - before["gradients"] <= part + 2 * unit + 100 * comm.size
    assert watch.peak["optimizer state"] - before["optimizer state"] <= 2 * part + 100 * comm.size


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("make", [lambda: training.Adam(0.01), lambda: training.Sgd(0.1), lambda: training.Sgd(0.1, 0)],
                         ids=["adam", "momentum", "plain"])
def test_sharded_training_goes_on_without_a_rank(ours, stage, make):
    """Ranks leave one after the other, from a step that is made again; losses are those of all ranks to the end."""
    x, labels = X[:24], Y[:24]

    def losses(comm, zero, checkpoint, leave):
        values = []
        while len(values) < 8:
            part = slice(comm.rank, None, comm.size)
            loss = zero.step(x[part], labels[part])
            if leave and len(values) in (3, 4) and comm.size > 1:       # after the step, which is not agreed on
                leaver = 1 if len(values) == 3 else 0
                if len(values) == 4:
                    checkpoint.save(zero)
                comm = comm.Split(MPI.UNDEFINED if comm.rank == leaver else 0, comm.rank)
                if comm == MPI.COMM_NULL:
                    return values
                zero = training.Zero(comm, models.mlp(float, 8, 2), make(), stage=stage)
                checkpoint.load(zero, len(values))
                leave = len(values) == 3
                part = slice(comm.rank, None, comm.size)
                loss = zero.step(x[part], labels[part])
            checkpoint.save(zero)
            values.append(loss)
        return values

    def run(leave):
        zero, checkpoint = training.Zero(ours, models.mlp(float, 8, 2), make(), stage=stage), training.Checkpoint()
        checkpoint.save(zero)
        return losses(ours, zero, checkpoint, leave)

    whole, shrunk = run(False), run(True)
    assert shrunk == pytest.approx(whole[: len(shrunk)], rel=1e-12)
    assert len(shrunk) in (3, 4, 8)


@pytest.mark.mpi(min_size=3)
def test_lost_shares_of_a_checkpoint(ours):
    zero, checkpoint = training.Zero(ours, models.mlp(float, 8, 2), training.Sgd()), training.Checkpoint()
    checkpoint.save(zero)
    lost = "the state after {} steps is lost: {}"
    for steps, gone, words in ((5, (), lost.format(5, "no rank, or not every one, has saved it")),
                               (0, (1, 2), lost.format(0, r"rank 1 of \d has failed, and so has rank 2,"))):
        comm = ours.Split(MPI.UNDEFINED if ours.rank in gone else 0, ours.rank)
        if comm != MPI.COMM_NULL:
            other = training.Zero(comm, models.mlp(float, 8, 2), training.Sgd())
            with pytest.raises(TrainingError, match=words):
                checkpoint.load(other, steps)
            comm.Free()


@pytest.mark.mpi(min_size=2)
def test_bytes_by_pattern(comm, work):
    """Stage 3 sends half as much again; a server sends what p - 1 others need."""
    gc.collect()
    sent = {}
    for name in ("data_parallel", "zero2", "zero3", "parameter_server"):
        account = compare.run(MPI.Intracomm(comm), name, work, 2).account
        sent[name] = comm.allreduce(account.sent, MPI.MAX) / account.steps
    assert sent["zero3"] / sent["zero2"] == pytest.approx(1.5, rel=0.1)
    if comm.size > 2:
        assert sent["parameter_server"] > 1.2 * sent["zero2"]


def test_books(ours):
    """Calls, bytes of both sides, and requests that are waited for twice."""
    account = Account()
    comm = account.of(ours)
    x, peer = np.ones(100), ours.rank ^ 1
    with account.step():
        comm.Allreduce(MPI.IN_PLACE, x)
        request = comm.Iallreduce(MPI.IN_PLACE, x)
        request.Wait()
        request.Wait()
        if peer < ours.size:
            sending = comm.Isend(x, peer, 3)
            comm.Recv(np.empty(100), peer, 3)
            sending.Wait()
    assert account.calls["Allreduce"] == account.calls["Iallreduce"] == 1 and account.waited > 0
    assert account.calls["Recv"] == account.calls["Isend"] == (peer < ours.size)
    between = 800 * (peer < ours.size)
    assert account.sent >= between and account.received >= between
    if ours.size in (2, 4, 8):
        assert account.sent == account.received > between
    assert all(event.began <= event.waited <= event.ended for event in account.events)
    part = comm.Split(0, ours.rank)
    with account.step():
        part.Barrier()
    assert account.calls["Barrier"] == 1 and len(account.events) == 1
    part.Free()
    account.close()


def test_with_mpi_s_own_communicator(comm, work):
    """Any communicator will do."""
    step, ours = (PATTERNS["zero3"].begin(c, work) for c in (MPI.Intracomm(comm), mpicoll.Comm(comm.Dup())))
    assert [step(number) for number in range(3)] == pytest.approx([ours(number) for number in range(3)], rel=1e-12)


# -- bad input


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("trainer", [
    lambda comm, units: training.DataParallel(comm, units, training.Sgd()),
    lambda comm, units: training.ParameterServer(comm, units, training.Sgd()),
    *((lambda comm, units, stage=stage: training.Zero(comm, units, training.Sgd(), stage=stage)) for stage in (1, 3)),
], ids=["data parallel", "server", "zero1", "zero3"])  # fmt: skip
@pytest.mark.parametrize("wrong", ["width", "unit more", "type"])
def test_ranks_with_different_models(comm, ours, trainer, wrong):
    last = comm.rank == comm.size - 1
    width = 9 if last and wrong == "width" else 8
    layers = 3 if last and wrong == "unit more" else 2
    units = models.mlp(np.float32 if last and wrong == "type" else float, width, layers)
    with pytest.raises(TrainingError, match=f"rank {comm.size - 1} and rank 0 have different models; this rank has "):
        trainer(ours, units)
    total = np.zeros(1)
    ours.Allreduce(np.ones(1), total)  # nothing is left behind
    assert total == comm.size


@pytest.mark.parametrize("trainer", [
    lambda comm, units: training.DataParallel(comm, units, training.Sgd()),
    lambda comm, units: training.Zero(comm, units, training.Sgd(), stage=3),
], ids=["data parallel", "zero3"])  # fmt: skip
def test_a_loss_of_nan_on_one_rank_ends_all(comm, ours, trainer):
    stepper = trainer(ours, models.mlp(float, 8, 2))
    x = X[:4].copy()
    if comm.rank == comm.size - 1:
        x[0, 0] = np.nan
    with np.errstate(invalid="ignore"), pytest.raises(TrainingError, match="the loss of step 1 is nan"):
        stepper.step(x, Y[:4])


def test_grids_and_models_that_do_not_fit(comm, ours):
    for sizes in ((comm.size + 1, 1, 1), (0, 1, 1), (-1, -1, comm.size)):
        with pytest.raises(TrainingError, match="does not fit"):
            training.Grid(ours, *sizes)
    with pytest.raises(ValueError, match="servers is 0"):
        training.ParameterServer(ours, models.mlp(float, 8, 1), training.Sgd(), servers=0)
    with pytest.raises(ValueError, match="stage is 4"):
        training.Zero(ours, models.mlp(float, 8, 1), training.Sgd(), stage=4)
    with pytest.raises(ValueError, match="a batch has at least 1 part"):
        training.Pipeline(ours, [], 0)
    with pytest.raises(TrainingError, match=f"the router has 99 columns, and the ranks have {comm.size} experts"):
        training.Experts(ours, np.zeros((4, 99)), [Relu()])


# -- the command


def test_the_command(comm, tmp_path):
    words = ["data_parallel,grid", "--steps", "2", "--width", "16", "--batch", "12"]
    done = CliRunner().invoke(train, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if comm.rank == 0:
        assert "against one rank" in done.output and "grid" in done.output


@pytest.mark.parametrize("name", ["data_parallel", "parameter_server", "grid"])
def test_steps_in_turn(comm, work, name):
    spent = timed(MPI.Intracomm(comm), name, work, 0.2)
    assert len(spent[NATIVE]) == len(spent[OURS]) > 0 and all(0 < waited <= step for step, waited in spent[OURS])


def test_programs_on_the_page_run(comm, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "TRAINING.md").read_text()
    first, *_, last = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(first, names)
    assert np.isfinite(names["loss"])
    exec(last, names)
    printed = capsys.readouterr().out
    assert comm.size == 1 or "Iallreduce" in printed


@pytest.mark.parametrize("cores", [1, 64])
def test_ranks_outnumber_cores(comm, monkeypatch, work, cores):
    """On one core for all, nothing is said to be hidden behind computing."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert compare.outnumber_cores(comm) == (comm.size > cores)
    measured, _ = compare.result(comm, "data_parallel", work, compare.Alone(comm, work, 2), 2)
    assert (measured.hidden_s is None) == (comm.size > cores) and (measured.hidden_s or 0.0) >= 0.0
