"""Topologies: routes, fair rates, simulations by hand, placements, and the words of bad input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from unit.test_cost import ALPHA, FOLD, PLAIN, RATE, described

from mpicoll.cli import main
from mpicoll.cost.fabric import Fabric, Flow, fair_rates
from mpicoll.cost.network import content, in_words, network, parse, two_level
from mpicoll.cost.placement import node_names, place, tasks_per_node
from mpicoll.cost.simulation import SENDS, Simulation
from mpicoll.cost.topology import Dragonfly, FatTree, Torus, parse_topology
from mpicoll.errors import ArgumentError
from mpicoll.schedules.grouping import by_blocks, dealt
from mpicoll.schedules.schedule import schedule
from mpicoll.schedules.stencils import Stencil
from mpicoll.selection.modelled import candidates, model_us
from mpicoll.selection.stencils import stencil_rules

HOP, N = 0.25, 8e4
INF = np.inf
TREE = {"kind": "fat_tree", "nodes_per_switch": 16, "oversubscription": 2}
AMPLE = Dragonfly(groups=16, routers=1, nodes=1, link_rate=1e12)  # nothing shares a link that is full
COLLECTIVES = ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter", "alltoall", "gather", "scatter", "scan")


def simulated(collective, algorithm, p, topology, nodes=None, nbytes=N, net=PLAIN, **options):
    return Simulation(schedule(collective, algorithm, p), replace(net, topology=topology), nbytes, nodes, **options)


# -- routes --------------------------------------------------------------------------------------------------


def test_routes_of_a_fat_tree():
    tree = FatTree(nodes_per_switch=4, oversubscription=2.0)
    assert tree.route(1, 3) == () and tree.route(3, 9) == (("up", 0), ("down", 2))
    assert tree.capacity(100.0, 2) == 400.0


def test_routes_of_a_torus():
    """Node 4 x 2 + 1 is at (2, 1): dimensions in order, the shorter way around, both ways where both are as long."""
    torus = Torus(dims=(3, 4))
    assert torus.route(0, 9) == ((0, "-", 0), (1, "+", 8))
    assert torus.route(9, 0) == ((0, "+", 9), (1, "-", 1))
    assert torus.route(0, 3) == ((1, "-", 0),)
    assert torus.route(0, 2) == ((1, "+", 0), (1, "+", 1)) and torus.route(1, 3) == ((1, "-", 1), (1, "-", 0))
    assert len(Torus(dims=(4, 4, 2)).route(0, 31)) == 3


@pytest.mark.parametrize("dims", [(7,), (4, 3), (2, 3, 4)])
def test_every_route_of_a_torus_arrives_by_the_fewest_links(dims):
    torus, size = Torus(dims=dims), int(np.prod(dims))
    for sender, receiver in np.ndindex(size, size):
        at = np.array(np.unravel_index(sender, dims))
        for dimension, sign, node in torus.route(sender, receiver):
            assert node == np.ravel_multi_index(at, dims)
            at[dimension] = (at[dimension] + (1 if sign == "+" else -1)) % dims[dimension]
        assert np.ravel_multi_index(at, dims) == receiver
        apart = np.abs(np.subtract(np.unravel_index(sender, dims), np.unravel_index(receiver, dims)))
        assert len(torus.route(sender, receiver)) == np.minimum(apart, np.subtract(dims, apart)).sum()


def test_routes_of_a_dragonfly():
    fly = Dragonfly(groups=3, routers=2, nodes=2)
    assert fly.route(0, 1) == () and fly.route(0, 2) == (("local", 0, 0, 1),)
    assert fly.route(0, 4) == (("global", 0, 1), ("local", 1, 1, 0))    # group 1 has its link to group 0 at router 1
    assert fly.route(0, 10) == (("local", 0, 0, 1), ("global", 0, 2), ("local", 2, 0, 1))
    assert fly.capacity(100.0, 2) == 100.0 and replace(fly, link_rate=30.0).capacity(100.0, 2) == 30.0


# -- fair rates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("routes", "limits", "capacities", "rates"),
    [
        ([[1], [1]], [10, 10], [INF, 10], [5, 5]),
        ([[1], [1], [1]], [10, 1, 10], [INF, 10], [4.5, 1, 4.5]),              # what the slow one leaves
        ([[1, 2], [1, 0], [2, 0]], [99, 99, 99], [INF, 10, 4], [2, 8, 2]),     # the first is held up on its second link
        ([[1, 2, 3], [1, 0, 0], [2, 0, 0], [3, 0, 0]], [9] * 4, [INF, 2, 4, 8], [1, 1, 3, 7]),
        ([[0], [1]], [7, 7], [INF, 100], [7, 7]),
    ],
)  # fmt: skip
def test_fair_rates_by_hand(routes, limits, capacities, rates):
    assert fair_rates(np.array(routes), np.array(limits, float), np.array(capacities, float)).tolist() == rates


@pytest.mark.parametrize("seed", range(20))
def test_rates_are_max_min_fair(seed):
    """Every message has its limit, or a full link on which none has more; no link carries more than it can."""
    random = np.random.default_rng(seed)
    links, messages = 8, 30
    routes = np.array([random.choice(np.arange(1, links), 3, replace=False) for _ in range(messages)])
    routes[random.random(routes.shape) < 0.3] = 0
    limits, capacities = random.uniform(1, 9, messages), np.array([INF, *random.uniform(5, 40, links - 1)])
    rates = fair_rates(routes, limits, capacities)
    carried = np.bincount(routes.ravel(), np.repeat(rates, 3), minlength=links)[1:]
    assert (carried <= capacities[1:] * (1 + 1e-9)).all()
    for route, rate, limit in zip(routes, rates, limits):
        full = [link for link in route if link and carried[link - 1] >= capacities[link] * (1 - 1e-9)]
        most = [rates[(routes == link).any(axis=1)].max() for link in full]
        assert rate == limit or any(rate >= other * (1 - 1e-9) for other in most)


def test_a_message_slows_down_while_another_is_on_its_link():
    """Half of 1000 bytes are sent when the second message starts; the rest takes twice as long."""
    fabric = Fabric(Torus(dims=(3,)), PLAIN.links, 3)
    first, second = (Flow(None, fabric.route(0, 1), RATE, 1000.0, ALPHA) for _ in range(2))
    fabric.start(first, 0.0)
    assert [flow.end for flow in fabric.settle(0.0)] == [1.0]
    fabric.start(second, 0.5)
    assert {flow.end for flow in fabric.settle(0.5)} == {1.5, 2.5} and (first.end, second.end) == (1.5, 2.5)
    fabric.stop(first)
    assert [*fabric.settle(1.5)] == [second] and second.end == 2.0
    fabric.stop(second)
    assert [*fabric.settle(2.0)] == []


# -- simulations by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("oversubscription", "times"), [(1.0, 1), (2.0, 2), (4.0, 4)])
def test_oversubscription_slows_down_an_exchange_between_switches(oversubscription, times):
    """The first of two steps stays inside switches of two nodes. In the second, both nodes send to the other switch."""
    tree = FatTree(nodes_per_switch=2, oversubscription=oversubscription, hop_latency=HOP)
    us = simulated("allgather", "recursive_doubling", 4, tree).us
    assert us == pytest.approx(2 * ALPHA + 2 * HOP + N / 4 / RATE + times * N / 2 / RATE)


def test_ports_of_nodes_count_in_what_a_switch_can_send():
    """Nodes with two ports and one message each use half of what oversubscription 2 leaves."""
    two = replace(PLAIN, links=replace(PLAIN.links, ports=2))
    tree = FatTree(nodes_per_switch=2, oversubscription=2.0)
    us = simulated("allgather", "recursive_doubling", 4, tree, net=two).us
    assert us == pytest.approx(2 * ALPHA + N / 4 / RATE + N / 2 / RATE)


@pytest.mark.parametrize(("stride", "shared"), [(1, 1), (3, 3)])
def test_a_ring_on_a_torus_of_one_dimension(stride, shared):
    """Put three messages on each link if neighbours are three places apart."""
    nodes = tuple((stride * place % 8,) for place in range(8))    # the inverse of 3 is 3
    us = simulated("allreduce", "ring", 8, Torus(dims=(8,), hop_latency=HOP), nodes).us
    assert us == pytest.approx(14 * (ALPHA + stride * HOP + shared * N / 8 / RATE) + 7 * N / 8 / FOLD)


@pytest.mark.parametrize("dims", [(4, 4), (2, 8), (2, 2, 4), (3, 3, 3)])
def test_a_ring_in_the_order_of_a_torus_shares_no_link(dims):
    size = int(np.prod(dims))
    us = simulated("allgather", "ring", size, Torus(dims=dims)).us
    assert us == pytest.approx((size - 1) * (ALPHA + N / size / RATE))


@pytest.mark.parametrize("faster", [1.0, 2.0, 4.0])
def test_links_of_a_dragonfly(faster):
    """Recursive doubling between the nodes of a router, two routers and two groups: 1, 2 and 4 messages on a link."""
    fly = Dragonfly(groups=2, routers=2, nodes=2, hop_latency=HOP, link_rate=None if faster == 1 else faster * RATE)
    us = simulated("allgather", "recursive_doubling", 8, fly).us
    steps = [1, 2 * max(1, 2 / faster), 4 * max(1, 4 / faster)]
    assert us == pytest.approx(3 * ALPHA + (0 + 1 + 3) * HOP + sum(steps) * N / 8 / RATE)


def test_messages_to_the_same_node_share_the_link_to_its_switch():
    """All arrive when the receiver's port has passed all of them, as if they had come in turn."""
    us = simulated("gather", "linear", 5, FatTree(nodes_per_switch=1, oversubscription=1.0)).us
    assert us == pytest.approx(ALPHA + 4 * N / 5 / RATE)
    assert us == pytest.approx(simulated("gather", "linear", 5, None).us)


