"""Choose the algorithm that serves a call, and say why.

The rules look at the collective, the bytes, p, whether the operator commutes, and whether ranks share hosts: values
equal on every rank, so every rank chooses the same without a message.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..cost.network import Network
from ..errors import ArgumentError
from ..plans.plan import WINDOW
from ..schedules.collectives import NEIGHBORHOOD, canonical_name
from ..schedules.graphs import Graph
from ..schedules.grouping import Partition
from ..schedules.registry import check_order, find, parse_spec
from ..schedules.stencils import Stencil
from .kept_rules import kept_rules
from .modelled import is_own
from .rules import RULES, UNKNOWN_TO_ALL, Rule, forced_rules, rules
from .stencils import stencil_rules
from .uneven import EVEN

NATIVE, AUTO = "native", "auto"
FLOAT32 = "float32"
ACCUMULATES = (FLOAT32, "none")  # the type of partial sums of shorter elements; "none": that of the elements
BITS, ANY, NO = "bits", "any", "no"  # which algorithms calls try in turn: those with the same bits, any, none
WHOLE = 1 << 40  # chunk size that leaves every block whole
TOO_LARGE = 1 << 31  # bytes from which some MPIs' own collectives fail


@dataclass(frozen=True)
class Choice:
    """The choice for a call. chunk_bytes: None for whole blocks; rule: `why` without the call's bytes and ranks."""

    collective: str
    algorithm: str
    chunk_bytes: int | None
    window: int
    engine: str
    why: str
    forced: bool = False
    rule: str = ""
    measured: bool = False  # whether a tuning table chose
    slow: str = ""  # why such calls take the slow path, for explain()
    sums: str = ""  # the cost of float32 partial sums, if used, for explain()
    model: str = ""  # predicted times of this and the next fastest algorithm, for explain()

    def __str__(self) -> str:
        chunks = (
            "whole blocks"
            if self.chunk_bytes is None
            else f"chunks of {self.chunk_bytes} bytes, {self.window} in flight"
        )
        how = "" if self.algorithm == NATIVE else f" on the {self.engine} engine, {chunks}"
        path = f"; every call takes the slow path: {self.slow}" if self.slow else ""
        sums = f"; {self.sums}" if self.sums else ""
        model = f"; by the model: {self.model}" if self.model else ""
        return f"{self.collective}: {self.algorithm}{how}: {self.why}{model}{sums}{path}"


@dataclass(frozen=True)
class Overrides:
    """The settings made by using(): algorithms by collective, chunk, window, engine, seed, accumulate; None: not set.

    seed: for stochastic rounding of elements with fewer than 32 bits. accumulate: the type of their partial sums.
    learn: the algorithms that calls try in turn where auto chooses: those with the same "bits", "any", or "no".
    """

    algorithms: tuple[tuple[str, str], ...] = ()
    chunk_bytes: int | None = None
    window: int | None = None
    engine: str | None = None
    seed: int | None = None
    accumulate: str | None = None
    learn: str | None = None

    @property
    def learns(self) -> bool:
        """Return whether calls try algorithms in turn."""
        return self.learn not in (None, NO)

    def merged(
        self,
        algorithms: Mapping[str, str],
        chunk_bytes: int | None,
        window: int | None,
        engine: str | None,
        seed: int | None = None,
        accumulate: str | None = None,
        learn: str | bool | None = None,
    ) -> Overrides:
        """Check other settings, and return these with the others taking precedence. Raises ArgumentError."""
        for collective, spec in algorithms.items():
            if not isinstance(spec, str):
                raise ArgumentError(f"{collective} is {spec!r}; it must be the name of an algorithm")
            if spec not in (NATIVE, AUTO):
                parse_spec(collective, spec)
            elif canonical_name(collective) not in RULES:
                find(collective, spec)
        if seed is not None and type(seed) is not int:
            raise ArgumentError(f"stochastic is {seed!r}; it must be an integer, the seed of stochastic rounding")
        if accumulate is not None:
            check_accumulate("accumulate", accumulate)
        if learn is not None:
            learn = check_learn(
                "learn", {True: BITS, False: NO}.get(learn, learn) if isinstance(learn, bool) else learn
            )
        for what, value in (("chunk_bytes", chunk_bytes), ("window", window)):
            if value is not None and (type(value) is not int or value < 1):
                raise ArgumentError(f"{what} is {value!r}; it must be an integer of at least 1")
        new = {canonical_name(name): spec for name, spec in algorithms.items()}
        return Overrides(
            tuple({**dict(self.algorithms), **new}.items()),
            chunk_bytes or self.chunk_bytes,
            window or self.window,
            engine or self.engine,
            self.seed if seed is None else seed,
            accumulate or self.accumulate,
            learn or self.learn,
        )


def check_accumulate(name: str, value: object) -> str:
    """Return the type of partial sums. Raises ArgumentError that names the setting."""
    if value not in ACCUMULATES:
        raise ArgumentError(f"{name} is {value!r}; it must be one of {', '.join(ACCUMULATES)}")
    return str(value)


def check_learn(name: str, value: object) -> str:
    """Return which algorithms calls try in turn. Raises ArgumentError that names the setting."""
    if value not in (BITS, ANY, NO):
        raise ArgumentError(f"{name} is {value!r}; it must be one of {', '.join((BITS, ANY, NO))}")
    return str(value)


