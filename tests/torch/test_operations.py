"""Every operation of a process group, in its forms: what comes out, and that the group served it."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import mpicoll.torch
from mpicoll import errors
from mpicoll.torch import served as tallies

SUMMED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex64, torch.complex128, torch.bool)
MOVED = (*SUMMED, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16,
         torch.uint32, torch.uint64, torch.complex32)
COUNTS = (0, 1, 5, 1000)
OP = dist.ReduceOp


@pytest.fixture(autouse=True)
def a_group_that_is_ours(world):
    assert type(world) is mpicoll.torch.ProcessGroup


def drawn(rank, count, dtype, least=0):
    """Return a rank's values, which every rank can compute: small whole numbers."""
    values = torch.from_numpy(np.random.default_rng([rank, count]).integers(least, 4, count))
    if dtype.is_complex:
        return torch.complex(values.double(), values.flip(0).double()).to(dtype)
    return (values > 1) if dtype is torch.bool else values.to(torch.float32).to(dtype)


def bits(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().view(torch.uint8).tolist() if tensor.numel() else []


def equal(tensor, other):
    assert tensor.dtype is other.dtype and tensor.shape == other.shape
    assert bits(tensor) == bits(other)


def contributions(ranks, count, dtype):
    return [drawn(r, count, dtype) for r in range(ranks)]


# -- moving


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_moved_data_arrives_to_the_last_bit(served, rank, ranks, dtype, count):
    mine, all_of_them = drawn(rank, count, dtype), contributions(ranks, count, dtype)
    root = ranks - 1

    sent = mine.clone()
    dist.broadcast(sent, root)
    equal(sent, all_of_them[root])

    gathered = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(gathered, mine)
    for got, expected in zip(gathered, all_of_them):
        equal(got, expected)

    whole = torch.empty(ranks * count, dtype=dtype)
    dist.all_gather_into_tensor(whole, mine)
    for got, expected in zip(whole.split(count) if count else (), all_of_them):
        equal(got, expected)

    into = [torch.empty_like(mine) for _ in range(ranks)] if rank == root else None
    dist.gather(mine, into, root)
    for got, expected in zip(into or (), all_of_them):
        equal(got, expected)

    block = torch.empty_like(mine)
    dist.scatter(block, all_of_them if rank == root else None, root)
    equal(block, mine)

    exchanged = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_to_all(exchanged, [mine] * ranks)
    for got, expected in zip(exchanged, all_of_them):
        equal(got, expected)

    whole = torch.empty(ranks * count, dtype=dtype)
    dist.all_to_all_single(whole, mine.repeat(ranks))
    for got, expected in zip(whole.split(count) if count else (), all_of_them):
        equal(got, expected)
    assert served == {"broadcast": 1, "allgather": 2, "gather": 1, "scatter": 1, "alltoall": 2}


def test_uneven_blocks(served, rank, ranks):
    sizes = [2 * r + 1 for r in range(ranks)]
    lists = [torch.empty(n) for n in sizes]
    dist.all_gather(lists, torch.full((sizes[rank],), float(rank)))
    for r, got in enumerate(lists):
        assert got.tolist() == [float(r)] * sizes[r]

    output = [torch.empty(rank + 1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_to_all(output, [torch.full((r + 1,), 10 * rank + r) for r in range(ranks)])
    assert [block.tolist() for block in output] == [[10 * r + rank] * (rank + 1) for r in range(ranks)]

    rows = torch.arange(sum(range(1, ranks + 1)) * 3).reshape(-1, 3) + 1000 * rank
    into = torch.empty(ranks * (rank + 1), 3, dtype=torch.int64)
    dist.all_to_all_single(into, rows, [rank + 1] * ranks, list(range(1, ranks + 1)))
    first = sum(range(1, rank + 1))
    expected = torch.cat([(rows - 1000 * rank + 1000 * r)[first : first + rank + 1] for r in range(ranks)])
    equal(into, expected)

    mine = torch.empty(sizes[rank])
    dist.reduce_scatter(mine, [torch.full((n,), float(rank)) for n in sizes])
    assert mine.tolist() == [sum(map(float, range(ranks)))] * sizes[rank]
    assert served == {"allgather": 1, "alltoall": 2, "reduce_scatter": 1}


def test_lists_that_are_parts_of_one_tensor_are_not_copied(rank, ranks, monkeypatch):
    whole = torch.empty(ranks, 7)
    copies = []
    monkeypatch.setattr("mpicoll.torch.tensors.copy_back", lambda pairs: copies.append(pairs))
    dist.all_gather(list(whole), torch.full((7,), float(rank)))
    assert [block.tolist() for block in whole] == [[float(r)] * 7 for r in range(ranks)] and not copies
    dist.all_gather([whole[(r + 1) % ranks] for r in range(ranks)], torch.full((7,), float(rank)))
    assert bool(copies) is (ranks > 1)


# -- reducing


def combined(op, values, dtype):
    """Return the result of an operator, folded in a wide type and rounded once."""
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    if dtype is torch.bool:
        stacked = torch.stack(values)
        fold = {OP.SUM: stacked.any, OP.MAX: stacked.any, OP.PRODUCT: stacked.all, OP.MIN: stacked.all}
        return fold[op](dim=0)
    stacked = torch.stack([value.to(wide) for value in values])
    fold = {OP.SUM: lambda: stacked.sum(0), OP.PRODUCT: lambda: stacked.prod(0),
            OP.AVG: lambda: stacked.sum(0) / len(values), OP.MAX: lambda: stacked.amax(0),
            OP.MIN: lambda: stacked.amin(0)}
    return fold[op]().to(dtype)


def takes(op, dtype):
    return not (dtype.is_complex and op in (OP.MAX, OP.MIN, OP.PRODUCT)) and not (
        op is OP.AVG and not (dtype.is_floating_point or dtype.is_complex))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", SUMMED, ids=str)
@pytest.mark.parametrize("op", (OP.SUM, OP.PRODUCT, OP.MAX, OP.MIN, OP.AVG), ids=str)
def test_reductions(served, rank, ranks, op, dtype, count):
    if not takes(op, dtype):
        with pytest.raises(ValueError if dtype.is_complex else errors.OperatorError):  # torch's own, or ours
            dist.all_reduce(drawn(rank, max(1, count), dtype), op)
        return
    tolerances = {"rtol": 1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6, "atol": 0}
    expected = combined(op, contributions(ranks, count, dtype), dtype)
    mine = drawn(rank, count, dtype)
    dist.all_reduce(mine, op)
    torch.testing.assert_close(mine, expected, **tolerances)

    mine = drawn(rank, count, dtype)
    dist.reduce(mine, 0, op)
    torch.testing.assert_close(mine, expected if rank == 0 else drawn(rank, count, dtype), **tolerances)

    blocks = [drawn(100 * rank + r, count, dtype) for r in range(ranks)]
    expected = combined(op, [drawn(100 * r + rank, count, dtype) for r in range(ranks)], dtype)
    block = torch.empty(count, dtype=dtype)
    dist.reduce_scatter(block, blocks, op)
    torch.testing.assert_close(block, expected, **tolerances)
    block = torch.empty(count, dtype=dtype)
    dist.reduce_scatter_tensor(block, torch.cat(blocks), op)
    torch.testing.assert_close(block, expected, **tolerances)
    assert served == {"allreduce": 1, "reduce": 1, "reduce_scatter": 2}


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int64, torch.bool), ids=str)
def test_operators_on_bits(rank, ranks, dtype):
    fold = {OP.BAND: torch.bitwise_and, OP.BOR: torch.bitwise_or, OP.BXOR: torch.bitwise_xor}
    for op, function in fold.items():
        mine, expected = drawn(rank, 50, dtype), drawn(0, 50, dtype)
        for other in contributions(ranks, 50, dtype)[1:]:
            expected = function(expected, other)
        dist.all_reduce(mine, op)
        equal(mine, expected)


@pytest.mark.parametrize("dtype", (torch.float8_e4m3fn, torch.float8_e5m2), ids=str)
def test_sums_of_8_bits(rank, ranks, dtype):
    mine = drawn(rank, 100, dtype)
    dist.all_reduce(mine)
    equal(mine, sum(value.float() for value in contributions(ranks, 100, dtype)).to(dtype))


def test_products_of_complex_numbers(world, rank, ranks):
    value = torch.full((3,), 1 + 1j)
    world.allreduce(value, OP.PRODUCT).wait()
    assert value.tolist() == [(1 + 1j) ** ranks] * 3
    with pytest.raises(errors.OperatorError, match="no order"):
        world.allreduce(value, OP.MAX)


def test_sums_of_sparse_tensors(world, rank, ranks):
    tensor = torch.sparse_coo_tensor([[0, rank, rank]], [[1.0, 2.0]] * 3, (ranks, 2))
    dist.all_reduce(tensor)
    expected = torch.tensor([[1.0, 2.0]]) * torch.tensor([[ranks + 2.0], *[[2.0]] * (ranks - 1)])
    equal(tensor.to_dense(), expected)
    with pytest.raises(errors.OperatorError, match="sparse tensors are summed"):
        world.allreduce(tensor, OP.MAX)
    if ranks > 1:
        with pytest.raises(errors.MismatchError, match="the shape of a sparse tensor"):
            dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (2 + rank,)))
    with pytest.raises(errors.BufferAccessError, match="layout is"):
        world.broadcast(tensor, 0)


