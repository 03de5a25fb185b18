"""Names of collectives and algorithms as users type them, and hints if a name is missing or misplaced."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ..schedules.collectives import ALIASES, COLLECTIVES, PLAIN
from ..schedules.registry import list_algorithms

SYNONYMS = {"broadcast": "bcast", "all_reduce": "allreduce", "all_gather": "allgather", "all_to_all": "alltoall"}


def canonical(collective: str) -> str:
    """Return our name of a collective for MPI's, mpi4py's and torch's; a name that none of them has is left as it is.

    >>> canonical("MPI_Iallreduce"), canonical("Reduce-Scatter"), canonical("all_gather"), canonical("ring")
    ('allreduce', 'reduce_scatter', 'allgather', 'ring')
    """
    known = (*COLLECTIVES, *PLAIN, *ALIASES)
    name = collective.strip().lower().replace("-", "_").removeprefix("mpi_").removesuffix("_init")
    for candidate in (name, name.removeprefix("i")):
        if (candidate := SYNONYMS.get(candidate, candidate)) in known:
            return candidate
    return collective


def split_names(text: str) -> list[str]:
    """Return the names of a comma-separated list, each once; commas in parentheses belong to a name.

    >>> split_names("auto, hierarchical(groups=((0, 1), (2,)), inner=chain),auto")
    ['auto', 'hierarchical(groups=((0, 1), (2,)), inner=chain)']
    """
    names, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            names.append("")
        else:
            names[-1] += char
    return list(dict.fromkeys(name.strip() for name in names if name.strip()))


def check_order(command: str, collective: str, algorithm: str | None) -> None:
    """Raise a usage error that says what to type if the first name is an algorithm's."""
    name = collective.partition("(")[0]
    having = [candidate for candidate, names in list_algorithms().items() if name in names and candidate not in PLAIN]
    if canonical(collective) in (*COLLECTIVES, *PLAIN, *ALIASES) or not having:
        return
    best = canonical(algorithm) if algorithm and canonical(algorithm) in having else having[0]
    message = f"{collective!r} is an algorithm of {', '.join(having)}; the collective comes first"
    raise click.UsageError(f"{message}: {command} {best} {collective}", click.get_current_context())


class Hinting(click.Command):
    """A command that says of an argument or an option it does not have what to type instead.

    extra: of one argument too many; instead: of options that other programs have.
    """

    extra = ""
    instead: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if hint := self.instead.get(error.option_name):
                raise click.UsageError(f"No such option {error.option_name!r}; {hint}", ctx) from None
            raise
        except click.UsageError as error:
            if self.extra and "unexpected extra argument" in error.message:
                raise click.UsageError(f"{error.message.rstrip('.')}; {self.extra}", ctx) from None
            raise


class WithRanks(Hinting):
    """A command for one number of ranks."""

    extra = "the number of ranks is -p N"
    instead = dict.fromkeys(("-n", "-np"), extra)


class UpToRanks(Hinting):
    """A command for all numbers of ranks up to one."""

    extra = "the largest number of ranks is --max-ranks N"
    instead = dict.fromkeys(("-n", "-np", "-p"), extra)


class UnderMpiexec(Hinting):
    """A command for the ranks that a launcher starts."""

    instead = dict.fromkeys(("-n", "-np", "-p"), "mpiexec starts the ranks: mpiexec -n N mpicoll …")
