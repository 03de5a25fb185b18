"""The proof of lowered plans: the cases on which all ranks' tables are run (see interpreter.py), and their form."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from ..errors import VerifyError
from ..plans import float32_sums
from ..plans import plan as plans
from ..plans.lowering import Remember, lower
from ..plans.plan import Plan, is_staged
from ..plans.rolled import equal, rolled, unrolled
from ..plans.template import Template
from ..schedules.collectives import from_all_ranks
from ..schedules.schedule import Schedule
from .cases import Case, OneCell, TwiceTheCells, uneven
from .interpreter import Machine, is_in_place_rank
from .wellformed import faults

FEW = 4  # ranks up to which tables are proved with every root, on all cases, in place and not
SEVERAL = 8  # ranks up to which they are proved for every p, with two roots, on fewer cases
MANY = (9, 12, 13, 16)  # more ranks on which they are proved, with one root on one case
LARGE = (23, 32)  # more ranks on which they are proved, with one root on chunks or not, averages and float32 sums


def wanted(schedule: Schedule) -> bool:
    """Return whether a schedule's tables are to be proved: with all roots up to FEW ranks, on some p beyond SEVERAL.

    With parameters other than the defaults it is the first and the last of MANY.

    Lowering knows of a root only which rank's blocks are where, and of p nothing at all. So the root changes with p.
    """
    p, root = schedule.p, schedule.root
    if p <= SEVERAL:
        return p <= FEW or root in (0, p - 1 if p % 2 else p // 2)
    if schedule.parameters and p not in (MANY[0], MANY[-1]):
        return False
    return p in (*MANY, *LARGE) and (not schedule.collective.rooted or root == (p - 1 if p % 3 else 0))


def cases(schedule: Schedule) -> Iterator[Case]:
    """Yield the counts and chunkings a schedule's tables are proved on: most up to FEW ranks, one for each of MANY.

    With parameters other than the defaults it is two beyond FEW ranks. What is one of several changes with p.
    """
    p, naming = schedule.p, schedule.collective.naming
    k = max(1, len(schedule.blocks)) if naming == "vector" else schedule.parts
    if naming == "none":
        yield Case(0, 1, None, 4)
    elif p > MANY[-1]:
        case = Case(2 * k + 1, 1, 2, 2) if p % 2 else Case(k + 1, 1, None, 4)
        yield case
        yield from averaged(schedule, replace(case, averaged=True))
        yield from sums(schedule, replace(case, float32_sums=True))
    else:
        whole = Case(k + 1, 2, None, 4)
        others = [
            Case(5 * k + 2, 2, 4, 2),
            *averaged(schedule, Case(3 * k + 1, 2, 4, 2, averaged=True)),
            *sums(schedule, Case(k + 1, 2, None, 4, averages(schedule), float32_sums=True)),
            *blocks_of_many_sizes(schedule, 6, 2),
        ]
        if p > SEVERAL:
            yield others[MANY.index(p) % len(others)] if p in MANY else whole
        elif p > FEW and schedule.parameters:
            yield from (whole, others[p % len(others)])
        else:
            yield from (whole, *others)
        if p <= FEW:
            yield Case(0, 1, None, 4)
            yield Case(1, 3, None, 4)
            yield Case(5 * k + 2, 2, 4, 1)  # one chunk after the other, as rules have it for rings inside a host
            yield from averaged(schedule, Case(k + 1, 1, None, 4, averaged=True))
            yield from sums(schedule, Case(3 * k + 2, 2, 4, 2, float32_sums=True))
            yield from blocks_of_many_sizes(schedule, 4, None)


def blocks_of_many_sizes(schedule: Schedule, most: int, chunk_bytes: int | None) -> Iterator[Case]:
    """Yield a case with blocks of 0 to most bytes, where the collective has a form for them."""
    name, window = schedule.collective.name, 2 if chunk_bytes else 4
    if name == "reduce_scatter":
        yield Case(tuple((3 * r) % (most + 1) for r in range(schedule.p)), 1, chunk_bytes, window)
    elif schedule.collective.naming != "vector":
        yield Case(uneven(schedule, most), 1, chunk_bytes, window)


def sums(schedule: Schedule, *cases: Case) -> Iterator[Case]:
    """Yield cases with partial sums in float32 where a schedule has such: operators that round commute."""
    if schedule.collective.reduces and schedule.codec is None and schedule.commutative:
        yield from cases


def averaged(schedule: Schedule, case: Case) -> Iterator[Case]:
    """Yield a case of an average where a schedule has such."""
    if averages(schedule):
        yield case


def averages(schedule: Schedule) -> bool:
    """Return whether the schedule's program is what an average runs."""
    s = schedule
    whole = s.collective.reduces and s.collective.covers is from_all_ranks
    return whole and (s.commutative or not s.collective.rooted or s.root == 0)


