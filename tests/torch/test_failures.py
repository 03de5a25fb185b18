"""Raise errors with their cause on every rank, and leave no rank waiting."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import mpicoll.torch
from mpicoll import errors

pytestmark = pytest.mark.mpi(min_size=2)
LATE = 70  # calls, after which a group compares no more


@pytest.fixture
def group(world):
    """Yield a new group of all ranks, which a test may break."""
    process_group = dist.new_group(timeout=timedelta(seconds=20))
    yield process_group
    dist.destroy_process_group(process_group)


def test_other_sizes(group, rank):
    with pytest.raises(errors.MismatchError, match="the ranks differ in bytes: 20 on rank 0; 24 on rank 1") as raised:
        dist.all_reduce(torch.ones(5 + (rank > 0)), group=group)
    what = f"allreduce of {24 if rank else 20} bytes of float32, call 1 of process group {group.group_name}: the ranks"
    assert str(raised.value).startswith(what)


def test_other_sizes_of_a_bucket(group, rank):
    """DDP takes parameters of one shape; the hook's buckets then differ."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 30), process_group=group)

    def hook(state, bucket):
        buffer = bucket.buffer()[: 100 + rank]
        return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda done: bucket.buffer())

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 30)).sum().backward()  # the callback runs whatever came of it
    work = dist.all_reduce(torch.ones(100 + rank), group=group, async_op=True)
    with pytest.raises(errors.MismatchError, match="the ranks differ in bytes"):
        work.wait()
    assert isinstance(work.exception(), errors.MismatchError) and work.is_completed() and not work.is_success()


def test_a_hook_whose_operation_fails(group, rank):
    """C++ takes the error for the result of the hook, and says that it is no tensor."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 30), process_group=group)

    def hook(state, bucket):
        buffer = bucket.buffer()[: 100 + rank]
        return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    words = rf"operation failed \(MismatchError: allreduce of {400 + 4 * rank} bytes of float32, call \d+ of process"
    with pytest.raises(RuntimeError, match=words):
        model(torch.ones(1, 30)).sum().backward()


@pytest.mark.parametrize("is_async", [False, True])
def test_other_sizes_after_many_calls(group, rank, is_async):
    """A message then has another length than a rank expects; ranks that wait for that rank get an error."""
    for _ in range(LATE):
        dist.all_reduce(torch.ones(4), group=group)
    begun = time.monotonic()
    with pytest.raises((errors.MessageLengthError, errors.StallError), match=r"received length differs|raised"):
        work = dist.all_reduce(torch.ones(1000 + (rank > 0)), group=group, async_op=is_async)
        work.wait()
    assert time.monotonic() - begun < 10


def test_other_sizes_after_many_calls_where_torch_debugs(rank, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    group = dist.new_group()
    for _ in range(LATE):
        dist.all_reduce(torch.ones(4), group=group)
    with pytest.raises(errors.MismatchError, match="the ranks differ in bytes"):
        dist.all_reduce(torch.ones(1000 + rank), group=group)
    dist.destroy_process_group(group)


def test_another_operation(group, rank):
    with pytest.raises(errors.MismatchError, match="the ranks differ in collective: 'bcast' on rank 0; 'allreduce' on"):
        dist.all_reduce(torch.ones(5), group=group) if rank else dist.broadcast(torch.ones(5), 0, group=group)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: torch.ones(2, 2).to_sparse_csr(), "layout is torch.sparse_csr; mpicoll takes dense ones"),
        (lambda: torch.ones(4, device="meta"), "the tensor is on meta; mpicoll moves CPU memory"),
        (lambda: torch.ones(4).to(torch.float8_e4m3fnuz), "neither MPI nor mpicoll reduces torch.float8_e4m3fnuz"),
        (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "the tensor is quantized"),
    ],
    ids=("sparse", "device", "dtype", "quantized"),
)
def test_a_tensor_that_cannot_be_reduced(group, rank, wrong, words):
    """The other ranks get the error that the first one raised."""
    tensor = wrong() if rank == 0 else torch.ones(4)
    with pytest.raises(errors.MpicollError, match=words):
        dist.all_reduce(tensor, group=group)
    value = torch.ones(3)
    dist.all_reduce(value, group=group)  # and the group goes on
    assert value[0] == group.size()


def test_lists_of_other_lengths(group, ranks):
    with pytest.raises(errors.ArgumentError, match="the output list has 5 tensors; the group has"):
        group.allgather([[torch.ones(1)] * 5], [torch.ones(1)])
    with pytest.raises(errors.CountMismatch, match="they must be alike"):
        group.allgather([[torch.ones(2)] * ranks], [torch.ones(1)])
    with pytest.raises(errors.CountMismatch, match="are wanted"):
        group.all_gather_single(torch.ones(7 * ranks + 1), torch.ones(7))
    with pytest.raises(errors.CountMismatch, match=r"the input splits \[1\] must be"):
        group.all_to_all_single(torch.ones(ranks), torch.ones(ranks), [1] * ranks, [1])


def test_messages_that_are_too_short_or_too_long(group, rank):
    for sent, words in ((2, "the message has 8 bytes, and the tensor 16"), (20, "more than 16 bytes")):
        if rank == 0:
            with pytest.raises(errors.MessageLengthError, match=words):
                dist.recv(torch.ones(4), 1, group=group)
        elif rank == 1:
            dist.send(torch.ones(sent), 0, group=group)
    with pytest.raises(errors.ArgumentError, match="this MPI has tags from 0 to"):
        dist.send(torch.ones(1), (rank + 1) % group.size(), group=group, tag=(1 << 31) - 1)


def test_a_rank_that_does_not_come_in_time(rank):
    group = dist.new_group(timeout=timedelta(seconds=1.5))
    if rank == 0:
        begun = time.monotonic()
        with pytest.raises(errors.StallError, match="did not end before its timeout was over") as raised:
            dist.all_reduce(torch.ones(4), group=group)
        assert 1.4 < time.monotonic() - begun < 4 and isinstance(raised.value, TimeoutError)
        future = dist.barrier(group=group, async_op=True).get_future()
        with pytest.raises(errors.StallError, match="did not end before its timeout was over"):
            future.wait()
    else:
        time.sleep(4.0)
    dist.barrier()
    dist.destroy_process_group(group)


def test_a_rank_that_has_gone_on(rank, ranks):
    """It raised before the call: others need not wait for their timeout."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    if rank == 0:
        for _ in range(2):
            with pytest.raises(errors.MpicollError):
                group.reduce_scatter(torch.ones(1), [[torch.ones(2)] * ranks])
    else:
        begun = time.monotonic()
        for _ in range(2):
            with pytest.raises(errors.MismatchError, match="a rank refused its own"):
                group.reduce_scatter(torch.ones(2), [[torch.ones(2)] * ranks]).wait()
        assert time.monotonic() - begun < 10
    dist.barrier()
    dist.destroy_process_group(group)


