"""The command `steps`, without torch: what a job is to run can be checked where torch is not installed."""

from __future__ import annotations

import math

import click

from mpicoll.cli.group import asking
from mpicoll.cli.sizes import parse_rate
from mpicoll.compression import parse

from ..command.checks import positive
from ..command.spmd import SpmdCommand
from ..launch import RATE_VARIABLE

WIDTH, LAYERS = 1024, 4  # 4.2 million parameters

@click.command("steps", cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=12, help="Steps of each.")
@click.option("--seconds", default=math.inf, show_default=False, help="Make no more steps after this time.")
@click.option("--width", default=WIDTH, help="Of the layers.")
@click.option("--layers", default=LAYERS, help="Of the network.")
@click.option("--codec", default="int8", help="Of mpicoll.compression.")
@click.option("--rate", metavar="RATE", envvar=RATE_VARIABLE, show_envvar=True,
              help="Of each host's link, in each direction: a column shows what it allows.")
@click.option("--json", "path", metavar="FILE", help="Write JSON lines, which `mpicoll report` shows.")
def steps(
    rounds: int, seconds: float, width: int, layers: int, codec: str, rate: str | None, path: str | None
) -> None:
    """Time steps of DistributedDataParallel and of fully_shard on Gloo and on mpicoll, in turn."""
    with asking():
        bits = check(rounds, seconds, width, layers, codec, rate)
    from .steps import run

    run(rounds, seconds, width, layers, codec, bits, path)


def check(rounds: int, seconds: float, width: int, layers: int, codec: str, rate: str | None) -> float | None:
    """Return the rate in bits per second. Raises ValueError or MpicollError for what no run can have."""
    for option, value in (("--rounds", rounds), ("--seconds", seconds), ("--width", width), ("--layers", layers)):
        positive(option, value)
    parse(codec)
    return None if rate is None else parse_rate(rate)
