"""`mpicoll bench`: times a collective's algorithms beside MPI's own.

Every rank reads the same command line and makes the same decision, so bad input ends them all at once,
with one line from rank 0 and exit status 2.
"""

from __future__ import annotations

from typing import Any

import click

from mpicoll.cli.names import check_order
from mpicoll.cli.sizes import format_size
from mpicoll.errors import MpicollError, ParameterError, PreconditionError

from ..cases import contenders as who
from ..cases.counts import EVEN, SHARES
from ..cases.forms import BLOCKING, FORMS
from ..cases.patterns import ROTATING
from ..cases.scaling import OSU, SCALINGS
from ..command.checks import ALL
from ..command.results_file import opened
from ..command.spmd import WRONG, world
from ..launch import RATE_VARIABLE
from ..measure.sync import BARRIER, SYNCS
from ..osu.flag import FLAG, OrOSU
from .options import GLOO, NONE, Settings, settings


@click.command(cls=OrOSU, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("collectives", metavar="COLLECTIVE[,COLLECTIVE…]|all")
@click.argument("algorithm", required=False, metavar="[ALGORITHM[,ALGORITHM…]]")
@click.option("--sizes", default="8:4M:8", help="Bytes: a list of sizes and ranges FIRST:LAST[:FACTOR].")
@click.option("--scaling", default=OSU,
              help=f"{', '.join(SCALINGS)}: a size as above, of all ranks' blocks, or of one rank's block.")
@click.option("--algorithms", help="As ALGORITHM: native, auto, names from `mpicoll list`. Default: all that run.")
@click.option("--engines", default=who.AUTO, help=f"Of {', '.join(who.ENGINES)}.")
@click.option("--peers", default=NONE, help=f"{GLOO}, through torch, timed in the same rounds.")
@click.option(
    "--dtype",
    "--dtypes",
    "dtype",
    help="NumPy's and ml_dtypes' names, by default float64, float32 for codecs. Lists give all combinations.",
)
@click.option("--op", default="sum", help="Operator of reductions: sum, prod, max …")
@click.option("--root", default="0", help=f"Roots: ranks, or {ROTATING}, another rank in each round.")
@click.option("--in-place", is_flag=True, help="Use MPI.IN_PLACE.")
@click.option("--fresh", is_flag=True, help="Allocate new arrays for every call, outside the time.")
@click.option("--counts", default=EVEN, help=f"Counts of scatterv and its like: {', '.join(SHARES)}.")
@click.option("--form", default=BLOCKING, help=f"{', '.join(FORMS)}; nonblocking also shows what work hides.")
@click.option("--chunk-bytes", metavar="SIZE", help="For mpicoll: most of a block in one message, such as 256K.")
@click.option("--window", type=int, help="For mpicoll: how many chunks are in flight.")
@click.option("--seconds", default=10.0, help="Total time, without checks and warm-up.")
@click.option("--iterations", type=int, help="Rounds per size, instead of --seconds.")
@click.option("--precision", default=1.0, help="Per cent: end a size when half the widest interval is below this.")
@click.option("--warmup", default=2, help="Untimed calls before the first timed one.")
@click.option("--sync", default=BARRIER, help=f"How calls start together: {' or '.join(SYNCS)} (at agreed times).")
@click.option("--rate", metavar="RATE", envvar=RATE_VARIABLE,
              help="Rate of every host's link, such as 100Gbit: adds the column 'of limit'.")
@click.option("--memory", default="1G", help="Leave out sizes whose buffers need more on a rank.")
@click.option("--seed", default=0, help="Seed of the order within a round.")
@click.option(FLAG, is_flag=True, expose_value=False, help="Print as the OSU benchmarks do, whose options follow.")
@click.option("--json", "path", metavar="FILE", help="JSON lines as results come; by default in a new file.")
def bench(path: str | None, algorithm: str | None, **options: Any) -> None:
    """Time algorithms of collectives beside MPI's own: start it under mpiexec, on 2 or more ranks.

    A size is what the OSU benchmarks mean by it: the vector of bcast, scan and reductions; a rank's share in
    scatter, gather and allgather; what one rank sends another in alltoall; the average of it where ranks have
    counts of their own. Answers are checked: a wrong one shows as NO and makes the exit status 1.
    """
    comm = world()
    if algorithm and options["algorithms"]:
        raise click.UsageError("the algorithms are given twice, behind the collective and by --algorithms")
    check_order("mpicoll bench", options["collectives"], algorithm)
    options["algorithms"] = algorithm or options["algorithms"] or ALL
    try:
        wanted = settings(comm.size, **options)
    except (ValueError, MpicollError) as error:
        raise click.UsageError(str(error)) from None
    if not run(wanted, path):
        raise click.exceptions.Exit(WRONG)


def run(wanted: Settings, path: str | None) -> bool:
    """Measure and print; True if every answer was right. Raises UsageError for what these ranks do not suit."""
    from .driver import feasible
    from .harness import Harness

    keywords = {name: getattr(wanted, name) for name in ("seed", "memory", "rate", "sync", "warmup")}
    limits = {"chunk_bytes": wanted.chunk_bytes, "window": wanted.window}
    with Harness(wanted.line(), **keywords) as harness:
        try:
            for series in wanted.series:
                harness.check(series.shape.collective, series.algorithms)
        except (ParameterError, PreconditionError) as error:
            raise click.UsageError(str(error)) from None
        harness.invite(wanted.peers)
        jobs = [harness.job(a.shape, a.sizes, a.algorithms, wanted.engines, **limits) for a in wanted.series]
        if not any(feasible(job, harness.control.size, wanted.memory)[0] for job in jobs):
            raise click.UsageError(f"--memory {format_size(wanted.memory)} is too little for any of these sizes")
        with opened(path, harness.control, wanted.name) as file:
            return harness.run(jobs, [wanted.budget(series) for series in wanted.series], file, wanted.notes)