def test_a_chunk_slows_down_the_chunk_before_it_on_its_way():
    """A chain from switch to switch and back; a chunk takes 8 µs alone, and its first byte 2 µs.

    Rank 2 sends the first chunk on at 20 µs, while rank 0 sends its third since 16: that ends at 28, not at 24. From
    then on both ranks send at half the rate until rank 0 has sent the fourth chunk, at 44. Rank 2 sends the second
    until 48, the third until 56, and the fourth, which it has at 56, until 64.
    """
    tree, nodes = FatTree(nodes_per_switch=2, oversubscription=2.0), ((0,), (2,), (1,), (3,))
    ends = simulated("bcast", "chain", 4, tree, nodes, 4 * 8 * RATE, chunk_bytes=8 * RATE, window=4).ends
    assert ends == pytest.approx([44, 54, 64, 66])


def test_spans_last_as_long_as_messages_keep_their_ports():
    tree = FatTree(nodes_per_switch=2, oversubscription=2.0)
    spans = simulated("allgather", "recursive_doubling", 4, tree, record=True).spans
    sends = sorted((span.begin, span.end) for span in spans if (span.rank, span.what) == (0, SENDS))
    begin = ALPHA + N / 4 / RATE
    assert sends == [pytest.approx((0, N / 4 / RATE)), pytest.approx((begin, begin + N / RATE))]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_topology_without_full_links_changes_nothing(collective):
    """Messages that arrive at the same time may take ports in another order; the ranks of a node take turns."""
    net, same = network("infiniband"), []
    for algorithm in candidates(collective, 8, True, None):
        for nbytes in (8.0, 65536.0):
            free, routed = (simulated(collective, algorithm, 8, on, None, nbytes, net) for on in (None, AMPLE))
            assert routed.us == pytest.approx(free.us, rel=0.01) and routed.messages == free.messages
            same.append(routed.ends == pytest.approx(free.ends, rel=1e-9))
    assert np.mean(same) > 0.9
    for nodes in (by_blocks(12, 4), dealt(12, 3)):
        for algorithm in candidates(collective, 12, True, nodes):
            free, routed = (simulated(collective, algorithm, 12, on, nodes, 65536.0, net).us for on in (None, AMPLE))
            assert routed == pytest.approx(free, rel=0.1)


