"""docs/ALGORITHMS.md, its pictures and README's table, written from the registry: `make docs`.

    python -m mpicoll.describe.generate [DIRECTORY]      the checkout, by default the current directory

The tables state what docstrings claim and registrations declare. Numbers are measured: schedules are executed
symbolically.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..proofs.determinism import LOOKED_AT
from ..schedules.collectives import COLLECTIVES, PLAIN
from ..schedules.parameters import Groups, OneOf
from ..schedules.registry import Algorithm, registered
from ..schedules.schedule import Schedule
from .catalogue import USUAL, facts, measured, same_bits_words, served, strands, suits
from .formulas import pretty
from .picture import Picture, many, share
from .svg import svg

MEASURED = (8, 13)  # ranks for which numbers are given
PICTURED = {"halving_doubling": 13, "torus": 8}  # ranks of a picture, where the rule below would not show the point
FEW, MESSAGES = 5, 40  # ranks of any other picture, unless it has more messages than fit
BEGIN, END = "<!-- algorithms, written by make docs -->", "<!-- end of algorithms -->"
HEAD = """\
# Algorithms

<!-- Written by `make docs` from the docstrings and registrations in mpicoll/algorithms; edit those. -->

Every algorithm of mpicoll, with its cost, its source and a picture. `mpicoll list` prints the same for your version,
`mpicoll verify` proves it, `mpicoll show COLLECTIVE ALGORITHM -p 5` draws it.

## How to read the tables

