"""Programs made up by hypothesis. What shrinks, shrinks to fewer calls, ranks and elements, and to the defaults."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from hypothesis import strategies as st
from mpi4py import MPI
from support.collectives import nested, spec_of

from mpicoll.engines import selftest
from mpicoll.errors import MpicollError
from mpicoll.schedules.collectives import FORMS, base_collective
from mpicoll.schedules.registry import parse_spec, registered
from mpicoll.schedules.schedule import Schedule

from . import faults, graphs, kinds
from .program import IN_PLACE, METHODS, NATIVE, NEIGHBOURING, TYPED, WITH_COUNTS, Call, Program

CALLS, COMMS, ROUNDS = 6, 3, 3          # the most of each
THREADS = [1, 1, 1, 1, 2, 3]
LARGEST = 100_000                       # bytes of one buffer, about
LANES = 80                              # the most chunks of one block
CHUNKS = (1, 3, 8, 24, 100, 1000, 4096, 65_536)
MOVED = [name for name in kinds.DTYPES if name != "MATRIX"]


@st.composite
def programs(draw: Any, size: int) -> Program:
    """Return a program for at most `size` ranks."""
    threads = draw(st.sampled_from(THREADS if MPI.Query_thread() == MPI.THREAD_MULTIPLE else [1]))
    comms = tuple(draw(st.lists(members(size), min_size=1, max_size=COMMS)))
    drawn = draw(st.lists(calls(comms, threads), min_size=1, max_size=CALLS))
    return Program(
        comms, tuple(drawn), rounds=draw(st.sampled_from([1, 1, 2, ROUNDS])),
        skew=draw(st.one_of(st.just(0), st.integers(1, 999))),
        check=draw(st.sampled_from([False, False, True])), progress=draw(st.sampled_from([True, True, False])),
        threads=threads,
    )


@st.composite
def members(draw: Any, size: int) -> tuple[int, ...]:
    """Return the ranks of a communicator: often all of them, else some in any order."""
    if draw(st.booleans()):
        return tuple(range(size))
    return tuple(draw(st.permutations(range(size)))[: draw(st.integers(1, size))])


@st.composite
def calls(draw: Any, comms: tuple[tuple[int, ...], ...], threads: int) -> Call:
    """Return a call on one of the communicators."""
    method = draw(st.sampled_from(sorted(METHODS)))
    on = draw(st.integers(0, len(comms) - 1))
    p = len(comms[on])
    arguments: dict[str, Any] = {"on": on, "form": draw(st.sampled_from(FORMS))}
    if method in NEIGHBOURING:
        arguments["graph"] = draw(st.sampled_from([*graphs.NAMES, "stencil"]))      # which has two algorithms
    bare = Call(method)
    if method != "Barrier":
        arguments |= draw(elements(method))
        arguments["in_place"] = method in IN_PLACE and draw(st.sampled_from([False, False, True]))
        sizes = counts(_room(method, arguments, p), p)
        several = st.lists(sizes, min_size=1, max_size=p + 1) if method in WITH_COUNTS else st.lists(
            sizes, min_size=1, max_size=1)
        arguments["counts"] = tuple(draw(several))
        arguments["with_gaps"] = method in WITH_COUNTS and method != "Reduce_scatter" and draw(st.booleans())
    if bare.rooted:
        arguments["root"] = draw(st.integers(0, p - 1))
    if method == "Reduce_scatter" and not arguments["in_place"]:
        arguments["has_recvcounts"] = draw(st.sampled_from([True, True, False]))
    if method != "Barrier":
        arguments |= draw(pieces(arguments, method))
    arguments["engine"] = draw(st.sampled_from(engines()))
    call = Call(method, **arguments)
    return Call(method, algorithm=draw(algorithms(call, p, threads)), **arguments)


@st.composite
def elements(draw: Any, method: str) -> dict[str, Any]:
    """Return a datatype, with an operator or a layout."""
    if Call(method).reduces:
        name = draw(st.sampled_from(present(tuple(kinds.DTYPES))))
        return {"type": name, "op": draw(st.sampled_from(kinds.takes(name, method)))}
    name = draw(st.sampled_from(present(tuple(MOVED))))
    plain_only = kinds.DTYPES[name].names or draw(st.booleans())
    if plain_only:
        return {"type": name}
    sides = ["both", "send", "receive", "odd", *["each"] * (method in TYPED)]
    layouts = [layout for layout in kinds.LAYOUTS if layout != "plain"]
    return {"type": name, "layout": draw(st.sampled_from(layouts)), "side": draw(st.sampled_from(sides))}


def counts(room: int, p: int) -> st.SearchStrategy[int]:
    """Return a strategy for the elements of a block: mostly few, around p or none."""
    return st.one_of(st.integers(0, min(2 * p + 2, room)), st.integers(0, min(600, room)), st.integers(0, room))


def _room(method: str, arguments: dict[str, Any], p: int) -> int:
    """Return the most elements of a block."""
    item = kinds.DTYPES[arguments["type"]].itemsize * kinds.LAYOUTS[arguments.get("layout", "plain")].width
    slow = arguments.get("op") in kinds.USER
    blocks = 1 if method in ("Bcast", "Reduce", "Allreduce", "Scan", "Exscan") else max(p, len(graphs.OFFSETS))
    return max(1, LARGEST // (20 if slow else 1) // item // blocks)


@st.composite
def pieces(draw: Any, arguments: dict[str, Any], method: str) -> dict[str, Any]:
    """Return chunk_bytes and window: few chunks, with sizes that divide the block exactly or miss that by one byte."""
    layout = kinds.LAYOUTS[arguments.get("layout", "plain")]
    block = max(arguments["counts"]) * kinds.DTYPES[arguments["type"]].itemsize * len(layout.picks)
    fine = [n for n in CHUNKS if n * LANES >= block]
    just = sorted({max(1, block // parts + off) for parts in (1, 2, 3, 7) for off in (-1, 0, 1)} if block else {1})
    return {"chunk_bytes": draw(st.sampled_from([None, None, *reversed(fine), *just])),
            "window": draw(st.sampled_from([None, 1, 2, 3, 7]))}


@cache
def engines() -> tuple[str | None, ...]:
    """Return the engines that run here; if kernels compile in the background, a forced engine would not wait."""
    arrives = os.environ.get("MPICOLL_COMPILE") == "background"
    return (None, "mpi4py", *["compiled"] * (not arrives and selftest.check() is None))


@cache
def present(names: tuple[str, ...]) -> list[str]:
    """Return the datatypes that this MPI has, the simplest first."""
    from support.ops import present as has

    able = [name for name in names if name == "MATRIX" or has(name)]
    return sorted(able, key=lambda name: name != "INT")


def algorithms(call: Call, p: int, threads: int) -> st.SearchStrategy[str]:
    """Return a strategy for an algorithm that can serve the call."""
    least = st.sampled_from(["auto"] if faults.known(call, p, threads) else ["auto", NATIVE])
    names, variants = specs(base_collective(call.collective), p, not kinds.commutes(call.op), call.graph)
    more = [st.sampled_from(some) for some in (names, names, variants) if some]     # twice as often without parameters
    return st.one_of(least, *more)


@cache
def specs(collective: str, p: int, ordered: bool, graph: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the algorithms, with and without parameters, that serve p ranks, in operand order if `ordered`.

    `graph` is that of the communicator; it is no parameter that a call could pass.
    """
    names, variants = [], []
    for entry in registered():
        if entry.collective.name != collective or not entry.is_exact or not entry.serves(p):
            continue
        names.append(entry.name)
        rows = [] if graph else [row for grid in entry.grid for row in grid.rows(p)]
        varied = [spec_of(entry.name, row) for row in (*rows[:: max(1, len(rows) // 8)], *nested(entry, p, 6)) if row]
        variants += dict.fromkeys(varied)
    able = lambda spec: _serves(collective, spec, p, ordered, {"graph": graphs.graph(graph, p)} if graph else {})
    return tuple(filter(able, names)), tuple(filter(able, variants))


def _serves(collective: str, spec: str, p: int, ordered: bool, graph: dict[str, Any]) -> bool:
    nodes = (tuple(range(p)),)                  # the ranks share one machine
    entry, parameters = parse_spec(collective, spec)
    try:
        Schedule(entry, p, nodes=nodes, **dict(parameters), **graph)
    except MpicollError:
        return False
    return not ordered or entry.keeps_order(p, nodes, **dict(parameters))
