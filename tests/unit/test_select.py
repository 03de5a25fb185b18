"""Select the algorithm of a call, by rules and by using()."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from unit.every import EVERY, REDUCING

from mpicoll.cost.network import network
from mpicoll.errors import ArgumentError, ParameterError, PreconditionError, UnknownAlgorithm
from mpicoll.schedules import registry
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.registry import find, list_algorithms, parse_spec, registered
from mpicoll.schedules.schedule import Schedule
from mpicoll.schedules.stencils import Stencil
from mpicoll.selection.modelled import MARGIN, costs
from mpicoll.selection.rules import HOST_RULES, LINK_RULES, MOVES_ALIKE, ORDERED_RULES, RULES, WINDOW, Rule
from mpicoll.selection.select import NATIVE, Overrides, choose, native_choice, same_choice
from mpicoll.selection.stencils import stencil_rules

BYTES = sorted(
    {0, 1, 8, 1 << 40}
    | {
        bound + d
        for rules in (*RULES.values(), *LINK_RULES.values(), *HOST_RULES.values())
        for rule in rules
        for bound in (rule.above, 4 * rule.per_rank)
        for d in (-1, 0, 1)
        if bound + d >= 0
    }
)
REDUCTIONS = [name for name, c in COLLECTIVES.items() if c.reduces]


def chosen(
    collective, nbytes=8, p=4, commutative=True, nodes=None, *, algorithms=None, chunk_bytes=None, window=None
):  # fmt: skip
    overrides = Overrides().merged(algorithms or {}, chunk_bytes, window, None)
    return choose(collective, nbytes, p, commutative, overrides, "mpi4py", nodes)


# -- rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("p", [1, 2, 7, 64])
def test_there_is_a_registered_algorithm_for_every_call(collective, p):
    for nbytes in BYTES:
        choice = chosen(collective, nbytes, p)
        entry, parameters = parse_spec(collective, choice.algorithm)
        Schedule(entry, p, **dict(parameters))
        assert choice.chunk_bytes is None or choice.chunk_bytes >= 1
        assert (choice.collective, choice.engine) == (collective, "mpi4py")
        assert choice.window in (1, WINDOW)
        assert not choice.forced


@pytest.mark.parametrize("collective", HOST_RULES)
@pytest.mark.parametrize("nodes", [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2), (3,))])
def test_ranks_that_share_hosts_meet_there_first(collective, nodes):
    """Choose hierarchical algorithms where bytes decide, but not if forced or if operand order counts."""
    for nbytes in BYTES:
        choice = chosen(collective, nbytes, nodes=nodes)
        entry, parameters = parse_spec(collective, choice.algorithm)
        Schedule(entry, 4, nodes=nodes, **dict(parameters))
        assert (entry.name == "hierarchical") == (nbytes >= HOST_RULES[collective][0].above)
        assert ("ranks share hosts" in choice.why) == (entry.name == "hierarchical")
    forced = next(name for name in list_algorithms()[collective] if name != "hierarchical")
    assert chosen(collective, 1 << 20, nodes=nodes, algorithms={collective: forced}).algorithm == forced
    if COLLECTIVES[collective].reduces:
        assert "hierarchical" not in chosen(collective, 1 << 20, commutative=False, nodes=nodes).algorithm


@pytest.mark.parametrize("collective", RULES)
def test_one_host_is_as_if_hosts_were_not_known(collective):
    for nbytes in BYTES:
        assert chosen(collective, nbytes, nodes=((0, 1, 2, 3),)) == chosen(collective, nbytes)


def on_hosts(p):
    """Return a node for each rank."""
    return tuple((rank,) for rank in range(p))


@pytest.mark.parametrize("collective", RULES)
@pytest.mark.parametrize("p", [3, 4, 8])
def test_ranks_on_hosts_of_their_own(collective, p):
    """No hierarchy; across links the large vectors go in few small chunks."""
    for nbytes in BYTES:
        choice = chosen(collective, nbytes, p, nodes=on_hosts(p))
        assert not choice.algorithm.startswith("hierarchical")
        if choice != chosen(collective, nbytes, p):
            assert (choice.chunk_bytes, choice.window) == (32 << 10, 2)
    large = chosen(collective, 4 << 20, p, nodes=on_hosts(p))
    links = LINK_RULES.get(collective, RULES[collective])[-1]
    assert (large.algorithm, large.chunk_bytes) == (links.algorithm, links.chunk_bytes)
    if collective in ORDERED_RULES:
        ordered = chosen(collective, 4 << 20, p, commutative=False)
        assert chosen(collective, 4 << 20, p, commutative=False, nodes=on_hosts(p)) == ordered


@pytest.mark.parametrize(("p", "nbytes", "algorithm"), [
    (8, (16 << 10) - 1, "recursive_doubling"), (8, 16 << 10, "rabenseifner"), (8, (64 << 10) - 1, "rabenseifner"),
    (8, 64 << 10, "ring"), (6, 16 << 10, "ring"), (48, (96 << 10) - 1, "recursive_doubling"), (48, 96 << 10, "ring"),
    (64, (512 << 10) - 1, "rabenseifner"), (64, 512 << 10, "ring"),
])
def test_a_ring_of_many_ranks_wants_more_bytes(p, nbytes, algorithm):
    assert chosen("allreduce", nbytes, p, nodes=on_hosts(p)).algorithm == algorithm


@pytest.mark.parametrize(("nodes", "chunks"), [(None, (256 << 10, 1)), (((0, 1, 2, 3),), (256 << 10, 1)),
                                               (on_hosts(4), (32 << 10, 2)), (((0, 1), (2, 3)), (32 << 10, 2))])
def test_chunks_of_what_is_forced_are_those_for_where_ranks_are(nodes, chunks):
    choice = chosen("allreduce", 1 << 20, nodes=nodes, algorithms={"allreduce": "ring"})
    assert (choice.chunk_bytes, choice.window) == chunks
    choice = chosen("allreduce", 1 << 20, nodes=nodes, algorithms={"allreduce": "ring"}, window=3)
    assert (choice.chunk_bytes, choice.window) == (chunks[0], 3)


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


@pytest.mark.parametrize("rules", [*LINK_RULES.values(), *HOST_RULES.values()])
def test_rules_for_hosts_rise(rules):
    bounds = [(rule.above, rule.per_rank) for rule in rules if not rule.only_powers_of_two]
    assert bounds == sorted(set(bounds))


@pytest.mark.parametrize("p", [5, 8])
@pytest.mark.parametrize("collective", RULES)
def test_a_rule_holds_from_its_bound_on(collective, p):
    """Rules for powers of two do not apply to five ranks."""
    alike = [rule for rule in RULES[collective] if p == 8 or not rule.only_powers_of_two]
    rules = [rule for rule, after in zip(alike, (*alike[1:], None)) if after is None or after.above > rule.above]
    for before, rule in zip((None, *rules), rules):
        assert chosen(collective, rule.above, p=p).algorithm == rule.algorithm
        if before:
            assert chosen(collective, rule.above - 1, p=p).algorithm == before.algorithm


@pytest.mark.parametrize("commutative", [True, False])
@pytest.mark.parametrize("p", [2, 5, 8])
@pytest.mark.parametrize("collective", RULES)
def test_a_choice_is_the_same_from_the_least_to_the_most_bytes(collective, p, commutative):
    """The ranges of all calls cover all bytes, and every range has one choice."""
    if not commutative and collective not in ORDERED_RULES:
        return
    table = [Rule(3000, "linear", None, "measured"), Rule(5000, NATIVE, None, "measured")]
    for nodes in (None, on_hosts(p)):
        for measured in ((), table if collective in ("scan", "bcast") and commutative else ()):
            end, how = -1, (p, commutative, Overrides())
            while end < 1 << 40:
                least, most = same_choice(collective, end + 1, *how, nodes, measured)
                assert least == end + 1
                end, last = most, min(most, 1 << 41)
                choices = [
                    choose(collective, nbytes, *how, "mpi4py", nodes, measured)
                    for nbytes in (least, least + (last - least) // 2, last)
                ]
                assert len({replace(choice, why="") for choice in choices}) == 1
    forced = Overrides().merged({collective: NATIVE}, None, None, None)
    assert same_choice(collective, 99, p, commutative, forced) == (0, sys.maxsize)


@pytest.mark.parametrize(("collective", "window"), [("allreduce", 1), ("reduce_scatter", 1), ("scan", 2)])
def test_a_rule_says_how_many_chunks_are_in_flight(collective, window):
    assert chosen(collective, 64 << 20).window == window


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_choice_says_what_and_why(collective):
    for nbytes in (8, 1 << 30):
        choice = chosen(collective, nbytes, 5)
        text = str(choice)
        assert text.startswith(f"{collective}: {choice.algorithm} on the mpi4py engine, ")
        assert f"{nbytes} bytes on 5 ranks: " in text
        chunks = f"chunks of {choice.chunk_bytes} bytes, {choice.window} in flight"
        assert (chunks if choice.chunk_bytes else "whole blocks") in text


# -- overrides ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_any_algorithm_can_be_asked_for_and_is_chunked_as_in_the_rules(entry):
    name = entry.collective.name
    choice = chosen(name, algorithms={name: entry.name})
    by_rule = {rule.algorithm: rule.chunk_bytes for rule in (*HOST_RULES.get(name, ()), *RULES[name])}
    assert (choice.algorithm, choice.forced, choice.why) == (entry.name, True, "chosen by using()")
    moved = next((by_rule[x] for x in MOVES_ALIKE if x in by_rule), None)     # as many bytes, but of codes
    codec = entry.codec(entry.resolve(4))
    assert choice.chunk_bytes == (by_rule.get(entry.name) if entry.is_exact else moved and int(moved / codec.share))
    assert chosen(name, algorithms={name: entry.name}, chunk_bytes=512).chunk_bytes == 512
    for other in set(COLLECTIVES) - {name}:
        assert chosen(other, algorithms={name: entry.name}) == chosen(other)


@pytest.mark.parametrize("spec", ["double_tree", "dual_root", "reduce_bcast(reduce=chain, bcast=chain)"])
def test_forced_algorithms_take_their_best_chunks_of_the_model(spec):
    net, nodes, sizes = network("infiniband"), on_hosts(8), np.array([8, 1 << 16, 1 << 20, 1 << 24])
    forced, chunks = Overrides().merged({"allreduce": spec}, None, None, None), set()
    for i, nbytes in enumerate(sizes.tolist()):
        choice = choose("allreduce", nbytes, 8, True, forced, "mpi4py", nodes, (), net)
        lines = costs(net, "allreduce", 8, True, nodes, sizes, spec)
        us = next(us[i] for _, chunk, window, us in lines if (chunk, window) == (choice.chunk_bytes, choice.window))
        assert us <= MARGIN * min(us[i] for *_, us in lines)
        size = "whole" if choice.chunk_bytes is None else "in these chunks"
        assert (choice.algorithm, choice.forced) == (spec, True)
        assert choice.why == f"chosen by using(), {size} for the least time by the model of infiniband"
        least, most = same_choice("allreduce", nbytes, 8, True, forced, nodes, (), net)
        assert least <= nbytes <= most
        for other in (least, most):
            assert choose("allreduce", other, 8, True, forced, "mpi4py", nodes, (), net) == choice
        chunks.add(choice.chunk_bytes)
    assert None in chunks and len(chunks) > 1


def test_forced_chunks_take_the_place_of_the_models():
    net, nodes = network("infiniband"), on_hosts(8)
    forced = Overrides().merged({"allreduce": "double_tree"}, 1000, None, None)
    choice = choose("allreduce", 1 << 22, 8, True, forced, "mpi4py", nodes, (), net)
    assert (choice.chunk_bytes, choice.why) == (1000, "chosen by using()")
    assert same_choice("allreduce", 1 << 22, 8, True, forced, nodes, (), net) == (0, sys.maxsize)
    forced = Overrides().merged({"allreduce": "double_tree"}, None, 7, None)
    choice = choose("allreduce", 1 << 22, 8, True, forced, "mpi4py", nodes, (), net)
    assert choice.chunk_bytes is not None and choice.window == 7


def test_forced_algorithms_keep_fixed_chunks_that_are_nearly_as_fast():
    """The first Comm measured the network; other algorithms have no fixed chunks."""
    net, nodes = replace(network("infiniband"), rough=True), on_hosts(8)
    for spec, reason in (("chain", ""), ("binary_tree", ", in these chunks for the least time by the model")):
        forced = Overrides().merged({"bcast": spec}, None, None, None)
        choice = choose("bcast", 1 << 20, 8, True, forced, "mpi4py", nodes, (), net)
        assert choice.chunk_bytes and choice.why.startswith(f"chosen by using(){reason}")
        assert (choice == chosen("bcast", 1 << 20, 8, nodes=nodes, algorithms={"bcast": spec})) == (not reason)


@pytest.mark.parametrize("case", [("allreduce", "mine"), ("allreduce", "quantized"), ("alltoallv", "bruck")])
def test_forced_algorithms_that_the_model_does_not_know_keep_fixed_chunks(monkeypatch, case):
    """Those of a program, those on codes, and calls whose bytes no rank knows."""
    ring = find("allreduce", "ring")
    monkeypatch.setitem(
        registry._REGISTRY["allreduce"], "mine", replace(ring, name="mine", body=lambda p, rank: ring(p, rank))
    )
    forced = Overrides().merged(dict([case]), None, None, None)
    with_model = choose(case[0], 1 << 24, 8, True, forced, "mpi4py", on_hosts(8), (), network("infiniband"))
    assert with_model == chosen(case[0], 1 << 24, 8, nodes=on_hosts(8), algorithms=dict([case]))
    assert with_model.why == "chosen by using()"


@pytest.mark.parametrize("collective", HOST_RULES)
def test_forced_algorithms_with_parameters_use_the_rules_chunks(collective):
    for rule in {rule.algorithm: rule for rule in HOST_RULES[collective]}.values():     # the last of several
        choice = chosen(collective, algorithms={collective: rule.algorithm})
        assert (choice.algorithm, choice.chunk_bytes) == (rule.algorithm, rule.chunk_bytes)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_native_and_auto(collective):
    native = chosen(collective, algorithms={collective: "native"})
    assert (native.algorithm, native.engine, native.forced) == (NATIVE, NATIVE, True)
    assert chosen(collective, algorithms={collective: "auto"}) == chosen(collective)
    assert str(native) == f"{collective}: native: chosen by using()"
    assert str(native_choice(collective, "no plan for this type")) == f"{collective}: native: no plan for this type"


@pytest.mark.parametrize("entry", REDUCING)
def test_forced_on_an_operator_that_does_not_commute(entry):
    name = entry.collective.name
    if entry.keeps_order():
        assert chosen(name, commutative=False, algorithms={name: entry.name}).algorithm == entry.name
        return
    with pytest.raises(PreconditionError, match=f"{name} {entry.name} does not keep operand order.*; choose "):
        chosen(name, commutative=False, algorithms={name: entry.name})


@pytest.mark.parametrize(
    ("algorithms", "error", "message"),
    [
        ({"allreduce": "rign"}, UnknownAlgorithm, "'rign'; did you mean 'ring'"),
        ({"allreduce": ""}, UnknownAlgorithm, "no allreduce algorithm is called ''"),
        ({"alreduce": "ring"}, UnknownAlgorithm, "'alreduce'; did you mean 'allreduce'"),
        ({"alreduce": "auto"}, UnknownAlgorithm, "'alreduce'; did you mean 'allreduce'"),
        ({"alreduce": "native"}, UnknownAlgorithm, "'alreduce'; did you mean 'allreduce'"),
        ({"allreduce": "ring(k=2)"}, ParameterError, "has no parameter k"),
        ({"allreduce": 3}, ArgumentError, "allreduce is 3; it must be the name of an algorithm"),
    ],
)
def test_unknown_names_are_refused_with_near_ones(algorithms, error, message):
    with pytest.raises(error, match=message):
        Overrides().merged(algorithms, None, None, None)


@pytest.mark.parametrize("what", ["chunk_bytes", "window"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", 1e3])
def test_chunk_and_window_are_integers_of_at_least_one(what, value):
    with pytest.raises(ArgumentError, match=f"^{what} is {value!r}; it must be an integer of at least 1$"):
        Overrides().merged({}, **{"chunk_bytes": None, "window": None, what: value}, engine=None)


def test_a_second_name_chooses_the_same():
    overrides = Overrides().merged({"reduce_scatter": "ring"}, None, None, None)
    overrides = overrides.merged({"reduce_scatter_block": "pairwise"}, None, None, None)
    assert overrides.algorithms == (("reduce_scatter", "pairwise"),)


def test_inner_overrides_lie_over_outer_ones():
    outer = Overrides().merged({"allreduce": "ring", "bcast": "chain"}, 100, 2, "mpi4py")
    inner = outer.merged({"allreduce": "naive"}, 50, None, None)
    assert dict(inner.algorithms) == {"allreduce": "naive", "bcast": "chain"}
    assert (inner.chunk_bytes, inner.window, inner.engine) == (50, 2, "mpi4py")
    assert dict(outer.algorithms)["allreduce"] == "ring"


def test_chunk_and_window_reach_the_choice():
    choice = chosen("allreduce", chunk_bytes=1, window=7)
    assert (choice.chunk_bytes, choice.window) == (1, 7)


def test_small_blocks_of_a_stencil_are_combined():
    """On a slow network; on one that was measured only roughly, a small gain is not enough."""
    grid = Stencil((2, 2, 2), (True,) * 3, [(i, j, k) for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)])
    slow, alone = network("fugaku"), tuple((rank,) for rank in range(8))
    rules = stencil_rules(slow, "neighbor_alltoall", grid, alone)
    assert [rule.algorithm for rule in rules] == ["combining", "direct"] and rules[0].above == 0 < rules[1].above
    rough = stencil_rules(replace(slow, rough=True), "neighbor_alltoall", grid, alone)
    assert 0 < rough[1].above < rules[1].above
    overrides = Overrides()
    few, many = (
        choose("neighbor_alltoall", nbytes, 8, True, overrides, "mpi4py", alone, (), slow, grid).algorithm
        for nbytes in (8, 1 << 20)
    )
    assert (few, many) == ("combining", "direct")
    assert choose("neighbor_alltoallv", 8, 8, True, overrides, "mpi4py", alone, (), slow, grid).algorithm == "direct"
