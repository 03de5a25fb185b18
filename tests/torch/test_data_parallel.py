"""DistributedDataParallel: losses and parameters are those with Gloo, in each of its modes."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from mpicoll.torch import hooks

WIDTH = 24
STEPS = 4
SMALL = 2e-4     # MiB: buckets of one layer each


def perceptron():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(12, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5))


def normalized():
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(12, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5))


def batches(rank, count=STEPS):
    """Return batches of a rank's own."""
    draw = torch.Generator().manual_seed(100 + rank)
    return [(torch.randn(6, 12, generator=draw), torch.randint(5, (6,), generator=draw)) for _ in range(count)]


def state(net):
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def train(net, data):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def wrapped(group, make=perceptron, hook=None, **options):
    net = DistributedDataParallel(make(), process_group=group, **options)
    if hook:
        net.register_comm_hook(*hook(group))
    return net


def trained(group, count=STEPS, **options):
    net = wrapped(group, **options)
    losses = train(net, batches(group.rank(), count))
    return losses, state(net)


# -- the same as with Gloo


@pytest.mark.parametrize("options", [
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"forward_sync_buffers": False},
    {"init_sync": False},
    {"bucket_cap_mb": SMALL},
    {"bucket_cap_mb": SMALL, "gradient_as_bucket_view": True, "static_graph": True},
    {"bucket_cap_mb": SMALL, "gradient_as_bucket_view": True, "find_unused_parameters": True},
], ids=lambda options: "-".join(options) or "defaults")  # fmt: skip
def test_losses_and_parameters_are_those_with_gloo(ours, gloo, served, agree, options):
    mine = trained(ours, **options)
    assert served["allreduce"] >= STEPS
    before = sum(served.values())
    agree(mine, trained(gloo, **options))
    assert sum(served.values()) == before


def test_replicas_begin_as_rank_0_and_stay_equal(ours, gloo, served, agree):
    def on(group):
        def make():
            torch.manual_seed(group.rank())
            return nn.Sequential(nn.Linear(12, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5))

        return trained(group, make=make)

    mine = on(ours)
    assert served["broadcast"] and served["allreduce"]
    agree(mine, on(gloo))
    everyone = [None] * ours.size()
    torch.distributed.all_gather_object(everyone, [value for name, value in mine[1].items() if "running" not in name])
    agree(everyone[0], everyone[-1], exactly=True)


def test_it_is_what_one_process_does_with_all_batches(ours, served, rank, ranks):
    losses, mine = trained(ours)
    assert served["allreduce"]
    alone = perceptron()
    everyone = [batches(peer) for peer in range(ranks)]
    data = [tuple(map(torch.cat, zip(*parts))) for parts in zip(*everyone)]
    train(alone, data)
    torch.testing.assert_close(mine, {f"module.{name}": value for name, value in state(alone).items()},
                               rtol=1e-4, atol=1e-5)
    assert len({loss.item() for loss in losses}) == STEPS


def test_buffers_are_those_of_rank_0(ours, gloo, served, agree):
    mine = trained(ours, make=normalized)
    assert served["broadcast"] >= STEPS
    agree(mine, trained(gloo, make=normalized))


