"""Which algorithm serves a call, and what using() may ask for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from unit.every import EVERY, REDUCING

from mpicoll.collectives import COLLECTIVES
from mpicoll.errors import ArgumentError, PreconditionError, UnknownAlgorithm
from mpicoll.registry import find, parse_spec, registered
from mpicoll.schedule import Schedule
from mpicoll.select import NATIVE, ORDERED_RULES, RULES, WINDOW, Overrides, choose, native_choice

BYTES = sorted(
    {0, 1, 8, 1 << 40}
    | {rule.above + d for rules in RULES.values() for rule in rules for d in (-1, 0, 1) if rule.above + d >= 0}
)
REDUCTIONS = [name for name, c in COLLECTIVES.items() if c.reduces]


def chosen(collective, nbytes=8, p=4, commutative=True, engine="mpi4py", **overrides):
    made = Overrides().merged(
        overrides.pop("algorithms", {}),
        overrides.pop("chunk_bytes", None),
        overrides.pop("window", None),
        None,
    )
    assert not overrides
    return choose(collective, nbytes, p, commutative, made, engine)


# -- rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("p", [1, 2, 7, 64])
def test_there_is_a_registered_algorithm_for_every_call(collective, p):
    for nbytes in BYTES:
        choice = chosen(collective, nbytes, p)
        entry, given = parse_spec(collective, choice.algorithm)
        Schedule(entry, p, **dict(given))
        assert choice.chunk_bytes is None or choice.chunk_bytes >= 1
        assert (choice.collective, choice.engine, choice.window) == (collective, "mpi4py", WINDOW)
        assert not choice.forced


@pytest.mark.parametrize("collective", REDUCTIONS)
def test_operators_that_do_not_commute_get_what_keeps_order(collective):
    for nbytes in BYTES:
        choice = chosen(collective, nbytes, commutative=False)
        if choice.algorithm == NATIVE:
            assert not ORDERED_RULES.get(collective)
            assert "does not commute" in choice.why
        else:
            assert parse_spec(collective, choice.algorithm)[0].keeps_order()


def test_native_serves_only_where_nothing_here_keeps_order():
    able = {a.collective.name for a in registered() if a.collective.reduces and a.keeps_order()}
    assert able == set(ORDERED_RULES)


@pytest.mark.parametrize("rules", [*RULES.values(), *ORDERED_RULES.values()])
def test_rules_start_at_zero_and_rise(rules):
    assert rules[0].above == 0 and not rules[0].only_powers_of_two
    for before, rule in pairwise(rules):
        assert before.above < rule.above or (before.above == rule.above and rule.only_powers_of_two)


@pytest.mark.parametrize("p", [5, 8])
@pytest.mark.parametrize("collective", RULES)
def test_a_rule_holds_from_its_bound_on(collective, p):
    """For five ranks those that speak of powers of two are as if they were not there."""
    alike = [rule for rule in RULES[collective] if p == 8 or not rule.only_powers_of_two]
    rules = [rule for rule, after in zip(alike, (*alike[1:], None)) if after is None or after.above > rule.above]
    for before, rule in zip((None, *rules), rules):
        assert chosen(collective, rule.above, p=p).algorithm == rule.algorithm
        if before:
            assert chosen(collective, rule.above - 1, p=p).algorithm == before.algorithm


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_choice_says_what_and_why(collective):
    for nbytes in (8, 1 << 30):
        choice = chosen(collective, nbytes, 5)
        text = str(choice)
        assert text.startswith(f"{collective}: {choice.algorithm} on the mpi4py engine, ")
        assert f"{nbytes} bytes on 5 ranks: " in text
        chunks = f"chunks of {choice.chunk_bytes} bytes, {WINDOW} in flight"
        assert (chunks if choice.chunk_bytes else "whole blocks") in text


# -- overrides ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_any_algorithm_can_be_asked_for(entry):
    name = entry.collective.name
    choice = chosen(name, algorithms={name: entry.name})
    assert (choice.algorithm, choice.forced, choice.why) == (entry.name, True, "chosen by using()")
    for other in set(COLLECTIVES) - {name}:
        assert chosen(other, algorithms={name: entry.name}) == chosen(other)


@pytest.mark.parametrize("entry", EVERY)
def test_what_is_forced_is_chunked_as_in_the_rules(entry):
    name = entry.collective.name
    by_rule = {rule.algorithm: rule.chunk_bytes for rule in RULES[name]}
    assert chosen(name, algorithms={name: entry.name}).chunk_bytes == by_rule.get(entry.name)
    assert chosen(name, algorithms={name: entry.name}, chunk_bytes=512).chunk_bytes == 512


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_native_and_auto(collective):
    native = chosen(collective, algorithms={collective: "native"})
    assert (native.algorithm, native.engine, native.forced) == (NATIVE, NATIVE, True)
    assert chosen(collective, algorithms={collective: "auto"}) == chosen(collective)
    assert str(native) == f"{collective}: native: chosen by using()"


@pytest.mark.parametrize("entry", REDUCING)
def test_forced_on_an_operator_that_does_not_commute(entry):
    name = entry.collective.name
    if entry.keeps_order():
        assert chosen(name, commutative=False, algorithms={name: entry.name}).algorithm == entry.name
        return
    with pytest.raises(PreconditionError, match=f"{name} {entry.name} does not keep operand order.*; choose "):
        chosen(name, commutative=False, algorithms={name: entry.name})


def test_parameters_are_kept():
    spec = "reduce_bcast(reduce=chain)"
    assert chosen("allreduce", algorithms={"allreduce": spec}).algorithm == spec


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        ({"allreduce": "rign"}, "'rign'; did you mean 'ring'"),
        ({"allreduce": ""}, "no allreduce algorithm is called ''"),
        ({"alreduce": "ring"}, "'alreduce'; did you mean 'allreduce'"),
        ({"alreduce": "auto"}, "'alreduce'; did you mean 'allreduce'"),
        ({"alreduce": "native"}, "'alreduce'; did you mean 'allreduce'"),
    ],
)
def test_unknown_names_are_refused_with_near_ones(algorithms, message):
    with pytest.raises(UnknownAlgorithm, match=message):
        Overrides().merged(algorithms, None, None, None)


def test_unknown_parameters_are_refused():
    with pytest.raises(ValueError, match="has no parameter k"):
        Overrides().merged({"allreduce": "ring(k=2)"}, None, None, None)


@pytest.mark.parametrize("what", ["chunk_bytes", "window"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", 1e3])
def test_chunk_and_window_are_integers_of_at_least_one(what, value):
    with pytest.raises(ArgumentError, match=f"^{what} is {value!r}; it must be an integer of at least 1$"):
        Overrides().merged({}, **{"chunk_bytes": None, "window": None, what: value}, engine=None)


def test_inner_overrides_lie_over_outer_ones():
    outer = Overrides().merged({"allreduce": "ring", "bcast": "chain"}, 100, 2, "mpi4py")
    inner = outer.merged({"allreduce": "naive"}, 50, None, None)
    assert dict(inner.algorithms) == {"allreduce": "naive", "bcast": "chain"}
    assert (inner.chunk_bytes, inner.window, inner.engine) == (50, 2, "mpi4py")
    assert dict(outer.algorithms)["allreduce"] == "ring"


def test_chunk_and_window_reach_the_choice():
    choice = chosen("allreduce", chunk_bytes=1, window=7)
    assert (choice.chunk_bytes, choice.window) == (1, 7)


def test_native_choice():
    choice = native_choice("allreduce", "no plan for this type")
    assert str(choice) == "allreduce: native: no plan for this type"


def test_rules_name_nothing_with_blocks_missing():
    for collective, rules in RULES.items():
        for rule in rules:
            assert find(collective, rule.algorithm)
