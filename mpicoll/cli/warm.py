"""`mpicoll warm`: compile kernels ahead of the first program that needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .group import FAILED, alone, console

if TYPE_CHECKING:
    from ..kernels.background import Request

OPERATORS, TYPES = ("SUM", "PROD", "MAX", "MIN"), ("f4", "f8", "i4", "i8")  # the usual reductions
LOW_PRIORITY = 19  # nice


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also every operator on every datatype, and the codecs.")
@click.option("--requests", is_flag=True, hidden=True, help="Compile what standard input names, and say what failed.")
def warm(everything: bool, requests: bool) -> None:
    """Compile the engine, the usual reductions and the simulator now, so that no program has to.

    Compiled kernels are kept once per machine, in NUMBA_CACHE_DIR if that is set. For images, shared file systems and
    CI. Exit status 1 if a kernel cannot be compiled.
    """
    import mpi4py

    mpi4py.rc.initialize = False  # only the library is needed
    from ..kernels import background, cache, reduce

    if requests:
        os.nice(LOW_PRIORITY)
        background.compile_all([*background.read_requests(), *engine()])
        return
    alone()
    from rich.progress import track

    simulator = background.Request("mpicoll.cost.event_loop", "prepare")
    wanted = [*engine(), simulator, *(_everything() if everything else _usual())]
    cache.show_progress = False
    shown = track(wanted, "Compiling kernels", console=console(stderr=True))
    failures = sum(background.compile_all([request]) for request in shown)
    compiled, place = len(cache.compiled_here()), cache.directory(str(reduce.__file__))
    where = f"kept in {place} and beside it" if place else "not kept: no directory can be written; set NUMBA_CACHE_DIR"
    click.echo(f"{compiled} kernels compiled, {len(cache.loaded_here())} were there already; {where}")
    if failures:
        sys.exit(FAILED)


def engine() -> list[Request]:
    """Return what every communicator needs: the engines, the fast path, packing."""
    from ..kernels.background import Request

    names = {
        "mpicoll.plans.template": ("bind",),
        "mpicoll.engines.compiled": ("advance",),
        "mpicoll.fastpath.entry": ("prepare",),
        "mpicoll.progress.driver": ("prepare",),
        "mpicoll.engines.local_ops": ("prepare_row", "finish_step"),
        "mpicoll.kernels.pack": ("pack_elements", "unpack_elements"),
    }
    return [Request(module, name) for module, functions in names.items() for name in functions]


def _usual() -> Sequence[Request]:
    import numpy as np

    return [_reduction(op, np.dtype(code)) for op in OPERATORS for code in TYPES]


def _everything() -> Sequence[Request]:
    from ..kernels import rules
    from ..kernels.background import Request
    from ..kernels.codecs import NAMES

    dtypes = list(rules.DTYPES)
    requests = [_reduction(op, dtype) for dtype in dtypes for op in rules.ALLOWED[rules.kind_of(dtype)]]
    requests += [
        Request("mpicoll.kernels.scale", "address", (dtype,))
        for dtype in dtypes
        if rules.kind_of(dtype) in rules.SCALABLE
    ]
    for dtype in rules.LOW.values():
        requests += [Request("mpicoll.kernels.lowp", name, (dtype,)) for name in ("widen_address", "narrow_address")]
        requests.append(Request("mpicoll.kernels.lowp", "narrow_address", (dtype, True)))
    return [*requests, *(Request("mpicoll.kernels.codecs", "addresses", (name,)) for name in NAMES)]


def _reduction(op: str, dtype: Any) -> Request:
    from ..kernels.background import Request

    return Request("mpicoll.kernels.reduce", "address", (op, dtype))