class Branches(nn.Module):
    """Uses one of its branches: which one depends on the rank and on the step."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(9)
        self.turn = rank
        self.branches = nn.ModuleList(nn.Linear(12, 5) for _ in range(3))
        self.last = nn.Linear(5, 5)

    def forward(self, x):
        self.turn += 1
        return self.last(self.branches[self.turn % 2](x))


def test_parameters_that_some_ranks_do_not_use(ours, gloo, served, agree):
    def on(group):
        net = DistributedDataParallel(Branches(group.rank()), process_group=group, find_unused_parameters=True)
        losses = train(net, batches(group.rank()))
        return losses, state(net), [parameter.grad is None for parameter in net.parameters()]

    mine = on(ours)
    assert served["allreduce"] >= 2 * STEPS     # gradients, and which of them are used
    agree(mine, on(gloo))
    assert mine[2][-1] is False and mine[2][4] is True     # the third branch, which no rank ever uses


def test_gradients_accumulate_without_synchronisation(ours, gloo, served, agree):
    def on(group):
        net, losses = wrapped(group, bucket_cap_mb=SMALL), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        data = batches(group.rank(), 6)
        for step in range(2):
            *held, (x, y) = data[3 * step:3 * step + 3]
            before = served["allreduce"]
            with net.no_sync():
                for batch, label in held:
                    nn.functional.cross_entropy(net(batch), label).backward()
            losses.append(served["allreduce"] - before)
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return losses, state(net)

    mine = on(ours)
    assert mine[0] == [0, 0] and served["allreduce"]
    agree(mine, on(gloo))


@pytest.mark.parametrize("divide", [True, False])
def test_ranks_with_more_batches_than_others(ours, gloo, served, agree, divide):
    def on(group):
        net = wrapped(group, make=normalized)
        with Join([net], divide_by_initial_world_size=divide):
            losses = train(net, batches(group.rank(), 2 + group.rank()))
        return losses, state(net)

    mine = on(ours)
    assert served["allreduce"]
    agree(mine, on(gloo))


@pytest.mark.mpi(min_size=2)
def test_ranks_with_more_batches_than_others_may_be_an_error(ours, gloo, served):
    for group in (ours, gloo):
        net = wrapped(group)
        with pytest.raises(RuntimeError, match="exhausted"), Join([net], throw_on_early_termination=True):
            train(net, batches(group.rank(), 2 + group.rank()))
    assert served["allreduce"]


# -- low precision


def test_a_model_of_bfloat16(ours, gloo, served, agree):
    def on(group):
        def make():
            return perceptron().to(torch.bfloat16)

        net = wrapped(group, make=make)
        return train(net, [(x.to(torch.bfloat16), y) for x, y in batches(group.rank())]), state(net)

    mine = on(ours)
    assert served["allreduce"] >= STEPS and all(value.dtype is torch.bfloat16 for value in mine[1].values())
    agree(mine, on(gloo), summed=torch.bfloat16)


def test_autocast(ours, gloo, served, agree):
    def on(group):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return trained(group)

    mine = on(ours)
    assert served["allreduce"] >= STEPS
    agree(mine, on(gloo))


def compressed(state, bucket):
    """Call torch's own bfloat16 hook, which torch recognizes by its name and registers on GPUs only."""
    return default_hooks.bf16_compress_hook(state, bucket)


def power(group, **options):
    return powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=1, random_seed=3, **options)


HOOKS = {
    "allreduce": lambda group: (group, default_hooks.allreduce_hook),
    "float16": lambda group: (group, default_hooks.fp16_compress_hook),
    "bfloat16": lambda group: (group, compressed),
    "PowerSGD": lambda group: (power(group), powerSGD_hook.powerSGD_hook),
    "PowerSGD of rank 2": lambda group: (power(group, matrix_approximation_rank=2), powerSGD_hook.powerSGD_hook),
    "PowerSGD in float16": lambda group: (
        power(group), default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)),
}  # fmt: skip
SUMMED = {"float16": torch.float16, "bfloat16": torch.bfloat16, "PowerSGD in float16": torch.float16}


@pytest.mark.parametrize("name", HOOKS)
def test_communication_hooks(ours, gloo, served, agree, name):
    mine = trained(ours, hook=HOOKS[name])
    assert served["allreduce"] >= STEPS
    agree(mine, trained(gloo, hook=HOOKS[name]), summed=SUMMED.get(name))


@pytest.mark.parametrize("name", ["allreduce", "float16", "bfloat16"])
def test_communication_hooks_of_several_buckets(ours, gloo, served, agree, name):
    """torch's PowerSGD over several buckets is in test_callbacks.py: it fails on Gloo."""
    mine = trained(ours, hook=HOOKS[name], bucket_cap_mb=SMALL)
    assert served["allreduce"] >= 3 * (STEPS - 1)
    agree(mine, trained(gloo, hook=HOOKS[name], bucket_cap_mb=SMALL), summed=SUMMED.get(name))


@pytest.mark.parametrize("options", [
    {"hook": lambda group: (group, default_hooks.bf16_compress_hook)},
    {"mixed_precision": _MixedPrecision(torch.bfloat16)},
], ids=["bfloat16 hook", "mixed precision"])  # fmt: skip
def test_hooks_that_torch_refuses_without_a_gpu(ours, gloo, served, options):
    messages = []
    for group in (ours, gloo):
        with pytest.raises((TypeError, RuntimeError)) as error:
            trained(group, **options)
        messages.append(str(error.value))
    assert messages[0] == messages[1] and served["allgather"]