def test_a_sum_with_a_factor(rank, ranks):
    op = dist._make_nccl_premul_sum(0.25)
    mine = torch.full((6,), float(rank + 1))
    dist.all_reduce(mine, op)
    assert mine.tolist() == [sum(range(1, ranks + 1)) / 4] * 6
    source, block = torch.full((ranks * 2,), float(rank + 1)), torch.empty(2)
    dist.reduce_scatter_tensor(block, source, op)
    assert block.tolist() == [sum(range(1, ranks + 1)) / 4] * 2 and source.tolist() == [rank + 1.0] * (2 * ranks)


def test_coalesced_operations(served, rank, ranks):
    several = [torch.full((n,), float(rank)) for n in (3, 0, 4)] + [torch.full((2,), rank)]
    work = dist.group.WORLD.allreduce_coalesced(several)
    work.wait()
    total = {sum(range(ranks))}
    assert [set(tensor.tolist()) for tensor in several] == [total, set(), total, total]

    pairs = [(torch.empty(ranks * n), torch.full((n,), float(rank))) for n in (2, 5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, source in pairs:
            dist.all_gather_into_tensor(output, source)
    manager.wait()
    for output, source in pairs:
        assert output.tolist() == [float(r) for r in range(ranks) for _ in source]
    assert served == {"allreduce": 2, "allgather": 2}

    lists = [[torch.empty(2), torch.empty(3)] for _ in range(ranks)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), rank + 0.5)])
    for r, row in enumerate(lists):
        assert [tensor.tolist() for tensor in row] == [[float(r)] * 2, [r + 0.5] * 3]