def choose(
    collective: str,
    nbytes: int,
    p: int,
    commutative: bool,
    overrides: Overrides,
    engine: str,
    nodes: Partition | None = None,
    measured: Sequence[Rule] = (),
    network: Network | None = None,
    graph: Graph | None = None,
    skew: int = EVEN,
) -> Choice:
    """Return the choice for a call of nbytes (see Claims for whose bytes).

    measured: the tuning table's rules for the collective. network: the network of the cost model, which chooses where
    no rule of the table serves; None for the fixed rules. graph: the neighbours, for neighbourhood collectives. skew:
    the class of the ranks' shares (uneven.py), which needs a network; tables are measured with equal shares.
    Raises PreconditionError if a forced algorithm cannot serve the call.
    """
    spec = dict(overrides.algorithms).get(collective, AUTO)
    if spec == NATIVE:
        return Choice(collective, NATIVE, None, WINDOW, NATIVE, "chosen by using()", forced=True)
    if spec == AUTO:
        skew = skew if network is not None else EVEN
        measured_rule = _measured(collective, nbytes, p, commutative, overrides, nodes, () if skew else measured)
        modelled = _rules(network, collective, p, commutative, nodes, graph, skew)
        rule = measured_rule or next(rule for rule in reversed(modelled) if rule.fits(nbytes, p))
        by = NATIVE if rule.algorithm == NATIVE else engine
        why = f"{nbytes} bytes on {p} ranks: {rule.why}"
        how = rule.algorithm, rule.chunk_bytes, rule.window
        choice = Choice(collective, *how, by, why, rule=rule.why, measured=measured_rule is not None)
    else:
        entry, parameters = parse_spec(collective, spec)
        if not commutative:
            check_order(entry, p, nodes, **dict(parameters))
        forced = _forced_rules(network, collective, spec, p, commutative, nodes, overrides)
        rule = next(rule for rule in reversed(forced) if rule.fits(nbytes, p))
        size = "whole" if rule.chunk_bytes is None else "in these chunks"
        why = f"chosen by using(){f', {size} for {rule.why}' if rule.why else ''}"
        choice = Choice(collective, spec, rule.chunk_bytes, rule.window, engine, why, forced=True)
    if not (overrides.chunk_bytes or overrides.window):
        return choice
    chunk = overrides.chunk_bytes or choice.chunk_bytes
    return replace(choice, chunk_bytes=None if chunk == WHOLE else chunk, window=overrides.window or choice.window)


def same_choice(
    collective: str,
    nbytes: int,
    p: int,
    commutative: bool,
    overrides: Overrides,
    nodes: Partition | None = None,
    measured: Sequence[Rule] = (),
    network: Network | None = None,
    skew: int = EVEN,
) -> tuple[int, int]:
    """Return the least and the most bytes of calls of this skew for which choose() returns what it does for nbytes."""
    spec = dict(overrides.algorithms).get(collective, AUTO)
    if spec == NATIVE:
        return 0, sys.maxsize
    if spec == AUTO:
        every = *_rules(network, collective, p, commutative, nodes, skew=skew), *measured
        steps = {rule.least(p) for rule in every} | {TOO_LARGE}
    else:
        steps = {rule.above for rule in _forced_rules(network, collective, spec, p, commutative, nodes, overrides)}
    return max((step for step in steps if step <= nbytes), default=0), min(
        (step - 1 for step in steps if step > nbytes), default=sys.maxsize
    )


def _rules(
    network: Network | None,
    collective: str,
    p: int,
    commutative: bool,
    nodes: Partition | None,
    graph: Graph | None = None,
    skew: int = EVEN,
) -> tuple[Rule, ...]:
    if network is None:
        return rules(collective, p, commutative, nodes)
    if isinstance(graph, Stencil) and graph.has_equal_blocks and collective in NEIGHBORHOOD:
        return stencil_rules(network, collective, graph, nodes)
    return kept_rules(network, collective, p, commutative, nodes, skew=skew)


def _forced_rules(
    network: Network | None,
    collective: str,
    spec: str,
    p: int,
    commutative: bool,
    nodes: Partition | None,
    overrides: Overrides,
) -> tuple[Rule, ...]:
    """Return the rules that choose the chunks of a forced algorithm: by the model, or fixed where it does not serve.

    The model knows the algorithms of mpicoll, without those on codes, and calls whose bytes all ranks know.
    """
    entry, _ = parse_spec(collective, spec)
    is_known = is_own(entry) and entry.is_exact and collective not in UNKNOWN_TO_ALL
    if network is not None and is_known and not overrides.chunk_bytes:
        return kept_rules(network, collective, p, commutative, nodes, spec)
    return forced_rules(collective, spec, nodes) or (Rule(0, spec, None, ""),)


def _measured(
    collective: str,
    nbytes: int,
    p: int,
    commutative: bool,
    overrides: Overrides,
    nodes: Partition | None,
    measured: Sequence[Rule],
) -> Rule | None:
    """Return the tuning table's rule for a call; None if there is none, or using() set what was not measured."""
    if overrides.chunk_bytes or overrides.window or overrides.engine not in (None, "auto"):
        return None
    rule = next((rule for rule in reversed(measured) if rule.fits(nbytes, p)), None)
    if rule is None or rule.algorithm == AUTO or (rule.algorithm == NATIVE and nbytes >= TOO_LARGE):
        return None
    if commutative or rule.algorithm == NATIVE:
        return rule
    entry, parameters = parse_spec(collective, rule.algorithm)
    return rule if entry.keeps_order(p, nodes, **dict(parameters)) else None


def native_choice(collective: str, why: str) -> Choice:
    """Return the choice of MPI's own collective, with the reason."""
    return Choice(collective, NATIVE, None, WINDOW, NATIVE, why)