def test_a_node_sends_to_others_while_a_rank_waits_for_its_gap():
    """Two ranks send two short messages each to other nodes: the second pair goes one gap after the first."""
    net = replace(PLAIN, links=replace(PLAIN.links, gap=3.0))
    nodes = ((0, 1), (2,), (3,))
    us = [simulated("alltoall", "linear", 4, on, nodes, 8.0, net).us for on in (None, AMPLE)]
    assert us[1] == pytest.approx(us[0], rel=1e-9)


def test_cyclic_ranks_cross_switches_in_the_first_step_and_blocks_in_the_last():
    """Recursive halving sends n/2, then n/4 of the vector: to ranks half of all away, then a quarter."""
    tree, n = FatTree(nodes_per_switch=1, oversubscription=2.0), N
    layouts = (place((2, 2), how) for how in ("block", "cyclic"))
    block, cyclic = (simulated("reduce_scatter", "recursive_halving", 4, tree, nodes, n).us for nodes in layouts)
    fold = 3 * n / 4 / FOLD
    assert block == pytest.approx(2 * ALPHA + 4 * n / 2 / RATE + n / 4 / RATE + fold)
    assert cyclic == pytest.approx(2 * ALPHA + n / 2 / RATE + 4 * n / 4 / RATE + fold)


