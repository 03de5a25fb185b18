"""The choice for uneven shares: simulations of unequal blocks, classes of skew, and the rules that follow."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

from mpicoll.benchmarks.cases.counts import SHARES
from mpicoll.cli import main
from mpicoll.cost import event_loop
from mpicoll.cost.network import network
from mpicoll.cost.shares import UnequalBlocks
from mpicoll.cost.simulation import Simulation
from mpicoll.errors import ArgumentError
from mpicoll.plans.lowering import lower
from mpicoll.plans.plan import RECV, SEND, Shares
from mpicoll.schedules.blocks import offsets
from mpicoll.schedules.collectives import base_collective
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.schedule import schedule
from mpicoll.selection import kept_rules, uneven
from mpicoll.selection.modelled import candidates, modelled_rules
from mpicoll.selection.rules import Rule
from mpicoll.selection.select import Overrides, choose, same_choice

LINKS = replace(
    network("infiniband").links, latency=60.0, rendezvous=120.0, gap=5.0, short_rate=24.0, rate=24.0, ports=1
)
SLOW = replace(network("infiniband"), name="slow", links=LINKS, short_bytes=65536.0)  # 200 Mbit/s a host
KINDS = ("spike", "uneven", "skewed")


@pytest.fixture(autouse=True)
def compiled():
    event_loop.prepare()


def rule_for(rules, nbytes, p):
    return next(rule for rule in reversed(rules) if rule.fits(nbytes, p))


@pytest.mark.parametrize("p", [2, 3, 5, 8, 13, 16])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_the_compiled_loop_plays_unequal_blocks_as_the_loop_in_python(collective, p, monkeypatch):
    shares = [SHARES["spike"](100, p), SHARES["skewed"](100, p), [0] * (p - 1) + [1]]
    cases = [
        (schedule(collective, spec, p, nodes=nodes), nodes, *how)
        for nodes in (None, by_blocks(p, 3))
        for spec in candidates(collective, p, True, nodes, cuts_shares=True)
        for how in product(shares, ((200_000, None, 1), (200_000, 16384, 2), (3, None, 1)))
    ]
    run = lambda case: Simulation(case[0], SLOW, case[3][0], case[1], *case[3][1:], shares=case[2])
    fast = [(played.ends, played.messages) for played in map(run, cases)]
    monkeypatch.setattr(event_loop, "run", lambda *_: None)
    assert fast == [(played.ends, played.messages) for played in map(run, cases)]


@pytest.mark.parametrize("p", [3, 8])
def test_simulations_send_the_bytes_that_plans_send(p):
    """Messages of unequal blocks, by chunk, are those of the lowered plans, without empty ones."""
    for spec, chunk in product(("ring", "circulant", "bruck", "circulant_segments"), (None, 100)):
        counts = [0, *SHARES["skewed"](300, p - 1)]
        planned = schedule("allgather", spec, p)
        blocks, number = UnequalBlocks(planned, sum(counts), counts, chunk), 0
        for rank in range(p):
            own = Shares((counts[rank],), tuple(counts), (0,), tuple(offsets(counts)), tuple(counts))
            plan = lower(planned, rank, own, 1, chunk_bytes=chunk)
            assert plan.lanes == blocks.chunks
            for kind, _, first, end, _ in plan.rows.tolist():
                if kind in (SEND, RECV):
                    left = plan.segments[first:end, 2][:, None] - blocks.slice * np.arange(plan.lanes)
                    number += kind == SEND and int((np.clip(left, 0, blocks.slice).sum(axis=0) > 0).sum())
        assert Simulation(planned, SLOW, sum(counts), None, chunk, 2, shares=counts).messages == number


def test_equal_shares_take_what_they_take_without_shares():
    for spec in ("ring", "circulant", "bruck", "sparbit"):
        planned = schedule("allgather", spec, 8)
        for nbytes, chunk in ((8000, None), (1 << 20, 16384)):
            even, shared = (Simulation(planned, SLOW, nbytes, None, chunk, 2, shares=s).us for s in (None, [7] * 8))
            assert shared == pytest.approx(even, rel=1e-12)


@pytest.mark.parametrize(
    ("collective", "shares", "why"),
    [("bcast", [1, 1, 1], "no shares of ranks"), ("allgather", [1, 1], "give 3 counts"),
     ("allgather", [0, 0, 0], "not all of them 0"), ("allgather", [1, -1, 1], ">= 0")],
)  # fmt: skip
def test_wrong_shares(collective, shares, why):
    with pytest.raises(ArgumentError, match=why):
        Simulation(schedule(collective, "linear", 3), SLOW, 100, shares=shares)


def test_every_call_has_one_class():
    """The limits that compiled code checks are those of the class, and typical shares belong to their class."""
    random = np.random.default_rng(1)
    for p in (3, 5, 8, 32):
        for counts in (*(random.integers(0, 1 + 10**k, p).tolist() for k in range(6)), [0] * p, [0] * (p - 1) + [1]):
            peak, total = 2 * max(counts) * p, sum(counts)
            classes = [k for k in range(8) if uneven.skew_limits(k)[0] * total <= peak < max(
                1, uneven.skew_limits(k)[1] * total) and not (k and not total)]  # fmt: skip
            assert classes == [uneven.skew_class(counts)]
        for skew in range(1, 3):
            assert uneven.skew_class(uneven.typical_shares(skew, p)) == skew
    assert uneven.skew_class([1, 0]) == uneven.skew_class([1, *[0] * 40]) == uneven.EVEN


def test_segments_serve_a_spike_on_slow_links():
    rules = uneven.uneven_rules(SLOW, "allgatherv", 8, True, None, 2)
    assert rule_for(rules, 65536, 8).algorithm == "circulant_segments"
    even = modelled_rules(SLOW, "allgatherv", 8, True, None)
    assert "circulant_segments" not in {rule.algorithm for rule in even}
    assert rule_for(rules, 8191, 8) == rule_for(even, 8191, 8)  # latency decides
    rough = replace(SLOW, rough=True), "allgatherv", 8, True, None
    kept, usual = uneven.uneven_rules(*rough, 2), rule_for(modelled_rules(*rough), 16384, 8).algorithm
    assert rule_for(kept, 16384, 8).algorithm == usual != rule_for(rules, 16384, 8).algorithm  # nearly as fast
    assert rule_for(kept, 65536, 8).algorithm == "circulant_segments"
    assert uneven.has_classes(SLOW, by_blocks(8, 8)) and not uneven.has_classes(None, None)
    assert not uneven.has_classes(replace(SLOW, cores=2), by_blocks(8, 8))  # ranks share processors
    ordered = uneven.uneven_rules(SLOW, "reduce_scatter", 8, False, None, 2)
    assert not any("circulant" in rule.algorithm for rule in ordered)


@pytest.mark.parametrize("p", [3, 8, 16])
@pytest.mark.parametrize("collective", uneven.COLLECTIVES)
def test_the_model_charges_what_simulations_take_and_chooses_near_the_best(collective, p):
    slowdowns = []
    for kind, nbytes in product(KINDS, (16384, 65536, 1 << 20)):
        shares = SHARES[kind](1 << 16, p)
        skew = uneven.skew_class(shares)
        assert skew
        rule = rule_for(uneven.uneven_rules(SLOW, collective, p, True, None, skew), nbytes, p)
        lines = uneven.uneven_costs(SLOW, collective, p, True, None, [nbytes], shares)
        planned = lambda name: schedule(base_collective(collective), name, p)
        for name, chunk, window, us in lines[::5]:
            played = Simulation(planned(name), SLOW, nbytes, None, chunk, window, shares=shares)
            assert us[0] in (np.inf, played.us)
        how = rule.chunk_bytes, rule.window
        chosen = uneven.uneven_us(SLOW, planned(rule.algorithm), None, nbytes, shares, *how)
        slowdowns.append(chosen / min(us[0] for *_, us in lines))
    assert np.exp(np.log(slowdowns).mean()) < 1.15 and max(slowdowns) < 1.6, slowdowns


def test_choices_follow_the_class_and_tables_are_for_even_counts():
    table = (Rule(0, "ring", None, "measured"),)
    how = ("allgatherv", 65536, 8, True, Overrides(), "compiled", None)
    assert choose(*how, table, SLOW).algorithm == choose(*how, table).algorithm == "ring"
    uneven_choice = choose(*how, table, SLOW, skew=2)
    assert uneven_choice.algorithm == "circulant_segments" and not uneven_choice.measured
    assert "one rank has 4 times the mean" in uneven_choice.why
    assert choose(*how, table, None, skew=2).algorithm == "ring"  # without a network
    low, high = same_choice("allgatherv", 65536, 8, True, Overrides(), None, (), SLOW, 2)
    for nbytes in (low, high):
        again = choose("allgatherv", nbytes, *how[2:], (), SLOW, skew=2)
        assert (again.algorithm, again.chunk_bytes) == (uneven_choice.algorithm, uneven_choice.chunk_bytes)


def test_rules_of_a_class_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep = kept_rules.kept_rules.__wrapped__
    even, spike = (keep(SLOW, "allgatherv", 5, True, None, skew=skew) for skew in (0, 2))
    assert len(list(tmp_path.rglob("*.json"))) == 2 and even != spike
    assert keep(SLOW, "allgatherv", 5, True, None, skew=2) == spike


def test_commands_take_counts():
    words = ["allgatherv", "-p", "8", "--sizes", "64K", "--json", "--counts"]
    for command in ("choose", "simulate"):
        even, spike = (json.loads(CliRunner().invoke(main, [command, *words, k]).output) for k in ("even", "spike"))
        assert even != spike
        done = CliRunner().invoke(main, [command, "bcast", *words[1:], "spike"])
        assert done.exit_code and "bcast has equal shares; give allgatherv or reduce_scatter" in done.output
