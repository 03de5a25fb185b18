"""The docstring grammar, and the claims and examples of every algorithm."""

from __future__ import annotations

import doctest
import sys
from dataclasses import replace
from fractions import Fraction

import pytest
from unit.every import EVERY, served

from mpicoll.errors import PreconditionError
from mpicoll.schedules.claims import FIELDS, OPTIONAL, Claims
from mpicoll.schedules.registry import Algorithm, Chosen, find
from mpicoll.schedules.schedule import Schedule

LINES = {
    "Steps": "p - 1",
    "Bytes per rank": "n * (p - 1) / p",
    "Scratch": "2 * n / p",
    "Cost": "(p - 1) α",
    "Source": "Someone, Something, 2009",
}


def docstring(**changes: str | None) -> str:
    """Return a docstring of the grammar, fields changed or (None) left out; a _ in a name is a blank."""
    fields = {**LINES, **{name.replace("_", " "): text for name, text in changes.items()}}
    return "An idea.\n\n" + "\n".join(f"    {name}: {text}" for name, text in fields.items() if text is not None)


SAID = Claims("An idea.", *LINES.values())


def test_fields():
    assert Claims.parse("bcast mine", docstring()) == SAID
    assert SAID.excess == ""


@pytest.mark.parametrize(
    ("doc", "missing"),
    [
        *((docstring(**{field: None}), field) for field in FIELDS),
        *((doc, ", ".join(FIELDS)) for doc in (None, "", "An idea.")),
        (docstring(Source=None, Excess="n"), "Source"),
    ],
)
def test_missing_fields_are_named(doc, missing):
    with pytest.raises(ValueError, match=rf"^the docstring of bcast mine lacks {missing}; see .*grammar$"):
        Claims.parse("bcast mine", doc)


def test_a_formula_may_go_on_on_the_next_line():
    claims = Claims.parse("x", docstring(Scratch="n\n        + max(0,\n        p)"))
    assert claims == replace(SAID, scratch="n + max(0, p)")


def test_excess_is_said_where_there_is_any():
    assert OPTIONAL == ("Excess", "Encoded")
    claims = Claims.parse("x", docstring(Excess="n for every rank that reduces,\n        since p is no power of two"))
    assert claims == replace(SAID, excess="n for every rank that reduces, since p is no power of two")


def test_the_example_is_no_part_of_the_last_field():
    assert Claims.parse("x", docstring() + "\n    >>> 1 + 1\n    2") == SAID


CHAIN = Chosen(find("reduce", "chain"))
NESTED = Chosen(find("allreduce", "reduce_bcast"), (("reduce", "chain"),))
GIVEN = {"a": CHAIN, "b": NESTED, "groups": ((0, 1, 2), (3, 4))}


@pytest.mark.parametrize(
    ("formula", "p", "n", "value"),
    [
        ("n / p", 3, 1, Fraction(1, 3)),
        ("n / p", 3, 12, 4),
        ("p > 1", 1, 1, 0),
        ("2 * lg(q) + (p > q)", 13, 1, 7),
        ("q", 16, 1, 16),
        ("sum(ones(k) for k in range(lg(p)))", 5, 1, 2 + 2 + 1),
        ("max([0] + [min(i, p) for i in range(9)])", 4, 1, 4),
        ("100 * len(groups) + 10 * largest(groups) + len(groups[0])", 5, 1, 233),
        ("[n * min(map, p) for map in (1, 9)][1]", 6, 2, 12),
        # of algorithms that are parameters: theirs for as many ranks and bytes as they are given
        ("steps(a, p)", 5, 100, 4),
        ("steps(a, 1) + steps(a, len(groups))", 5, 100, 0 + 1),
        ("moved(a, p)", 5, 100, 100),
        ("moved(a, 1)", 5, 100, 0),
        ("moved(a, p, n / 4)", 5, 100, 25),
        ("scratch(a, p)", 5, 100, 100),
        ("steps(b, p)", 5, 100, 4 + 3),
        ("moved(b, p, 2 * n)", 5, 100, 200 + 600),
        ("max(steps(a, largest(groups)), 3)", 5, 100, 3),
    ],
)
def test_evaluate(formula, p, n, value):
    assert SAID.evaluate(formula, p, n, **GIVEN) == value


def test_a_formula_is_exact_or_a_bound():
    assert SAID.evaluate("at most n / p", 4, 10) == SAID.evaluate("n / p", 4, 10) == Fraction(5, 2)
    value, bit = Fraction(5, 2), Fraction(1, 1000)
    wrong = {"n / p": (2, 3, value - bit, value + bit), "at most n / p": (3, value + bit)}
    right = {"n / p": (value,), "at most n / p": (0, 2, value - bit, value)}
    for formula in wrong:
        assert not any(SAID.holds(formula, Fraction(got), 4, 10) for got in wrong[formula])
        assert all(SAID.holds(formula, Fraction(got), 4, 10) for got in right[formula])
    assert SAID.holds("k * p", Fraction(12), 4, k=3) and not SAID.holds("at most k * p", Fraction(12), 4, k=2)


@pytest.mark.parametrize("formula", ["open('x')", "__import__('os')", "m", "p.real.nothing"])
def test_formulas_know_no_other_names(formula):
    with pytest.raises((NameError, AttributeError)):
        SAID.evaluate(formula, 3)


@pytest.mark.parametrize("entry", EVERY)
def test_formulas_of_every_algorithm_have_values(entry: Algorithm):
    """Formulas have values for more ranks than most proofs cover."""
    claims, p = entry.claims, served(entry, 64)
    for parameters, _ in entry.choices(p):
        try:
            resolved = Schedule(entry, p, **parameters).resolved
        except PreconditionError:
            continue
        values = [claims.evaluate(x, p, 1, **resolved) for x in (claims.steps, claims.bytes_per_rank, claims.scratch)]
        assert min(values) >= 0
        assert values[0].denominator == 1


@pytest.mark.parametrize("entry", EVERY)
def test_example_of_every_algorithm(entry: Algorithm):
    """The one in its docstring, run in its module."""
    names = vars(sys.modules[entry.body.__module__])
    test = doctest.DocTestParser().get_doctest(entry.body.__doc__, dict(names), entry.name, None, None)
    assert test.examples, "an algorithm shows itself on a small p"
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("entry", EVERY)
def test_idea_is_one_sentence(entry: Algorithm):
    assert entry.claims.idea.endswith(".")
    assert len(entry.claims.idea) > 10
