"""`mpicoll simulate`: simulate algorithms on a network message by message, beside the closed form that `auto` uses."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from mpicoll.cli.sizes import format_size, parse_size, parse_sizes

from ..cli.group import alone, asking, console
from ..cli.names import canonical
from ..cli.placement import Nodes, places_ranks
from ..cost.model import WHOLE
from ..cost.network import network
from ..cost.simulation import Simulation
from ..schedules.collectives import base_collective
from ..schedules.schedule import schedule
from ..selection.modelled import candidates, model_us
from ..selection.rules import UNKNOWN_TO_ALL
from .cases.counts import EVEN, SHARES, shares_of
from .command.checks import ALL, listed


@click.command(short_help="Simulate algorithms on a network, without MPI.")
@click.argument("collective")
@click.option("--algorithms", default=ALL, show_default=True, help="A list of names; all: what auto chooses from.")
@click.option("-p", "--ranks", "p", type=click.IntRange(1, 1 << 20), required=True, help="Number of ranks.")
@places_ranks
@click.option("--sizes", default="8:16M:64", show_default=True, help="Bytes: a list of sizes and ranges.")
@click.option("--network", "name", default="infiniband", show_default=True, help="A network's file, or a preset.")
@click.option("--chunk", help="Cut blocks into chunks of so many bytes.")
@click.option("--window", default=2, show_default=True, type=click.IntRange(1), help="Chunks in flight.")
@click.option("--counts", type=click.Choice(list(SHARES)), default=EVEN, show_default=True,
              help="How the bytes are shared out among ranks, as for bench.")
@click.option("--json", "as_json", is_flag=True, help="[{collective, algorithm, bytes, p, played_us, model_us}].")
def simulate(
    collective: str, algorithms: str, p: int, where: Nodes, sizes: str, name: str, chunk: str | None, window: int,
    counts: str, as_json: bool,
) -> None:  # fmt: skip
    """Simulate every message of COLLECTIVE on a network, and show when the last rank ends, in microseconds.

    The table also has the time of the closed form, by which `auto` chooses if MPICOLL_NETWORK names the network. The
    closed form is for equal shares of ranks, whatever the counts.
    """
    alone()
    rows: list[dict[str, Any]] = []
    with asking():
        collective, numbers, net, nodes = canonical(collective), parse_sizes(sizes), network(name), where.partition(p)
        if collective in UNKNOWN_TO_ALL:
            raise ValueError(f"{collective}: its ranks know only their own counts, so bytes decide nothing")
        base, bytes_of_chunk = base_collective(collective), parse_size(chunk) if chunk else None
        shares = shares_of(counts, collective, p)
        every = partial(candidates, base, p, True, nodes, cuts_shares=shares is not None)
        for spec in every() if algorithms == ALL else listed("--algorithms", algorithms):
            algorithm = schedule(base, spec, p, nodes=nodes)
            model = model_us(net, base, spec, p, True, nodes, numbers, bytes_of_chunk or WHOLE, window)
            for nbytes, us in zip(numbers, model.tolist(), strict=True):
                simulated = Simulation(algorithm, net, nbytes, nodes, bytes_of_chunk, window, shares=shares).us
                rows.append({
                    "collective": collective, "algorithm": spec, "bytes": nbytes, "p": p,
                    "played_us": round(simulated, 2), "model_us": round(us, 2),
                })  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        console().print(_table(f"{collective} on {p} ranks, {where.in_words(nodes)}, {net.name}", rows))


def _table(title: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("bytes", "algorithm", "simulated, µs", "closed form, µs", title=title, box=None, title_justify="left")
    for row in sorted(rows, key=lambda row: (row["bytes"], row["played_us"])):
        table.add_row(format_size(row["bytes"]), row["algorithm"], f"{row['played_us']:g}", f"{row['model_us']:g}")
    return table
