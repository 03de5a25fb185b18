"""Patterns over numbers of hosts: `python -m mpicoll.benchmarks.train.over_hosts`, as root.

    python -m mpicoll.benchmarks.train.over_hosts data_parallel,parameter_server --hosts 2,4,6,8 --svg FILE

One rank a host, each host behind a link of the given rate (see mpicoll.benchmarks.hosts). What a step takes there is
mostly communication, so the picture shows how a pattern's grows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from mpicoll.cli.group import OneLineCommand, asking

from ..command.checks import listed, positive
from ..command.console import console
from .cli import chosen

NAME = "mpicoll.benchmarks.train.over_hosts"


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("patterns", default="data_parallel,parameter_server,parameter_servers")
@click.option("--hosts", default="2,4,6,8", help="Numbers of hosts, a rank on each.")
@click.option("--rate", default="200Mbit", help="Of each host's link.")
@click.option("--steps", default=4, help="Steps of each pattern.")
@click.option("--width", default=256, help="Of the digits' network.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw steps over hosts.")
def over_hosts(
    patterns: str, hosts: str, rate: str, steps: int, width: int, path: Path | None, svg: Path | None
) -> None:
    """Train by PATTERNS on several hosts of this machine, for several numbers of hosts."""
    with asking():
        names = chosen(patterns)
        numbers = [positive("--hosts", int(n)) for n in listed("--hosts", hosts)]
    rows: list[dict[str, Any]] = []
    for number in numbers:
        rows += measured(names, number, rate, steps, width)
        for row in rows[-len(names) :]:
            sent, received = row["root_sent"] / 2**20, row["root_received"] / 2**20
            console().print(
                f"{number} hosts, {row['pattern']}: a step {1e3 * row['step_s']:.0f} ms, "
                f"{1e3 * row['exposed_s']:.0f} ms of it waiting; "
                f"rank 0 sends {sent:.2f} MiB and receives {received:.2f} MiB"
            )
    if path:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if svg:
        svg.write_text(drawn(rows))


def measured(names: list[str], hosts: int, rate: str, steps: int, width: int) -> list[dict[str, Any]]:
    """Return the rows of `mpicoll train` on so many hosts. Raises ClickException where that fails."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "rows.jsonl"
        bed = [sys.executable, "-m", "mpicoll.benchmarks.hosts", "--hosts", str(hosts), "--rate", rate]
        words = [",".join(names), "--steps", str(steps), "--width", str(width), "--json", str(file)]
        command = [*bed, sys.executable, "-m", "mpicoll", "train", *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise click.ClickException(f"{hosts} hosts: {(done.stderr or done.stdout).strip()[-2000:]}")
        return [json.loads(line) for line in file.read_text().splitlines()]


def drawn(rows: list[dict[str, Any]]) -> str:
    """Return an SVG of steps, and of what rank 0 sends and receives, over hosts."""
    import altair as alt
    import vl_convert

    from ..report.look import COLOURS

    values = [
        {**row, "ms": 1e3 * row["step_s"], "MiB": (row["root_sent"] + row["root_received"]) / 2**20} for row in rows
    ]
    names = list(dict.fromkeys(row["pattern"] for row in rows))
    colour = alt.Color("pattern:N", title=None, sort=names, scale=alt.Scale(range=list(COLOURS)))
    hosts = alt.X("ranks:Q", title="hosts", axis=alt.Axis(values=sorted({row["ranks"] for row in rows})))
    lines = alt.Chart(alt.InlineData(values=values), width=320, height=220).mark_line(point=True).encode(hosts, colour)
    step = lines.encode(alt.Y("ms:Q", title="ms a step"))
    root = lines.encode(alt.Y("MiB:Q", title="MiB through rank 0 a step"))
    return str(vl_convert.vegalite_to_svg(alt.hconcat(step, root).to_json()))


if __name__ == "__main__":
    over_hosts.main(prog_name=f"python -m {NAME}")
