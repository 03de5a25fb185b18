"""`mpicoll list`: every algorithm and what is declared about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from ..schedules.collectives import PLAIN, canonical_name
from ..schedules.registry import find, list_algorithms
from .group import alone, asking, console
from .names import canonical, check_order


@click.command("list")
@click.argument("collective", required=False)
@click.argument("algorithm", required=False)
@click.option("--json", "as_json", is_flag=True, help="{collective: [{name, idea, steps, …}]}.")
def list_(collective: str | None, algorithm: str | None, as_json: bool) -> None:
    """List all algorithms, those of a collective, or one: idea, steps, bytes, scratch, parameters, source.

    p is the number of ranks, n the bytes of the vector, q the largest power of two up to p, lg the ceiling of
    the binary logarithm.
    """
    alone()
    from ..describe.catalogue import catalogue

    if collective is None:
        algorithms = catalogue()
    else:
        check_order("mpicoll list", collective, algorithm)
        with asking():
            name = canonical(collective)
            algorithms = {name: catalogue(name, _chosen(name, algorithm))[canonical_name(name)]}
    if as_json:
        click.echo(json.dumps(algorithms, indent=2, ensure_ascii=False))
        return
    to, chosen = console(), collective is not None
    for collective, entries in algorithms.items():
        if entries and (chosen or collective not in PLAIN):
            to.print(_table(collective, entries))
    for collective, plain in () if chosen else PLAIN.items():
        to.print(f"[bold]{collective}[/] is served by the algorithms of {plain}", soft_wrap=True)
    key = (
        "p ranks, n bytes, q = the largest power of two up to p, lg = log2 rounded up; "
        "the rest in mpicoll/schedules/claims.py"
    )
    to.print(key, style="dim")


def _chosen(collective: str, algorithm: str | None) -> str | None:
    """Return the algorithm to list, None for all of a collective. Raises UnknownAlgorithm."""
    if algorithm is None and canonical_name(collective) in list_algorithms():
        return None
    return find(canonical_name(collective), (algorithm or "").partition("(")[0]).name


def _table(collective: str, entries: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title=collective, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column("name", style="bold cyan", min_width=20, no_wrap=True)
    table.add_column("what it is")
    for entry in entries:
        table.add_row(entry["name"], _described(entry))
    return table


def _described(entry: dict[str, Any]) -> Any:
    """Return one algorithm's idea, formulas, parameters, what else is to know, and its source."""
    from rich.text import Text

    out = Text(f"{entry['idea']}\n")
    for label, key in (("steps", "steps"), ("bytes per rank", "bytes_per_rank"), ("scratch", "scratch")):
        out.append(f"{label} ", "dim").append(entry[key], "green").append("  ·  " if key != "scratch" else "\n", "dim")
    for name, parameter in entry["parameters"].items():
        out.append("parameter ", "dim").append(f"{name}={parameter['default']}", "cyan")
        out.append(f": {parameter['range']}\n", "dim")
    notes = [x for x in (_order(entry), _bits(entry), _needs(entry), *_traits(entry)) if x]
    out.append("  ·  ".join(notes), "yellow").append("\n" if notes else "")
    if entry["excess"]:
        out.append("above its source: ", "dim").append(f"{entry['excess']}\n")
    if entry["proved_with"]:
        out.append(f"proved with {'; '.join(entry['proved_with'])}\n", "dim")
    return out.append(f"{entry['source']}\n", "dim")


def _order(entry: dict[str, Any]) -> str:
    keeps = entry["keeps_operand_order"]
    if keeps is None:
        return ""
    if entry["order_depends_on_parameters"]:
        return "keeps operand order, depending on parameters: " + ("kept by default" if keeps else "not by default")
    return "keeps operand order" if keeps else "for commutative operators"


def _bits(entry: dict[str, Any]) -> str:
    from ..describe.catalogue import same_bits_words

    return f"same bits {same_bits_words(entry)}" if entry["same_bits"] else ""


def _needs(entry: dict[str, Any]) -> str:
    return f"needs {entry['requires']}" if entry["requires"] else ""


def _traits(entry: dict[str, Any]) -> list[str]:
    direct = ["direct: ranks handle only blocks they start or end with"] if entry["direct"] else []
    return direct + ([f"{entry['strands']} strands side by side"] if entry["strands"] > 1 else [])