def test_monitored_barrier_names_who_is_missing(rank, ranks):
    group = dist.new_group()
    dist.monitored_barrier(group, timeout=timedelta(seconds=10))
    if rank == 0:
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier in 500 ms"):
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.5))
    elif rank > 1:
        with pytest.raises(RuntimeError, match="successfully reached monitoredBarrier"):
            dist.monitored_barrier(group, timeout=timedelta(seconds=1))
    dist.barrier()
    dist.destroy_process_group(group)


def test_a_group_that_was_destroyed(rank):
    group = dist.new_group()
    under_way = dist.all_reduce(value := torch.ones(1 << 18), group=group, async_op=True)
    dist.destroy_process_group(group)
    under_way.wait()  # what was begun goes on
    assert value[-1] == group.size()
    assert group.rank() == rank
    for call in (group.allreduce, group.broadcast, lambda tensor: group.allgather([tensor * group.size()], tensor)):
        with pytest.raises(errors.CommError, match="was destroyed"):
            call([torch.ones(1)])


def test_hooks_refuse_what_they_cannot_encode(world, gloo):
    hook = mpicoll.torch.hooks.compressed("int8")
    with pytest.raises(errors.ParameterError):
        mpicoll.torch.hooks.compressed("int7")

    class Bucket:
        def __init__(self, dtype):
            self.tensor = torch.ones(4, dtype=dtype)

        def buffer(self):
            return self.tensor

        def parameters(self):
            return [self.tensor]

        def index(self):
            return 0

    with pytest.raises(errors.CodecError, match=r"gradients are torch.bfloat16"):
        hook(None, Bucket(torch.bfloat16))
    with pytest.raises(errors.ArgumentError, match="none of mpicoll's"):
        hook(gloo, Bucket(torch.float32))
