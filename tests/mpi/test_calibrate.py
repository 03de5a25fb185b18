"""`mpicoll calibrate` on real ranks: pairs exchange at once, and auto may go by what they find."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mpicoll
from mpicoll.benchmarks import calibrate as command
from mpicoll.cli.group import USAGE
from mpicoll.cost.network import content, network, parse
from mpicoll.runtime import agreement, calibrate
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
    assert (measured.node == preset.node) == (not inside(nodes, 2))
    assert (measured.links == preset.links) == (comm.size == 1)
    assert (measured.links == measured.node) == (comm.size > 1 and not across(nodes))
    assert measured.fold_rate != preset.fold_rate and measured.copy_rate != preset.copy_rate


def test_a_file_that_cannot_be_written_ends_it_before_it_measures(comm, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "measure", lambda *args: pytest.fail("measured"))
    if comm.size > 1:
        assert command.calibrate.main(["-o", str(tmp_path / "none" / "net.json")], standalone_mode=False) == USAGE


def test_pairs_share_no_rank():
    nodes = ((0, 1, 2), (3,), (4, 5), (6, 7, 8, 9), (10,))
    assert inside(nodes, 8) == [(0, 1), (4, 5), (6, 7), (8, 9)]
    assert inside(nodes, 3) == inside(nodes, 1) == [(0, 1), (4, 5), (6, 7)]    # no more ranks than processors
    assert across(nodes) == [(0, 4), (3, 6)]
    assert across(((0, 1),)) == [] and inside(((0,), (1,)), 2) == []


def times(latency, rendezvous, gap, short_rate, rate, slower=1.0):
    """Return the times of the exchanges on a level with these parameters."""
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


def test_a_burst_of_short_messages_is_no_rate():
    """A link with a token bucket lets some bytes pass faster than it can go on."""
    burst = times(100.0, 0.0, 1.0, 60.0, 6.0)
    assert level_of([burst]).short_rate == level_of([burst]).rate == pytest.approx(6.0, rel=0.01)


def test_more_bytes_that_take_no_longer_have_a_finite_rate():
    flat = Times(dict.fromkeys((*SHORT, *LONG), 5.0), 5.0)
    level = level_of([flat])
    assert level.rate <= 1e5 and level.gap == 0 and level.rendezvous >= 0


def test_more_ranks_than_processors_take_turns(comm, monkeypatch):
    monkeypatch.setattr(calibrate, "_cores", lambda comm: 1)
    measured = calibrate.measure(comm, by_blocks(comm.size, comm.size), 0.2, "here")
    if comm.rank == 0:
        assert measured.cores == 1 and (measured.turn > 0) <= (comm.size > 1)
    monkeypatch.setattr(calibrate, "_cores", lambda comm: 64)
    measured = calibrate.measure(comm, by_blocks(comm.size, comm.size), 0.1, "here")
    assert comm.rank > 0 or (measured.cores, measured.turn) == (64, 0.0)


def test_processors_that_any_rank_may_use_are_counted_once(comm, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 5, 10 + comm.rank}, raising=False)
    assert calibrate._cores(comm) == 2 + comm.size


def test_a_program_that_sets_nothing_goes_by_what_it_measures(comm, monkeypatch, tmp_path):
    """Once in a program for the same ranks, kept for the next; `none` leaves the fixed rules."""
    monkeypatch.delenv("MPICOLL_NETWORK")
    monkeypatch.setenv("XDG_CACHE_HOME", comm.bcast(str(tmp_path)))
    monkeypatch.setattr(agreement, "_measured", {})
    measured, calls = agreement.measure, []
    monkeypatch.setattr(agreement, "measure", lambda *args: calls.append(args) or measured(*args))
    both = [mpicoll.Comm(comm.Dup()) for _ in range(2)]
    networks = [wrapped._open().agreed.network for wrapped in both]
    assert networks[0] == networks[1] == comm.bcast(networks[0]) and len(calls) == (comm.size > 1)
    files = list((tmp_path / "mpicoll" / "networks").glob("*"))
    assert comm.rank > 0 or len(files) == (comm.size > 1)
    assert comm.size == 1 or networks[0].rough
    x, total = np.arange(100.0), np.zeros(100)
    for wrapped in both:
        wrapped.Allreduce(x, total)
        assert (total == comm.size * x).all()
        wrapped.Free()
    monkeypatch.setenv("MPICOLL_NETWORK", "none")
    fixed = mpicoll.Comm(comm.Dup())
    assert not fixed.explain("allreduce", 800).model and "model" not in fixed.explain("allreduce", 800).why
    fixed.Free()


def test_auto_goes_by_what_was_measured_as_the_comm_was_made(comm, monkeypatch):
    """The same on every rank, for a part of them too; and the sums are right."""
    monkeypatch.setenv("MPICOLL_NETWORK", "measure" if comm.rank == 0 else "none")
    if comm.size == 1:
        return
    ours = mpicoll.Comm(comm.Dup())
    half = ours.Split(comm.rank % 2, comm.rank)
    described = [wrapped._open().agreed.network for wrapped in (ours, half)]
    assert all(other == described for other in comm.allgather(described)) and described[0] == described[1]
    for wrapped in (ours, half):
        for n in (1, 3000, 100_000):
            x, total = np.arange(n, dtype=float), np.zeros(n)
            choice = wrapped.explain("allreduce", 8 * n)
            with wrapped.trace() as records:
                wrapped.Allreduce(x, total)
            assert [record.algorithm for record in records] == [choice.algorithm]
            assert (total == wrapped.size * x).all()
    half.Free()
    ours.Free()
