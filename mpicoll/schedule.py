"""The registry that makes an algorithm known everywhere, and the schedules made of its entries."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from .claims import Claims
from .collectives import COLLECTIVES, Block, Collective
from .combine import forward, rotate, then
from .errors import PreconditionError, UnknownAlgorithm
from .ir import Steps, Strands, strands


@dataclass(frozen=True)
class Algorithm:
    """One registered algorithm: its function and what is declared about it.

    blocks: how many blocks the vector has, as a function of p and the parameters (collectives named by
    rank or pair have theirs by definition). ordered: whether operands are combined in rank order, so that
    a non-commutative operator gives its right result (rooted ones: at root 0); a function of the parameters
    where it depends on them.
    """

    collective: Collective
    name: str
    body: Callable[..., Steps | Strands]
    blocks: Callable[..., int]
    ordered: bool | Callable[..., bool]
    claims: Claims
    parameters: dict[str, Any] = field(default_factory=dict)

    def keeps_order(self, **given: Any) -> bool:
        """Whether it serves operators that do not commute, with these parameters."""
        return self.ordered(**{**self.parameters, **given}) if callable(self.ordered) else self.ordered

    def __call__(self, p: int, rank: int, **parameters: Any) -> Strands:
        """The steps of one rank, for root 0."""
        return strands(self.body(p, rank, **parameters))


_REGISTRY: dict[str, dict[str, Algorithm]] = {name: {} for name in COLLECTIVES}


def algorithm(
    collective: str,
    *,
    blocks: int | Callable[..., int] = 1,
    ordered: bool | Callable[..., bool] = False,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Algorithm]:
    """Register a function of (p, rank, *, parameters) as an algorithm; the one edit that adds it everywhere.

    Raises ValueError when the docstring lacks a field of the grammar (see claims.py) or the name is taken.
    """

    def register(body: Callable[..., Any]) -> Algorithm:
        own = name or body.__name__
        if own in _REGISTRY[collective]:
            raise ValueError(f"{collective} {own} is registered twice")
        count = blocks if callable(blocks) else lambda p, **_: blocks
        keywords = {k: v.default for k, v in inspect.signature(body).parameters.items() if v.kind is v.KEYWORD_ONLY}
        entry = Algorithm(
            COLLECTIVES[collective],
            own,
            body,
            count,
            ordered,
            Claims.parse(f"{collective} {own}", body.__doc__),
            keywords,
        )
        _REGISTRY[collective][own] = entry
        return entry

    return register


def registered() -> Iterator[Algorithm]:
    """Every algorithm, collective by collective, in the order of registration."""
    for entries in _REGISTRY.values():
        yield from entries.values()


def algorithms() -> dict[str, tuple[str, ...]]:
    """The names of all algorithms: {"allreduce": ("ring", …), …}."""
    return {collective: tuple(entries) for collective, entries in _REGISTRY.items()}


def find(collective: str, name: str) -> Algorithm:
    """The algorithm of that name. Raises UnknownAlgorithm, naming the near ones."""
    if collective not in _REGISTRY:
        raise UnknownAlgorithm("collective", collective, _REGISTRY)
    if name not in _REGISTRY[collective]:
        raise UnknownAlgorithm(f"{collective} algorithm", name, _REGISTRY[collective])
    return _REGISTRY[collective][name]


@lru_cache(maxsize=1024)
def parse_spec(collective: str, spec: str) -> tuple[Algorithm, tuple[tuple[str, Any], ...]]:
    """An algorithm and its parameters from "name" or "name(key=value, …)"; bare words are strings.

    Raises UnknownAlgorithm for a name and ValueError for a parameter that does not exist.
    """
    entry = find(collective, spec.partition("(")[0].strip())
    if "(" not in spec:
        return entry, ()
    try:
        call = ast.parse(spec.strip(), mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        values = [
            (str(k.arg), k.value.id if isinstance(k.value, ast.Name) else ast.literal_eval(k.value))
            for k in call.keywords
        ]
        given = dict(values)
        assert len(given) == len(values)
    except (SyntaxError, ValueError, AssertionError):
        raise ValueError(f"cannot read {spec!r}: write it as name(key=value, …)") from None
    unknown = set(given) - set(entry.parameters)
    if unknown:
        known = ", ".join(entry.parameters) or "none"
        raise ValueError(f"{collective} {entry.name} has no parameter {', '.join(sorted(unknown))}; it has: {known}")
    return entry, tuple(sorted(given.items()))


class Schedule:
    """One algorithm at one p, root and choice of parameters: every rank's program, made when asked for.

    commutative=False asks for the form that combines operands in rank order for every root.
    """

    def __init__(self, entry: Algorithm, p: int, root: int = 0, *, commutative: bool = True, **parameters: Any) -> None:
        if p < 1:
            raise ValueError(f"p is {p}; a schedule has at least 1 rank")
        if not 0 <= root < p:
            raise ValueError(f"root is {root}; it must be in 0..{p - 1}")
        if not commutative and entry.collective.reduces and not entry.keeps_order(**parameters):
            raise PreconditionError(
                f"{entry.collective.name} {entry.name} does not keep operand order, and the operator does not commute; "
                f"choose {' or '.join(ordered_names(entry.collective.name)) or 'native'}"
            )
        self.algorithm, self.p, self.root, self.parameters = entry, p, root, parameters
        self.collective = entry.collective
        self.commutative = commutative

    def __repr__(self) -> str:
        return f"<Schedule {self.title} p={self.p}>"

    @property
    def title(self) -> str:
        """Collective, algorithm and parameters, and the root where it is not rank 0."""
        given = ", ".join(f"{k}={v}" for k, v in self.parameters.items())
        root = f" root {self.root}" if self.root else ""
        order = "" if self.commutative else " in rank order"
        return f"{self.collective.name} {self.algorithm.name}{f'({given})' if given else ''}{root}{order}"

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every block's name."""
        match self.collective.naming:
            case "vector":
                return tuple(range(self.algorithm.blocks(self.p, **self.parameters)))
            case "rank":
                return tuple(range(self.p))
            case "pair":
                return tuple((s, d) for s in range(self.p) for d in range(self.p))
        return ()

    def program(self, rank: int) -> Strands:
        """The strands of one rank, roots and operand order taken care of."""
        if not self.collective.rooted or self.root == 0:
            return self.algorithm(self.p, rank, **self.parameters)
        if self.collective.reduces and not self.commutative:
            return then(self.algorithm(self.p, rank, **self.parameters), forward(self.blocks, rank, 0, self.root))
        blocks_turn = self.collective.naming == "rank"
        return rotate(lambda p, r: self.algorithm(p, r, **self.parameters), self.p, rank, self.root, blocks_turn)

    def starts(self, rank: int) -> list[Block]:
        """The blocks a rank contributes."""
        return list(self.collective.starts(self.blocks, self.p, rank, self.root))

    def ends(self, rank: int) -> list[Block]:
        """The blocks a rank must hold at the end."""
        return list(self.collective.ends(self.blocks, self.p, rank, self.root))

    def verify(self) -> None:
        """Prove this schedule; raises VerifyError with coordinates."""
        from .verify import verify

        verify(self)

    def draw(self) -> str:
        """The space-time picture as plain text."""
        from .draw import text

        return text(self)


def ordered_names(collective: str) -> list[str]:
    """The algorithms of a collective that serve non-commutative operators."""
    return [a.name for a in _REGISTRY[collective].values() if a.keeps_order()]


def schedule(
    collective: str, spec: str, p: int, root: int = 0, *, commutative: bool = True, **parameters: Any
) -> Schedule:
    """The schedule of an algorithm, given by name or as "name(key=value, …)", for p ranks."""
    entry, given = parse_spec(collective, spec)
    return Schedule(entry, p, root, commutative=commutative, **{**dict(given), **parameters})
