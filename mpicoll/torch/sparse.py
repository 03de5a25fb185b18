"""Sums of sparse tensors, by gathering what every rank has: as Gloo's process groups do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp
from torch.distributed import Work as TorchWork

from ..errors import MismatchError, OperatorError
from .work import SYNCHRONOUS, Done

MOST = 16  # dimensions


def allreduce(group: Any, tensor: Tensor, options: Any) -> TorchWork:
    """Replace this rank's sparse COO tensor by the sum over ranks; it is there when the call returns.

    group is the process group.
    Raises OperatorError for another operator than SUM, MismatchError where shapes differ.
    """
    if options.reduceOp != ReduceOp.SUM:
        raise OperatorError(f"sparse tensors are summed; {options.reduceOp} is for dense ones")
    mine = tensor.detach().coalesce()
    shape = [mine.sparse_dim(), *mine.shape]
    header = torch.tensor([mine._nnz(), *shape, *[-1] * (MOST - len(shape))])
    headers = torch.empty(group.size(), len(header), dtype=header.dtype)
    wait = c10d.AllgatherOptions()
    wait.asyncOp, wait.timeout = False, options.timeout
    group.all_gather_single(headers, header, wait)
    shapes = [tuple(row[1:].tolist()) for row in headers]
    if len(set(shapes)) > 1:
        raise MismatchError("the shape of a sparse tensor", shapes)
    counts = headers[:, 0].tolist()
    indices = [torch.empty(n, mine.sparse_dim(), dtype=torch.int64) for n in counts]
    values = [torch.empty(n, *mine.values().shape[1:], dtype=mine.dtype) for n in counts]
    group.allgather([indices], [mine.indices().t().contiguous()], wait)
    group.allgather([values], [mine.values().contiguous()], wait)
    with torch.no_grad():
        tensor.copy_(torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), mine.shape).coalesce())
    return Done([tensor]) if options.asyncOp else SYNCHRONOUS