| column | meaning |
| --- | --- |
| steps | the longest chain of messages that wait for each other |
| bytes per rank | the most bytes that any rank sends or receives |
| p = 8, p = 13 | steps and bytes as measured, with default parameters and 4 ranks per node |
| memory | the most scratch memory that any rank needs, for one chunk |
| order kept | whether operands are combined in rank order, as operators that do not commute need |
| same bits | what cannot change the bits of a result: see [below](#which-bits) |
| for p | the numbers of ranks that the algorithm supports |
| beyond the source | what the algorithm takes beyond the cost in its source |

| in formulas | meaning |
| --- | --- |
| p | the number of ranks |
| n | the bytes of the whole vector, also for scatter, gather, allgather and reduce_scatter; of one rank's send buffer \
for alltoall; of the block for one neighbour for neighbourhood collectives |
| q, power(k) | the largest power of two, and of k, up to p |
| lg, lg_k | the logarithm to base 2, and to base k, rounded up |
| [p > q] | 1 if the condition holds, else 0 |
| ones(i), digit(k, i, z) | how many of 0..p−1 have bit i set, and how many have z as digit i in base k |
| steps(a, p), moved(a, p), scratch(a, p) | the steps, bytes and memory of another algorithm a |
| degree(graph) | the most neighbours that a rank sends to or receives from, without itself |
| dimensions(graph) | of a stencil: the dimensions of its grid |
| hops(graph) | of a stencil: the blocks that a rank sends in all if each travels alone |
| branches(graph) | the same if one copy serves all neighbours in the same direction |
"""
BITS = """

## Which bits

Floating-point sums depend on the order of the additions. An algorithm fixes that order, its *reduction tree*, for every
block of the vector. The tree depends only on p, the parameters, the root and, in hierarchical algorithms, which ranks
share a node. So a result is **the same bit for bit**

- from run to run;
- for any chunk size and window, in place or not, on either engine;
- in blocking, nonblocking and persistent calls, whatever else is in flight and whichever rank is late;
- on all ranks that have it, if the column *same bits* says so.

The column is computed: schedules are executed on reduction trees instead of numbers, and the ranks' trees compared
(`mpicoll/proofs/determinism.py`; for p = {first}–{last}, with default parameters and those of the proofs).
`mpicoll verify` proves that the tables that engines run have the same trees. The tests compute the trees in NumPy, and
compare the results with those of real ranks. In scan and exscan every rank has a result of its own; in reduce and
reduce_scatter one rank has each result. Collectives that only move data do not change bits. `mpicoll show` prints the
tree of a block.

**Other bits** may come from another algorithm, other parameters, another p or root, other nodes, or another count,
which moves elements to other blocks. `auto` chooses by the size of the vector and the machine. If bits must not depend
on those, name the algorithm with `using`. MPI's own collectives (`native`) guarantee none of this.

All this holds for MPI's operators on the types that mpicoll has kernels for, and for `mpicoll.AVG`, the same sum
divided once. It does not hold for

- which NaN results if several are among the operands, and which of 0.0 and -0.0 results from MAX, MIN, MAXLOC and
  MINLOC: there left∘right and right∘left may differ;
- the padding between the members of a pair (MAXLOC, MINLOC);
- operators of MPI.Op.Create, unless the function itself is deterministic. They are always applied in the same order.
  Results are the same on all ranks if the function commutes bit for bit or was created with commute=False;
- ranks whose processors round, or flush subnormal numbers, differently.
"""


def variants(entry: Algorithm) -> list[dict[str, Any]]:
    """Return the choices that get a picture and numbers: the defaults, or each word of a parameter that has a few."""
    for name, parameter in entry.parameters.items():
        if isinstance(parameter.kind, OneOf):
            return [{name: word} for word in parameter.kind.words]
    return [{}]


# -- pictures -------------------------------------------------------------------------------------------------


def picture_path(entry: Algorithm, variant: dict[str, Any]) -> str:
    """Return where a variant's picture is, seen from docs/."""
    return f"pictures/{'-'.join([entry.collective.name, entry.name, *map(str, variant.values())])}.svg"


def pictured(entry: Algorithm, variant: dict[str, Any]) -> Schedule:
    """Return the schedule to draw.

    It is of few ranks, of more for strands and groups to show, of fewer where messages are many.
    """
    if entry.name in PICTURED:
        return Schedule(entry, PICTURED[entry.name], **variant)
    grouped = any(isinstance(parameter.kind, Groups) for parameter in entry.parameters.values())
    wide = grouped or strands(entry, served(entry, USUAL)) > 1
    schedules = [Schedule(entry, p, **variant) for p in (*[USUAL] * wide, FEW, 4, 3, 2) if suits(entry, p, **variant)]
    fitting = (schedule for schedule in schedules if Picture(schedule).total <= MESSAGES)
    return next(fitting, None) or Schedule(entry, served(entry, FEW), **variant)


# -- tables ---------------------------------------------------------------------------------------------------


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _code(expression: str) -> str:
    bound = "at most " if expression.startswith("at most ") else ""
    return f"{bound}`{pretty(expression).removeprefix(bound)}`"


def _table(collective: str) -> str:
    entries = [entry for entry in registered() if entry.collective.name == collective]
    reduces = COLLECTIVES[collective].reduces
    head = ["algorithm", "steps", "bytes per rank", *(f"p = {p}" for p in MEASURED), "memory"]
    head += ["order kept", "same bits"] * reduces + ["for p", "parameters", "source", "beyond the source"]
    return _row(*head) + _row(*["---"] * len(head)) + "".join(_row(*_cells(entry)) for entry in entries)


def _cells(entry: Algorithm) -> Iterator[str]:
    entry_facts, claims = facts(entry), entry.claims
    yield f"**{entry.name}**<br>{'. '.join([entry_facts['idea'].rstrip('.'), *_traits(entry_facts), _links(entry)])}"
    yield _code(claims.steps)
    yield _code(claims.bytes_per_rank)
    for p in MEASURED:
        yield "<br>".join(_numbers(entry, p, variant) for variant in variants(entry))
    yield _code(claims.scratch)
    if entry.collective.reduces:
        yield _order(entry_facts)
        yield same_bits_words(entry_facts)
    yield entry_facts["requires"] or "any"
    yield "<br>".join(f"`{name}={x['default']}`: {x['range']}" for name, x in entry_facts["parameters"].items()) or "–"
    yield claims.source
    yield claims.excess or "–"


def _links(entry: Algorithm) -> str:
    every = variants(entry)
    words = [", ".join(map(str, variant.values())) or "Picture" for variant in every]
    links = ", ".join(f"[{word}]({picture_path(entry, variant)})" for word, variant in zip(words, every))
    return links if len(every) == 1 else f"Pictures: {links}"


def _numbers(entry: Algorithm, p: int, variant: dict[str, Any]) -> str:
    label = "".join(f"{value}: " for value in variant.values())
    cost = measured(entry, p, **variant)
    if cost is None:
        return f"{label}–"
    moved = "" if entry.collective.naming == "none" else f", {share(cost.bytes)}"
    return f"{label}{many(cost.steps, 'step')}{moved}"


def _order(entry_facts: dict[str, Any]) -> str:
    if entry_facts["order_depends_on_parameters"]:
        return f"by parameters; {'yes' if entry_facts['keeps_operand_order'] else 'no'} by default"
    return "yes" if entry_facts["keeps_operand_order"] else "no"


def _traits(entry_facts: dict[str, Any]) -> list[str]:
    direct = ["Direct: ranks handle only blocks they start or end with"] if entry_facts["direct"] else []
    return direct + ([f"{entry_facts['strands']} strands side by side"] if entry_facts["strands"] > 1 else [])


def _section(collective: str) -> str:
    also = [vector for vector, plain in PLAIN.items() if plain == collective]
    served = f"The same algorithms serve {' and '.join(also)}.\n\n" if also else ""
    return f"\n## {collective}\n\n{served}{_table(collective)}"


def _bits() -> str:
    return BITS.format(first=LOOKED_AT[0], last=LOOKED_AT[-1])


# -- files ----------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Return every file under docs/ that is written, by its path there."""
    named = [collective for collective in COLLECTIVES if any(x.collective.name == collective for x in registered())]
    contents = ", ".join(f"[{name}](#{name})" for name in named)
    page = f"{HEAD}\n{contents}; [which bits](#which-bits)\n{''.join(map(_section, named))}{_bits()}"
    pictures = {picture_path(x, variant): svg(pictured(x, variant)) for x in registered() for variant in variants(x)}
    return {"ALGORITHMS.md": page, **pictures}


def readme(text: str) -> str:
    """Return the text of README with its table of algorithms updated."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{_families()}{END}{rest.partition(END)[2]}"


def _families() -> str:
    rows = _row("collective", "algorithms") + _row("---", "---")
    for collective in COLLECTIVES:
        names = [entry.name for entry in registered() if entry.collective.name == collective]
        also = "".join(f", {vector}" for vector, plain in PLAIN.items() if plain == collective)
        rows += _row(f"{collective}{also}", ", ".join(names))
    return rows


def changes(root: Path) -> dict[str, str | None]:
    """Return the outdated files of a checkout.

    The dictionary maps a path to the content it should have; None means that the file should be deleted.
    """
    wanted: dict[str, str | None] = {f"docs/{path}": content for path, content in pages().items()}
    wanted["README.md"] = readme((root / "README.md").read_text(encoding="utf-8"))
    left = (f"docs/pictures/{file.name}" for file in sorted((root / "docs" / "pictures").glob("*.svg")))
    wanted |= {path: None for path in left if path not in wanted}
    return {path: content for path, content in wanted.items() if content != _content(root / path)}


def _content(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.exists() else None


def write(root: Path) -> list[str]:
    """Write outdated files, delete pictures that are no longer generated, and return the paths."""
    changed = changes(root)
    for path, content in changed.items():
        if content is None:
            (root / path).unlink()
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content, encoding="utf-8")
    return list(changed)


if __name__ == "__main__":
    for path in write(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print(path)
