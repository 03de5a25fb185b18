"""Turn measurements into rules of `mpicoll tune`, without MPI."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest

from mpicoll import algorithm
from mpicoll.benchmarks.cases.contenders import Contender
from mpicoll.benchmarks.measure.rounds import Timing
from mpicoll.benchmarks.tune import cli
from mpicoll.benchmarks.tune.rules import Found, rules
from mpicoll.benchmarks.tune.shortlist import NEAR, NEAR_IN_CHUNKS, Shortlist, distinct
from mpicoll.benchmarks.tune.tuner import Candidate, decide, describe_left_out
from mpicoll.cost.network import network
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.ir import Recv, Send
from mpicoll.schedules.registry import exact_algorithms
from mpicoll.selection.modelled import costs
from mpicoll.selection.tables import SCHEMA, parse, write


def timing(mean, noise=0.0, rounds=40, valid=True, seed=0):
    draw = random.Random(seed)
    result = Timing(Contender("x", None, None), valid=valid)
    result.rounds = [[mean * (1 + noise * draw.uniform(-1, 1))] for _ in range(rounds)]
    return result


@pytest.mark.parametrize(
    ("others", "which"),
    [
        ([timing(0.9)], 1),
        ([timing(0.9), timing(0.5), timing(0.7)], 2),
        ([timing(0.98)], 0),                        # too little
        ([timing(0.5, valid=False)], 0),
        ([timing(0.5, rounds=0)], 0),
        ([timing(0.5, rounds=7)], 0),               # too few to be sure
        ([timing(0.95, noise=0.9, seed=3)], 0),     # too noisy
        ([timing(1.5)], 0),
        ([], 0),
    ],
)
def test_only_what_is_surely_faster_replaces_the_rule(others, which):
    assert decide([timing(1.0, rounds=len(other.rounds)) if (other := next(iter(others), None)) else timing(1.0),
                   *others]) == which


def test_a_rule_that_did_not_run_stays():
    assert decide([timing(1.0, rounds=0), timing(0.5)]) == 0


def best(nbytes, algorithm, chunk=None, seconds=2e-6, window=2):
    return Found(nbytes, algorithm, chunk, seconds, 3e-6, 2e-6, window=window)


def test_neighbours_that_choose_the_same_are_one_rule():
    rows = [best(8, "a"), best(64, "a", seconds=4e-6), best(1024, "b"), best(4096, "b", 512), best(8192, "a")]
    table = rules(rows)
    assert [(r["from_bytes"], r["algorithm"], r.get("chunk_bytes"), r.get("at_bytes")) for r in table] == [
        (0, "a", None, 64), (256, "b", None, 1024), (2048, "b", 512, 4096), (5792, "a", None, 8192),
        (16384, "auto", None, None),
    ]
    assert (table[0]["us"], table[0]["native_us"]) == (4.0, 3.0)


def test_the_window_is_in_the_table():
    table = rules([best(8, "a"), best(512, "a", 64, window=1), best(4096, "a", 64), best(8192, "a", 64)])
    assert [(r["from_bytes"], r.get("chunk_bytes"), r.get("window")) for r in table] == [
        (0, None, None), (64, 64, 1), (1448, 64, 2), (16384, None, None),
    ]


def test_choices_of_the_rules_are_left_to_them():
    assert [(r["from_bytes"], r["algorithm"]) for r in rules([best(8, "auto"), best(512, "auto")])] == [(0, "auto")]
    table = rules([best(8, "a", seconds=float("inf")), best(512, "auto")])
    assert [(r["from_bytes"], r["algorithm"], "us" in r) for r in table] == [(0, "a", False), (64, "auto", True)]


@pytest.mark.parametrize(("name", "value"), [("MPICOLL_ENGINE", "mpi4py"), ("MPICOLL_CHECK", "1")])
def test_variables_that_would_spoil_the_table_are_refused(monkeypatch, name, value):
    monkeypatch.setenv("MPICOLL_TUNING", "yet/to/come.json")
    monkeypatch.setenv("MPICOLL_LEARN", "1")
    cli._only_auto()
    assert "MPICOLL_TUNING" not in os.environ and "MPICOLL_LEARN" not in os.environ
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name} is '{value}'"):
        cli._only_auto()


def entry(mpi="M 1.0", **rules):
    return {"mpi": mpi, "nodes": ["0-1"],
            "rules": {name: [{"from_bytes": 0, "algorithm": a}] for name, a in rules.items()}}


def test_other_tables_stay_and_collectives_not_measured_too(tmp_path):
    path = tmp_path / "t.json"
    write(path, entry(allreduce="ring", bcast="chain"))
    write(path, entry("N 2.0", allreduce="naive"))
    write(path, entry(allreduce="tree"))
    tables = {table.mpi: table.rules for table in parse(path.read_text(), "t").tables}
    chosen = {mpi: {name: rule.algorithm for name, (rule,) in rules.items()} for mpi, rules in tables.items()}
    assert chosen == {"M 1.0": {"allreduce": "tree", "bcast": "chain"}, "N 2.0": {"allreduce": "naive"}}
    assert json.loads(path.read_text())["schema"] == SCHEMA
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_usage_errors():
    assert cli._names("bcast, allreduce,bcast") == ["bcast", "allreduce"]
    assert "barrier" in cli._names("all") and "gatherv" not in cli._names("all")
    for text, message in (("bcasts", "'bcasts'"), ("gatherv", "only their own counts"), ("", "must name something")):
        with pytest.raises((ValueError, LookupError), match=message):
            cli._names(text)


NET, NODES = network("infiniband"), by_blocks(13, 4)


@pytest.mark.parametrize("nbytes", [8, 4096, 1 << 20])
@pytest.mark.parametrize("collective", ["allreduce", "bcast", "allgather"])
def test_algorithms_far_from_the_models_best_are_left_out(collective, nbytes):
    shortlist = Shortlist(NET, collective, 13, NODES, nbytes)
    times: dict[str, float] = {}
    for name, _, _, us in costs(NET, collective, 13, True, NODES, np.array([nbytes])):
        times[name] = min(times.get(name, np.inf), us[0])
    least = min(times.values())
    names = exact_algorithms(collective)
    near = [name for name in names if shortlist.is_near(name)]
    assert near == [name for name in names if times.get(name, np.inf) <= NEAR * least]
    assert 1 < len(near) < len(names)


def test_chunks_in_which_the_model_finds_an_algorithm_slow_are_left_out():
    shortlist = Shortlist(NET, "allreduce", 13, NODES, 1 << 20)
    lines = costs(NET, "allreduce", 13, True, NODES, np.array([1 << 20]))
    own = {chunk: us[0] for name, chunk, _, us in lines if name == "ring"}
    for chunk in (8192, 32768):
        assert shortlist.is_near_in("ring", chunk) == (own.get(chunk, np.inf) <= NEAR_IN_CHUNKS * min(own.values()))
    assert not shortlist.is_near_in("ring", 1 << 30)         # which cut no block
    assert not Shortlist(NET, "bcast", 2, by_blocks(2, 1), 1 << 20).is_near_in("chain", 8192)


def test_without_a_network_nothing_is_left_out():
    shortlist = Shortlist(None, "allreduce", 13, NODES, 8)
    assert all(shortlist.is_near(name) and shortlist.is_near_in(name, 32768) for name in exact_algorithms("allreduce"))


def test_an_algorithm_of_a_program_is_never_left_out(registry):
    @algorithm("bcast")
    def slow(p, rank):
        """Send the vector along a line of ranks.

        Steps: p - 1
        Bytes per rank: n
        Scratch: 0
        Cost: none
        Source: none
        """
        if rank:
            yield Recv(rank - 1, (0,))
        if rank + 1 < p:
            yield Send(rank + 1, (0,))

    shortlist = Shortlist(NET, "bcast", 13, NODES, 8)
    assert shortlist.is_near("slow") and shortlist.is_near_in("slow", 8192) and not shortlist.is_near("chain")


def candidate(algorithm, chunk=None, window=2):
    return Candidate(algorithm, chunk, window, Contender(algorithm, None, None))


def test_algorithms_of_the_same_messages_are_measured_once():
    """On two ranks a chain is a binomial tree, but not in chunks, and on eight ranks it is another thing."""
    names = [candidate("binomial"), candidate("chain"), candidate("chain", 4096), candidate("split_binary")]
    assert distinct("bcast", 2, by_blocks(2, 2), names) == [names[0], *names[2:]]
    assert distinct("bcast", 8, by_blocks(8, 8), names) == names
    assert distinct("bcast", 64, by_blocks(64, 8), [names[0]] * 2) == [names[0]] * 2     # not compared any more


def test_the_number_left_out_is_printed():
    rows = [Found(8, "a", None, 1.0, 1.0, 1.0, tried=2, of=9), Found(64, "a", None, 1.0, 1.0, 1.0, tried=4, of=9)]
    assert describe_left_out(rows).startswith("12 of 18 candidates were left out: the model puts them at more than 3")
    assert describe_left_out([]) == "all 0 candidates were measured"
