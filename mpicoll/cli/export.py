"""`mpicoll export`: a schedule as text for another program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..schedules.collectives import base_collective
from .group import alone, asking
from .names import WithRanks, canonical, check_order
from .placement import Nodes, places_ranks

if TYPE_CHECKING:
    from ..cost.goal import Goal
    from ..cost.network import Network
    from ..schedules.grouping import Partition
    from ..selection.rules import Rule


@click.command(cls=WithRanks, short_help="Write an algorithm as GOAL text, which LogGOPSim plays.")
@click.argument("collective")
@click.argument("algorithm", required=False)
@click.option("--goal", "path", metavar="FILE", required=True, help="The text, or - for standard output.")
@click.option("-p", "--ranks", "p", type=click.IntRange(1, 1 << 20), required=True, help="Number of ranks.")
@click.option("--root", default=0, show_default=True, help="For bcast, scatter, gather and reduce.")
@click.option("--size", default="64K", show_default=True, help="Bytes of the call.")
@click.option("--network", "name", default="infiniband", show_default=True, help="A network's file, or a preset.")
@places_ranks
@click.option("--chunk", help="Cut blocks into chunks of so many bytes.")
@click.option("--window", default=2, show_default=True, type=click.IntRange(1), help="Chunks in flight.")
def export(
    collective: str, algorithm: str | None, path: str, p: int, root: int, size: str, name: str, where: Nodes,
    chunk: str | None, window: int,
) -> None:  # fmt: skip
    """Write ALGORITHM, a name or "name(key=value)", as GOAL text for the simulator LogGOPSim.

    Without ALGORITHM it is what `auto` would choose on the network, in its chunks. The text has the messages, the
    order and the reductions that `mpicoll simulate` plays. The network gives the times of reductions and copies, and
    the options of LogGOPSim, which the text and this command print.
    """
    alone()
    check_order("mpicoll export", collective, algorithm)
    from ..cost.goal import Goal
    from ..cost.network import network
    from ..schedules.schedule import schedule
    from .sizes import format_size, parse_size

    with asking():
        collective, nbytes, net, nodes = canonical(collective), parse_size(size), network(name), where.partition(p)
        chunk_bytes = parse_size(chunk) if chunk else None
        if algorithm is None:
            rule = _choice(collective, p, nodes, net, nbytes)
            algorithm = rule.algorithm
            if not chunk:
                chunk_bytes, window = rule.chunk_bytes, rule.window
        wanted = schedule(base_collective(collective), algorithm, p, root, nodes=nodes)
        if root and not wanted.collective.rooted:
            raise ValueError(f"{collective} has no root")
        goal = Goal(wanted, net, nbytes, chunk_bytes, window)
    cut = f" in chunks of {format_size(chunk_bytes)}, {window} in flight" if goal.chunks > 1 and chunk_bytes else ""
    title = f"{wanted.title}, p = {p}, {format_size(nbytes)}{cut}, {net.name}"
    options = f"LogGOPSim {goal.arguments(net.node if len(nodes) == 1 else net.links)}"
    _write(path, goal, (title, f"{options}, times in picoseconds"))
    if path != "-":
        click.echo(f"{path}: {title}: {goal.messages} messages")
        click.echo(f"txt2bin -i {path} -o {path}.bin && {options} -f {path}.bin    # times are in picoseconds")
        if 1 < len(nodes) < p:
            click.echo("LogGOPSim has one kind of link: messages inside a node take what those between nodes do.")


def _choice(collective: str, p: int, nodes: Partition, net: Network, nbytes: int) -> Rule:
    """Return what auto would choose. Raises ValueError for collectives whose ranks know only their own counts."""
    from ..selection.modelled import modelled_rules
    from ..selection.rules import UNKNOWN_TO_ALL

    if collective in UNKNOWN_TO_ALL:
        raise ValueError(f"{collective}: its ranks know only their own counts, so name an algorithm")
    rules = modelled_rules(net, collective, p, True, nodes)
    return next(rule for rule in reversed(rules) if rule.fits(nbytes, p))


def _write(path: str, goal: Goal, comments: tuple[str, ...]) -> None:
    try:
        with click.open_file(path, "w", encoding="utf-8") as file:
            file.writelines(f"// {comment}\n" for comment in comments)
            file.writelines(f"{line}\n" for line in goal.lines())
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
