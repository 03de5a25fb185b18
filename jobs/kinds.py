"""The kinds of jobs: what the steps of each are, and how their results are gathered. One entry of KINDS each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click
from click.core import ParameterSource

from mpicoll.benchmarks.bench.options import settings
from mpicoll.benchmarks.cases.patterns import PATTERNS
from mpicoll.benchmarks.cases.scaling import OSU, WEAK
from mpicoll.benchmarks.command.checks import listed, positive
from mpicoll.errors import MpicollError, UnknownAlgorithm
from mpicoll.selection.tables import validator

from . import gather
from .errors import JobsError
from .study import Step

MANY = 1000  # rounds of torch's steps, at most: their time is over before
BATCH = 32  # images of a rank, where the batch grows with the ranks


@dataclass(frozen=True)
class Asked:
    """The measurements of a study; None: its kind's default. extra: further options of the steps' command."""

    collectives: str | None = None
    sizes: str | None = None
    algorithms: str | None = None
    seconds: float | None = None
    scaling: str = OSU
    patterns: str | None = None
    extra: tuple[str, ...] = ()

    def time(self, default: float) -> float:
        """Return the seconds of a step. Raises ValueError unless above 0, and an end."""
        if self.seconds is not None and not math.isfinite(self.seconds):
            raise ValueError(f"--seconds is {self.seconds}; it must be a number")
        return default if self.seconds is None else positive("--seconds", self.seconds)


Steps = Callable[[Asked, int, int], Sequence[Step]]  # (asked, nodes, ranks)


@dataclass(frozen=True)
class Kind:
    """One kind of job: its template is NAME.sbatch.j2."""

    about: str
    steps: Steps
    gathered: gather.Gatherer
    gathers: str = "report.html"  # the file that is gathered into
    nodes: str = "1:4"
    options: tuple[str, ...] = ("seconds",)  # those of Asked that it takes


def sweep(asked: Asked, nodes: int, ranks: int) -> list[Step]:
    """Return a step for every collective, since each is something to resume by."""
    names = listed("--collectives", asked.collectives or "allreduce,bcast,allgather,reduce_scatter,alltoall")
    scaling = () if asked.scaling == OSU else ("--scaling", asked.scaling)
    seconds = asked.time(60.0)
    steps = []
    for name in dict.fromkeys(names):
        if name not in PATTERNS:
            raise UnknownAlgorithm("collective", name, PATTERNS)
        words = (name, "--sizes", asked.sizes or "8:16M:8", *scaling, "--algorithms", asked.algorithms or "native,auto")
        steps.append(_bench(f"n{nodes}-{name}", nodes, ranks, seconds, (*words, *asked.extra)))
    return steps


def sanity(asked: Asked, nodes: int, ranks: int) -> list[Step]:
    """Return the step that runs all collectives at once."""
    seconds = asked.time(30.0)
    words = ("all", "--sizes", "8,64K", "--algorithms", "native,auto", *asked.extra)
    return [_bench(f"n{nodes}-all", nodes, ranks, seconds, words)]


def _bench(name: str, nodes: int, ranks: int, seconds: float, words: tuple[str, ...]) -> Step:
    """Return a step of `mpicoll bench`."""
    from mpicoll.benchmarks.bench.cli import bench

    words = (*words, "--seconds", f"{seconds:g}")
    options = _taken(bench, "mpicoll bench", words)
    with _on(name, ranks):
        settings(ranks, **options)
    return Step(name, nodes, ranks, seconds, ("-m", "mpicoll", "bench", *words, "--json"))


def tune(asked: Asked, nodes: int, ranks: int) -> list[Step]:
    """Return a table."""
    from mpicoll.benchmarks.tune import cli as module

    name, seconds = f"n{nodes}-tuning", asked.time(120.0)
    options = {"--collectives": asked.collectives, "--sizes": asked.sizes}
    words = [word for option, value in options.items() if value for word in (option, value)]
    words = [*words, "--seconds", f"{seconds:g}", *asked.extra]
    keywords = _taken(module.tune, "mpicoll tune", words)
    with _on(name, ranks):
        validator()  # of the extra that reading tables needs
        module.check(keywords, ranks)
    return [Step(name, nodes, ranks, seconds, ("-m", "mpicoll", "tune", *words, "-o"), "json")]


def train(asked: Asked, nodes: int, ranks: int) -> list[Step]:
    """Return a step for every training pattern, timed in turn; the batch is the command's own, or grows with ranks."""
    from mpicoll.benchmarks.train import cli
    from mpicoll.benchmarks.train.data import MISSING

    seconds = asked.time(60.0)
    batch = ("--batch", str(BATCH * ranks)) if asked.scaling == WEAK else ()
    steps = []
    for name in cli.chosen(asked.patterns or "data_parallel"):
        words = (name, "--time", "--seconds", f"{seconds:g}", *batch, *asked.extra)
        _taken(cli.train, "mpicoll train", words)
        steps.append(Step(f"n{nodes}-{name}", nodes, ranks, seconds, ("-m", "mpicoll", "train", *words, "--json")))
    if find_spec("sklearn") is None:
        raise JobsError(MISSING)
    return steps


def torch(asked: Asked, nodes: int, ranks: int) -> list[Step]:
    """Return the step that trains by torch's own data parallel classes, on Gloo and on mpicoll in turn."""
    if find_spec("torch") is None:
        raise JobsError("steps of torch need it: pip install 'mpicoll[torch]'")
    from mpicoll.benchmarks.torch import cli

    name, seconds = f"n{nodes}-torch", asked.time(120.0)
    words = ("--rounds", str(MANY), "--seconds", f"{seconds:g}", *asked.extra)
    options = _taken(cli.steps, "python -m mpicoll.benchmarks.torch steps", words)
    with _on(name, ranks):
        cli.check(**options)
    command = ("-m", "mpicoll.benchmarks.torch", "steps", *words, "--json")
    return [Step(name, nodes, ranks, seconds, command)]


def _taken(command: click.Command, name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return what a command makes of its words, found without MPI. Raises JobsError for what it would refuse."""
    try:
        context = click.Command.make_context(command, name, [*words])
    except click.UsageError as error:
        raise JobsError(f"{name}: {error.format_message()}") from None
    if context.get_parameter_source("path") is ParameterSource.COMMANDLINE:
        (file,) = (parameter for parameter in command.params if parameter.name == "path")
        raise JobsError(f"results of a step go where the job says, so {file.opts[0]} is no option here")
    return {name: value for name, value in context.params.items() if name != "path"}


@contextmanager
def _on(name: str, ranks: int) -> Iterator[None]:
    """Turn an error of what does not suit the ranks of a step into a JobsError."""
    try:
        yield
    except (ValueError, MpicollError) as error:
        raise JobsError(f"{name}, on {ranks} rank{'s' * (ranks != 1)}: {error}") from None


KINDS = {
    "sweep": Kind("collectives beside the MPI library's own, over numbers of nodes", sweep, gather.report,
                  options=("collectives", "sizes", "algorithms", "seconds", "scaling")),
    "tune": Kind("which algorithm serves which bytes: a table for auto", tune, gather.tables, "tuning.json",
                 options=("collectives", "sizes", "seconds")),
    "train": Kind("steps of training patterns, beside the MPI library's own collectives", train, gather.report,
                  options=("patterns", "seconds", "scaling")),
    "torch": Kind("steps of torch's DDP and fully_shard, beside Gloo", torch, gather.report),
    "sanity": Kind("is everything as it should be, on one node", sanity, gather.report, nodes="1"),
}
