"""Fewer bytes for training: codecs in DistributedDataParallel's hooks and in fully_shard's own communication.

    model.register_comm_hook(None, mpicoll.torch.hooks.compressed("int8"))      # DDP; also powersgd(rank=2)
    mpicoll.torch.hooks.encode(model, gradients="int8", weights="bfloat16")      # fully_shard, all its modules

Codecs are those of mpicoll.compression. Gradients and weights must be float32.

    model.register_comm_hook(None, mpicoll.torch.hooks.averaged(accumulate="float32"))   # gradients of 16 bits, DDP
    mpicoll.torch.hooks.encode(model, accumulate="float32")                              # fully_shard

These round sums of bfloat16 and float16 once, at the end.
"""

# No `from __future__ import annotations`: DistributedDataParallel looks at the annotations of a hook.
import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import Work as TorchWork

from ..compression.codecs import LEVELS, Codec, parse
from ..compression.feedback import Allreduce
from ..compression.powersgd import PowerSGD
from ..dispatch import methods
from ..errors import ArgumentError, CodecError
from ..selection.select import FLOAT32, check_accumulate
from ..stderr import say
from .calls import Calls
from .futures import Future, Lane
from .group import ProcessGroup
from .operators import reduction
from .tensors import as_numeric_array, target

Reduce = Callable[..., Any]  # of a float32 array, in its place


class Patient:
    """A communicator like a group's whose Allreduce leaves the processor to others while it waits."""

    def __init__(self, group: ProcessGroup, name: str) -> None:
        self.comm = group.comm.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size
        self.calls = Calls(self.comm, f"{group.group_name}, {name}", group.calls.timeout)
        group.calls.followers.append(self.calls)
        self.using: Callable[..., AbstractContextManager[Any]] = self.comm.using

    def Allreduce(self, send: Any, recv: np.ndarray[Any, Any], op: MPI.Op = MPI.SUM) -> None:
        """Reduce, as the communicator would. Raises what that raises."""
        options = c10d.AllreduceOptions()
        tensor = torch.from_numpy(recv)
        work = self.calls.run("allreduce", options, methods.ALLREDUCE, send, recv, op, tensor=tensor, result=[tensor])
        work.get_future().wait()


