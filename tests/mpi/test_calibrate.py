"""`mpicoll calibrate` on real ranks: one network for all, of pairs that exchange at once."""

from __future__ import annotations

import json

import pytest

from mpicoll.benchmarks import calibrate
from mpicoll.benchmarks.calibrate import LONG, SHORT, TOGETHER, Times, _across, _inside, _level
from mpicoll.cost.network import content, network, parse


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_rank_gets_one_network(comm, size):
    """Whether ranks share a node or not is what the caller says, so every layout is tried."""
    nodes = tuple(tuple(range(i, min(i + size, comm.size))) for i in range(0, comm.size, size))
    measured = calibrate.measure(comm, nodes, 0.2, "here")
    assert all(other == measured for other in comm.allgather(measured))
    assert measured.name == "here" and parse(json.dumps(content(measured)), "here.json") == measured
    preset = network("infiniband")
    assert (measured.node == preset.node) == (not _inside(nodes))
    assert (measured.links == preset.links) == (comm.size == 1)
    assert (measured.links == measured.node) == (comm.size > 1 and not _across(nodes))
    assert measured.fold_rate != preset.fold_rate and measured.copy_rate != preset.copy_rate


def test_pairs_share_no_rank():
    nodes = ((0, 1, 2), (3,), (4, 5), (6, 7, 8, 9), (10,))
    assert _inside(nodes) == [(0, 1), (4, 5), (6, 7), (8, 9)]
    assert _across(nodes) == [(0, 4), (3, 6)]
    assert _across(((0, 1),)) == [] and _inside(((0,), (1,))) == []


def times(latency, rendezvous, gap, short_rate, rate, slower=1.0):
    """The exchanges of such a level."""
    us = {n: latency + n / short_rate for n in SHORT} | {n: latency + rendezvous + n / rate for n in LONG}
    return Times({n: slower * t for n, t in us.items()}, slower * (us[SHORT[0]] + (TOGETHER - 1) * gap))


def test_a_level_is_what_its_exchanges_say():
    level = _level([times(10.0, 20.0, 2.0, 500.0, 4000.0)])
    assert level.latency == pytest.approx(10.0, rel=0.01) and level.gap == pytest.approx(2.0, rel=0.01)
    assert (level.rendezvous, level.short_rate, level.rate) == pytest.approx((20.0, 500.0, 4000.0), rel=0.01)
    assert _level([]) is None


def test_a_level_is_the_median_over_pairs():
    usual = times(10.0, 20.0, 2.0, 500.0, 4000.0)
    assert _level([usual, usual, times(10.0, 20.0, 2.0, 500.0, 4000.0, slower=9.0)]) == _level([usual])


def test_slow_links_are_measured_without_the_longest_messages():
    few = times(100.0, 0.0, 1.0, 1.0, 1.0)
    level = _level([few._replace(by_size={n: t for n, t in few.by_size.items() if n <= LONG[0]})])
    assert level.rate == level.short_rate == 1.0 and level.rendezvous < 200


def test_more_bytes_that_take_no_longer_have_a_finite_rate():
    flat = Times(dict.fromkeys((*SHORT, *LONG), 5.0), 5.0)
    level = _level([flat])
    assert level.rate <= 1e5 and level.gap == 0 and level.rendezvous >= 0
