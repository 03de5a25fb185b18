"""The docstring grammar, and the claims and examples of every algorithm."""

from __future__ import annotations

import doctest
import sys
from fractions import Fraction

import pytest

import mpicoll
from mpicoll import claims
from mpicoll.claims import FIELDS, Claims
from mpicoll.schedule import Algorithm, registered

LINES = {
    "Steps": "p - 1",
    "Bytes per rank": "n * (p - 1) / p",
    "Scratch": "2 * n / p",
    "Cost": "(p - 1) α",
    "Source": "Someone, Something, 2009",
}
EVERY = [pytest.param(a, id=f"{a.collective.name}-{a.name}") for a in registered()]


def docstring(**changes: str | None) -> str:
    """A docstring of the grammar, fields changed or (None) left out; a _ in a name is a blank."""
    fields = {**LINES, **{name.replace("_", " "): text for name, text in changes.items()}}
    return "An idea.\n\n" + "\n".join(f"    {name}: {text}" for name, text in fields.items() if text is not None)


def test_examples():
    found = doctest.testmod(claims)
    assert (found.failed, found.attempted) == (0, 1)


def test_fields():
    found = Claims.parse("bcast mine", docstring())
    assert found == Claims("An idea.", *LINES.values())


@pytest.mark.parametrize("field", FIELDS)
def test_missing_field_is_named(field):
    with pytest.raises(ValueError, match=rf"^the docstring of bcast mine lacks {field}; see .*grammar$"):
        Claims.parse("bcast mine", docstring(**{field: None}))


@pytest.mark.parametrize("doc", [None, "", "An idea."])
def test_all_missing_fields_are_named(doc):
    with pytest.raises(ValueError, match=f"lacks {', '.join(FIELDS)};"):
        Claims.parse("bcast mine", doc)


def test_a_formula_may_go_on_on_the_next_line():
    found = Claims.parse("x", docstring(Scratch="n\n        + max(0,\n        p)"))
    assert found.scratch == "n + max(0, p)"
    assert found.cost == LINES["Cost"]


def test_the_example_is_no_part_of_the_last_field():
    found = Claims.parse("x", docstring() + "\n    >>> 1 + 1\n    2")
    assert found.source == LINES["Source"]


@pytest.mark.parametrize(
    ("formula", "p", "value"),
    [
        ("n / p", 3, Fraction(1, 3)),
        ("p > 1", 1, 0),
        ("2 * lg(q) + (p > q)", 13, 7),
        ("q", 16, 16),
        ("sum(ones(k) for k in range(lg(p)))", 5, 2 + 2 + 1),
        ("max([0] + [min(i, p) for i in range(9)])", 4, 4),
    ],
)
def test_evaluate(formula, p, value):
    assert Claims.parse("x", docstring()).evaluate(formula, p) == value


def test_evaluate_scales_with_n():
    assert Claims.parse("x", docstring()).evaluate("n / p", 3, 12) == 4


@pytest.mark.parametrize("formula", ["open('x')", "__import__('os')", "m", "p.real.nothing"])
def test_formulas_know_no_other_names(formula):
    with pytest.raises((NameError, AttributeError)):
        Claims.parse("x", docstring()).evaluate(formula, 3)


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("p", [1, 2, 7, 64])
def test_formulas_of_every_algorithm_have_values(entry: Algorithm, p):
    said = entry.claims
    values = [said.evaluate(formula, p) for formula in (said.steps, said.bytes_per_rank, said.scratch)]
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


def test_every_algorithm_is_seen_here():
    assert {(a.collective.name, a.name) for a in registered()} == {
        (collective, name) for collective, names in mpicoll.algorithms().items() for name in names
    }
