"""`mpicoll calibrate`: measure the network of these ranks, for the cost model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..cli.group import asking, unwritable
from ..cost.network import content, in_words
from ..runtime.agreement import nodes_of
from ..runtime.calibrate import across, inside, measure
from .command.checks import positive
from .command.console import console
from .command.spmd import SpmdCommand, world


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=10.0, help="Time to spend in all.")
@click.option("-o", "--output", "path", default="network.json", type=click.Path(path_type=Path), metavar="FILE")
def calibrate(seconds: float, path: Path) -> None:
    """Measure messages inside a node and between nodes, reductions and copies: start it as the program will be.

    MPICOLL_NETWORK=FILE then makes auto go by the model of this network, and `mpicoll choose --network FILE` shows what
    it chooses there. The file is JSON, to be read and edited.
    """
    comm = world()
    with asking():
        positive("--seconds", seconds)
        if comm.size < 2:
            raise ValueError("one rank has no network; start two or more")
        if trouble := comm.bcast(unwritable(path) if comm.rank == 0 else ""):
            raise ValueError(f"-o {path}: {trouble}")
    nodes = nodes_of(comm)
    described = measure(comm, nodes, seconds, path.stem)
    if described is not None:
        pairs = {"node": inside(nodes, described.cores), "links": across(nodes)}
        measured = [level for level in pairs if pairs[level]]
        source = f"mpicoll calibrate, {comm.size} ranks on {len(nodes)} nodes; measured: {', '.join(measured)}"
        path.write_text(json.dumps({"source": source, **content(described)}, indent=1) + "\n")
        for line in in_words(described):
            console().print(line)
        console().print(f"written to {path}; auto goes by it where MPICOLL_NETWORK={path} is in the environment")