class BucketHook:
    """A hook of DistributedDataParallel; its state is the process group, None for the default one.

    Buckets are encoded, sent and averaged on a thread, in order and on a communicator of their own, while the backward
    pass continues. Raises ArgumentError for another group than mpicoll's; CodecError for other gradients than float32.
    """

    def __init__(self, make: Callable[[Any], Reduce], name: str, apart: bool = False) -> None:
        """Take what makes a reduction of a communicator, and whether it takes the gradients of a bucket one by one."""
        self.make, self.__name__, self.apart = make, name, apart
        self.__qualname__ = name
        self.comm: Patient | None = None
        self.lane: Lane
        self.reduce: Reduce
        self.layouts: dict[int, tuple[int, ...]] = {}  # of each bucket its parameters, by their memory
        self.waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Return a future of the averaged bucket."""
        buffer = bucket.buffer()
        if buffer.dtype is not torch.float32:
            raise CodecError(f"gradients are {buffer.dtype}; codecs encode float32, so leave the model in float32")
        if self.comm is None:
            self._open(_ours(state))
        future = Future(self.lane)
        layout = tuple(parameter.data_ptr() for parameter in bucket.parameters())
        if self.layouts.setdefault(bucket.index(), layout) != layout:  # DDP has made its buckets anew
            self.layouts = {bucket.index(): layout}
            self.waiting.put(self._forget)
        self.waiting.put(lambda: self._carry_out(bucket.gradients() if self.apart else [buffer], buffer, future))
        return future

    def _open(self, group: ProcessGroup) -> None:
        """Take a communicator. Collective: DDP calls hooks in the same order on every rank."""
        self.comm = Patient(group, self.__name__)
        self.lane = self.comm.calls.lane
        self._forget()
        threading.Thread(target=self._run, name="mpicoll-buckets", daemon=True).start()

    def _forget(self) -> None:
        """Begin without anything left over from steps before."""
        self.reduce = self.make(self.comm)

    def _run(self) -> None:
        while True:
            self.waiting.get()()

    def _carry_out(self, parts: list[Tensor], buffer: Tensor, future: Future) -> None:
        try:
            for part in parts:
                flat, finish = target(part)
                self.reduce(as_numeric_array(flat), average=True)
                if finish is not None:
                    finish()
        except Exception as error:
            say(traceback.format_exc())  # DDP's C++ waits, and would say only that it got no tensor
            future.set_exception(error)
        else:
            future.set_result(buffer)


def compressed(codec: str | Codec, error_feedback: bool | None = None) -> BucketHook:
    """Return a hook of DistributedDataParallel that sends codes of the gradients, in any codec of mpicoll.compression.

    Unless error_feedback says so, int8, int4 and topk add what was not sent to the next step's gradients, and casts
    drop it. Raises ParameterError for a codec that does not exist.
    """
    kind = parse(codec) if isinstance(codec, str) else codec
    feedback = kind.name in (*LEVELS, "topk") if error_feedback is None else error_feedback
    return BucketHook(lambda comm: Allreduce(comm, kind, error_feedback=feedback), f"compressed({kind})")


def powersgd(rank: int = 2, seed: int = 1) -> BucketHook:
    """Return a hook that sends each gradient as two thin factors of a rank, with error feedback (PowerSGD, 2019)."""
    return BucketHook(lambda comm: PowerSGD(comm, rank, seed), f"powersgd({rank})", apart=True)


def averaged(accumulate: str = FLOAT32) -> Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]:
    """Return a hook of DistributedDataParallel that averages gradients as they are, for models of 16 bits.

    accumulate: "float32" rounds sums once, at the end; "none" at every reduction. Raises ArgumentError for other words.
    """
    check_accumulate("accumulate", accumulate)

    def averaged(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        group, buffer, options = _ours(state), bucket.buffer(), c10d.AllreduceOptions()
        options.reduceOp, options.asyncOp = dist.ReduceOp.AVG, True
        with group.calls.forced(accumulate=accumulate):
            work = group.allreduce([buffer], options)
        future: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    return averaged


class _Encoded:
    """The base of both communication classes for fully_shard: a codec, memory, and how a group's method is called.

    They have the methods of torch's classes, and not these as bases: importing fully_shard takes 4 s.
    """

    collective = ""

    def __init__(self, codec: str | Codec | None, accumulate: str | None = None) -> None:
        self.codec = parse(codec) if isinstance(codec, str) else codec
        self.accumulate = None if accumulate is None else check_accumulate("accumulate", accumulate)

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return new memory of a size."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _using(self, group: ProcessGroup, more: str = "") -> AbstractContextManager[None]:
        algorithm = f"quantized(codec={self.codec}{more})" if self.codec is not None else ""
        return group.calls.forced(algorithm, self.accumulate)


class ReduceScatter(_Encoded):
    """Reduces float32 gradients of a module of fully_shard encoded, as in ZeRO++ (2023).

    Without a codec it reduces gradients of any type as they are; accumulate="float32" rounds sums of less than 32 bits
    once, at the end.

    With error_feedback, what codes lack is added to the module's next gradients. That keeps as much memory as its
    gradients before they are sharded, and each module must have an object of its own.
    """

    def __init__(
        self, codec: str | Codec | None, error_feedback: bool = False, accumulate: str | None = None
    ) -> None:
        super().__init__(codec, accumulate)
        if error_feedback and codec is None:
            raise ArgumentError("error_feedback keeps what a codec does not send, and there is no codec; name one")
        self.error_feedback = error_feedback
        self.left: Tensor | None = None  # what was not sent

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> TorchWork | None:
        """Reduce the input of all ranks; each rank gets its block. Raises CodecError for a size that has changed."""
        ours, options = _ours(group), c10d.ReduceScatterOptions()
        if self.codec is not None and input_tensor.dtype is not torch.float32:
            raise CodecError(f"gradients are {input_tensor.dtype}; codecs encode float32: set reduce_dtype to that")
        options.reduceOp, options.asyncOp = op, async_op
        if self.error_feedback:
            options.reduceOp = self._with_left(input_tensor, op)
        with self._using(ours, ", feedback=yes" * self.error_feedback):
            work = ours.reduce_scatter_single(output_tensor, input_tensor, options)
        if self.error_feedback:
            self.left = input_tensor  # codes leave in it what they lack
        return work if async_op else None

    def _with_left(self, gradients: Tensor, op: Any) -> Any:
        """Scale gradients as an operator does, add what is left to them, and return the operator without its scale.

        What is left is gone from here, so that a call that fails leaves nothing wrong.
        """
        how, left, self.left = reduction(op, gradients.dtype), self.left, None
        if how.factor is not None:
            gradients.mul_(how.factor)
            op = dist.ReduceOp.SUM
        if left is not None:
            if left.shape != gradients.shape:
                raise CodecError(
                    f"there are {gradients.numel()} gradients, and {left.numel()} that were left of others; with "
                    "error_feedback each module needs a ReduceScatter of its own"
                )
            gradients.add_(left)
        return op


class AllGather(_Encoded):
    """Gathers weights of fully_shard encoded. Ranks keep float32, and compute with what the codec leaves."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> TorchWork | None:
        """Gather the input of all ranks."""
        ours, options = _ours(group), c10d.AllgatherOptions()
        if input_tensor.dtype is not torch.float32:
            raise CodecError(f"weights are {input_tensor.dtype}; codecs encode float32: set no param_dtype")
        options.asyncOp = async_op
        with self._using(ours):
            work = ours.all_gather_single(output_tensor, input_tensor, options)
        return work if async_op else None


def encode(
    model: torch.nn.Module,
    gradients: str | Codec | None = None,
    weights: str | Codec | None = None,
    error_feedback: bool = False,
    accumulate: str | None = None,
) -> None:
    """Have all modules of a model that fully_shard has sharded send codes of gradients, of weights, or of both.

    error_feedback, accumulate: of gradients, see ReduceScatter. Raises ArgumentError where no module is sharded.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not modules:
        raise ArgumentError("no module of the model is sharded; call torch.distributed.fsdp.fully_shard before")
    for module in modules:
        if gradients is not None or accumulate is not None:
            module.set_custom_reduce_scatter(ReduceScatter(gradients, error_feedback, accumulate))
        if weights is not None:
            module.set_custom_all_gather(AllGather(weights))


def _ours(group: Any) -> ProcessGroup:
    process_group = dist.group.WORLD if group is None else group
    if not isinstance(process_group, ProcessGroup):
        raise ArgumentError(f"the process group is {process_group!r:.80}, none of mpicoll's; codecs run on those alone")
    return process_group
