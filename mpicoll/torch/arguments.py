"""Check the arguments of a process group, and say in which form its communicator takes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import Any

from torch import Tensor

from ..errors import ArgumentError, CountMismatch
from . import tensors

Lists = Sequence[Sequence[Tensor]]


def options(kind: Any, options_or_value: Any, timeout: timedelta | None, root: bool = False) -> Any:
    """Return the options of a call: those given, or new ones of a kind with the operator or root that was given."""
    if options_or_value is not None and hasattr(options_or_value, "timeout"):
        return options_or_value
    options = kind()
    if options_or_value is not None:
        setattr(options, "rootRank" if root else "reduceOp", options_or_value)
    if timeout is not None:
        options.timeout = timeout
    return options


def apart(mine: Tensor, other: Tensor) -> Tensor:
    """Return a tensor with the values of the first that shares no memory with the other."""
    return mine.clone() if tensors.overlap(mine, other) else mine


def blocks(array: Any, counts: Sequence[int]) -> list[Any]:
    """Return the vector form of contiguous blocks."""
    return [array, (list(counts), [0, *accumulate(counts)][:-1])]


def lists(lists: Lists, single: Any) -> tuple[Lists, Tensor]:
    """Return the one list of lists, and the one tensor, that a call has. Raises ArgumentError for more."""
    if len(lists) != 1:
        raise ArgumentError(f"{len(lists)} lists of tensors for one device; mpicoll takes one in each call")
    return [list(lists[0])], tensors.single_tensor(single)


def check_number(several: Sequence[Tensor], size: int, what: str) -> None:
    """Raise ArgumentError unless there is a tensor for each rank."""
    if len(several) != size:
        raise ArgumentError(f"the {what} list has {len(several)} tensors; the group has {size} ranks")
    for tensor in several:
        tensors.check(tensor)


def check_same(a: Tensor, b: Tensor, what: str, other: str) -> None:
    """Raise CountMismatch unless two tensors have as many elements of one type."""
    if a.dtype is not b.dtype or a.numel() != b.numel():
        raise CountMismatch(
            f"{what} has {a.numel()} elements of {a.dtype}, and {other} {b.numel()} of {b.dtype}; they must be alike"
        )


def check_pair(whole: Tensor, part: Tensor, what: str, other: str, size: int) -> None:
    """Raise CountMismatch unless one tensor has the elements of all ranks' parts, of one type."""
    for tensor in (whole, part):
        tensors.check(tensor)
    if whole.dtype is not part.dtype or whole.numel() != size * part.numel():
        raise CountMismatch(
            f"the {what} tensor has {whole.numel()} elements of {whole.dtype}; {size} times the {part.numel()} of "
            f"{part.dtype} of the {other} are wanted"
        )


def check_divides(tensor: Tensor, size: int) -> None:
    """Raise CountMismatch unless the ranks divide the first dimension."""
    rows = tensor.size(0) if tensor.dim() else tensor.numel()
    if rows % size:
        raise CountMismatch(f"the first dimension is {rows}, which {size} ranks do not divide; give splits")


def elements(tensor: Tensor, splits: Sequence[int], size: int, what: str) -> list[int]:
    """Return the elements of each block, of splits in rows of the first dimension. Raises CountMismatch."""
    rows = tensor.size(0) if tensor.dim() else tensor.numel()
    if not splits:
        check_divides(tensor, size)
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise CountMismatch(
            f"the {what} splits {list(splits)} must be {size} numbers, one for each rank, with the sum {rows}"
        )
    row = tensor.numel() // rows if rows else 0
    return [n * row for n in splits]
