"""The cost model: networks in words, profiles against schedules, costs against formulas, rules and slowdowns."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log2

import numpy as np
import pytest
from click.testing import CliRunner

from mpicoll.benchmarks import choices
from mpicoll.cli import main
from mpicoll.cost import profile as profiles
from mpicoll.cost.model import WHOLE, cost
from mpicoll.cost.network import Level, Network, network, parse, presets
from mpicoll.cost.placement import place
from mpicoll.cost.profile import FAR_SENDS, SENDS, load, partial_profiles, profile
from mpicoll.errors import ArgumentError, PreconditionError
from mpicoll.schedules import registry
from mpicoll.schedules.collectives import COLLECTIVES, NEIGHBORHOOD, base_collective
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.registry import exact_algorithms, find, parse_spec
from mpicoll.schedules.schedule import Schedule
from mpicoll.selection import modelled
from mpicoll.selection.modelled import LONG, ROUGHLY, SIZES, candidates, costs, model_us, modelled_rules
from mpicoll.selection.rules import RULES, UNKNOWN_TO_ALL, rules
from mpicoll.selection.select import Overrides, choose, same_choice
from mpicoll.selection.settings import read

ALPHA, RATE, FOLD = 2.0, 1000.0, 4000.0
LINKS = Level(latency=ALPHA, rendezvous=0.0, gap=0.0, short_rate=RATE, rate=RATE)
PLAIN = Network("plain", LINKS, LINKS, 1e9, FOLD, 1e30)


# -- networks ------------------------------------------------------------------------------------------------


def described(**changed):
    level = {"latency": 1, "rendezvous": 0, "gap": 0.5, "short_rate": 10, "rate": 20}
    whole = {"node": level, "links": level, "short_bytes": 1024, "fold_rate": 5, "copy_rate": 6}
    return {**whole, **changed}


def test_presets_are_networks_of_their_names():
    assert {"fugaku", "infiniband", "leonardo", "marenostrum5"} <= set(presets())
    assert [network(name).name for name in presets()] == list(presets())


def test_a_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**described(), "source": "measured"}))
    read = network(path)
    assert (read.name, read.links.rate, read.short_bytes) == ("mine", 20.0, 1024.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "x.json is no JSON"),
        ("[]", "x.json must be an object with copy_rate, fold_rate, links, node, short_bytes"),
        (json.dumps({"node": {}}), "x.json lacks copy_rate, fold_rate, links, short_bytes"),
        (json.dumps(described(colour=1)), "x.json has colour, which is unknown"),
        (json.dumps(described(node=3)), "x.json: node must be an object with gap, latency, rate, rende"),
        (json.dumps(described(fold_rate=0)), "x.json: fold_rate is 0; it must be a number above 0"),
        (json.dumps(described(short_bytes="1K")), "x.json: short_bytes is '1K'; it must be a number"),
        (json.dumps(described(copy_rate=True)), "x.json: copy_rate is True"),
        (json.dumps(described(fold_rate=float("inf"))), "x.json: fold_rate is inf"),
        (json.dumps(described(links={**described()["links"], "gap": -1})), "x.json: links.gap is -1; it must be"),
        (json.dumps(described(links={**described()["links"], "ports": 0})), "x.json: links.ports is 0; it must be"),
        (json.dumps(described(links={**described()["links"], "ports": 1.5})), "links.ports is 1.5; it must be a whole"),
    ],
)
def test_invalid_networks_are_refused_in_words(content, message):
    with pytest.raises(ArgumentError) as caught:
        parse(content, "x.json")
    assert message in str(caught.value)


def test_a_network_that_is_not_there_names_the_presets():
    with pytest.raises(ArgumentError, match=r"cannot read nowhere: No such file .*presets are fugaku, infiniband"):
        network("nowhere")


def test_the_environment_names_it():
    cases = ((None, True, True), ("", True, True), ("measure", True, False), ("none", False, False))
    for value, measures, keeps in cases:
        settings = read({} if value is None else {"MPICOLL_NETWORK": value})
        assert (settings.network, settings.measures_network, settings.keeps_network) == (None, measures, keeps)
    settings = read({"MPICOLL_NETWORK": "leonardo"})
    assert settings.network == network("leonardo") and not settings.measures_network
    with pytest.raises(ArgumentError, match="presets are"):
        read({"MPICOLL_NETWORK": "nowhere"})


# -- costs, where nothing is shared: the formulas of the docstrings -------------------------------------------


INT8 = float(Schedule(find("allgather", "quantized"), 2).code_share)
FORMULAS = {
    ("allreduce", "ring"): lambda p, n: 2 * (p - 1) * ALPHA + 2 * n * (p - 1) / p / RATE + n * (p - 1) / p / FOLD,
    ("allreduce", "recursive_doubling"): lambda p, n: log2(p) * (ALPHA + n / RATE + n / FOLD),
    ("allreduce", "rabenseifner"): lambda p, n: 2 * log2(p) * ALPHA + n * (p - 1) / p * (2 / RATE + 1 / FOLD),
    ("bcast", "binomial"): lambda p, n: log2(p) * (ALPHA + n / RATE),
    ("bcast", "chain"): lambda p, n: (p - 1) * (ALPHA + n / RATE),
    ("reduce", "chain"): lambda p, n: (p - 1) * (ALPHA + n / RATE + n / FOLD),
    ("allgather", "ring"): lambda p, n: (p - 1) * ALPHA + n * (p - 1) / p / RATE,
    ("allgather", "quantized"): lambda p, n: (p - 1) * (ALPHA + n / p * INT8 / RATE),
    ("allgather", "bruck"): lambda p, n: log2(p) * ALPHA + n * (p - 1) / p / RATE,
    ("reduce_scatter", "recursive_halving"): lambda p, n: log2(p) * ALPHA + n * (p - 1) / p * (1 / RATE + 1 / FOLD),
    ("alltoall", "pairwise"): lambda p, n: (p - 1) * ALPHA + n * (p - 1) / p / RATE,
    ("alltoall", "bruck"): lambda p, n: log2(p) * (ALPHA + n / 2 / RATE),
    ("gather", "binomial"): lambda p, n: log2(p) * ALPHA + n * (p - 1) / p / RATE,
    ("scatter", "linear"): lambda p, n: ALPHA + n * (p - 1) / p / RATE,
}


@pytest.mark.parametrize("p", [2, 8, 64, 1024])
@pytest.mark.parametrize(("collective", "algorithm"), FORMULAS)
def test_costs_are_the_formulas_of_the_docstrings(collective, algorithm, p):
    sizes = np.array([0.0, 8.0, 65536.0, 1e7])
    got = cost(profile(collective, algorithm, p), PLAIN, sizes)
    wanted = [FORMULAS[collective, algorithm](p, n) for n in sizes]
    twice = (collective, algorithm) == ("reduce", "chain")  # its hops are taken to fold alike; the last does not
    assert got == pytest.approx(wanted, rel=0.3 / p if twice else 1e-9), (got, wanted)


def test_chunks_overlap():
    """A chain in chunks: the first goes all the way; a rank receives every other one while it sends the one before."""
    n, chunk, p = 1e6, 1e5, 8
    whole, cut = (float(cost(profile("bcast", "chain", p), PLAIN, np.array([n]), c, 2)[0]) for c in (WHOLE, chunk))
    first = (p - 1) * (ALPHA + chunk / RATE)
    assert cut == pytest.approx(first + 9 * (ALPHA + chunk / RATE))
    assert cut < whole / 2
    single = float(cost(profile("bcast", "chain", p), PLAIN, np.array([n]), chunk, 1)[0])
    assert single > cut


def test_a_gap_counts_per_further_message():
    gaps = replace(PLAIN, links=replace(LINKS, gap=3.0))
    steps = profile("scatter", "linear", 5)
    assert cost(steps, gaps, np.zeros(1))[0] - cost(steps, PLAIN, np.zeros(1))[0] == pytest.approx(3 * 3.0)


def test_long_messages_take_a_rendezvous_and_their_own_rate():
    two = replace(PLAIN, links=Level(1.0, 5.0, 0.0, 10.0, 100.0), short_bytes=1000.0)
    us = cost(profile("bcast", "binomial", 2), two, np.array([1000.0, 2000.0]))
    assert us == pytest.approx([1 + 100, 1 + 5 + 20])


# -- nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "algorithm", "sharing"),
    [("allreduce", "recursive_doubling", 4), ("allreduce", "ring", 1), ("allreduce", "hierarchical", 1),
     ("alltoall", "pairwise", 4), ("bcast", "hierarchical", 1)],
)
def test_ranks_of_a_node_share_its_link(collective, algorithm, sharing):
    assert profile(collective, algorithm, 32, by_blocks(32, 4)).sharing[0] == pytest.approx(sharing, rel=0.1)


def test_the_ranks_of_a_node_that_only_receive_share_a_link_that_the_root_has_alone():
    assert profile("bcast", "linear", 32, by_blocks(32, 4)).sharing == pytest.approx((1, 1, 4))


def test_messages_inside_a_node_are_told_from_others():
    (table, times), *_ = profile("allreduce", "recursive_doubling", 16, by_blocks(16, 4)).ranks
    assert table[:, SENDS] @ times == 2 and table[:, FAR_SENDS] @ times == 2


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("allreduce", "ring"), ("alltoall", "pairwise"), ("allgather", "neighbor_exchange"), ("reduce_scatter", "ring"),
     ("bcast", "scatter_allgather"), ("allreduce", "ring_bidirectional"), ("allreduce", "k_ring"),
     ("reduce_scatter", "k_ring")],
)
def test_a_profile_scaled_from_fewer_ranks_costs_as_the_whole(monkeypatch, collective, algorithm, size):
    sizes, nodes, net = np.array([8.0, 1e5, 1e8]), by_blocks(512, size), network("infiniband")
    scaled = cost(profile.__wrapped__(collective, algorithm, 512, nodes), net, sizes)
    monkeypatch.setattr(profiles, "WHOLE_UP_TO", 1 << 20)
    whole = cost(profile.__wrapped__(collective, algorithm, 512, nodes), net, sizes)
    assert scaled == pytest.approx(whole, rel=1e-9 if algorithm == "k_ring" and size > 1 else 0.03)


@pytest.mark.parametrize("ranks", [64, 128, 256])
def test_rings_of_large_nodes_are_scaled_too(monkeypatch, ranks):
    """Up to half of the ranks from which profiles are scaled on a node."""
    nodes, sizes, net = by_blocks(512, ranks), np.array([8.0, 1e5, 1e8]), network("infiniband")
    scaled = cost(profile.__wrapped__("allgather", "k_ring", 512, nodes), net, sizes)
    monkeypatch.setattr(profiles, "WHOLE_UP_TO", 1 << 20)
    assert scaled == pytest.approx(cost(profile.__wrapped__("allgather", "k_ring", 512, nodes), net, sizes), rel=1e-9)


@pytest.mark.parametrize(
    "nodes", [by_blocks(64, 8), by_blocks(60, 7), by_blocks(60, 4), place((4, 4, 4, 4), "cyclic"), place((3, 5, 3, 5))]
)
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall", "bcast", "scan"])
def test_nodes_whose_ranks_take_the_same_steps_share_their_links_alike(monkeypatch, collective, nodes):
    """A node stands for another only if the other would have the same number of ranks on its link."""
    p, steps = sum(map(len, nodes)), profile.__wrapped__
    specs = candidates(collective, p, True, nodes)
    quick = [steps(collective, spec, p, nodes).sharing for spec in specs]
    monkeypatch.setattr(profiles, "_ends_alike", lambda *_: False)
    for spec, sharing in zip(specs, quick, strict=True):
        assert sharing == steps(collective, spec, p, nodes).sharing, spec


@pytest.mark.parametrize(("p", "size"), [(2, 1), (13, 1), (64, 8), (60, 7), (300, 1), (512, 64)])
@pytest.mark.parametrize("collective", sorted({*RULES} - {*UNKNOWN_TO_ALL}))
def test_algorithms_that_are_left_out_are_the_fastest_at_no_size(collective, p, size):
    """A profile of fewer ranks costs at most as much, so that stopping there leaves out no choice."""
    net, nodes = network("infiniband"), by_blocks(p, size)
    every, few = ({line[:3]: line[3] for line in costs(net, collective, p, True, nodes, SIZES, fastest=fastest)}
                  for fastest in (False, True))
    least = np.min([*every.values()], axis=0)
    assert [*few] == [how for how in every if how in few] and all((us == every[how]).all() for how, us in few.items())
    assert all((us > least).all() for how, us in every.items() if how not in few)
    for spec in {spec for spec, *_ in every}:
        partial = [cost(steps, net, SIZES) for steps in partial_profiles(collective.rstrip("v"), spec, p, nodes)]
        assert all((us <= partial[-1] * (1 + 1e-12)).all() for us in partial), spec


# -- more ranks on a node than it has processors -------------------------------------------------------------

CROWDED = replace(PLAIN, cores=2, turn=20.0)


def test_the_load_of_a_node_is_that_of_all_its_ranks():
    nodes = by_blocks(8, 8)
    assert load("bcast", "linear", 8, nodes)[[SENDS, SENDS + 1]].tolist() == [7, 7]
    assert load("alltoall", "pairwise", 64, by_blocks(64, 64))[SENDS] == 64 * 63    # of some, scaled to all
    assert load("alltoall", "pairwise", 8, by_blocks(8, 4))[[SENDS, FAR_SENDS]].tolist() == [12, 16]


def test_processors_carry_the_load_of_all_ranks_and_each_message_waits_for_a_turn():
    n, nodes, wait = np.array([1e6]), by_blocks(8, 8), ALPHA + 20.0 * 8 / 2
    us = model_us(CROWDED, "alltoall", "linear", 8, True, nodes, n)
    assert us == pytest.approx(wait + 8 * 7 * n / 8 / RATE / 2)
    us = model_us(CROWDED, "alltoall", "pairwise", 8, True, nodes, n)
    assert us == pytest.approx(7 * wait + 8 * 7 * n / 8 / RATE / 2)
    us = model_us(CROWDED, "allreduce", "recursive_doubling", 8, True, nodes, n)
    assert us == pytest.approx(3 * wait + 8 * 3 * n * (1 / RATE + 1 / FOLD) / 2)
    gaps = replace(CROWDED, node=replace(LINKS, gap=5.0))
    us = model_us(gaps, "alltoall", "linear", 8, True, nodes, np.array([0.0]))
    assert us == pytest.approx(wait + 8 * 7 * 5.0 / 2)


def test_chunks_of_a_crowded_node_wait_for_turns_too():
    n, nodes = np.array([1e6]), by_blocks(8, 8)
    whole, chunks = (model_us(CROWDED, "bcast", "chain", 8, True, nodes, n, c, 2) for c in (WHOLE, 1e4))
    assert whole == pytest.approx(7 * (82 + n / RATE)) and chunks >= 7 * 82 + 99 * 82 / 2 + 7 * n / RATE / 2


def test_as_many_processors_as_ranks_are_enough():
    n, enough = np.array([8.0, 1e6]), replace(CROWDED, cores=8)
    for nodes, net in ((by_blocks(8, 8), enough), (by_blocks(8, 2), CROWDED), (None, CROWDED)):
        wanted = cost(profile("allreduce", "ring", 8, nodes), PLAIN, n)
        assert model_us(net, "allreduce", "ring", 8, True, nodes, n) == pytest.approx(wanted)


# -- a network that was measured in passing ------------------------------------------------------------------


@pytest.mark.parametrize(("p", "size", "commutes"), [(2, 2, True), (8, 8, True), (8, 1, True), (12, 4, False)])
@pytest.mark.parametrize("collective", sorted(RULES))
def test_small_differences_leave_the_fixed_rules(collective, p, size, commutes):
    """The fixed rule serves where the model gives it at most ROUGHLY the least time, but not where ranks take turns."""
    if not commutes and not COLLECTIVES[base_collective(collective)].reduces:
        return
    nodes, net = by_blocks(p, size), replace(network("infiniband"), rough=True, cores=4, turn=5.0)
    chosen = modelled_rules(net, collective, p, commutes, nodes)
    assert [r.above for r in chosen] == sorted({r.above for r in chosen}) and chosen[0].above == 0
    if collective in UNKNOWN_TO_ALL:        # with the chunks for ranks on several hosts
        assert chosen == rules(collective, p, commutes, nodes)[-1:]
        return
    lines = costs(net, collective, p, commutes, nodes, SIZES)
    for i, nbytes in enumerate(SIZES.tolist()):
        usual = next(r for r in reversed(rules(collective, p, commutes, nodes)) if r.fits(nbytes, p))
        own = model_us(net, collective.rstrip("v"), usual.algorithm, p, commutes, nodes, [nbytes],
                       usual.chunk_bytes or WHOLE, usual.window)[0]
        least = min(us[i] for *_, us in lines)
        rule = next(r for r in reversed(chosen) if r.fits(nbytes, p))
        if own <= ROUGHLY * least and size <= net.cores:
            assert (rule.algorithm, rule.chunk_bytes, rule.window, rule.why) == (*usual[1:3], usual.window, usual.why)
        else:
            us = next(us[i] for name, chunk, window, us in lines if (name, chunk, window) == (*rule[1:3], rule.window))
            assert us <= modelled.MARGIN * least and "the model of" in rule.why
    if (collective, size) == ("alltoall", 8):
        assert all("the model of" in r.why for r in chosen)


# -- rules ---------------------------------------------------------------------------------------------------

CASES = [(2, 1), (5, 1), (8, 1), (12, 4), (64, 8)]


@pytest.mark.parametrize(("p", "size"), CASES)
@pytest.mark.parametrize("collective", sorted(RULES))
def test_rules_choose_the_least_cost(collective, p, size):
    net, nodes = network("infiniband"), by_blocks(p, size)
    chosen = modelled_rules(net, collective, p, True, nodes)
    assert chosen[0].above == 0 and [r.above for r in chosen] == sorted({r.above for r in chosen})
    if collective in UNKNOWN_TO_ALL:        # the chunks are those for long blocks
        (rule,) = chosen
        assert rule.algorithm == rules(collective, p, True, nodes)[-1].algorithm
        if base_collective(collective) not in NEIGHBORHOOD:
            lines = costs(net, collective, p, True, nodes, np.array([LONG * p]), rule.algorithm)
            own = next(us[0] for _, *how, us in lines if how == [rule.chunk_bytes, rule.window])
            assert own == min(us[0] for *_, us in lines)
        return
    lines = costs(net, collective, p, True, nodes, SIZES)
    least = np.min([us for *_, us in lines], axis=0)
    for size_, best in zip(SIZES.tolist(), least):
        rule = next(r for r in reversed(chosen) if r.fits(size_, p))
        how, at = (rule.algorithm, rule.chunk_bytes), size_ == SIZES
        own = min(us[at][0] for name, chunk, _, us in lines if (name, chunk) == how)
        assert own <= modelled.MARGIN * best
        choice = choose(collective, size_, p, True, Overrides(), "compiled", nodes, (), net)
        assert (choice.algorithm, choice.chunk_bytes) == (rule.algorithm, rule.chunk_bytes)
        assert "the model of infiniband" in choice.why
        low, high = same_choice(collective, size_, p, True, Overrides(), nodes, (), net)
        assert low <= size_ <= high


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan"])
def test_operators_that_do_not_commute_keep_their_order(collective):
    nodes = by_blocks(12, 4)
    for rule in modelled_rules(network("infiniband"), collective, 12, False, nodes):
        entry, parameters = parse_spec(collective, rule.algorithm)
        assert entry.keeps_order(12, nodes, **dict(parameters))


def test_hierarchical_algorithms_take_part_where_nodes_have_several_ranks():
    grouped = [spec for spec in candidates("allreduce", 16, True, by_blocks(16, 4)) if "hierarchical" in spec]
    assert grouped
    for nodes in (None, by_blocks(16, 1), by_blocks(16, 16)):
        assert not [spec for spec in candidates("allreduce", 16, True, nodes) if "hierarchical" in spec]
    assert "neighbor_exchange" not in candidates("allgather", 5, True, None)    # it needs an even number


def test_algorithms_of_a_program_are_left_out(monkeypatch):
    """They may be registered on some ranks earlier than on others, which would then choose differently."""
    ring = find("allreduce", "ring")
    mine = replace(ring, name="mine", body=lambda p, rank: ring(p, rank))
    monkeypatch.setitem(registry._REGISTRY["allreduce"], "mine", mine)
    assert "mine" in exact_algorithms("allreduce") and "mine" not in candidates("allreduce", 4, True, None)


def test_algorithms_that_need_much_memory_are_left_out():
    lines = costs(network("infiniband"), "allreduce", 64, True, None, np.array([1 << 24]))
    assert {us[0] for name, *_, us in lines if name == "naive"} == {np.inf}
    assert next(us[0] for name, *_, us in lines if name == "ring") < np.inf


def test_slow_links_make_hierarchies_and_many_ranks_make_logarithms():
    slow = replace(network("infiniband"), links=Level(50.0, 50.0, 1.0, 6.0, 6.0))
    nodes, us = by_blocks(24, 6), {}
    for name in ("hierarchical", "ring", "recursive_doubling", "rabenseifner"):
        us[name] = cost(profile("allreduce", name, 24, nodes), slow, np.array([1 << 16]))[0]
    assert min(us, key=us.get) == "hierarchical"
    large = modelled_rules(network("infiniband"), "allreduce", 4096, True, None)
    assert "ring" not in [rule.algorithm for rule in large if rule.above < 1 << 20]


# -- commands ------------------------------------------------------------------------------------------------


def run(*words):
    return CliRunner().invoke(main, words)


def test_choose_says_what_auto_would_choose():
    done = run("choose", "allreduce", "-p", "64", "--ranks-per-node", "4", "--sizes", "8,1M", "--json")
    rows = json.loads(done.output)
    assert done.exit_code == 0 and [row["bytes"] for row in rows] == [8, 1 << 20]
    for row in rows:
        args = ("allreduce", row["bytes"], 64, True, Overrides(), "", by_blocks(64, 4), (), network("infiniband"))
        assert row["algorithm"] == choose(*args).algorithm and row["model_us"] > 0
        assert len(row["next"]) == 2 and row["next"][0]["model_us"] * modelled.MARGIN >= row["model_us"]
    shown = run("choose", "bcast", "-p", "16", "--network", "leonardo").output
    assert "bcast on 16 ranks, 16 nodes, leonardo" in shown and "16 MiB" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("alltoallv", "-p", "4"), "its ranks know only their own counts"),
        (("allreduce", "-p", "4", "--network", "nowhere"), "presets are"),
        (("allreduce", "-p", "0"), "0 is not in the range"),
        (("allreduce",), "Missing option"),
        (("allreduce", "-p", "4", "--sizes", "much"), "much"),
    ],
)
def test_choose_refuses_in_words(words, message):
    done = run("choose", *words)
    assert done.exit_code == 2 and message in done.output


def test_choices_print_slowdowns(tmp_path):
    """On measurements made by the model, its own choices are the fastest, and those of the rules are not."""
    net, lines = network("leonardo"), [",".join(choices.COLUMNS)]
    for nbytes in (64, 65536, 1 << 24):
        for name in ("ring", "recursive_doubling", "rabenseifner"):
            us = cost(profile("allreduce", name, 1024), net, np.array([nbytes]))[0]
            lines.append(f"a.1,leonardo,1024,1,0,allreduce,{nbytes},{us},{name}")
    path = tmp_path / "measured.csv"
    path.write_text("\n".join(lines))
    done = CliRunner().invoke(choices.main, [str(path)])
    rows = [line.split() for line in done.output.splitlines()]
    assert done.exit_code == 0 and rows[2][:3] == ["leonardo", "model", "3"] and float(rows[2][3]) == 1.0
    assert rows[1][1] == "rules" and float(rows[1][5]) > 1


def test_choices_know_how_ranks_were_placed(tmp_path):
    """Recursive halving is the fastest where ranks are dealt to the nodes, swing where they are placed by blocks."""
    lines = [",".join(choices.COLUMNS)]
    for name in ("swing", "rabenseifner"):
        case = choices.Case("leonardo", "a", 32, 8, "allreduce", 4096, "cyclic")
        lines.append(f"a,leonardo,32,8,0,allreduce,4096,{choices.predicted(case, name, network('leonardo'))},{name}")
    path = tmp_path / "measured.csv"
    path.write_text("\n".join(lines))
    slowdowns = []
    for options in ([], ["--placement", "cyclic"]):
        done = CliRunner().invoke(choices.main, [str(path), *options])
        last = [line.split() for line in done.output.splitlines() if line.startswith("leonardo")][-1]
        slowdowns.append(float(last[3]))
    assert slowdowns[0] > 2 and slowdowns[1] == 1


def test_an_algorithm_that_does_not_suit_costs_nothing_finite():
    with pytest.raises(PreconditionError):
        profile("allgather", "neighbor_exchange", 5)
    case = choices.Case("leonardo", "a", 5, 1, "allgather", 8)
    assert choices.predicted(case, "neighbor_exchange", PLAIN) == float("inf")


def test_a_scan_waits_for_other_ranks_where_sums_go_up_a_tree_and_down():
    assert profile("scan", "tree", 13).waits and profile("exscan", "tree", 13).waits
    assert not profile("scan", "linear", 13).waits and not profile("scan", "recursive_doubling", 13).waits


def test_choices_compare_two_algorithms_by_names_that_measurements_lack(tmp_path):
    rows = [",".join((*choices.COLUMNS, "algorithm"))]
    for us, own, theirs in ((10, "", "bine_lat_over"), (15, "binomial", "binomial_ompi"), (9, "", "of no name here")):
        rows.append(f"a,leonardo,8,1,0,bcast,1024,{us},{own},{theirs}")
    file = tmp_path / "times.csv"
    file.write_text("\n".join(rows))
    done = CliRunner().invoke(choices.main, [str(file), "--beside", "bine,binomial"])
    assert (done.exit_code, done.output) == (0, "leonardo bcast: 1.50 (1.50 to 1.50) in 1 cases\n")
    assert "two algorithms" in CliRunner().invoke(choices.main, [str(file), "--beside", "bine"]).output
