"""The facts about algorithms: what is said of them is what is declared and measured."""

from __future__ import annotations

import json

import pytest
from unit.every import EVERY, barrier

from mpicoll.describe.catalogue import facts, grid_words, measured, served, suits
from mpicoll.describe.formulas import pretty
from mpicoll.schedules.claims import Claims
from mpicoll.schedules.grids import every_root, over
from mpicoll.schedules.grouping import dealt
from mpicoll.schedules.registry import _REGISTRY, Requirement, every

# -- facts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_facts_are_plain(entry):
    entry_facts = facts(entry)
    assert json.loads(json.dumps(entry_facts)) == entry_facts
    assert entry_facts["steps"] == entry.claims.steps and entry_facts["source"] == entry.claims.source
    assert set(entry_facts["parameters"]) == set(entry.parameters)
    assert all(x["range"] for x in entry_facts["parameters"].values())
    assert len(entry_facts["proved_with"]) == len(entry.grid)
    assert (entry_facts["keeps_operand_order"] is None) == (not entry.collective.reduces)


def test_unsuitable_algorithms_are_not_measured(registry):
    squares = barrier("squares", requires=Requirement("a square number of ranks", lambda p: int(p**0.5) ** 2 == p))
    assert [p for p in range(1, 17) if suits(squares, p)] == [1, 4, 9, 16]
    assert served(squares, 5) == 9
    assert measured(squares, 5) is None and measured(squares, 9).steps == 4
    assert facts(squares)["requires"] == "a square number of ranks"


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (over(k=(2, 3)), "k = 2, 3 for p = 1-64"),
        (over((6, 11), groups=(4, dealt)), "groups = 4, dealt for p = 6, 11"),
        (over((8,), dims=((4, 2), 3)), "dims = (4, 2), 3 for p = 8"),
        (over((1, 2), groups=(((0,), (1, 2)), "nodes")), "groups = groups of 1, 2, nodes for p = 1-2"),
        (over((8,), k=lambda p: (1, p)), "k = 1, 8 for p = 8"),
        (over((8,), k=(1, lambda p: p - 1)), "k = 1, 7 at p = 8 for p = 8"),
        (over((8,), k=range(1, 9), roots=every_root), "k = each of 8 for p = 8"),
        (over((8,), inner=every("scan")), f"inner = {', '.join(_REGISTRY['scan'])} for p = 8"),
    ],
)
def test_grids_in_words(grid, words):
    assert grid_words(grid) == words


# -- formulas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "readable"),
    [
        ("(p - 1) * n / p", "(p − 1) n / p"),
        ("n / (2 * p)", "n / (2 p)"),
        ("n / p / 2", "n / p / 2"),
        ("n / p * 2", "(n / p) · 2"),
        ("p - (q - 1)", "p − (q − 1)"),
        ("p - q - 1", "p − q − 1"),
        ("2**(i + 1)", "2^(i + 1)"),
        ("(p // 2) * k", "⌊p / 2⌋ k"),
        ("-(-p // k)", "⌈p / k⌉"),
        ("lg(p, k)", "lg_k p"),
        ("lg(q) * lg(p - 1)", "lg q lg(p − 1)"),
        ("1 < p <= q", "[1 < p ≤ q]"),
        ("p > q and k != 2", "[p > q and k ≠ 2]"),
        ("p % 2 == 0", "[p mod 2 = 0]"),
        ("n * (1 if p > q else 0)", "n (1 if p > q, else 0)"),
        ("n if form == 'fold' else 0", "n if form = fold, else 0"),
        ("at most moved(a, p) + 1", "at most moved(a, p) + 1"),
        ("max([0] + [x for x in groups])", "max(0, x for x in groups)"),
        ("sum(i for i in range(1, p))", "sum(i for i from 1 to below p)"),
        ("a.blocks(len(g))", "a.blocks(len(g))"),
    ],
)
def test_formulas_read_well(python, readable):
    assert pretty(python) == readable


@pytest.mark.parametrize("entry", EVERY)
def test_every_formula_can_be_read(entry):
    claims: Claims = entry.claims
    for formula in (claims.steps, claims.bytes_per_rank, claims.scratch):
        text = pretty(formula)
        assert text.count("(") == text.count(")") and text.count("[") == text.count("]")
        assert not any(sign in text for sign in ("**", "//", " * ", ":=", "range")), text
