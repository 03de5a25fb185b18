"""`mpicoll calibrate` on real ranks: pairs exchange at once, and auto may go by what they find."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mpicoll
from mpicoll.cost.network import content, network, parse
from mpicoll.runtime import calibrate
from mpicoll.runtime.calibrate import LONG, SHORT, TOGETHER, Times, across, inside, level_of
from mpicoll.schedules.grouping import by_blocks


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_network_of_any_layout(comm, size):
    """Try several layouts: the caller says which ranks share a node."""
    nodes = by_blocks(comm.size, size)
    measured = calibrate.measure(comm, nodes, 0.2, "here")
    assert (measured is None) == (comm.rank > 0)
    measured = comm.bcast(measured)
    assert measured.name == "here" and parse(json.dumps(content(measured)), "here.json") == measured
    preset = network("infiniband")
    assert (measured.node == preset.node) == (not inside(nodes))
    assert (measured.links == preset.links) == (comm.size == 1)
    assert (measured.links == measured.node) == (comm.size > 1 and not across(nodes))
    assert measured.fold_rate != preset.fold_rate and measured.copy_rate != preset.copy_rate


def test_pairs_share_no_rank():
    nodes = ((0, 1, 2), (3,), (4, 5), (6, 7, 8, 9), (10,))
    assert inside(nodes) == [(0, 1), (4, 5), (6, 7), (8, 9)]
    assert across(nodes) == [(0, 4), (3, 6)]
    assert across(((0, 1),)) == [] and inside(((0,), (1,))) == []


def times(latency, rendezvous, gap, short_rate, rate, slower=1.0):
    """The exchanges of such a level."""
    us = {n: latency + n / short_rate for n in SHORT} | {n: latency + rendezvous + n / rate for n in LONG}
    return Times({n: slower * t for n, t in us.items()}, slower * (us[SHORT[0]] + (TOGETHER - 1) * gap))


def test_a_level_is_what_its_exchanges_say():
    level = level_of([times(10.0, 20.0, 2.0, 500.0, 4000.0)])
    assert level.latency == pytest.approx(10.0, rel=0.01) and level.gap == pytest.approx(2.0, rel=0.01)
    assert (level.rendezvous, level.short_rate, level.rate) == pytest.approx((20.0, 500.0, 4000.0), rel=0.01)
    assert level_of([]) is None


def test_a_level_is_the_median_over_pairs():
    usual = times(10.0, 20.0, 2.0, 500.0, 4000.0)
    assert level_of([usual, usual, times(10.0, 20.0, 2.0, 500.0, 4000.0, slower=9.0)]) == level_of([usual])


def test_slow_links_are_measured_without_the_longest_messages():
    few = times(100.0, 0.0, 1.0, 1.0, 1.0)
    level = level_of([few._replace(by_size={n: t for n, t in few.by_size.items() if n <= LONG[0]})])
    assert level.rate == level.short_rate == 1.0 and level.rendezvous < 200


def test_more_bytes_that_take_no_longer_have_a_finite_rate():
    flat = Times(dict.fromkeys((*SHORT, *LONG), 5.0), 5.0)
    level = level_of([flat])
    assert level.rate <= 1e5 and level.gap == 0 and level.rendezvous >= 0


def test_auto_goes_by_what_was_measured_as_the_comm_was_made(comm, monkeypatch):
    """The same on every rank, for a part of them too; and the sums are right."""
    monkeypatch.setenv("MPICOLL_NETWORK", "measure" if comm.rank == 0 else "")
    ours = mpicoll.Comm(comm.Dup())
    half = ours.Split(comm.rank % 2, comm.rank)
    described = [made._open().agreed.settings.network for made in (ours, half)]
    assert all(other == described for other in comm.allgather(described)) and described[0] == described[1]
    for made in (ours, half):
        for n in (1, 3000, 100_000):
            x, total = np.arange(n, dtype=float), np.zeros(n)
            choice = made.explain("allreduce", 8 * n)
            assert "the model of the network as measured" in choice.why
            with made.trace() as records:
                made.Allreduce(x, total)
            assert [record.algorithm for record in records] == [choice.algorithm]
            assert (total == made.size * x).all()
    half.Free()
    ours.Free()
