"""`mpicoll show`: a space-time picture of an algorithm."""

from __future__ import annotations

from typing import NoReturn

import click

from ..schedules.collectives import base_collective
from .group import alone, asking, console
from .names import WithRanks, canonical, check_order


@click.command(cls=WithRanks, short_help="A space-time picture of an algorithm, in the terminal or as SVG.")
@click.argument("collective")
@click.argument("algorithm", required=False)
@click.option("-p", "--ranks", "p", default=5, show_default=True, help="Number of ranks.")
@click.option("--root", default=0, show_default=True, help="For bcast, scatter, gather and reduce.")
@click.option("--svg", metavar="FILE", help="Write a drawing to FILE, or to - for standard output.")
@click.option("--plain", is_flag=True, help="No colour, and never narrower than the picture needs.")
def show(collective: str, algorithm: str | None, p: int, root: int, svg: str | None, plain: bool) -> None:
    """Draw a space-time picture of ALGORITHM, a name or "name(key=value)": who sends what, and who then holds whose.

    The first line has its steps, messages and the most bytes that any rank sends or receives, as a share of the n
    bytes of the vector.
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
        wanted = schedule(collective, algorithm, p, root)
        if root and not wanted.collective.rooted:
            raise ValueError(f"{collective} has no root")
        next(iter(wanted.program(0)), None)
    if svg:
        _write(svg, drawing.svg(wanted))
        if svg != "-":
            click.echo(f"{svg}: {Picture(wanted).headline}")
    elif plain:
        click.echo(text.draw(wanted), nl=False)
    else:
        to = console()
        to.print(text.render(wanted, to.width if to.is_terminal else None), soft_wrap=True, end="")


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
