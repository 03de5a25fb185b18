"""Every registered algorithm is proved: schedules, tables and claims, for many numbers of ranks."""

from __future__ import annotations

import random

import pytest
from unit.every import EVERY, served

from mpicoll.cli.proofs import prove
from mpicoll.errors import PreconditionError
from mpicoll.proofs.check_plan import check_scratch, check_tables
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.prove import schedules
from mpicoll.schedules.grids import every_root
from mpicoll.schedules.schedule import Schedule

QUICK, LARGER, FEW, MOST, SAMPLED = 5, 8, 16, 64, 2


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.timeout(600)
def test_proof(entry, pytestconfig):
    """At the roots of every_root, in both orders, in place and not, chunked and not; then all choices of its grid."""
    for p in range(1, (QUICK if pytestconfig.option.quick else FEW) + 1):
        proof = prove((entry.collective.name, entry.name), p)
        assert proof.failure is None, proof.failure
        roots = len(every_root(proof.p)) if entry.collective.rooted else 1
        ordered = entry.collective.reduces and entry.serves(proof.p) and entry.keeps_order(proof.p)
        by_default = entry.serves(proof.p) * (roots + (roots - 1) * ordered)
        assert proof.schedules >= by_default if entry.grid else proof.schedules == by_default


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.timeout(600)
def test_schedules_of_a_few_more_ranks(entry):
    """Tables take nearly all of a proof's time: beyond QUICK ranks, here only those of the defaults at LARGER."""
    for p in range(QUICK + 1, LARGER + 1):
        for schedule in schedules(entry, p):
            verify(schedule)
    defaults = Schedule(entry, served(entry, LARGER))
    check_tables(defaults)
    check_scratch(defaults)


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_proof_at_larger_p(entry, pytestconfig):
    """A few numbers of ranks and choices of parameters; `tests/run.py --draw` draws others."""
    draw = random.Random(f"{pytestconfig.option.sample_seed} {entry.collective.name} {entry.name}")
    for p in draw.sample([p for p in range(FEW + 1, MOST + 1) if entry.serves(p)], SAMPLED):
        every = list(schedules(entry, p))
        for schedule in draw.sample(every, min(2, len(every))):
            print(f"  {schedule}")
            verify(schedule)
            check_tables(schedule)
        check_scratch(Schedule(entry, p))


@pytest.mark.parametrize("entry", EVERY)
def test_every_choice_of_its_grid_is_served_somewhere(entry):
    """A choice that no number of ranks will do for proves nothing."""
    for grid in entry.grid:
        assert any(fits(entry, p, parameters) for p in grid.ranks for parameters in grid.rows(p)), grid


def fits(entry, p, parameters):
    """Tell whether there is such a schedule."""
    try:
        Schedule(entry, p, **parameters)
    except PreconditionError:
        return False
    return True


@pytest.mark.parametrize("entry", EVERY)
def test_steps_do_not_grow_with_the_root(entry):
    """A rotated tree is as deep as is said of root 0; rank order may cost one step more."""
    p, claims = served(entry, 7), entry.claims
    for schedule in schedules(entry, p):
        claimed = claims.evaluate(claims.steps, p, **schedule.resolved)
        assert verify(schedule).steps <= claimed + (not schedule.commutative)
