"""`mpicoll choose`: what auto would choose on a network, by the cost model, without MPI."""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from mpicoll.cli.sizes import format_size, parse_sizes

from ..cli.group import alone, asking, console
from ..cli.names import canonical
from ..cli.placement import Nodes, places_ranks
from ..cost.network import network
from ..schedules.collectives import base_collective
from ..schedules.schedule import schedule
from ..selection.modelled import costs, modelled_rules, ranking
from ..selection.rules import UNKNOWN_TO_ALL
from ..selection.uneven import has_classes, skew_class, uneven_costs, uneven_rules, uneven_us
from .cases.counts import EVEN, SHARES, shares_of

BEST = 3  # choices that are listed for a size


@click.command(short_help="What auto would choose on a network, by a model, without MPI.")
@click.argument("collective")
@click.option("-p", "--ranks", "p", type=click.IntRange(1, 1 << 20), required=True, help="Number of ranks.")
@places_ranks
@click.option("--sizes", default="8:16M:8", show_default=True, help="Bytes: a list of sizes and ranges.")
@click.option("--network", "name", default="infiniband", show_default=True, help="A network's file, or a preset.")
@click.option("--counts", type=click.Choice(list(SHARES)), default=EVEN, show_default=True,
              help="How the bytes are shared out among ranks, as for bench.")
@click.option("--ordered", is_flag=True, help="For an operator that does not commute.")
@click.option("--json", "as_json", is_flag=True, help="[{collective, bytes, p, algorithm, chunk_bytes, …}].")
def choose(
    collective: str, p: int, where: Nodes, sizes: str, name: str, counts: str, ordered: bool, as_json: bool
) -> None:
    """Show which algorithm and chunk the model calls the fastest for COLLECTIVE, and what it takes, in microseconds.

    That is what `auto` chooses where MPICOLL_NETWORK names the same network. The next fastest follow in the same row.
    """
    alone()
    with asking():
        collective, numbers, net, nodes = canonical(collective), parse_sizes(sizes), network(name), where.partition(p)
        if net.topology is not None:
            net.topology.check(len(nodes))
        if collective in UNKNOWN_TO_ALL:
            raise ValueError(f"{collective}: its ranks know only their own counts, so bytes decide nothing")
        shares = shares_of(counts, collective, p) or [1] * p
    case, rows = (net, collective, p, not ordered, nodes), list[dict[str, Any]]()
    skew = skew_class(shares) if has_classes(net, nodes) else 0
    rules = uneven_rules(*case, skew) if skew else modelled_rules(*case)
    lines = uneven_costs(*case, numbers, shares) if skew else costs(*case, np.array(numbers))
    for i, nbytes in enumerate(numbers):
        rule = next(rule for rule in reversed(rules) if rule.fits(nbytes, p))
        how = rule.algorithm, rule.chunk_bytes
        if skew:
            planned = schedule(base_collective(collective), rule.algorithm, p, commutative=not ordered, nodes=nodes)
            chosen_us = uneven_us(net, planned, nodes, nbytes, shares, rule.chunk_bytes, rule.window)
        else:
            chosen_us = next(float(us[i]) for algorithm, chunk, _, us in lines if (algorithm, chunk) == how)
        others = [(us, name) for us, name in ranking(lines, i) if name != rule.algorithm][: BEST - 1]
        rows.append({
            "collective": collective, "bytes": nbytes, "p": p, "counts": counts,
            "algorithm": rule.algorithm, "chunk_bytes": rule.chunk_bytes, "window": rule.window,
            "model_us": round(chosen_us, 2),
            "next": [{"algorithm": name, "model_us": round(us, 2)} for us, name in others],
        })  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        shared_out = "" if counts == EVEN else f", {counts} counts"
        title = f"{collective} on {p} ranks, {where.in_words(nodes)}, {net.name}{shared_out}"
        console().print(_table(title, rows))


def _table(title: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("bytes", "algorithm", "chunk", "µs", "next, µs", title=title, box=None, title_justify="left")
    for row in rows:
        chunk = "whole" if row["chunk_bytes"] is None else format_size(row["chunk_bytes"])
        others = ", ".join(f"{other['algorithm']} {other['model_us']:g}" for other in row["next"])
        table.add_row(format_size(row["bytes"]), row["algorithm"], chunk, f"{row['model_us']:g}", others)
    return table