class Lowered:
    """The plans of one schedule, each lowered once and its form checked once, however many proofs use it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.forms = in_place_forms(schedule)
        self._plans: dict[tuple[Case, int, bool], Plan] = {}
        self._templates: dict[tuple[int, Hashable], Template] = {}
        self._sound: set[int] = set()

    def all_ranks(self, case: Case, in_place: bool) -> list[Plan]:
        """Return every rank's plan. In rooted collectives only the root's depends on in_place."""
        plans = []
        for rank in range(self.schedule.p):
            key = case, rank, in_place and is_in_place_rank(self.schedule, rank)
            if key not in self._plans:
                self._plans[key] = lower_rank(self.schedule, case, rank, in_place, partial(self._remember, rank))
            plans.append(self._plans[key])
        return plans

    def _remember(self, rank: int, key: Hashable, make: Callable[[], Template]) -> Template:
        """Return a rank's template, made once for all cases that bind it to their counts, as calls do."""
        if (rank, key) not in self._templates:
            self._templates[rank, key] = make()
        return self._templates[rank, key]

    def in_all_cases(self) -> Iterator[tuple[Case, bool, list[Plan]]]:
        """Yield each case and placement with every rank's plan.

        Averages, float32 sums and plans beyond FEW ranks are in place for odd p, not in place for even p.
        """
        p = self.schedule.p
        for case in cases(self.schedule):
            either = case.averaged or case.float32_sums or p > FEW
            for in_place in (self.forms[p % len(self.forms)],) if either else self.forms:
                yield case, in_place, self.all_ranks(case, in_place)

    def new(self, plans: list[Plan]) -> list[tuple[int, Plan]]:
        """Return the plans, with their ranks, that no earlier call returned."""
        new_plans = [(rank, plan) for rank, plan in enumerate(plans) if id(plan) not in self._sound]
        self._sound.update(id(plan) for _, plan in new_plans)
        return new_plans


def check_tables(schedule: Schedule, lowered: Lowered | None = None) -> None:
    """Prove the plans of all ranks in all cases, in place and not. Raises VerifyError."""
    lowered = lowered or Lowered(schedule)
    for case, in_place, of_ranks in lowered.in_all_cases():
        check_forms(schedule, case, lowered.new(of_ranks))
        Machine(schedule, case, in_place, of_ranks).run()


def check_scratch(schedule: Schedule, lowered: Lowered | None = None) -> None:
    """Check that the most scratch any rank's plan takes is the docstring's formula. Raises VerifyError."""
    p, naming = schedule.p, schedule.collective.naming
    k = 1 if naming == "edge" else len(schedule.blocks) if naming in ("vector", "rank") else p
    block = plans.ALIGN
    case = Case({"vector": block * k, "none": 0}.get(naming, block * schedule.parts), 1, None, 4)
    lowered = lowered or Lowered(schedule)
    got = max(plan.scratch_bytes for plan in lowered.all_ranks(case, schedule.collective.name == "bcast"))
    claims = schedule.algorithm.claims
    if not claims.holds(claims.scratch, Fraction(got), p, block * k, **schedule.resolved):
        claimed = claims.evaluate(claims.scratch, p, block * k, **schedule.resolved)
        raise VerifyError(
            algorithm=schedule.title,
            p=p,
            op="the docstring's Scratch",
            expected=f"{claims.scratch} = {claimed} for n = {block * k}",
            got=f"{got} bytes",
        )


def in_place_forms(schedule: Schedule) -> tuple[bool, ...]:
    """Return the placements of a schedule's plans; a staged one is the plain one on other memory."""
    if schedule.collective.name == "bcast":
        return (True,)
    if schedule.collective.naming in ("none", "edge") or any(is_staged(schedule, rank) for rank in range(schedule.p)):
        return (False,)
    return (False, True)


def lower_all(schedule: Schedule, case: Case, in_place: bool) -> list[Plan]:
    """Return every rank's plan."""
    return [lower_rank(schedule, case, rank, in_place) for rank in range(schedule.p)]


def lower_rank(
    schedule: Schedule, case: Case, rank: int, in_place: bool, remember: Remember | None = None
) -> Plan:
    """Return one rank's plan. remember: a cache of this rank's templates."""
    codec: dict[str, Any] = {"codec": OneCell()} if schedule.codec else {}
    sums = {"sums": TwiceTheCells(case.itemsize)}
    how, more = (float32_sums.lower, sums) if case.float32_sums else (lower, codec)
    return how(
        schedule,
        rank,
        case.of(schedule, rank),
        case.itemsize,
        in_place=in_place and is_in_place_rank(schedule, rank),
        chunk_bytes=case.chunk_bytes,
        window=case.window,
        averaged=case.averaged,
        remember=remember,
        **more,
    )


def run(schedule: Schedule, case: Case, in_place: bool, lowered: list[Plan] | None = None) -> None:
    """Check the form of all ranks' plans, then run one case on symbolic memory. Raises VerifyError."""
    lowered = lowered or lower_all(schedule, case, in_place)
    check_forms(schedule, case, list(enumerate(lowered)))
    Machine(schedule, case, in_place, lowered).run()


def check_forms(schedule: Schedule, case: Case, plans: list[tuple[int, Plan]]) -> None:
    """Check the tables of plans, each with its rank, and the rolled form that engines run. Raises VerifyError."""
    for rank, plan in plans:
        violations = faults(plan) if schedule.p <= MANY[-1] else []
        if not violations and not equal(unrolled(rolled(plan)), plan):
            violations = ["loops that do what its steps do"]
        if violations:
            raise VerifyError(
                schedule.title, schedule.p, rank, op=f"lowered table, {case}", expected=violations[0], got="otherwise"
            )
