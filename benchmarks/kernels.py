"""Time the reduction kernels on one core, beside NumPy and beside a plain copy.

    python -m mpicoll.benchmarks.kernels --sizes 16K,1M,64M --op sum,max --dtype float32,float64 --operands 2,4

A kernel runs in place, as the engines reduce what arrives: dst[i] = dst[i] op b[i] op c[i] …; NumPy does the same with
`out`, operand by operand. GB/s count what must be read and written, so one vector more than there are operands, and two
for a copy (`np.copyto`), as STREAM counts them. All three of a size are timed in rounds, in an order drawn anew, and
compared by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.cli.sizes import format_size, parse_sizes
from mpicoll.engines.kernel_args import EVERYWHERE, KernelArgs
from mpicoll.engines.local_ops import Tables, finish_step
from mpicoll.kernels import lowp, reduce
from mpicoll.kernels.rules import low
from mpicoll.plans.plan import OUT, REDUCE

from .cases.contents import DTYPES, OPERATORS, contributed, dtype_of
from .command.checks import listed, positive
from .command.console import console
from .command.results_file import write_lines
from .measure.one_process import interleaved
from .measure.stats import Estimate, Ratio, estimate, ratio
from .results.text import spread

NAME = "mpicoll.benchmarks.kernels"
COPIED = 2  # vectors read and written


@dataclass(frozen=True)
class Speed:
    """The speeds of one operator, dtype and size in bytes per second. ratio: NumPy's time over the kernel's."""

    op: str
    dtype: str
    size: int
    operands: int
    kernel: Estimate
    numpy: Estimate
    copy: Estimate
    ratio: Ratio


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--op", "ops", default="sum", help=f"Of {', '.join(OPERATORS)}.")
@click.option("--dtype", "dtypes", default=",".join(DTYPES), help="NumPy's names; pairs that MPI lacks are left out.")
@click.option("--sizes", default="16K,1M,64M", help="Bytes of a vector: sizes and ranges FIRST:LAST[:FACTOR].")
@click.option("--operands", default="2", help="How many vectors are reduced into one.")
@click.option("--seconds", default=20.0, help="Time to spend in all, apart from compiling.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def kernels(ops: str, dtypes: str, sizes: str, operands: str, seconds: float, path: Path | None) -> None:
    """Time the reduction kernels beside NumPy and a copy, on one core."""
    with asking():
        wanted = list(pairs(listed("--op", ops), listed("--dtype", dtypes)))
        bytes_ = parse_sizes(sizes)
        positive("--seconds", seconds)
        several = [_several(word) for word in listed("--operands", operands)]
        if not wanted:
            raise ValueError("MPI has none of these operators for any of these types")
        for _, dtype in wanted:
            dtype_of(dtype)  # whether it is there
    asked = [(*pair, size, k) for pair in wanted for size in bytes_ for k in several]
    screen, share = console(), seconds / len(asked)
    speeds = [timed(*case, share) for case in asked]
    screen.print(table(speeds))
    if path:
        write_lines(path, speeds)


def _several(word: str) -> int:
    if not word.isdecimal() or int(word) < 2:
        raise ValueError(f"--operands has {word!r}; it takes whole numbers of at least 2")
    return int(word)


def pairs(ops: list[str], dtypes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the operators with the dtypes that they take. Raises ValueError for words that are neither."""
    for known, words, what in ((OPERATORS, ops, "operator"), (DTYPES, dtypes, "dtype")):
        if unknown := [word for word in words if word not in known]:
            raise ValueError(f"no {what} is called {unknown[0]!r}; there is {', '.join(known)}")
    for op in ops:
        for dtype in dtypes:
            if DTYPES[dtype] in OPERATORS[op][1]:
                yield op, dtype


def timed(op: str, dtype: str, nbytes: int, operands: int, seconds: float) -> Speed:
    """Time rounds of the three, for so long, 6 at least."""
    kind = dtype_of(dtype)
    n = max(1, nbytes // kind.itemsize)
    values = [np.resize(contributed(rank, operands, op, kind), n) for rank in range(operands)]
    ours, theirs, target = values[0].copy(), values[0].copy(), np.empty_like(values[0])
    ufunc, others = OPERATORS[op][0], values[1:]

    def numpy() -> None:
        for other in others:
            ufunc(theirs, other, out=theirs, casting="unsafe")

    with np.errstate(all="ignore"):
        works = _reduction(_work(op.upper(), kind), ours, others), numpy, lambda: np.copyto(target, values[1])
        by_kernel, by_numpy, by_copy = interleaved(works, seconds)
    size = n * kind.itemsize
    touched = (operands + 1) * size
    return Speed(
        op,
        dtype,
        size,
        operands,
        estimate(touched / t for t in by_kernel),
        estimate(touched / t for t in by_numpy),
        estimate(COPIED * size / t for t in by_copy),
        ratio(by_numpy, by_kernel),
    )


def _work(op: str, dtype: np.dtype) -> KernelArgs:
    """Return the kernels that reduce elements of a dtype, in float32 if they have fewer than 32 bits."""
    args = KernelArgs(reduce.address(op, dtype))
    if low(dtype) is None:
        return args
    wide = reduce.address(op, np.dtype(np.float32))
    between = {"widen": lowp.widen_address(dtype), "narrow": lowp.narrow_address(dtype)}
    return args._replace(wide=wide, **between, narrow_places=EVERYWHERE)


def _reduction(work: KernelArgs, into: np.ndarray, others: list[np.ndarray]) -> Callable[[], Any]:
    """Return what engines do with vectors that have arrived: a row of a plan.

    For one it is the kernel alone: Python's way to the row takes longer than the reduction of a small vector.
    """
    if len(others) == 1:
        at, other, n = into.ctypes.data, others[0].ctypes.data, len(into)
        return lambda: reduce.call(work.kernel, at, at, other, n)
    rows = np.array([[REDUCE, 0, 0, len(others) + 2, -1, 0]])
    base = into.ctypes.data
    places = [0, 0, *(other.ctypes.data - base for other in others)]
    segments = np.array([[OUT, at, into.nbytes, 0] for at in places])
    geometry = np.array([into.nbytes, 1, 1, 0, into.itemsize, 1, into.itemsize, into.nbytes])
    tables = Tables(rows, segments, geometry, np.array([0, base, 0]), np.array(work, np.int64))
    return lambda: finish_step(tables.address, 0, 0, 1, 0, 0, 0)


def table(speeds: list[Speed]) -> Table:
    """GB/s of each, and how many times as fast as NumPy the kernel is."""
    rich_table = Table(title="GB/s, in place; ratio: NumPy's time over the kernel's", title_justify="left")
    for name in ("size", "op", "dtype", "operands", "kernel", "NumPy", "copy", "ratio", "[95 %]", "verdict"):
        rich_table.add_column(name, justify="left" if name in ("op", "dtype", "verdict") else "right")
    for s in speeds:
        rates = (f"{rate.median / 1e9:.1f}" for rate in (s.kernel, s.numpy, s.copy))
        rich_table.add_row(format_size(s.size), s.op, s.dtype, str(s.operands), *rates, f"{s.ratio.median:.2f}",
                           spread(s.ratio, "{:.2f}".format), s.ratio.verdict)
    return rich_table


if __name__ == "__main__":
    kernels.main(prog_name=f"python -m {NAME}")
