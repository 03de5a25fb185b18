"""`mpicoll show`: a space-time picture of an algorithm, in steps, or in time on a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from ..schedules.collectives import base_collective
from .group import alone, asking, console
from .names import WithRanks, canonical, check_order
from .placement import Nodes, places_ranks

if TYPE_CHECKING:
    from ..schedules.grouping import Partition
    from ..schedules.schedule import Schedule


@click.command(cls=WithRanks, short_help="A space-time picture of an algorithm, in the terminal or as SVG.")
@click.argument("collective")
@click.argument("algorithm", required=False)
@click.option("-p", "--ranks", "p", default=5, show_default=True, help="Number of ranks.")
@click.option("--root", default=0, show_default=True, help="For bcast, scatter, gather and reduce.")
@click.option("--svg", metavar="FILE", help="Write a drawing to FILE, or to - for standard output.")
@click.option("--plain", is_flag=True, help="No colour, and never narrower than the picture needs.")
@click.option("--network", "net", metavar="NAME", help="Draw it in time, on a network's file or a preset.")
@click.option("--size", default="64K", show_default=True, help="Bytes of the call, in time.")
@places_ranks
@click.option("--chunk", help="Cut blocks into chunks of so many bytes, in time.")
@click.option("--window", default=2, show_default=True, type=click.IntRange(1), help="Chunks in flight, in time.")
def show(
    collective: str, algorithm: str | None, p: int, root: int, svg: str | None, plain: bool, net: str | None,
    size: str, where: Nodes, chunk: str | None, window: int,
) -> None:  # fmt: skip
    """Draw a space-time picture of ALGORITHM, a name or "name(key=value)": who sends what, and who then holds whose.

    The first line has its steps, messages and the most bytes that any rank sends or receives, as a share of the n
    bytes of the vector.

    With --network: what every rank does when, by the cost model, message by message, as `mpicoll simulate` does.
    """
    alone()
    check_order("mpicoll show", collective, algorithm)
    collective = canonical(collective)
    if algorithm is None:
        _ask_for_algorithm(collective)
    from ..describe import svg as drawing
    from ..describe import text
    from ..describe.picture import Picture
    from ..schedules.schedule import schedule

    with asking():
        nodes = where.partition(p) if net or where.are_named else None
        wanted = schedule(collective, algorithm, p, root, nodes=nodes)
        if root and not wanted.collective.rooted:
            raise ValueError(f"{collective} has no root")
        next(iter(wanted.program(0)), None)
        if net and nodes:
            if svg:
                raise ValueError("--svg draws steps, and --network draws time as text: leave one out")
            click.echo(_in_time(wanted, net, size, nodes, where, chunk, window), nl=False)
            return
    if svg:
        _write(svg, drawing.svg(wanted))
        if svg != "-":
            click.echo(f"{svg}: {Picture(wanted).headline}")
    elif plain:
        click.echo(text.draw(wanted), nl=False)
    else:
        to = console()
        to.print(text.render(wanted, to.width if to.is_terminal else None), soft_wrap=True, end="")


def _in_time(
    wanted: Schedule, net: str, size: str, nodes: Partition, where: Nodes, chunk: str | None, window: int
) -> str:
    """Return the picture in time. Raises ArgumentError for a network that cannot be read, ValueError for a size."""
    from ..cost.network import network
    from ..cost.simulation import Simulation
    from ..describe import times
    from .sizes import format_size, parse_size

    nbytes, chunk_bytes, on = parse_size(size), parse_size(chunk) if chunk else None, network(net)
    simulation = Simulation(wanted, on, nbytes, nodes, chunk_bytes, window, record=True)
    cut = f" in chunks of {format_size(chunk_bytes)}, {window} in flight" if chunk_bytes else ""
    place = f"{on.name}, {where.in_words(nodes)}"
    return times.draw(f"{wanted.title}, p = {wanted.p}, {format_size(nbytes)}{cut}, {place}", simulation)


def _ask_for_algorithm(collective: str) -> NoReturn:
    """Raise a usage error that lists the algorithms of a collective."""
    from ..proofs.prove import selected

    with asking():
        names = [entry.name for entry in selected(base_collective(collective))]
    message = f"Missing argument 'ALGORITHM'; {collective} has {', '.join(names)}"
    raise click.UsageError(message, click.get_current_context())


def _write(path: str, content: str) -> None:
    try:
        with click.open_file(path, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
