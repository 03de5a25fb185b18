"""The tables that `mpicoll tune` measures, as files: read, checked, and matched with the ranks at hand.

A file has a table for every MPI library and layout of ranks that was measured; its form is in tables.schema.json. A
communicator goes by the table of its own MPI and layout, and of none else: what was measured elsewhere says nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import MpicollError, TuningError, spans
from ..plans.plan import WINDOW
from ..schedules.collectives import COLLECTIVES
from ..schedules.grouping import Partition
from ..schedules.registry import parse_spec
from ..schedules.schedule import Schedule
from .rules import UNKNOWN_TO_ALL, Rule
from .select import AUTO, NATIVE

SCHEMA = "mpicoll-tuning-1"
READ: dict[str, Tuning] = {}  # by the path as passed: some ranks may run where the file does not exist


@dataclass(frozen=True)
class Table:
    """The rules measured for one MPI library and one placement of ranks on nodes; nodes: as `layout` returns."""

    mpi: str
    nodes: tuple[str, ...]
    rules: dict[str, tuple[Rule, ...]]

    @property
    def title(self) -> str:
        """Return the MPI library and the placement of the measurement."""
        return f"{self.mpi}, {where(self.nodes)}"


@dataclass(frozen=True)
class Tuning:
    """A file of tables."""

    path: str
    tables: tuple[Table, ...]

    def table(self, mpi: str, nodes: Partition) -> tuple[Table | None, str]:
        """Return the table of such ranks; or None, and why there is none."""
        here = layout(nodes)
        matching_table = next((table for table in self.tables if (table.mpi, table.nodes) == (mpi, here)), None)
        if matching_table is not None:
            return matching_table, ""
        has = "; ".join(table.title for table in self.tables)
        return None, f"{self.path} is not for {mpi}, {where(here)}; it is for {has}"


def layout(nodes: Partition) -> tuple[str, ...]:
    """Return the ranks of every node, in short.

    >>> layout(((0, 1, 2), (3, 5), (4,)))
    ('0-2', '3, 5', '4')
    """
    return tuple(spans(ranks) for ranks in nodes)


def where(nodes: Sequence[str]) -> str:
    """Return in words how many ranks are on which nodes."""
    ranks = sum(map(len, members(nodes)))
    several = f" on {len(nodes)} nodes ({'; '.join(nodes)})" if len(nodes) > 1 else " on one node"
    return f"{ranks} rank{'s' * (ranks > 1)}{several}"


def members(nodes: Sequence[str]) -> Partition:
    """Return the inverse of layout.

    >>> members(('0-2', '3, 5', '4'))
    ((0, 1, 2), (3, 5), (4,))
    """
    bounds = [[part.partition("-") for part in text.split(", ")] for text in nodes]
    return tuple(tuple(r for a, _, b in parts for r in range(int(a), int(b or a) + 1)) for parts in bounds)


def library(mpi: Any) -> str:
    """Return the MPI library's name and version, for instance MPICH 5.0.2."""
    vendor, numbers = mpi.get_vendor()
    return f"{vendor} {'.'.join(map(str, numbers))}"


def node(mpi: Any) -> str:
    """Return what ranks of one node have in common: its name and, should names be alike, the number of its start."""
    return f"{mpi.Get_processor_name()} {_start()}"


@cache
def _start() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else ""


def once(path: str, may_be_absent: bool = False) -> Tuning:
    """Return the tables of a file, which this process reads only once. Raises TuningError."""
    if path not in READ:
        validator()  # what is to be written must be read again
        READ[path] = Tuning(path, ()) if may_be_absent and not Path(path).exists() else read(path)
    return READ[path]


def write(path: Path, measured: dict[str, Any]) -> None:
    """Put a table in the place of one of the same kind in a file; rules of other collectives stay. Raises OSError."""
    kept = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else []
    same = [old for old in kept if (old["mpi"], old["nodes"]) == (measured["mpi"], measured["nodes"])]
    table = {**measured, "rules": {**(same[0]["rules"] if same else {}), **measured["rules"]}}
    content = {"schema": SCHEMA, "tables": [table, *(old for old in kept if old not in same)]}
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def row(rule: Rule) -> dict[str, Any]:
    """Return a rule as a file has it."""
    cut = {} if rule.chunk_bytes is None else {"chunk_bytes": rule.chunk_bytes, "window": rule.window}
    return {"from_bytes": rule.above, "algorithm": rule.algorithm, **cut}