def test_too_many_messages_for_a_topology():
    with pytest.raises(ArgumentError, match="has up to 523,264 messages, and 500,000 are simulated at m"):
        simulated("allreduce", "ring", 512, FatTree(nodes_per_switch=8, oversubscription=2.0))


# -- the closed form -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ports", "oversubscription", "left", "rate"), [(1, 2, 1, 0.5), (2, 2, 1, 1), (2, 4, 1, 0.5), (4, 3, 2, 2 / 3)]
)
def test_the_closed_form_divides_the_rate_by_oversubscription(ports, oversubscription, left, rate):
    links = replace(PLAIN.links, ports=ports, short_rate=0.75 * RATE)
    net = replace(PLAIN, links=links, topology=FatTree(nodes_per_switch=4, oversubscription=oversubscription))
    closed = two_level(net, 5)
    assert (closed.links.ports, closed.links.rate) == (left, pytest.approx(rate * RATE)) and closed.topology is None
    assert closed.links.short_rate == pytest.approx(min(0.75, rate) * RATE)
    assert two_level(net, 4).links == links and two_level(PLAIN, 9) is PLAIN
    assert two_level(replace(net, topology=Torus(dims=(9,))), 9).links == links


def test_auto_chooses_by_the_reduced_rate():
    net = replace(PLAIN, topology=FatTree(nodes_per_switch=2, oversubscription=4.0))
    layouts = (None, by_blocks(4, 1), by_blocks(4, 2))
    us = [model_us(net, "bcast", "binomial", 4, True, nodes, [N])[0] for nodes in layouts]
    assert us == pytest.approx([2 * (ALPHA + 4 * N / RATE)] * 2 + [2 * (ALPHA + N / RATE)])


def test_stencils_are_served_by_the_reduced_rate():
    moves = [(i, j, k) for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)]
    grid, alone, flat = Stencil((2, 2, 2), (True,) * 3, moves), by_blocks(8, 1), network("fugaku")
    net = replace(flat, topology=FatTree(nodes_per_switch=4, oversubscription=8.0))
    nets = net, two_level(net, 8), flat
    rules, reduced, others = (stencil_rules(on, "neighbor_alltoall", grid, alone) for on in nets)
    assert rules == reduced != others


# -- files and bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described_topology", "topology", "words"),
    [
        (TREE, FatTree(nodes_per_switch=16, oversubscription=2.0),
         "fat tree, 16 nodes per switch, oversubscription 2"),
        ({"kind": "torus", "dims": [4, 4, 2], "hop_latency": 0.5}, Torus(dims=(4, 4, 2), hop_latency=0.5),
         "torus of 4 x 4 x 2 nodes, 0.5 µs more for each link between switches"),
        ({"kind": "dragonfly", "groups": 9, "routers": 4, "nodes": 2, "link_rate": 5},
         Dragonfly(groups=9, routers=4, nodes=2, link_rate=5.0), "dragonfly of 9 groups of 4 routers of 2 nodes"),
        ({"kind": "switch"}, None, None),
    ],
)  # fmt: skip
def test_a_file_with_a_topology(described_topology, topology, words):
    net = parse(json.dumps(described(topology=described_topology)), "x.json")
    assert net.topology == topology and parse(json.dumps(content(net)), "x.json") == net
    assert in_words(net)[-1] == (words or in_words(net)[-1]) and ("topology" in content(net)) == bool(words)


