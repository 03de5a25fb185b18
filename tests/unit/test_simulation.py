"""Simulated schedules against formulas, against the closed form that auto uses, and against its choices."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner
from unit.mutants import of_ranks
from unit.test_cost import ALPHA, FORMULAS, PLAIN, RATE

from mpicoll.cli import main
from mpicoll.cost import event_loop, messages
from mpicoll.cost.model import cost
from mpicoll.cost.network import in_words, network
from mpicoll.cost.placement import place
from mpicoll.cost.profile import profile
from mpicoll.cost.simulation import COMPUTES, RECEIVES, SENDS, Simulation
from mpicoll.describe import times
from mpicoll.errors import ArgumentError
from mpicoll.kernels.background import NotCompiled
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.ir import Recv, Send
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule, schedule
from mpicoll.selection.modelled import candidates, costs, modelled_rules

KINDS = (SENDS, RECEIVES, COMPUTES)
LAYOUTS = [(8, 1), (13, 1), (16, 4)]
COLLECTIVES = ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter", "alltoall", "gather", "scatter", "scan")


@pytest.mark.parametrize("p", [2, 8, 16])
@pytest.mark.parametrize(("collective", "algorithm"), FORMULAS)
def test_simulations_take_what_the_formulas_say(collective, algorithm, p):
    for nbytes in (0.0, 8.0, 1e6):
        simulated = Simulation(schedule(collective, algorithm, p), PLAIN, nbytes)
        assert max(simulated.ends) == pytest.approx(FORMULAS[collective, algorithm](p, nbytes), rel=1e-9)


def test_a_recorded_simulation_says_what_every_rank_does_when():
    """Two steps of a ring on three ranks: both directions at once, a reduction between, no overlap within a kind."""
    slow = replace(PLAIN, fold_rate=50.0)
    simulation = Simulation(schedule("reduce_scatter", "ring", 3), slow, 3000.0, record=True)
    assert simulation.us == max(simulation.ends) == pytest.approx(2 * (ALPHA + 1000 / RATE + 1000 / 50))
    assert Simulation(schedule("reduce_scatter", "ring", 3), slow, 3000.0).spans is None
    for rank in range(3):
        own = {what: sorted((s.begin, s.end) for s in simulation.spans if s[:2] == (rank, what)) for what in KINDS}
        step = ALPHA + 1000 / RATE + 1000 / 50
        for i in range(2):
            assert own[SENDS][i] == pytest.approx((i * step, i * step + 1000 / RATE))
            assert own[RECEIVES][i] == pytest.approx((i * step + ALPHA, i * step + ALPHA + 1000 / RATE))
            assert own[COMPUTES][i] == pytest.approx(((i + 1) * step - 1000 / 50, (i + 1) * step))
        assert [len(spans) for spans in own.values()] == [2, 2, 2]


def test_the_picture_in_time():
    """A chain of three: each rank receives, then sends, and the last one waits most of the time."""
    slow = replace(PLAIN, node=replace(PLAIN.node, latency=0.0), links=replace(PLAIN.links, latency=0.0))
    simulation = Simulation(schedule("bcast", "chain", 3), slow, 8000.0, record=True)
    lines = times.draw("a chain", simulation, columns=24).splitlines()
    assert lines[0] == f"a chain: {simulation.us:.4g} µs, 2 messages"
    assert [line[7:31] for line in lines[3:6]] == ["→" * 12 + " " * 12, "←" * 12 + "→" * 12, "·" * 12 + "←" * 12]
    shares = [line.split()[-3:] for line in lines[3:6]]
    assert shares == [["50%", "0%", "0%"], ["50%", "50%", "0%"], ["0%", "50%", "0%"]]
    quarters = [f"{simulation.us * i / 4:.4g}" for i in range(1, 5)]
    assert lines[2].split() == ["0", *quarters, "sends", "receives", "reduces"]
    assert "· waits" in lines[-1]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_picture_in_time_has_a_line_for_each_rank(collective):
    for algorithm in candidates(collective, 5, True, by_blocks(5, 2)):
        scheduled, nodes = schedule(collective, algorithm, 5), by_blocks(5, 2)
        simulation = Simulation(scheduled, network("infiniband"), 1e5, nodes, 8192, 2, record=True)
        lines = times.draw(algorithm, simulation).splitlines()
        assert [line.split()[1] for line in lines if line.startswith("rank")] == [*"01234"]
        assert len({len(line) for line in lines if line.startswith("rank")}) == 1


def test_the_command_that_draws_in_time():
    words = ["show", "allreduce", "hierarchical", "-p", "8", "--ranks-per-node", "4"]
    words += ["--network", "infiniband", "--size", "1M"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0 and done.output.startswith("allreduce hierarchical, p = 8, 1 MiB, infiniband, 2 nodes: ")
    assert done.output.count("\nrank ") == 8
    chunked = CliRunner().invoke(main, [*words, "--chunk", "64K", "--window", "3"])
    assert "1 MiB in chunks of 64 KiB, 3 in flight, infiniband" in chunked.output
    in_steps = [CliRunner().invoke(main, [*words[:5], "--ranks-per-node", ranks]).output for ranks in ("2", "4")]
    assert all("hierarchical, p = 8: " in output for output in in_steps) and in_steps[0] != in_steps[1]
    for more, why in (("--svg x", "leave one out"), ("--size many", "not a size"), ("--network no", "presets are"),
                      ("-p 2000 --chunk 8", "messages, and 1,500,000 are simulated at most")):
        done = CliRunner().invoke(main, [*words, *more.split()])
        assert done.exit_code and why in done.output


def test_every_message_is_simulated_once():
    assert Simulation(schedule("allreduce", "ring", 7), PLAIN, 100.0).messages == 7 * 12
    assert Simulation(schedule("allreduce", "ring", 7), PLAIN, 7e4, chunk_bytes=1000, window=2).messages == 7 * 12 * 10
    assert Simulation(schedule("bcast", "chain", 1), PLAIN, 1e6).ends == [0.0]


def test_chunks_of_a_chain_follow_each_other():
    n, chunk, p = 1e6, 1e5, 8
    simulated = Simulation(schedule("bcast", "chain", p), PLAIN, n, chunk_bytes=chunk, window=2)
    assert max(simulated.ends) == pytest.approx((p - 1) * (ALPHA + chunk / RATE) + 9 * (ALPHA + chunk / RATE), rel=0.05)
    long = replace(PLAIN, short_bytes=1.0)      # so a sender waits until its receiver has sent the chunk before
    chain = schedule("bcast", "chain", p)
    two, single = (max(Simulation(chain, long, n, None, chunk, window).ends) for window in (2, 1))
    assert single > 1.3 * two


def test_ranks_of_a_node_share_its_link():
    pairwise = schedule("alltoall", "pairwise", 8)
    apart, together = (max(Simulation(pairwise, PLAIN, 8e6, nodes).ends) for nodes in (None, by_blocks(8, 4)))
    assert 2 < together / apart < 3.5      # 4 of 7 messages go through a link of 4 ranks


def test_two_ranks_of_a_node_send_one_after_the_other():
    n, nodes = 4e6, ((0, 1), (2,), (3,))
    ends = Simulation(schedule("allgather", "recursive_doubling", 4), PLAIN, n, nodes).ends
    before = 2 * ALPHA + n / 4 / RATE
    assert sorted(ends[2:]) == pytest.approx([before + n / 2 / RATE, before + n / RATE])


def test_a_rank_reduces_one_chunk_after_the_other():
    """The root of a linear reduction reduces 7 vectors, however many chunks are in flight."""
    slow = replace(PLAIN, fold_rate=50.0)
    for window in (1, 2, 4):
        us = Simulation(schedule("reduce", "linear", 8), slow, 8e5, None, 1e4, window).us
        assert us > 7 * 8e5 / 50


@pytest.mark.parametrize("rate", [RATE, 10 * RATE])
@pytest.mark.parametrize("short_bytes", [1.0, 1e9])
def test_a_link_serves_messages_in_the_order_of_time(rate, short_bytes):
    """In a linear alltoall every rank receives from another one at any time, so no message waits for a link."""
    net = replace(PLAIN, short_bytes=short_bytes, links=replace(PLAIN.links, rate=rate, short_rate=rate))
    us = Simulation(schedule("alltoall", "linear", 8), net, 8e5).us
    assert us == pytest.approx(ALPHA + 7 * 1e5 / rate)


@pytest.mark.parametrize(("ports", "rounds"), [(1, 4), (2, 2), (4, 1), (6, 1)])
@pytest.mark.parametrize("nodes", [None, by_blocks(5, 5)], ids=["links", "node"])
def test_as_many_messages_at_once_as_there_are_ports(ports, rounds, nodes):
    """The root of a linear broadcast sends four messages; by closed form and simulation."""
    level = replace(PLAIN.links, ports=ports)
    net, n = replace(PLAIN, links=level, node=level), 1e5
    us = ALPHA + rounds * n / RATE
    assert Simulation(schedule("bcast", "linear", 5), net, n, nodes).us == pytest.approx(us)
    assert cost(profile("bcast", "linear", 5, nodes), net, np.array([n]))[0] == pytest.approx(us)
    assert (f"MB/s, {ports} at once" in in_words(net)[0]) == (ports > 1)


@pytest.mark.parametrize(("nbytes", "us"), [(8.0, 3 * 3.0 + 8.0 / RATE), (1e5, 2 * (3.0 + 1e5 / RATE))])
def test_a_gap_is_between_messages_of_all_ports(nbytes, us):
    """Four short messages begin a gap apart. Of four long ones two are sent at once, each a gap after another."""
    net = replace(PLAIN, links=replace(PLAIN.links, gap=3.0, ports=2))
    assert Simulation(schedule("bcast", "linear", 5), net, nbytes).us == pytest.approx(ALPHA + us)


@pytest.mark.parametrize(("collective", "algorithm"), [("allreduce", "double_tree"), ("allreduce", "reduce_bcast"),
                                                       ("bcast", "double_tree"), ("reduce", "chain")])
def test_chunks_take_in_closed_form_what_they_take_simulated(collective, algorithm):
    """A chunk that goes up a tree and down again occupies a rank for all of the way, another for its own steps."""
    net, n = network("infiniband"), 8e6
    simulated = max(Simulation(schedule(collective, algorithm, 13), net, n, None, 32768, 2).ends)
    closed = cost(profile(collective, algorithm, 13), net, np.array([n]), 32768, 2)[0]
    assert closed == pytest.approx(simulated, rel=0.35)


def test_messages_that_do_not_match_are_an_error():
    linear = schedule("bcast", "linear", 3)
    whole = linear.program
    linear.program = lambda rank: whole(rank) if rank != 2 else type(whole(0))(((),))
    with pytest.raises(RuntimeError, match="1 messages of the schedule have no other side"):
        Simulation(linear, PLAIN, 8.0)


@pytest.mark.once
def test_the_closed_form_agrees_with_simulations():
    """The median is the simulation itself; not every algorithm on nodes of several ranks is near."""
    net, ratios = network("infiniband"), []
    for p, size in LAYOUTS:
        nodes = by_blocks(p, size)
        for collective in COLLECTIVES:
            for spec in candidates(collective, p, True, nodes):
                scheduled, steps = schedule(collective, spec, p, nodes=nodes), profile(collective, spec, p, nodes)
                for nbytes in (8.0, 65536.0):
                    closed = cost(steps, net, np.array([nbytes]))[0]
                    ratios.append(closed / max(Simulation(scheduled, net, nbytes, nodes).ends))
    assert np.median(ratios) == pytest.approx(1, rel=0.01)
    assert np.mean((np.array(ratios) > 0.8) & (np.array(ratios) < 1.25)) > 0.8
    assert min(ratios) > 0.5 and max(ratios) < 3


@pytest.mark.parametrize(("p", "size"), LAYOUTS)
def test_choices_of_auto_are_near_the_fastest_simulated(p, size):
    net, nodes, slowdowns = network("infiniband"), by_blocks(p, size), []
    for collective in COLLECTIVES:
        rules = modelled_rules(net, collective, p, True, nodes)
        for nbytes in (8, 4096, 65536):
            rule = next(rule for rule in reversed(rules) if rule.fits(nbytes, p))
            lines = costs(net, collective, p, True, nodes, np.array([nbytes]))
            suiting = {(name, chunk) for name, chunk, _, us in lines if us[0] < np.inf and chunk in (None, 32768)}
            simulated = {
                (name, chunk): Simulation(
                    schedule(collective, name, p, nodes=nodes), net, nbytes, nodes, chunk, 2
                ).us
                for name, chunk in {*suiting, (rule.algorithm, rule.chunk_bytes)}
            }
            slowdowns.append(simulated[rule.algorithm, rule.chunk_bytes] / min(simulated.values()))
    assert np.exp(np.log(slowdowns).mean()) < 1.1 and max(slowdowns) < 2


# -- the compiled event loop ---------------------------------------------------------------------------------

PORTS = replace(PLAIN.links, gap=0.4, rendezvous=2.0, rate=3 * RATE, ports=2)
NETWORKS = (network("infiniband"), replace(PLAIN, links=PORTS, fold_rate=50.0, short_bytes=2000.0))
NODES = (
    lambda p: None, lambda p: by_blocks(p, 3), lambda p: by_blocks(p, p),
    lambda p: place((p // 2, p - p // 2), "cyclic"),
)  # fmt: skip
CHUNKS = ((None, 1), (4, 1), (7, 2), (9, 4))        # chunks of a block, and in flight


@pytest.fixture
def compiled():
    event_loop.prepare()


@pytest.mark.parametrize("entry", list(registered()), ids=lambda entry: entry.title.replace(" ", "-"))
def test_the_compiled_loop_computes_the_times_of_the_loop_in_python(entry, compiled):
    """To the bit: on 2 to 8 ranks and on 16, in whole blocks and chunks, on nodes of one and of several ranks."""
    cases = list(product(NODES, CHUNKS, NETWORKS, (8.0, 5e3, 2e5)))
    random = Random(entry.title)
    for p in filter(entry.serves, (*range(2, 9), 16)):
        placed, (chunks, window), net, nbytes = random.choice(cases)
        nodes = placed(p)
        scheduled = Schedule(entry, p, nodes=nodes)
        arguments = net, nbytes, nodes, nbytes / scheduled.blocks_of_n / chunks if chunks else None, window
        simulated, in_python = Simulation(scheduled, *arguments), Simulation(scheduled, *arguments, record=True)
        assert (simulated.ends, simulated.messages) == (in_python.ends, in_python.messages), (p, *arguments)


def test_all_ranks_of_uniform_algorithms_take_the_steps_of_rank_0():
    uniform = [entry for entry in registered() if entry.uniform]
    assert len(uniform) > 8
    for entry, p in product(uniform, (2, 3, 8, 13)):
        scheduled = Schedule(entry, p)
        rows, *steps, peers, blocks, sends = messages._flattened(scheduled, [0])
        for rank in range(1, p):
            own, *its_steps, its_peers, its_blocks, its_sends = messages._flattened(scheduled, [rank])
            assert np.array_equal(own[:, 1:], rows[:, 1:]) and np.array_equal((its_peers - rank) % p, peers)
            its_tables, tables = [*its_steps, its_blocks, its_sends], [*steps, blocks, sends]
            assert all(map(np.array_equal, its_tables, tables)), (scheduled, rank)


@pytest.mark.parametrize("entry", [entry for entry in registered() if entry.uniform], ids=lambda entry: entry.title)
def test_a_rank_stands_for_all_ranks_of_uniform_algorithms(entry, compiled):
    for p, nodes, (chunks, window), net in product((19, 24), (None, by_blocks), CHUNKS, NETWORKS):
        places = nodes and nodes(p, p)
        uniform, full = (Schedule(x, p, nodes=places) for x in (entry, replace(entry, uniform=False)))
        arguments = net, 2e5, places, 2e5 / uniform.blocks_of_n / chunks if chunks else None, window
        simulated, in_full = Simulation(uniform, *arguments), Simulation(full, *arguments)
        assert (simulated.ends, simulated.messages) == (in_full.ends, in_full.messages)


def test_a_ring_of_4096_ranks_is_simulated_by_one_of_them(compiled):
    simulation = Simulation(schedule("allreduce", "ring", 4096), PLAIN, 1e9)
    assert simulation.messages == 4096 * 2 * 4095 and len(simulation.ends) == 4096
    assert simulation.us == pytest.approx(FORMULAS["allreduce", "ring"](4096, 1e9), rel=1e-9)


def test_messages_that_wait_for_each_other_are_an_error(compiled):
    both = [[Send(peer, (0,)), Recv(peer, (0,))] for peer in (1, 0)]
    with pytest.raises(RuntimeError, match="2 messages of the schedule wait for each other"):
        Simulation(of_ranks("allreduce", *both), replace(PLAIN, short_bytes=1.0), 8.0)
    assert Simulation(of_ranks("allreduce", *both), PLAIN, 8.0).messages == 2


@pytest.mark.parametrize("error", [ImportError, NotCompiled])
def test_the_loop_in_python_serves_where_the_other_is_not_compiled(monkeypatch, error):
    def fail():
        raise error

    expected = Simulation(schedule("allreduce", "ring_bidirectional", 5), PLAIN, 1e5, record=True).ends
    monkeypatch.setattr(event_loop, "prepare", fail)
    monkeypatch.setattr(event_loop.background, "poll", lambda: None)
    assert Simulation(schedule("allreduce", "ring_bidirectional", 5), PLAIN, 1e5).ends == expected
    with pytest.raises(ArgumentError, match="and 1,500,000 are simulated at most"):
        Simulation(schedule("allreduce", "ring", 4096), PLAIN, 1e5)


def run(*words):
    return CliRunner().invoke(main, ["simulate", *words])


def test_simulate_prints_the_times_of_algorithms():
    done = run("allreduce", "-p", "8", "--algorithms", "ring,rabenseifner", "--sizes", "8,1M", "--json")
    rows = json.loads(done.output)
    assert [(row["algorithm"], row["bytes"]) for row in rows] == [
        ("ring", 8), ("ring", 1 << 20), ("rabenseifner", 8), ("rabenseifner", 1 << 20),
    ]  # fmt: skip
    simulated = Simulation(schedule("allreduce", "ring", 8), network("infiniband"), 8, by_blocks(8, 1))
    assert rows[0]["played_us"] == round(max(simulated.ends), 2)
    shown = run("bcast", "-p", "16", "--ranks-per-node", "4", "--sizes", "64K", "--chunk", "8K").output
    assert "bcast on 16 ranks, 4 nodes, infiniband" in shown and "hierarchical" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("allreduce", "-p", "4096", "--ranks-per-node", "4", "--algorithms", "ring"),
            "has up to 33,546,240 messages, and 15,000,000",
        ),
        (("allreduce", "-p", "4", "--algorithms", "rinng"), "ring"),
        (("allgather", "-p", "5", "--algorithms", "neighbor_exchange"), "an even number"),
        (("alltoallv", "-p", "4"), "its ranks know only their own counts"),
        (("allreduce", "-p", "4", "--chunk", "some"), "some"),
    ],
)
def test_simulate_refuses_in_words(words, message):
    done = run(*words)
    assert done.exit_code == 2 and message in done.output
