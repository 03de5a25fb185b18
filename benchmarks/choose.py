"""`mpicoll choose`: what auto would choose on a network, by the cost model, without MPI."""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from ..cli.group import alone, asking, console
from ..cli.names import canonical
from ..cost.network import network
from ..schedules.grouping import Partition
from ..selection.modelled import UNKNOWN_TO_ALL, costs, modelled_rules
from .command.sizes import format_size, parse_sizes

BEST = 3  # choices that are listed for a size


@click.command(short_help="What auto would choose on a network, by a model, without MPI.")
@click.argument("collective")
@click.option("-p", "--ranks", "p", type=click.IntRange(1, 1 << 20), required=True, help="Number of ranks.")
@click.option("--ranks-per-node", default=1, show_default=True, type=click.IntRange(1), help="Placed by blocks.")
@click.option("--sizes", default="8:16M:8", show_default=True, help="Bytes: a list of sizes and ranges.")
@click.option("--network", "name", default="infiniband", show_default=True, help="A network's file, or a preset.")
@click.option("--ordered", is_flag=True, help="For an operator that does not commute.")
@click.option("--json", "as_json", is_flag=True, help="[{collective, bytes, p, algorithm, chunk_bytes, …}].")
def choose(collective: str, p: int, ranks_per_node: int, sizes: str, name: str, ordered: bool, as_json: bool) -> None:
    """Show which algorithm and chunk the model calls the fastest for COLLECTIVE, and what it takes, in microseconds.

    That is what `auto` chooses where MPICOLL_NETWORK names the same network. Beside it stand the next fastest.
    """
    alone()
    with asking():
        collective, numbers, net = canonical(collective), parse_sizes(sizes), network(name)
        if collective in UNKNOWN_TO_ALL:
            raise ValueError(f"{collective}: its ranks know only their own counts, so bytes decide nothing")
    nodes = tuple(tuple(range(i, min(i + ranks_per_node, p))) for i in range(0, p, ranks_per_node))
    rules = modelled_rules(net, collective, p, not ordered, nodes)
    at = np.array(numbers)
    rows = []
    for nbytes in numbers:
        rule = next(rule for rule in reversed(rules) if rule.fits(nbytes, p))
        rows.append(_row(collective, nbytes, p, rule.algorithm, rule.chunk_bytes, rule.window))
    _add_times(rows, _lines(net, collective, p, not ordered, nodes, at))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        console().print(_table(f"{collective} on {p} ranks, {len(nodes)} nodes, {net.name}", rows))


def _row(collective: str, nbytes: int, p: int, algorithm: str, chunk: int | None, window: int) -> dict[str, Any]:
    return {
        "collective": collective, "bytes": nbytes, "p": p,
        "algorithm": algorithm, "chunk_bytes": chunk, "window": window,
    }  # fmt: skip


def _lines(
    net: Any, collective: str, p: int, commutative: bool, nodes: Partition, sizes: np.ndarray
) -> list[tuple[str, int | None, np.ndarray]]:
    return [(name, chunk, us) for name, chunk, _, us in costs(net, collective, p, commutative, nodes, sizes)]


def _add_times(rows: list[dict[str, Any]], lines: list[tuple[str, int | None, np.ndarray]]) -> None:
    """Add to every row what its choice takes, and the next fastest algorithms with theirs."""
    for i, row in enumerate(rows):
        times: dict[str, float] = {}
        for algorithm, chunk, us in lines:
            if (algorithm, chunk) == (row["algorithm"], row["chunk_bytes"]):
                row["model_us"] = round(float(us[i]), 2)
            times[algorithm] = min(times.get(algorithm, np.inf), float(us[i]))
        others = sorted((us, name) for name, us in times.items() if name != row["algorithm"])[: BEST - 1]
        row["next"] = [{"algorithm": name, "model_us": round(us, 2)} for us, name in others]


def _table(title: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("bytes", "algorithm", "chunk", "µs", "next, µs", title=title, box=None, title_justify="left")
    for row in rows:
        chunk = "whole" if row["chunk_bytes"] is None else format_size(row["chunk_bytes"])
        others = ", ".join(f"{other['algorithm']} {other['model_us']:g}" for other in row["next"])
        table.add_row(format_size(row["bytes"]), row["algorithm"], chunk, f"{row['model_us']:g}", others)
    return table
