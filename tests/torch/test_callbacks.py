"""Collectives that callbacks of futures start have the same order on every rank, whenever futures complete."""

import itertools
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from mpicoll import errors
from mpicoll.torch import work

COUNT = 6


@pytest.fixture
def shuffled(monkeypatch, rank):
    """Complete futures late, and in an order that differs by rank."""
    tell, timers, draw = work.Work._tell, [], torch.Generator().manual_seed(rank)

    def late(self, future):
        timers.append(threading.Timer(0.05 * torch.rand(1, generator=draw).item(), tell, (self, future)))
        timers[-1].start()

    monkeypatch.setattr(work.Work, "_tell", late)
    yield
    for timer in timers:
        timer.join()


def reduced(size, group):
    """Return a future of the sum of a tensor of ones."""
    return dist.all_reduce(torch.ones(size), group=group, async_op=True).get_future()


def same(tensor, size, ranks):
    assert tensor.tolist() == [ranks] * size


def test_callbacks_that_wait_for_collectives(ours, ranks, shuffled):
    """The main thread makes other collectives meanwhile."""
    seen = []

    def begin(index):
        def first(done):
            seen.append(("first", index))
            same(done.value()[0], 10 + index, ranks)
            return reduced(20 + index, ours).wait()[0]

        def second(done):
            seen.append(("second", index))
            same(done.value(), 20 + index, ranks)
            value = torch.ones(30 + index)
            dist.all_reduce(value, group=ours)
            return value

        return reduced(10 + index, ours).then(first).then(second)

    futures = []
    for index in range(COUNT):
        futures.append(begin(index))
        value = torch.ones(1)
        dist.all_reduce(value, group=ours)
        same(value, 1, ranks)
    for index, future in reversed(list(enumerate(futures))):
        same(future.wait(), 30 + index, ranks)
    assert seen == [(name, index) for index in range(COUNT) for name in ("first", "second")]


def test_callbacks_of_operations_that_callbacks_started(ours, ranks, shuffled):
    """Three levels of callbacks, and no thread waits before the last level is over."""
    left, over, wrong = [COUNT * 2], threading.Event(), []

    def check(tensor, size):
        if tensor.tolist() != [ranks] * size:
            wrong.append((tensor, size))

    def third(done, size):
        check(done.value()[0], 100 + size)
        value = torch.ones(200 + size)
        dist.all_reduce(value, group=ours)
        check(value, 200 + size)
        left[0] -= 1
        if left[0] == 0:
            over.set()

    def second(done, size):
        check(done.value()[0], 50 + size)
        reduced(100 + size, ours).add_done_callback(lambda done: third(done, size))

    def first(done, size):
        for inner in (size, 10 + size):
            reduced(50 + inner, ours).add_done_callback(lambda done, inner=inner: second(done, inner))

    for size in range(COUNT):
        reduced(1 + size, ours).add_done_callback(lambda done, size=size: first(done, size))
    assert over.wait(40) and not wrong


@pytest.mark.mpi(min_size=3)
def test_groups_whose_callbacks_come_in_a_circle(rank, ranks, shuffled):
    """Each rank begins with another of its groups; callbacks of one do not wait for those of another."""
    pairs = [(a, b) for a, b in ((0, 1), (1, 2), (0, 2))]
    groups = {pair: dist.new_group(list(pair), timeout=timedelta(seconds=30)) for pair in pairs}
    mine = [pair for pair in pairs if rank in pair]
    futures = [
        reduced(5, groups[pair]).then(lambda done, pair=pair: reduced(6, groups[pair]).wait()[0])
        for pair in (reversed(mine) if rank == 0 else mine)
    ]
    for future in futures:
        same(future.wait(), 6, 2)
    dist.barrier()
    for pair in mine:
        dist.destroy_process_group(groups[pair])


@pytest.mark.mpi(min_size=2)
def test_callbacks_of_messages_run_as_these_arrive(ours, rank, ranks):
    if rank == 0:
        arrived, values = threading.Event(), [torch.zeros(1), torch.zeros(1)]
        works = [dist.irecv(value, 1, ours, tag) for tag, value in enumerate(values)]
        works[0].get_future().add_done_callback(lambda done: None)
        works[1].get_future().add_done_callback(lambda done: arrived.set())
        assert arrived.wait(20)
        dist.send(torch.ones(1), 1, ours)
        works[0].wait()
        assert values[0].item() == 7
    elif rank == 1:
        dist.send(torch.ones(1), 0, ours, 1)
        dist.recv(torch.ones(1), 0, ours)  # that was the second message's callback
        dist.send(torch.full((1,), 7.0), 0, ours, 0)


@pytest.mark.mpi(min_size=2)
def test_a_callback_of_one_rank_alone(rank):
    group = dist.new_group(timeout=timedelta(seconds=2))
    future = reduced(3, group)
    if rank == 0:
        with pytest.raises(errors.StallError, match=r"a collective in callbacks of process group .* failed to pass"):
            future.then(lambda done: reduced(4, group).wait()).wait()
    future.wait()
    dist.barrier()
    dist.destroy_process_group(group)


def test_a_callback_that_raises_leaves_the_next_ones(ours, ranks, capfd):
    def broken(done):
        raise SystemExit("on purpose")

    future = reduced(3, ours).then(broken)
    same(reduced(3, ours).then(lambda done: reduced(4, ours).wait()[0]).wait(), 4, ranks)
    with pytest.raises(SystemExit, match="on purpose"):
        future.wait()


@pytest.mark.timeout(150)
def test_power_sgd_of_several_buckets(ours, rank):
    width, indices = 20, set()
    torch.manual_seed(1)
    layers = [nn.Linear(width, width) for _ in range(5)]
    net = nn.Sequential(*itertools.chain.from_iterable((layer, nn.Tanh()) for layer in layers), nn.Linear(width, 4))
    model = nn.parallel.DistributedDataParallel(net, process_group=ours, bucket_cap_mb=1e-3)

    def counted(state, bucket):
        indices.add(bucket.index())
        return powerSGD_hook.powerSGD_hook(state, bucket)

    options = {"start_powerSGD_iter": 2, "min_compression_rate": 1, "random_seed": 3, "matrix_approximation_rank": 2}
    model.register_comm_hook(powerSGD_hook.PowerSGDState(ours, **options), counted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(16, width, generator=draw)
    labels, losses = inputs[:, :4].argmax(1), []
    for _ in range(50):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert len(indices) >= 5
    means = torch.stack(losses)
    dist.all_reduce(means, dist.ReduceOp.AVG, group=ours)
    assert means[-1] < 0.9 * means[0]
    mine = nn.utils.parameters_to_vector(net.parameters()).detach()
    gathered = [torch.empty_like(mine) for _ in range(ours.size())]
    dist.all_gather(gathered, mine, group=ours)
    assert all(torch.equal(other, mine) for other in gathered)
