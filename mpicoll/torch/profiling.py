"""Ranges in torch's profiles: each operation has one, from its call until it is over on this rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import _record_function_with_args_enter, _record_function_with_args_exit


def nothing() -> None:
    """Return at once: there is no range to end."""


def begin(operation: str, tensor: Tensor | None) -> Callable[[], None]:
    """Return what ends the range of an operation on a tensor that begins now, once and on any thread."""
    if not torch.autograd._profiler_enabled():
        return nothing
    begun = _record_function_with_args_enter(f"mpicoll:{operation}", *([] if tensor is None else [tensor]))
    return lambda: _record_function_with_args_exit(begun)