@pytest.mark.parametrize(
    ("topology", "problem"),
    [
        (3, "x: topology must be an object with kind"),
        ({"dims": [4]}, "x: topology lacks kind"),
        ({"kind": "cube"}, "x: topology.kind is 'cube'; it must be one of switch, fat_tree, torus, dragonfly"),
        ({"kind": ["torus"]}, "x: topology.kind is ['torus']; it must be one of"),
        ({"kind": "switch", "dims": [2]}, "x: topology has dims, which is unknown"),
        ({"kind": "fat_tree", "nodes_per_switch": 4}, "x: topology lacks oversubscription"),
        ({**TREE, "link_rate": 1}, "x: topology has link_rate, which is unknown"),
        ({**TREE, "nodes_per_switch": -4}, "x: topology.nodes_per_switch is -4; it must be a number of at least 1"),
        ({**TREE, "oversubscription": 0.5}, "x: topology.oversubscription is 0.5; it must be a number of at least 1"),
        ({"kind": "torus", "dims": 8}, "x: topology.dims is 8; it must be a list of sizes"),
        ({"kind": "torus", "dims": []}, "x: topology.dims is []; it must be a list"),
        ({"kind": "torus", "dims": [4, 1.5]}, "x: topology.dims[1] is 1.5; it must be a whole number"),
        ({"kind": "torus", "dims": [4], "hop_latency": -1}, "x: topology.hop_latency is -1; it must be"),
        ({"kind": "torus", "dims": [4], "link_rate": 0}, "x: topology.link_rate is 0; it must be a number above 0"),
        ({"kind": "dragonfly", "groups": 2, "routers": 0, "nodes": 2}, "x: topology.routers is 0; it must be"),
        ({"kind": "dragonfly", "groups": 2, "routers": 2}, "x: topology lacks nodes"),
    ],
)
def test_invalid_topologies_are_refused_in_words(topology, problem):
    with pytest.raises(ArgumentError) as caught:
        parse_topology(topology, "x: topology")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("topology", "problem"),
    [
        (Torus(dims=(4, 2)), "topology.dims is 4 x 2, a torus of 8 nodes, and the ranks are on 9; take dims that mult"),
        (Torus(dims=(5, 2)), "topology.dims is 5 x 2, a torus of 10 nodes"),
        (Dragonfly(groups=2, routers=2, nodes=2), "topology.groups is 2, of 2 routers of 2 nodes: 8 places for 9"),
    ],
)
def test_more_nodes_than_places_are_refused_in_words(topology, problem):
    with pytest.raises(ArgumentError) as caught:
        simulated("bcast", "linear", 9, topology)
    assert problem in str(caught.value)


# -- placement -----------------------------------------------------------------------------------------------


def test_ranks_are_dealt_to_nodes_until_they_are_full():
    assert place((2, 3, 1)) == ((0, 1), (2, 3, 4), (5,))
    assert place((2, 3, 1), "cyclic") == ((0, 3), (1, 4, 5), (2,))
    assert place((4,) * 3, "cyclic") == dealt(12, 3) and place((4, 4, 2)) == by_blocks(10, 4)
    with pytest.raises(ArgumentError, match="placement is 'random'; it must be one of block, cyclic"):
        place((2, 2), "random")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[01-04,7]", "node01 node02 node03 node04 node7"),
        ("a,b[8-10], c", "a b8 b9 b10 c"),
        ("r[1-2]n[01-02]x", "r1n01x r1n02x r2n01x r2n02x"),
        ("login-1.site", "login-1.site"),
    ],
)
def test_node_lists_of_slurm(text, names):
    assert node_names(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the node list is ''; write names as Slurm does: node[01-04,7]"),
        ("node[01-04", "the node list is 'node[01-04'"),
        ("a,,b", "the node list is 'a,,b'"),
        ("a]", "the node list is 'a]'"),
        ("node[4-1]", "the node list has [4-1], and '4-1' is no range"),
        ("node[x]", "the node list has [x], and 'x' is no range"),
        ("node[]", "the node list has [], and '' is no range"),
        ("n[1-9999999]", "the node list has [1-9999999], and '1-9999999' is more than 1,048,576 nodes"),
        ("n[1-3],n2", "the node list 'n[1-3],n2' has n2 twice"),
    ],
)
def test_invalid_node_lists_are_refused_in_words(text, problem):
    with pytest.raises(ArgumentError) as caught:
        node_names(text)
    assert problem in str(caught.value)