# -- memory


def test_tensors_that_are_not_contiguous(rank, ranks):
    matrix = torch.full((5, 6), float(rank))
    dist.all_reduce(matrix.t()[1:4])
    total = float(sum(range(ranks)))
    expected = torch.full((5, 6), float(rank))
    expected[:, 1:4] = total
    equal(matrix, expected)

    whole = torch.zeros(ranks, 4, 2)
    dist.all_gather_into_tensor(whole.permute(0, 2, 1), torch.arange(8.0).reshape(4, 2).t() + rank)
    for r in range(ranks):
        equal(whole[r], torch.arange(8.0).reshape(4, 2) + r)

    conjugated = torch.full((3,), 1 + 2j).conj()
    dist.group.WORLD.allreduce(conjugated).wait()
    assert conjugated.tolist() == [ranks * (1 - 2j)] * 3
    channels = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    copy = channels.clone()
    dist.broadcast(channels, 0)
    assert channels.is_contiguous(memory_format=torch.channels_last)
    assert rank or torch.equal(channels, copy)


def test_an_input_that_is_part_of_the_output(rank, ranks):
    whole = torch.full((ranks, 3), -1.0)
    whole[rank] = rank
    dist.all_gather_into_tensor(whole, whole[rank])
    assert whole.tolist() == [[float(r)] * 3 for r in range(ranks)]

    whole = torch.full((ranks, 3), float(rank))
    dist.all_gather_into_tensor(whole, whole[ranks - 1 - rank])
    assert whole.tolist() == [[float(r)] * 3 for r in range(ranks)]

    source = torch.full((ranks, 3), float(rank + 1))
    dist.reduce_scatter_tensor(source[rank], source)
    assert source[rank].tolist() == [float(sum(range(1, ranks + 1)))] * 3


def test_a_parameter_that_wants_a_gradient(rank, ranks):
    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    dist.all_reduce(parameter.data)
    dist.broadcast(parameter, 0)
    assert parameter.tolist() == [float(sum(range(ranks)))] * 3