class Bucket:
    """A bucket of DDP with the attributes that a hook reads."""

    def __init__(self, buffer, parameters):
        self.buffer, self.parameters, self.index = lambda: buffer, lambda: parameters, lambda: 0


@pytest.mark.mpi(min_size=2)  # a rank alone encodes nothing
@pytest.mark.parametrize(("feedback", "reached"), [(None, True), (False, False)])
def test_errors_of_a_codec_are_sent_in_a_later_step(ours, feedback, reached):
    gradient = torch.tensor([4.0, 3.0, 2.0, 1.0]).repeat(ours.size())  # a block is encoded for each rank
    hook, total = hooks.compressed("topk(k=1)", feedback), torch.zeros_like(gradient)
    bucket = Bucket(torch.empty_like(gradient), [torch.ones_like(gradient)])
    for _ in range(12):
        bucket.buffer().copy_(gradient)
        total += hook(ours, bucket).wait()
    assert bool((total > 0).all()) is reached


@pytest.mark.mpi(min_size=2)
def test_residuals_are_dropped_for_other_buckets(ours):
    """DDP makes its buckets anew after the first step, in the same memory."""
    hook, buffer = hooks.compressed("topk(k=1)"), torch.tensor([4.0, 3.0, 2.0, 1.0]).repeat(ours.size())
    hook(ours, Bucket(buffer, [torch.ones_like(buffer)])).wait()
    buffer.zero_()
    assert not hook(ours, Bucket(buffer, list(torch.ones_like(buffer).chunk(2)))).wait().any()


def test_a_hook_that_works_on_the_result(ours, gloo, served, agree):
    """Use the value that a future's callback returns as the gradient."""
    def on(group):
        def halved(state, bucket):
            work = torch.distributed.all_reduce(bucket.buffer(), group=group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0] / 2)

        return trained(group, hook=lambda group: (None, halved), bucket_cap_mb=SMALL)

    mine = on(ours)
    assert served["allreduce"] >= STEPS
    agree(mine, on(gloo))


# -- buckets


def test_each_bucket_is_reduced_by_itself(ours, served):
    net = wrapped(ours, bucket_cap_mb=SMALL)
    train(net, batches(ours.rank(), 2))        # the buckets are laid out anew after the first step
    before = served["allreduce"]
    train(net, batches(ours.rank(), 1))
    assert served["allreduce"] - before == 3    # one for each layer


def test_buckets_are_reduced_during_the_backward_pass(ours, served):
    """The backward pass stops at the last gradient, and no thread waits, until the first bucket is reduced."""
    works, seen = [], []

    def reduced(state, bucket):
        works.append(torch.distributed.all_reduce(bucket.buffer(), group=ours, async_op=True))
        return works[-1].get_future().then(lambda done: done.value()[0] / ours.size())

    def stand_still(gradient):
        deadline = time.monotonic() + 20
        while works and not works[0].is_completed() and time.monotonic() < deadline:
            time.sleep(1e-3)
        seen.append([work.is_completed() for work in works[:1]] + [len(works)])

    net = wrapped(ours, bucket_cap_mb=SMALL)
    net.register_comm_hook(None, reduced)
    train(net, batches(ours.rank(), 2))        # the buckets are laid out anew after the first step
    works.clear()
    before = served["allreduce"]
    next(net.parameters()).register_hook(stand_still)
    train(net, batches(ours.rank(), 1))
    assert seen == [[True, 2]]                  # the third bucket is the one of the last gradient
    assert served["allreduce"] - before == len(works) == 3


def test_reductions_begin_before_the_last_gradient_without_a_hook(ours, served):
    seen = []
    net = wrapped(ours, bucket_cap_mb=SMALL)
    train(net, batches(ours.rank(), 2))
    next(net.parameters()).register_hook(lambda gradient: seen.append(served["allreduce"]))
    before = served["allreduce"]
    train(net, batches(ours.rank(), 1))
    assert [count - before for count in seen] == [2] and served["allreduce"] - before == 3
