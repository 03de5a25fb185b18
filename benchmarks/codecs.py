"""Time the codecs on one core, beside a plain copy.

    python -m mpicoll.benchmarks.codecs --codecs int8,int4 --sizes 256K,16M

GB/s count the float32 that go in or come out; of a copy, those that are copied. All of a size are timed in rounds, in
an order drawn anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.cli.sizes import format_size, parse_sizes
from mpicoll.compression import parse
from mpicoll.kernels import reduce

from .command.checks import listed, positive
from .command.console import console
from .command.results_file import write_lines
from .measure.one_process import interleaved
from .measure.stats import Estimate, estimate

NAME = "mpicoll.benchmarks.codecs"
CODECS = "bfloat16,float16,float8_e4m3fn,float8_e5m2,int8,int4,topk(fraction=0.01)"


@dataclass(frozen=True)
class Speed:
    """The speeds of one codec at one size, in bytes of float32 per second. worst: the largest error over its bound."""

    codec: str
    size: int
    share: float
    encode: Estimate
    decode: Estimate
    copy: Estimate
    worst: float


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--codecs", default=CODECS, help="Codecs of mpicoll.compression.")
@click.option("--sizes", default="256K,16M", help="Bytes of float32: sizes and ranges FIRST:LAST[:FACTOR].")
@click.option("--seconds", default=10.0, help="Time to spend in all, apart from compiling.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def codecs(codecs: str, sizes: str, seconds: float, path: Path | None) -> None:
    """Time the codecs beside a copy, on one core."""
    with asking():
        names = listed("--codecs", codecs)
        for name in names:
            parse(name)
        asked = [(name, size) for name in names for size in parse_sizes(sizes)]
        positive("--seconds", seconds)
    speeds = [timed(name, size, seconds / len(asked)) for name, size in asked]
    console().print(table(speeds))
    if path:
        write_lines(path, speeds)


def timed(name: str, nbytes: int, seconds: float) -> Speed:
    """Return the speed of one codec on normal numbers."""
    codec, n = parse(name), max(1, nbytes // 4)
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    codes, back, copied, params = codec.encode(x), np.empty_like(x), np.empty_like(x), codec.params()
    at, to, of, words = (array.ctypes.data for array in (codes, back, x, params))
    encode, decode = codec.addresses
    works = (
        lambda: reduce.call(encode, at, of, words, n),
        lambda: reduce.call(decode, to, at, words, n),
        lambda: np.copyto(copied, x),
    )
    encoding, decoding, copying = (estimate(4 * n / t for t in times) for times in interleaved(works, seconds))
    bound = codec.error_bound(x)
    worst = float((np.abs(back.astype(np.float64) - x)[bound > 0] / bound[bound > 0]).max(initial=0))
    return Speed(str(codec), 4 * n, float(codec.share), encoding, decoding, copying, worst)


def table(speeds: list[Speed]) -> Table:
    """Return a row for each codec and size."""
    rich_table = Table(title="GB/s of float32", title_justify="left")
    for name in ("size", "codec", "bytes a byte", "encode", "decode", "copy", "error / bound"):
        rich_table.add_column(name, justify="left" if name == "codec" else "right")
    for s in speeds:
        rates = (f"{rate.median / 1e9:.1f}" for rate in (s.encode, s.decode, s.copy))
        rich_table.add_row(format_size(s.size), s.codec, f"{s.share:.3f}", *rates, f"{s.worst:.4f}")
    return rich_table


if __name__ == "__main__":
    codecs(prog_name=f"python -m {NAME}")
