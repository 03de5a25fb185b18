"""`mpicoll explore`: algorithms played step by step on one page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ..describe.explore.choose import MOST_RANKS
from ..errors import ArgumentError
from ..garbage import collection_off
from .group import alone, asking, console, unwritable
from .names import Hinting, canonical, split_names
from .placement import Nodes, places_ranks
from .recorded import load, merged

if TYPE_CHECKING:
    from ..describe.explore import choose
    from ..describe.explore.measured import Measured
    from ..describe.explore.timing import Clock
    from ..schedules.schedule import Schedule

    Choice = tuple[choose.Key, Schedule]

RANKS = "2-9,13,16"
RANGE = re.compile(r"\s*(\d+)(?:-(\d+))?\s*")


class Explore(Hinting):
    """A command for some numbers of ranks."""

    extra = "collectives are --collectives NAME,NAME and algorithms --algorithms NAME,NAME"
    instead = dict.fromkeys(("-n", "-np"), "the numbers of ranks are -p 2-9,16")


@click.command(cls=Explore, short_help="One page on which algorithms are played step by step.")
@click.option("-o", "--output", metavar="FILE", required=True, help="The page, or - for standard output.")
@click.option("--collectives", metavar="NAME,NAME", help="Only these.  [default: all]")
@click.option("--algorithms", metavar="NAME,NAME", help='Only these, by name or as "name(key=value)".  [default: all]')
@click.option("-p", "--ranks", "ranks", default=RANKS, show_default=True, help=f"Numbers of ranks, up to {MOST_RANKS}.")
@click.option("--network", "net", metavar="NAME", help="Also play in time, on a network's file or a preset.")
@click.option("--size", default="64K", show_default=True, help="Bytes of the call, in time.")
@places_ranks
@click.option(
    "--measured", metavar="FILE", multiple=True,
    help="Also lay the calls of a timeline beside the model's; needs --network. Repeat it for more files of the run.",
)
@click.option("--title", help="Of the page.")
def explore(
    output: str, collectives: str | None, algorithms: str | None, ranks: str, net: str | None, size: str,
    where: Nodes, measured: Sequence[str], title: str | None,
) -> None:  # fmt: skip
    """Write one HTML page that plays algorithms step by step: who holds what, which messages move, what it costs.

    The page needs no network. It has every root up to 9 ranks, all parameters that the algorithm is proved on, and
    both operator orders where the algorithm keeps rank order. Name others: --algorithms "knomial(k=5)".

    With --network it also plays in time, as `mpicoll simulate` does, and draws the cost of calls over their size.

    With --measured it shows calls that `mpicoll run --timeline FILE` recorded beside the model's: of all calls of an
    algorithm, number of ranks and size, the median. What they ran is added to the page.

    An algorithm of your own (--load) that the verifier rejects is played up to its fault.
    """
    alone()
    if output != "-" and (trouble := unwritable(output)):
        raise click.ClickException(f"cannot write {output}: {trouble}")
    from ..cost.network import network
    from ..describe.explore import choose, page
    from ..describe.explore.timing import Clock
    from ..describe.picture import many
    from .sizes import parse_size

    names = [canonical(name) for name in split_names(collectives or "")]
    with asking():
        algorithms_wanted = choose.wanted(names, split_names(algorithms or ""))
        numbers = parse_ranks(ranks)
        nodes = {p: where.partition(p) for p in numbers} if net or where.are_named else choose.NODES
        clock = Clock(network(net), parse_size(size), nodes, where.placement) if net else None
        choose_schedules = choose.schedules if algorithms else choose.with_tours
        wanted = list(choose_schedules(algorithms_wanted, numbers, nodes))
        if not wanted:
            raise ValueError(f"no schedule suits p = {ranks}: {choose.reason(algorithms_wanted, numbers[-1])}")
        beside, clock, wanted = _beside(measured, names, clock, where, wanted)
    with _progress(len(wanted)) as shown:
        text = page.build(shown(wanted), title or page.TITLE, clock=clock, measured=beside)
    write(output, text, many(len(wanted), "schedule"))


def _beside(
    files: Sequence[str], collectives: Sequence[str], clock: Clock | None, where: Nodes, wanted: list[Choice]
) -> tuple[Measured | None, Clock | None, list[Choice]]:
    """Return the calls of timelines, the clock with their numbers of ranks too, and the schedules that the page gets.

    Raises ValueError for files without a call that fits the page.
    """
    from ..describe.explore import measured

    if not files:
        return None, clock, wanted
    if clock is None:
        raise ValueError("--measured lays calls beside the model of a network; add --network with a preset or a file")
    with collection_off():  # there may be millions of events, none of them garbage
        timeline = merged([load(file) for file in files])
        medians, notes = measured.medians(timeline, collectives)
    nodes = dict(clock.nodes)
    for p in {call.kind.p for call in medians} - nodes.keys():
        with suppress(ArgumentError):
            nodes[p] = where.partition(p)
    beside, added = measured.lay_beside(timeline, medians, notes, wanted, nodes)
    return beside, replace(clock, nodes=nodes), [*wanted, *added]


def parse_ranks(text: str) -> list[int]:
    """Return the numbers of ranks of "2-9,16", ascending. Raises ValueError.

    >>> parse_ranks("2-4, 16")
    [2, 3, 4, 16]
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= MOST_RANKS:
            raise ValueError(f"-p has {part.strip()!r}; write numbers of ranks from 1 to {MOST_RANKS}, as 2-9,16")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def write(path: str, text: str, what: str) -> None:
    """Write a page, and print its size."""
    from ..describe.explore import page

    try:
        with click.open_file(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    if path != "-":
        size = len(text.encode())
        click.echo(f"{path}: {what}, {size / 1e6:.1f} MB, opens in any browser without a network")
        if size > page.MOST_BYTES:
            click.echo(f"{path} is large for a browser; name fewer algorithms or numbers of ranks", err=True)


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """Provide a function that shows on a terminal how much of what it yields is done."""
    to = console(stderr=True)
    if not to.is_terminal:
        yield iter
        return
    from rich.progress import Progress

    with Progress(console=to, transient=True) as progress:
        yield lambda items: progress.track(items, total=total, description="Playing")