def test_tasks_per_node_of_slurm():
    assert tasks_per_node("4(x3),2") == (4, 4, 4, 2) and tasks_per_node("1,3, 2(x2)") == (1, 3, 2, 2)
    for text, part in (("4x3", "4x3"), ("4(x3),", ""), ("0", "0"), ("2(x0)", "2(x0)"), ("-1", "-1")):
        with pytest.raises(ArgumentError) as caught:
            tasks_per_node(text)
        assert f"tasks per node are {text!r}, and {part!r} is no count; write 4(x3),2" in str(caught.value)
    with pytest.raises(ArgumentError, match=r"'1\(x9999999\)' is more than 1,048,576 nodes"):
        tasks_per_node("2,1(x9999999)")


# -- commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "tree.json"
    topology = {"kind": "fat_tree", "nodes_per_switch": 1, "oversubscription": 4}
    path.write_text(json.dumps({**described(), "topology": topology}))
    return str(path)


def run(*words):
    return CliRunner().invoke(main, [*words])


def test_the_commands_place_ranks_alike(tree):
    options = ["-p", "14", "--node-list", "node[01-04]", "--tasks-per-node", "4(x3),2", "--network", tree]
    nodes = {how: place((4, 4, 4, 2), how) for how in ("block", "cyclic")}
    for how, title in (("block", "4 nodes, tree"), ("cyclic", "4 nodes, cyclic, tree")):
        placed = [*options, "--placement", how]
        words = [*placed, "--sizes", "64K", "--algorithms", "ring"]
        rows = json.loads(run("simulate", "allreduce", *words, "--json").output)
        us = Simulation(schedule("allreduce", "ring", 14), network(tree), 65536, nodes[how]).us
        assert rows[0]["played_us"] == round(us, 2)
        assert f"allreduce on 14 ranks, {title}" in run("simulate", "allreduce", *words).output
        assert f"allreduce on 14 ranks, {title}" in run("choose", "allreduce", *placed, "--sizes", "64K").output
        shown = run("show", "allreduce", "ring", *placed).output
        drawn = f"allreduce ring, p = 14, 64 KiB, tree, 4 nodes{', cyclic' * (how == 'cyclic')}: {us:.4g} µs"
        assert shown.startswith(drawn)


def test_a_node_list_with_equal_nodes(tree):
    words = ["simulate", "bcast", "-p", "8", "--ranks-per-node", "4", "--sizes", "64K", "--network", tree, "--json"]
    assert run(*words).output == run(*words, "--node-list", "n[1,3]").output


def test_choose_uses_the_reduced_rate(tree, tmp_path):
    flat = tmp_path / "flat.json"
    flat.write_text(json.dumps(described()))
    words = ["choose", "bcast", "-p", "4", "--sizes", "1M", "--json", "--network"]
    slow, fast = (json.loads(run(*words, str(net)).output)[0]["model_us"] for net in (tree, flat))
    assert 3 < slow / fast < 5


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("-p 16 --tasks-per-node 4(x3),2", "--tasks-per-node places 14 ranks, not 16"),
        ("-p 14 --tasks-per-node 4(x3),2 --node-list n[1-3]", "--node-list has 3 nodes, and --tasks-per-node is for 4"),
        ("-p 16 --node-list n[1-3] --ranks-per-node 4", "--node-list has 3 nodes, and 16 ranks, 4 per node, take 4;"),
        ("-p 4 --ranks-per-node 4 --tasks-per-node 4", "--ranks-per-node and --tasks-per-node both count"),
        ("-p 4 --node-list n[", "the node list is 'n['"),
        ("-p 4 --placement scatter", "'scatter' is not one of"),
    ],
)
def test_contradictions_are_refused_in_words(words, problem, tree):
    for command in (["simulate", "bcast"], ["choose", "bcast"], ["show", "bcast", "linear"]):
        done = run(*command, *words.split(), "--network", tree)
        assert done.exit_code == 2 and problem in done.output


def test_commands_refuse_a_torus_of_another_size(tmp_path):
    path = tmp_path / "torus.json"
    path.write_text(json.dumps({**described(), "topology": {"kind": "torus", "dims": [4, 2]}}))
    for command in (["simulate", "bcast"], ["choose", "bcast"], ["show", "bcast", "linear"]):
        done = run(*command, "-p", "9", "--network", str(path))
        assert done.exit_code == 2 and "a torus of 8 nodes, and the ranks are on 9" in done.output
        assert run(*command, "-p", "8", "--network", str(path)).exit_code == 0
