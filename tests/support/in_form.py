"""Communicators whose blocking collectives are carried out in another form, so that what holds for one form can be
asked of all: `in_form(mpicoll.Comm, "persistent")(comm).Allreduce(x, y)` makes a request, starts it twice, frees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import METHODS
from mpicoll.schedules.collectives import BLOCKING, FORMS, NONBLOCKING, PERSISTENT

__all__ = ["FORMS", "in_form"]


@cache
def in_form(base: type, form: str) -> type:
    """Return a communicator class whose blocking methods run in a form; `times` counts the runs of each call."""
    if form == BLOCKING:
        return base
    carry_out = _nonblocking if form == NONBLOCKING else _persistent
    methods = {name: _method(method.spelled(form), carry_out) for name, method in METHODS.items()}
    return type(f"{form.capitalize()}{base.__name__}", (base,), {**methods, "times": 1 + (form == PERSISTENT)})


def _method(name: str, carry_out: Callable[..., None]) -> Callable[..., None]:
    def method(self: MPI.Intracomm, *args: Any, **kwargs: Any) -> None:
        carry_out(getattr(self, name), args, kwargs)

    return method


def _nonblocking(start: Callable[..., MPI.Request], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    request = start(*args, **kwargs)
    assert isinstance(request, MPI.Request)
    request.Wait()
    assert request == MPI.REQUEST_NULL


def _persistent(make: Callable[..., MPI.Prequest], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Run a persistent request twice on the same memory, to find a request that keeps what it first read."""
    request = make(*args, **kwargs)
    assert isinstance(request, MPI.Prequest)
    assert request != MPI.REQUEST_NULL
    memory = [array for array in map(_bytes, [*args, *kwargs.values()]) if array is not None]
    before = [array.copy() for array in memory]
    request.Start()
    request.Wait()
    for array, old in zip(memory, before):
        if array.flags.writeable:
            array[:] = old
    request.Start()
    request.Wait()
    assert request != MPI.REQUEST_NULL
    request.Free()
    assert request == MPI.REQUEST_NULL


def _bytes(argument: Any) -> np.ndarray | None:
    """Return the memory of a buffer argument, None if it has none."""
    if isinstance(argument, list | tuple):
        argument = argument[0] if argument else None
    try:
        return np.frombuffer(MPI.buffer.frombuffer(argument), np.uint8)
    except (TypeError, ValueError, BufferError):
        return None