def test_a_list_of_tensors_with_gaps_between_them(served, rank, ranks):
    memory = torch.full((4 * ranks,), -1.0)
    parts = [memory[4 * r : 4 * r + 3] for r in range(ranks)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    assert memory.tolist() == [x for r in range(ranks) for x in (r, r, r, -1)]


# -- messages


@pytest.mark.mpi(min_size=2)
def test_messages(served, rank, ranks):
    to, by = (rank + 1) % ranks, (rank - 1) % ranks
    got = [torch.empty(3), torch.empty(0), torch.empty(2, 3, dtype=torch.bfloat16).t()]
    sent = [torch.full((3,), float(rank)), torch.empty(0), torch.full((3, 2), float(rank), dtype=torch.bfloat16)]
    ops = [dist.P2POp(dist.isend, tensor, to, tag=i) for i, tensor in enumerate(sent)]
    ops += [dist.P2POp(dist.irecv, tensor, by, tag=i) for i, tensor in enumerate(got)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert got[0].tolist() == [float(by)] * 3 and (got[2] == by).all()
    assert served == {"send": 3, "recv": 3}

    if rank == 0:
        seen = set()
        for _ in range(ranks - 1):
            tensor = torch.empty(1, dtype=torch.int64)
            sender = dist.recv(tensor)
            assert tensor.item() == sender
            seen.add(sender)
        assert seen == set(range(1, ranks))
    else:
        dist.send(torch.tensor([rank]), 0)
    dist.barrier()
    work = dist.irecv(got[0], by) if rank % 2 else dist.isend(torch.full((3,), 9.0), to)
    if ranks % 2 == 0:
        work.wait()
        assert work.is_completed() and (rank % 2 == 0 or got[0].tolist() == [9.0] * 3)
    else:  # an odd ring leaves one message untaken
        dist.barrier()
        if rank == 0:
            dist.recv(got[0], by)


def test_objects(rank, ranks):
    gathered = [None] * ranks
    dist.all_gather_object(gathered, {"rank": rank, "much": "x" * 1000 * rank})
    assert [value["rank"] for value in gathered] == list(range(ranks))
    several = [rank, "two", None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(several)
    assert several == [0, "two", None]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(ranks)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    into = [None] * ranks if rank == 0 else None
    dist.gather_object(rank * 2, into)
    assert into is None or into == [2 * r for r in range(ranks)]


# -- groups, and what is under way


def test_groups_of_some_ranks(rank, ranks):
    evens = dist.new_group(range(0, ranks, 2))
    odds = dist.new_group(range(1, ranks, 2)) if ranks > 1 else None
    ours = evens if rank % 2 == 0 else odds
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=ours)
    assert value.item() == sum(range(rank % 2, ranks, 2))
    dist.broadcast(value, rank % 2, group=ours)
    if rank % 2 == 0:
        dist.destroy_process_group(evens)
        with pytest.raises((errors.CommError, ValueError)):
            dist.all_reduce(value, group=evens)
    elif odds is not None:
        dist.destroy_process_group(odds)


def test_operations_of_several_groups_under_way_at_once(served, ranks):
    groups = [dist.new_group() for _ in range(3)]
    values = [torch.full((50_000,), float(i)) for i in range(9)]
    works = [dist.all_reduce(value, group=groups[i % 3], async_op=True) for i, value in enumerate(values)]
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert [value[0].item() for value in values] == [float(ranks * i) for i in range(9)]
    assert served["allreduce"] == 9
    for group in groups:
        dist.destroy_process_group(group)


def test_futures(ranks):
    order = []
    value = torch.ones(100_000)
    future = dist.all_reduce(value, async_op=True).get_future()

    def again(done):
        order.append("first")
        inner = torch.ones(3)
        return dist.all_reduce(inner, async_op=True).get_future().wait()[0] + done.value()[0][:3]

    after = future.then(again).then(lambda done: (order.append("second"), done.value())[1])
    assert after.wait().tolist() == [2.0 * ranks] * 3 and order == ["first", "second"]
    late = dist.barrier(async_op=True)
    late.wait()
    assert late.get_future().wait() == []

    def wrong(done):
        raise ValueError("a callback that fails")

    failing = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(wrong)
    with pytest.raises(ValueError, match="a callback that fails"):
        failing.wait()


def test_threads(ranks):
    import threading

    groups = [dist.new_group() for _ in range(4)]
    results = [[] for _ in groups]

    def several(i):
        for k in range(30):
            value = torch.full((1 + 500 * k,), float(i + k))
            if work := dist.all_reduce(value, group=groups[i], async_op=bool(k % 2)):
                work.wait()
            dist.barrier(groups[i])
            results[i].append(value[-1].item())

    threads = [threading.Thread(target=several, args=(i,)) for i in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[float(ranks * (i + k)) for k in range(30)] for i in range(len(groups))]
    for group in groups:
        dist.destroy_process_group(group)


def test_names_old_and_new(world, ranks):
    for old, new in (("_allgather_base", "all_gather_single"), ("_reduce_scatter_base", "reduce_scatter_single"),
                     ("alltoall_base", "all_to_all_single"),
                     ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
                     ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")):
        assert getattr(type(world), old) is getattr(type(world), new)
    value = torch.ones(2)
    world.allreduce(value).wait()
    world.allreduce([value], OP.MAX).wait()
    world.broadcast(value, 0).wait()
    assert value.tolist() == [float(ranks)] * 2
    assert (world.size(), world.name(), world.group_name) == (ranks, "mpicoll", dist.group.WORLD.group_name)
    assert dist.get_backend() == "mpicoll" and dist.get_process_group_ranks(world) == list(range(ranks))


# -- how it was served


@pytest.mark.mpi(min_size=2)
def test_every_operation_runs_as_it_was_forced_to(world, rank, ranks):
    for engine in ("mpi4py", "compiled"):
        chosen = world.comm.using(allreduce="ring", reduce_scatter="pairwise", engine=engine)
        with chosen, world.comm.trace() as records:
            dist.all_reduce(torch.ones(5))
            dist.all_reduce(torch.ones(5), async_op=True).wait()
            dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * ranks))
        assert [(r.collective, r.form, r.algorithm, r.engine) for r in records] == [
            ("allreduce", "blocking", "ring", engine), ("allreduce", "nonblocking", "ring", engine),
            ("reduce_scatter", "blocking", "pairwise", engine)]
    with world.comm.using(allreduce="native"), world.comm.trace() as records:
        value = torch.ones(5)
        dist.all_reduce(value, async_op=True).wait()
    assert [r.algorithm for r in records] == ["native"] and value.tolist() == [float(ranks)] * 5


def test_repeated_calls_take_the_fast_path(world, ranks):
    value = torch.zeros(3)
    for _ in range(70):  # the first of a group are compared
        dist.all_reduce(value)
    with world.comm.trace() as records:
        dist.all_reduce(value)
    assert [record.fast_path for record in records] == [True]


@pytest.mark.mpi(min_size=2)
def test_calls_learn_where_the_environment_says_so(monkeypatch, world, ranks):
    """Of a group whose first calls are no longer compared; six in flight, in blocking and asynchronous calls."""
    monkeypatch.setenv("MPICOLL_LEARN", "any")
    group = dist.new_group()
    comm, name = group.comm, group.group_name
    with comm.trace() as records:
        for i in range(40):
            values = [torch.full((40,), float(j)) for j in range(7)]
            works = [dist.all_reduce(value, async_op=True, group=group) for value in values[:-1]]
            dist.all_reduce(values[-1], group=group)
            for j, work in enumerate(works):
                work.wait()
                assert values[j].tolist() == [j * ranks] * 40, i
            assert values[-1].tolist() == [6 * ranks] * 40, i
        for _ in range(4):
            dist.all_reduce(torch.ones(40), group=group)
    ran = [record.algorithm for record in records]
    assert len(set(ran)) > 1 and len(set(ran[-20:])) == 1
    assert comm.explain("allreduce", 160).measured and "learned" in comm.explain("allreduce", 160).why
    assert records[-1].fast_path
    for end in (lambda: None, lambda: dist.destroy_process_group(group)):
        end()
        (served,) = [call for call in mpicoll.torch.explain() if call.kind.group == name]
        assert (served.calls, served.choice.algorithm) == (284, ran[-1]) and "learned" in served.choice.why


def test_many_sizes_and_groups_are_counted_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(tallies, "MOST", 100)
    tally, asked = tallies.Tally(), []
    for i in range(3000):
        tally.add(tallies.Kind(f"group {i % 70}", "send", "uint8", i, None), lambda: asked.append(1))
    assert sum(tally.kinds.values()) == 3000 and len(tally.kinds) == len(asked) <= 100 + 13
    assert tally.kinds["group 3", "send", "uint8", 3, None, ""] == 1
    assert {kind.nbytes for kind in tally.kinds if kind.group == tallies.OTHERS} >= {128, 4096}


def test_explain_names_what_was_served(world, ranks):
    for _ in range(3):
        dist.all_reduce(torch.ones(12_345))
    calls = [call for call in mpicoll.torch.explain() if call.kind.nbytes == 49_380]
    assert [(call.calls, call.kind.operation, call.kind.dtype, call.kind.group) for call in calls] == [
        (3, "allreduce", "float32", world.group_name)]
    assert calls[0].choice.algorithm in str(calls[0]) and "3 calls" in str(calls[0])


def test_a_timeout_of_a_group(world):
    options = c10d.AllreduceOptions()
    group = dist.new_group()
    assert group.calls.seconds(options.timeout) == group.calls.timeout.total_seconds()
    group.set_timeout(dist.default_pg_timeout / 2)
    assert group.calls.timeout == dist.default_pg_timeout / 2
    dist.destroy_process_group(group)
