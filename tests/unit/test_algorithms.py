"""Every registered algorithm is proved: schedules, tables and claims, for many numbers of ranks."""

from __future__ import annotations

import random

import pytest

from mpicoll.schedule import Schedule, registered
from mpicoll.tables import check_scratch, check_tables
from mpicoll.verify import prove, schedules, verify

EVERY = [pytest.param(a, id=f"{a.collective.name}-{a.name}") for a in registered()]
MOST, SAMPLED = 64, 3


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("p", range(1, 17))
def test_proof(entry, p):
    """At every root, in both orders, in place and not, chunked and not."""
    roots = p if entry.collective.rooted else 1
    assert prove(entry, p) == roots + (roots - 1) * bool(entry.ordered)


@pytest.mark.parametrize("entry", EVERY)
def test_proof_at_larger_p(entry, record_property):
    """A few numbers of ranks drawn anew each time; the seed is printed with a failure."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    record_property("seed", seed)
    draw = random.Random(seed)
    for p in draw.sample(range(17, MOST + 1), SAMPLED):
        every = list(schedules(entry, p))
        for schedule in draw.sample(every, min(2, len(every))):
            print(f"  {schedule}")
            verify(schedule)
            check_tables(schedule)
        check_scratch(Schedule(entry, p))


@pytest.mark.parametrize("entry", [x for x in EVERY if x.values[0].parameters])
def test_every_choice_of_algorithms_by_parameter(entry):
    """A parameter named after a collective takes its algorithms of one block that keep what is claimed."""
    pieces = {
        name: [
            a.name
            for a in registered()
            if a.collective.name == name
            and a.blocks(5) == 1
            and (a.ordered or not entry.ordered or not a.collective.reduces)
        ]
        for name in entry.parameters
        if isinstance(entry.parameters[name], str)
    }
    for name, choices in pieces.items():
        for choice in choices:
            for p in (1, 2, 5, 8):
                for commutative in (True, False) if entry.ordered else (True,):
                    schedule = Schedule(entry, p, commutative=commutative, **{name: choice})
                    verify(schedule)
                    check_tables(schedule)


@pytest.mark.parametrize("entry", EVERY)
def test_steps_do_not_grow_with_the_root(entry):
    """A rotated tree is as deep as the tree; rank order may cost one step more."""
    first = verify(Schedule(entry, 7)).steps
    for schedule in schedules(entry, 7):
        assert verify(schedule).steps <= first + (not schedule.commutative)
