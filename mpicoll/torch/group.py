"""The process group: torch's operations as collectives of an mpicoll.Comm.

Its methods are those of torch.distributed.ProcessGroup, which torch calls from Python and, the asynchronous ones, from
C++. Lists of tensors are sent in place if they are contiguous, else through a flat copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from mpi4py import MPI
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import Work as TorchWork

from ..comm.comm import Comm
from ..diagnostics.fault_tolerance import failed_ranks, missing
from ..dispatch import methods
from . import arguments, messages, ranks, sparse, stores, tensors
from .arguments import Lists
from .base import Group
from .calls import collective
from .operators import reduction
from .work import Several


class ProcessGroup(Group):
    """A process group: every operation of torch.distributed."""

    survivors: Comm | None = None  # the ranks that have not failed, where they have met to shrink the group

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts: Any = None) -> ProcessGroup:
        """Return a group of the other ranks, which alone may call; torch.distributed.shrink_group asks for it.

        Where ranks of the group have failed, these are excluded and no others.
        """
        excluded, name = {*ranks_to_exclude}, f"{self.group_name} without {sorted(ranks_to_exclude)}"
        if self.survivors is None and (self.calls.state.rank_failure.is_known or excluded & {*self._failed()}):
            self.survivors = self.comm.Shrink()
        if self.survivors is None:
            numbers = ranks.translated(self.comm, ranks.of_default_group())
            comm = ranks.communicator_of([rank for i, rank in enumerate(numbers) if i not in excluded], name)
        else:
            comm, self.survivors = self.survivors, None
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        store = stores.store(MPI.Intracomm(comm), self.calls.timeout)
        return ProcessGroup(comm, store, self.calls.timeout, name)

    def _failed(self) -> list[int]:
        return [] if missing() else failed_ranks(self.comm)

    # -- one tensor -----------------------------------------------------------------------------------------

    @collective
    def broadcast(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Send the root's tensor to all; opts.rootRank is of the group."""
        opts = arguments.options(c10d.BroadcastOptions, opts, timeout, root=True)
        tensor = tensors.single_tensor(tensor_list)
        is_root = self.rank() == opts.rootRank
        flat, finish = (tensors.source(tensor), None) if is_root else tensors.target(tensor)
        return self.calls.run(
            "broadcast", opts, methods.BCAST, None, tensors.as_bytes_array(flat), root=opts.rootRank, tensor=tensor,
            result=[tensor], finish=finish,
        )  # fmt: skip

    @collective
    def allreduce(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Reduce the tensor of all ranks, in its place, by opts.reduceOp."""
        opts = arguments.options(c10d.AllreduceOptions, opts, timeout)
        if isinstance(tensor_list, (list, tuple)) and len(tensor_list) != 1:
            return self.allreduce_coalesced(tensor_list, opts)
        if (sparse_tensor := tensors.sparse(tensor_list)) is not None:
            return sparse.allreduce(self, sparse_tensor, opts)
        tensor = tensors.single_tensor(tensor_list)
        flat, finish = tensors.target(tensor)
        how = reduction(opts.reduceOp, tensor.dtype)
        if how.factor is not None:
            flat.mul_(how.factor)
        return self.calls.run(
            "allreduce", opts, methods.ALLREDUCE, MPI.IN_PLACE, how.array(flat), how.op, tensor=tensor,
            result=[tensor], finish=finish,
        )  # fmt: skip

    @collective
    def reduce(self, tensor_list: Any, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Reduce all ranks' tensors by opts.reduceOp into the root's tensor; the other tensors stay as they are."""
        opts = arguments.options(c10d.ReduceOptions, opts, timeout)
        tensor = tensors.single_tensor(tensor_list)
        is_root = self.rank() == opts.rootRank
        flat, finish = tensors.target(tensor) if is_root else (tensors.source(tensor), None)
        how = reduction(opts.reduceOp, tensor.dtype)
        if how.factor is not None:
            flat = flat.mul_(how.factor) if is_root else flat * how.factor
        mine = how.array(flat)
        return self.calls.run(
            "reduce", opts, methods.REDUCE, MPI.IN_PLACE if is_root else mine, mine if is_root else None, how.op,
            opts.rootRank, tensor=tensor, result=[tensor], finish=finish,
        )  # fmt: skip

    @collective
    def barrier(self, opts: Any = None, **more: Any) -> TorchWork:
        """Complete once every rank has entered the barrier."""
        opts = arguments.options(c10d.BarrierOptions, opts, more.get("timeout"))
        return self.calls.run("barrier", opts, methods.BARRIER, None, None, result=[])

    # -- one tensor of all blocks ----------------------------------------------------------------------------

    @collective
    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Gather all ranks' inputs into the output of every rank, concatenated by rank."""
        opts = arguments.options(c10d.AllgatherOptions, opts, timeout)
        arguments.check_pair(output, input, "output", "input", self.size())
        flat, finish = tensors.target(output)
        mine = tensors.source(input)
        place = flat.data_ptr() + self.rank() * mine.nbytes
        send: Any = MPI.IN_PLACE if mine.data_ptr() == place else tensors.as_bytes_array(arguments.apart(mine, flat))
        return self.calls.run(
            "allgather", opts, methods.ALLGATHER, send, tensors.as_bytes_array(flat), tensor=input, result=[output],
            finish=finish,
        )  # fmt: skip

    @collective
    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Reduce all ranks' inputs by opts.reduceOp; each rank gets its block of the result."""
        opts = arguments.options(c10d.ReduceScatterOptions, opts, timeout)
        arguments.check_pair(input, output, "input", "output", self.size())
        flat, finish = tensors.target(output)
        how = reduction(opts.reduceOp, input.dtype)
        mine = tensors.source(input)
        mine = arguments.apart(mine, flat) if how.factor is None else mine * how.factor
        return self.calls.run(
            "reduce_scatter", opts, methods.REDUCE_SCATTER_BLOCK, how.array(mine), how.array(flat), how.op,
            tensor=input, result=[output], finish=finish,
        )  # fmt: skip

    @collective
    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int] = (), input_splits: Sequence[int] = (),
        opts: Any = None, timeout: Any = None,
    ) -> TorchWork:  # fmt: skip
        """Send rank r block r of the input; splits are rows of the first dimension, equal where there are none."""
        opts = arguments.options(c10d.AllToAllOptions, opts, timeout)
        for tensor in (output, input):
            tensors.check(tensor)
        flat, finish = tensors.target(output)
        mine = arguments.apart(tensors.source(input), flat)
        send: Any = tensors.as_bytes_array(mine)
        recv: Any = tensors.as_bytes_array(flat)
        if not (output_splits or input_splits):
            arguments.check_pair(output, input, "output", "input", 1)
            arguments.check_divides(input, self.size())
            method = methods.ALLTOALL
        else:
            send = arguments.blocks(send, arguments.elements(input, input_splits, self.size(), "input"))
            recv = arguments.blocks(recv, arguments.elements(output, output_splits, self.size(), "output"))
            method = methods.ALLTOALLV
        return self.calls.run("alltoall", opts, method, send, recv, tensor=input, result=[output], finish=finish)

    # -- lists ----------------------------------------------------------------------------------------------

    @collective
    def allgather(self, output: Lists, input: Sequence[Tensor], opts: Any = None, timeout: Any = None) -> TorchWork:
        """Gather the tensor of each rank into a list on every rank. Tensors may differ in size from rank to rank."""
        opts = arguments.options(c10d.AllgatherOptions, opts, timeout)
        (outputs,), mine = arguments.lists(output, input)
        arguments.check_number(outputs, self.size(), "output")
        flat, own = tensors.flatten(outputs, fill=False)
        arguments.check_same(outputs[self.rank()], mine, "the output of this rank", "the input")
        send = tensors.as_bytes_array(arguments.apart(tensors.source(mine), flat))
        recv: Any = tensors.as_bytes_array(flat)
        counts = [tensor.numel() for tensor in outputs]
        method = methods.ALLGATHER
        if len(set(counts)) > 1:
            method, recv = methods.ALLGATHERV, arguments.blocks(recv, counts)
        return self.calls.run(
            "allgather", opts, method, send, recv, tensor=mine, result=list(outputs),
            finish=None if own else tensors.scattered(flat, outputs),
        )  # fmt: skip

    @collective
    def reduce_scatter(self, output: Any, input: Lists, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Reduce the lists of all ranks by opts.reduceOp; rank r gets tensor r of the result."""
        opts = arguments.options(c10d.ReduceScatterOptions, opts, timeout)
        (inputs,), mine = arguments.lists(input, output)
        arguments.check_number(inputs, self.size(), "input")
        arguments.check_same(inputs[self.rank()], mine, "the input for this rank", "the output")
        target, finish = tensors.target(mine)
        flat, _ = tensors.flatten(inputs, fill=True)
        how = reduction(opts.reduceOp, flat.dtype)
        flat = arguments.apart(flat, target) if how.factor is None else flat * how.factor
        counts = [tensor.numel() for tensor in inputs]
        send, recv = how.array(flat), how.array(target)
        wide = send.size // max(1, sum(counts))  # 2 for complex numbers
        equal = len(set(counts)) == 1
        return self.calls.run(
            "reduce_scatter", opts, methods.REDUCE_SCATTER_BLOCK if equal else methods.REDUCE_SCATTER, send, recv,
            how.op, 0 if equal else [wide * n for n in counts], tensor=flat, result=[mine], finish=finish,
        )  # fmt: skip

    @collective
    def alltoall(
        self, output: Sequence[Tensor], input: Sequence[Tensor], opts: Any = None, timeout: Any = None
    ) -> TorchWork:
        """Send rank r the tensor r of the input list; tensors may differ in size."""
        opts = arguments.options(c10d.AllToAllOptions, opts, timeout)
        arguments.check_number(output, self.size(), "output")
        arguments.check_number(input, self.size(), "input")
        flat, own = tensors.flatten(output, fill=False)
        mine = arguments.apart(tensors.flatten(input, fill=True)[0], flat)
        send = arguments.blocks(tensors.as_bytes_array(mine), [tensor.numel() for tensor in input])
        recv = arguments.blocks(tensors.as_bytes_array(flat), [tensor.numel() for tensor in output])
        return self.calls.run(
            "alltoall", opts, methods.ALLTOALLV, send, recv, tensor=mine, result=list(output),
            finish=None if own else tensors.scattered(flat, output),
        )  # fmt: skip

    @collective
    def gather(self, output: Lists, input: Sequence[Tensor], opts: Any = None, timeout: Any = None) -> TorchWork:
        """Gather the tensor of each rank into a list on the root; tensors are of one size."""
        opts = arguments.options(c10d.GatherOptions, opts, timeout)
        mine, is_root = tensors.single_tensor(input), self.rank() == opts.rootRank
        recv, finish, outputs = None, None, []
        send: Any = tensors.as_bytes_array(tensors.source(mine))
        if is_root:
            outputs = list(output[0])
            arguments.check_number(outputs, self.size(), "output")
            for tensor in outputs:
                arguments.check_same(tensor, mine, "an output", "the input")
            flat, own = tensors.flatten(outputs, fill=False)
            send = tensors.as_bytes_array(arguments.apart(tensors.source(mine), flat))
            recv, finish = tensors.as_bytes_array(flat), None if own else tensors.scattered(flat, outputs)
        return self.calls.run(
            "gather", opts, methods.GATHER, send, recv, root=opts.rootRank, tensor=mine, result=outputs,
            finish=finish,
        )  # fmt: skip

    @collective
    def scatter(self, output: Sequence[Tensor], input: Lists, opts: Any = None, timeout: Any = None) -> TorchWork:
        """Send rank r the tensor r of the root's list; tensors are of one size."""
        opts = arguments.options(c10d.ScatterOptions, opts, timeout)
        mine, is_root = tensors.single_tensor(output), self.rank() == opts.rootRank
        target, finish = tensors.target(mine)
        send = None
        if is_root:
            inputs = list(input[0])
            arguments.check_number(inputs, self.size(), "input")
            for tensor in inputs:
                arguments.check_same(tensor, mine, "an input", "the output")
            send = tensors.as_bytes_array(arguments.apart(tensors.flatten(inputs, fill=True)[0], target))
        return self.calls.run(
            "scatter", opts, methods.SCATTER, send, tensors.as_bytes_array(target), root=opts.rootRank, tensor=mine,
            result=[mine], finish=finish,
        )  # fmt: skip

    # -- several at once ------------------------------------------------------------------------------------

    @collective
    def allreduce_coalesced(self, tensor_list: Sequence[Tensor], opts: Any = None) -> TorchWork:
        """Reduce the tensors of all ranks, in their places: those of one type in one call."""
        opts = arguments.options(c10d.AllreduceCoalescedOptions, opts, None)
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensor_list:
            tensors.check(tensor)
            by_type.setdefault(tensor.dtype, []).append(tensor)
        works = [self._allreduce_together(group, opts) for group in by_type.values()]
        return works[0] if len(works) == 1 else Several(works, list(tensor_list))

    def _allreduce_together(self, group: list[Tensor], opts: Any) -> TorchWork:
        flat, own = tensors.flatten(group, fill=True)
        how = reduction(opts.reduceOp, flat.dtype)
        if how.factor is not None:
            flat.mul_(how.factor)
        return self.calls.run(
            "allreduce", opts, methods.ALLREDUCE, MPI.IN_PLACE, how.array(flat), how.op, tensor=flat, result=group,
            finish=None if own else tensors.scattered(flat, group),
        )  # fmt: skip

    def allgather_coalesced(self, output_lists: Lists, input_list: Sequence[Tensor], opts: Any = None) -> TorchWork:
        """Gather several tensors: output_lists[r][i] becomes tensor i of rank r."""
        works = [
            self.allgather([[outputs[i] for outputs in output_lists]], [tensor], opts)
            for i, tensor in enumerate(input_list)
        ]
        return Several(works, [tensor for outputs in output_lists for tensor in outputs])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """Gather several pairs of tensors, as all_gather_single does one."""
        works = [self.all_gather_single(*pair, opts) for pair in zip(outputs, inputs)]
        return works[0] if len(works) == 1 else Several(works, list(outputs))

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        """Combine several pairs of tensors, as reduce_scatter_single does one."""
        works = [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)]
        return works[0] if len(works) == 1 else Several(works, list(outputs))

    # torch's older names
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- messages -------------------------------------------------------------------------------------------

    def send(self, tensor_list: Any, dst: int, tag: int = 0) -> TorchWork:
        """Send a tensor to a rank of the group."""
        tensor = tensors.single_tensor(tensor_list)
        array = tensors.as_bytes_array(tensors.source(tensor))
        return self.calls.message("send", tensor, lambda: messages.send(self.comm, array, dst, tag, [tensor]))

    def recv(self, tensor_list: Any, src: int, tag: int = 0) -> TorchWork:
        """Receive a tensor from a rank of the group."""
        tensor = tensors.single_tensor(tensor_list)
        flat, finish = tensors.target(tensor)
        array = tensors.as_bytes_array(flat)
        make = lambda: messages.receive(self.comm, array, src, tag, [tensor], finish)
        return self.calls.message("recv", tensor, make)

    def recv_anysource(self, tensor_list: Any, tag: int = 0) -> TorchWork:
        """Receive a tensor from any rank; the work says from which."""
        return self.recv(tensor_list, messages.ANY_SOURCE, tag)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for every rank. Raises RuntimeError that names the late ranks; see messages.py."""
        seconds = (self.calls.timeout if timeout is None else timeout).total_seconds()
        messages.monitored_barrier(self.comm, seconds, wait_all_ranks)