def read(path: str | os.PathLike[str]) -> Tuning:
    """Return the tables of a file. Raises TuningError, which says where in it what is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise TuningError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    return parse(text, str(path))


def parse(text: str, path: str) -> Tuning:
    """Return the tables of a text. Raises TuningError."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise TuningError(f"{path} is no JSON: {error}") from None
    _validate(content, path)
    tables = tuple(_table(item, f"{path}: $.tables[{i}]") for i, item in enumerate(content["tables"]))
    for i, table in enumerate(tables):
        if (table.mpi, table.nodes) in [(other.mpi, other.nodes) for other in tables[:i]]:
            raise TuningError(f"{path}: $.tables[{i}]: there are two for {table.title}")
    return Tuning(path, tables)


def _validate(content: Any, path: str) -> None:
    if error := min(validator().iter_errors(content), key=lambda violation: len(violation.path), default=None):
        raise TuningError(f"{path}: {error.json_path}: {error.message}")


@cache
def validator() -> Any:
    """Return the validator of tuning tables. Raises TuningError where there is no jsonschema."""
    from importlib.resources import files  # here, since it loads much

    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        raise TuningError("a tuning table needs jsonschema: pip install 'mpicoll[tune]'") from None
    return Draft202012Validator(json.loads(files(__package__).joinpath("tables.schema.json").read_text()))


def _table(content: dict[str, Any], at: str) -> Table:
    nodes = tuple(content["nodes"])
    ranks = members(nodes)
    each_once = sorted(rank for node in ranks for rank in node) == list(range(sum(map(len, ranks))))
    if not each_once or (layout(ranks), ranks) != (nodes, tuple(sorted(ranks))):
        raise TuningError(f"{at}.nodes: {list(nodes)} does not name every rank from 0 on once, in order and in short")
    rules = {
        collective: tuple(_rules(collective, rules, ranks, f"{at}.rules.{collective}"))
        for collective, rules in content["rules"].items()
    }
    return Table(content["mpi"], nodes, rules)


def _rules(collective: str, content: Sequence[dict[str, Any]], nodes: Partition, at: str) -> list[Rule]:
    if collective not in COLLECTIVES and collective != "allgatherv":
        raise TuningError(f"{at}: {_no_table_for(collective)}")
    rules: list[Rule] = []
    for i, rule in enumerate(content):
        above = rule["from_bytes"]
        if (above <= rules[-1].above) if rules else above:
            wanted = f"above {rules[-1].above}, the one before" if rules else "0, since it is the first"
            raise TuningError(f"{at}[{i}].from_bytes: {above} must be {wanted}")
        try:
            _check(collective, rule["algorithm"], nodes)
        except (MpicollError, ValueError) as error:
            raise TuningError(f"{at}[{i}].algorithm: {error}") from None
        chunk = rule.get("chunk_bytes")  # JSON's integers may be written 32768.0
        whole = None if chunk is None else int(chunk)
        rules.append(Rule(int(above), rule["algorithm"], whole, _why(rule), int(rule.get("window", WINDOW))))
    return rules


def _no_table_for(collective: str) -> str:
    if collective in UNKNOWN_TO_ALL:
        return "its ranks know only their own counts, so bytes decide nothing"
    return f"no collective is called {collective!r}"


def _check(collective: str, algorithm: str, nodes: Partition) -> None:
    if algorithm not in (NATIVE, AUTO):
        entry, parameters = parse_spec(collective, algorithm)
        Schedule(entry, sum(map(len, nodes)), nodes=nodes, **dict(parameters))


def _why(rule: dict[str, Any]) -> str:
    if not {"at_bytes", "us", "native_us"} <= rule.keys():
        return "as the tuning table says"
    return f"measured: {rule['at_bytes']} bytes took {rule['us']:g} µs, native's {rule['native_us']:g}"
