"""The registry that makes an algorithm known everywhere: its function, and what is declared about it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, get_type_hints

from ..compression.codecs import Codec
from ..errors import ParameterError, PreconditionError, UnknownAlgorithm
from .claims import Claims
from .collectives import COLLECTIVES, PLAIN, Block, Collective, base_collective
from .combinators import Layer, Rename, Stack, mirror
from .grids import Grid, every_root
from .grouping import Partition, homes, within
from .ir import Strands, strands
from .parameters import OWN, Kind, Parameter


class Requirement(NamedTuple):
    """A condition on the number of ranks, in words and as a predicate of p and the parameters."""

    words: str
    holds: Callable[..., bool]


@dataclass(frozen=True)
class Algorithm:
    """One registered algorithm: its function and what is declared about it.

    - body: a function of (p, rank, *, parameters) that yields one rank's steps; where `layered`, of (p, *,
      parameters) that returns layers (see combinators.Stack).
    - share: how many blocks the vector has, or each rank's share of it, as a function of p and the parameters: what the
      decorator takes as `blocks`. Other collectives (see Collective.is_divisible) have theirs by definition.
    - cuts_shares: whether its blocks are parts of ranks' shares, so that no other algorithm can run it as a part.
    - strand: the strand in which a block moves, None where there is one.
    - ordered: whether operands are combined in rank order, so that a non-commutative operator gives its right result
      (rooted ones: at root 0); a function of p and the parameters where it depends on them.
    - direct: whether a rank handles only blocks it starts or ends with, so that in a form with counts for each rank
      (gatherv) it does not need the counts of other ranks. The proof checks this.
    - divides_at_owner: whether a rank that keeps a result does its last reduction, and sends the result after it. That
      rank then divides an average; otherwise every rank divides the results that it keeps. The proof checks this.
    - uniform: whether every rank takes the steps of rank 0, with peers as many ranks further on, modulo p. Blocks may
      have other names, but messages have as many, and as many are copied. A simulation then needs one rank.
    - requires: the condition on p, if some p are not supported.
    - grid: parameters and ranks that it is proved on besides its defaults.
    """

    collective: Collective
    name: str
    body: Callable[..., Any]
    claims: Claims
    share: Callable[..., int] = lambda p, **_: 1
    cuts_shares: bool = False
    strand: Callable[[Any], int] | None = None
    ordered: bool | Callable[..., bool] = False
    direct: bool = False
    divides_at_owner: bool | Callable[..., bool] = False
    uniform: bool = False
    layered: bool = False
    requires: Requirement | None = None
    grid: tuple[Grid, ...] = ()
    parameters: dict[str, Parameter] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the collective and the name."""
        return f"{self.collective.name} {self.name}"

    @property
    def is_exact(self) -> bool:
        """Return whether blocks arrive unchanged: the algorithm has no codec parameter."""
        return "codec" not in self.parameters

    @property
    def defaults(self) -> dict[str, Any]:
        """Return the default value of every parameter."""
        return {name: parameter.default for name, parameter in self.parameters.items()}

    def resolve(self, p: int, nodes: Partition | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Return all parameters as the body gets them.

        Raises ParameterError for one that does not exist or is out of range, PreconditionError if p is not supported.
        """
        if unknown := sorted(set(parameters) - set(self.parameters)):
            known = ", ".join(self.parameters) or "none"
            raise ParameterError(f"{self.title} has no parameter {', '.join(unknown)}; it has: {known}")
        resolved = {
            name: parameter.resolve(self.title, name, parameters.get(name, parameter.default), p, nodes)
            for name, parameter in self.parameters.items()
        }
        if self.requires and not self.requires.holds(p, **resolved):
            values = "".join(f", {name} is {value!r}" for name, value in parameters.items())
            raise PreconditionError(f"{self.title} needs {self.requires.words}, and p is {p}{values}")
        return resolved

    def codec(self, resolved: dict[str, Any]) -> Codec | None:
        """Return the codec of the algorithm, or of its part that has one; None if it sends no codes.

        Raises ParameterError for a group that the codec cannot have, for parts with different codecs, and for a part
        with feedback: it would write the residual to its input, which belongs to the whole algorithm.
        """
        parts = [x for x in resolved.values() if isinstance(x, Chosen)]
        if any(dict(x.parameters).get("feedback", "no") != "no" for x in parts):
            raise ParameterError(f"{self.title} has a part with feedback, which only a whole algorithm can have")
        codecs = {x.entry.codec(x.parts()) for x in parts} - {None}
        if "codec" in resolved:
            codecs.add(resolved["codec"].of_group(resolved["group"]) if resolved["group"] != OWN else resolved["codec"])
        if len(codecs) > 1:
            raise ParameterError(f"{self.title} has parts with {' and '.join(map(str, codecs))}; one codec must do")
        return next(iter(codecs), None)

    def serves(self, p: int) -> bool:
        """Return whether the algorithm supports p ranks, with its defaults."""
        resolved = {name: x.resolve(self.title, name, x.default, p, None) for name, x in self.parameters.items()}
        return self.requires is None or self.requires.holds(p, **resolved)

    def make(self, p: int, resolved: dict[str, Any]) -> Callable[[int], Strands]:
        """Return the program of each rank, for root 0 and resolved parameters."""
        if self.layered:
            return self.stack(p, resolved)
        return lambda rank: strands(self.body(p, rank, **resolved))

    def stack(self, p: int, resolved: dict[str, Any]) -> Stack:
        """Return the layers of a layered algorithm, one after the other."""
        layers = self.body(p, **resolved)
        return Stack(self.collective.blocks(p, self.share(p, **resolved)), layers)

    def __call__(self, p: int, rank: int, **parameters: Any) -> Strands:
        """Return the steps of one rank, for root 0."""
        return self.make(p, self.resolve(p, **parameters))(rank)

    def blocks(self, p: int, nodes: Partition | None = None, /, **parameters: Any) -> int:
        """Return how many blocks the vector has, or each rank's share of it; 1 where blocks are named otherwise."""
        return self.share(p, **self.resolve(p, nodes, **parameters))

    def keeps_order(self, p: int = 8, nodes: Partition | None = None, /, **parameters: Any) -> bool:
        """Return whether it serves operators that do not commute, on p ranks with these parameters."""
        return self.ordered(p, **self.resolve(p, nodes, **parameters)) if callable(self.ordered) else self.ordered

    def divides_where_owned(self, p: int, resolved: dict[str, Any]) -> bool:
        """Return whether it `divides_at_owner`, on p ranks with these resolved parameters."""
        return self.divides_at_owner(p, **resolved) if callable(self.divides_at_owner) else self.divides_at_owner

    def choices(self, p: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
        """Yield the parameters and roots it is proved on at p ranks: its defaults on all roots, then its grid."""
        yield {}, every_root(p)
        for grid in self.grid:
            for row in grid.rows(p):
                if {**self.defaults, **row} != self.defaults:
                    yield row, grid.roots(p)


@dataclass(frozen=True)
class Chosen:
    """An algorithm and its parameters as a building block of another one."""

    entry: Algorithm
    parameters: tuple[tuple[str, Any], ...] = ()
    nodes: Partition | None = None

    @cached_property
    def node(self) -> Mapping[int, int] | None:
        """Return the number of every rank's node."""
        return None if self.nodes is None else homes(self.nodes)

    def ordered(self, ranks: Sequence[int]) -> bool:
        """Return whether it keeps operand order on these ranks."""
        return self.entry.keeps_order(len(ranks), within(self.node, ranks), **dict(self.parameters))

    def blocks(self, ranks: Sequence[int]) -> int:
        """Return how many blocks its vector has on these ranks."""
        return self.entry.blocks(len(ranks), within(self.node, ranks), **dict(self.parameters))

    def parts(self) -> dict[str, Any]:
        """Return those of its parameters that choose a codec or an algorithm; they do not depend on the ranks."""
        values = {**self.entry.defaults, **dict(self.parameters)}
        return {
            name: parameter.resolve(self.entry.title, name, values[name], 1, self.nodes)
            for name, parameter in self.entry.parameters.items()
            if parameter.kind.of_codes
        }

    def claim(self, what: str, p: int, n: Any) -> Any:
        """Return the value of one of its formulas, a field of Claims, for p ranks and n bytes."""
        claims = self.entry.claims
        return claims.evaluate(getattr(claims, what), p, n, **self.entry.resolve(p, **dict(self.parameters)))

    def layer(self, ranks: Sequence[int], parts: Rename, *, mirrored: bool = False) -> Layer:
        """Return this algorithm as a layer on some of the ranks; backwards in time if mirrored.

        parts maps one of its blocks to ours that make it up. Raises PreconditionError.
        """
        p = len(ranks)
        resolved = self.entry.resolve(p, within(self.node, ranks), **dict(self.parameters))
        make = self.entry.make(p, resolved)
        strand = self.entry.strand
        if isinstance(make, Stack):
            strand = make.strand if make.strands else None
        moves: dict[Block, int] = {}
        if strand is not None:
            names = self.entry.collective.blocks(p, self.entry.share(p, **resolved))
            moves = {ours: strand(inner) for inner in names for ours in parts(inner)}
        return Layer(lambda _, rank: mirror(make(rank)) if mirrored else make(rank), ranks, parts, moves)

    def evenly(self, ranks: Sequence[int], total: int, *, mirrored: bool = False) -> Layer:
        """Return this algorithm as a layer on some of the ranks, each block an equal share of `total` blocks."""
        own = self.blocks(ranks)
        return self.layer(ranks, lambda b: range(-(-b * total // own), -(-(b + 1) * total // own)), mirrored=mirrored)


_REGISTRY: dict[str, dict[str, Algorithm]] = {name: {} for name in COLLECTIVES}


def algorithm(
    collective: str,
    *,
    blocks: int | Callable[..., int] = 1,
    strand: Callable[[Any], int] | None = None,
    ordered: bool | Callable[..., bool] = False,
    direct: bool = False,
    divides_at_owner: bool | Callable[..., bool] = False,
    uniform: bool = False,
    layered: bool = False,
    requires: Requirement | None = None,
    grid: Sequence[Grid] = (),
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Algorithm]:
    """Register a function of (p, rank, *, parameters) as an algorithm; the one edit that adds it everywhere.

    See Algorithm for what is declared; every parameter is annotated with a kind (see parameters.py). Raises
    UnknownAlgorithm for a collective that does not exist, ValueError when the docstring lacks a field of the grammar
    (see claims.py), a parameter has no kind, the name is taken, or `blocks` is declared where no vector is cut.
    """

    def register(body: Callable[..., Any]) -> Algorithm:
        own = name or body.__name__
        if collective not in _REGISTRY:
            raise UnknownAlgorithm("collective", collective, _REGISTRY)
        if own in _REGISTRY[collective]:
            raise ValueError(f"{collective} {own} is registered twice")
        if blocks != 1 and not COLLECTIVES[collective].is_divisible:
            raise ValueError(f"{collective} {own} declares blocks, and {collective} has those by what it means")
        parameters = _parameters(f"{collective} {own}", body)
        if COLLECTIVES[collective].naming == "edge" and "graph" not in parameters:
            raise ValueError(f"{collective} {own} needs a parameter graph: Neighbourhood = TOPOLOGY")
        share = blocks if callable(blocks) else lambda p, **_: blocks
        entry = Algorithm(
            COLLECTIVES[collective],
            own,
            body,
            Claims.parse(f"{collective} {own}", body.__doc__),
            share=share,
            cuts_shares=blocks != 1 and COLLECTIVES[collective].naming == "rank",
            strand=strand,
            ordered=ordered,
            direct=direct,
            divides_at_owner=divides_at_owner,
            uniform=uniform,
            layered=layered,
            requires=requires,
            grid=tuple(grid),
            parameters=parameters,
        )
        _REGISTRY[collective][own] = entry
        return entry

    return register


def _parameters(who: str, body: Callable[..., Any]) -> dict[str, Parameter]:
    hints = get_type_hints(body, include_extras=True)
    parameters: dict[str, Parameter] = {}
    for key, parameter in inspect.signature(body).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            kinds = [x for x in getattr(hints.get(key), "__metadata__", ()) if isinstance(x, Kind)]
            if not kinds:
                where = "mpicoll/schedules/parameters.py"
                raise ValueError(f"the parameter {key} of {who} has no kind; annotate it, see {where}")
            parameters[key] = Parameter(parameter.default, kinds[0])
    return parameters


def registered() -> Iterator[Algorithm]:
    """Yield every algorithm, collective by collective, in the order of registration."""
    for entries in _REGISTRY.values():
        yield from entries.values()


def every(collective: str, *but: str) -> Callable[[int], list[str]]:
    """Return a function of p, for a grid, that lists a collective's exact algorithms but some, later ones too.

    Algorithms that no other one can run are left out.
    """
    return lambda p: [x for x in exact_algorithms(collective) if x not in but and not find(collective, x).cuts_shares]


def list_algorithms() -> dict[str, tuple[str, ...]]:
    """Return the names of all algorithms: {"allreduce": ("ring", …), …}; gather's again as gatherv's, and so on."""
    return {collective: tuple(_REGISTRY[base_collective(collective)]) for collective in (*COLLECTIVES, *PLAIN)}


def exact_algorithms(collective: str) -> tuple[str, ...]:
    """Return the names of a collective's algorithms whose results are those of MPI's own. Raises UnknownAlgorithm."""
    return tuple(name for name, entry in _entries(collective).items() if entry.is_exact)


def _entries(collective: str) -> dict[str, Algorithm]:
    entries = _REGISTRY.get(base_collective(collective))
    if entries is None:
        raise UnknownAlgorithm("collective", collective, (*COLLECTIVES, *PLAIN))
    return entries


def find(collective: str, name: str) -> Algorithm:
    """Return the algorithm of that name. Raises UnknownAlgorithm, naming the near ones."""
    entries = _entries(collective)
    if name not in entries:
        raise UnknownAlgorithm(f"{collective} algorithm", name, entries)
    return entries[name]


@lru_cache(maxsize=1024)
def parse_spec(collective: str, spec: str) -> tuple[Algorithm, tuple[tuple[str, Any], ...]]:
    """Return an algorithm and its parameters from "name" or "name(key=value, …)"; bare words are strings.

    Raises UnknownAlgorithm for a name, ParameterError for a parameter that does not exist, ValueError for what
    cannot be read. Ranges are checked when p is known.
    """
    entry = find(collective, spec.partition("(")[0].strip())
    if "(" not in spec:
        return entry, ()
    try:
        parameters = _keywords(ast.parse(spec.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError):
        raise ParameterError(f"cannot read {spec!r}: write it as name(key=value, …)") from None
    if unknown := sorted(set(parameters) - set(entry.parameters)):
        known = ", ".join(entry.parameters) or "none"
        raise ParameterError(f"{entry.title} has no parameter {', '.join(unknown)}; it has: {known}")
    return entry, tuple(sorted(parameters.items()))


def _keywords(call: ast.expr) -> dict[str, Any]:
    """Return the parameters of name(key=value, …). Raises ValueError for anything else."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError
    parameters = {k.arg: _value(k.value) for k in call.keywords if k.arg}
    if len(parameters) < len(call.keywords):  # one twice, or **
        raise ValueError
    return parameters


def _value(node: ast.expr) -> Any:
    """Return a parameter's value: words and calls are other algorithms' specs, lists become tuples."""
    if isinstance(node, ast.Name) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return ast.unparse(node)
    return _hashable(ast.literal_eval(node))


def _hashable(value: Any) -> Any:
    if isinstance(value, set | dict):
        raise ValueError
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def ordered_names(collective: str, p: int = 8, nodes: Partition | None = None) -> list[str]:
    """Return the algorithms of a collective that serve non-commutative operators on p ranks, with their defaults."""
    return [a.name for a in _REGISTRY[base_collective(collective)].values() if a.serves(p) and a.keeps_order(p, nodes)]


def check_order(entry: Algorithm, p: int, nodes: Partition | None = None, /, **parameters: Any) -> None:
    """Raise PreconditionError, naming other algorithms, unless this one serves operators that do not commute."""
    if not entry.keeps_order(p, nodes, **parameters):
        able = " or ".join(ordered_names(entry.collective.name, p, nodes)) or "native"
        raise PreconditionError(
            f"{entry.title} does not keep operand order here, and the operator does not commute; choose {able}"
        )
