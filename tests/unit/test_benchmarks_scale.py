"""The benchmark of what grows with the number of ranks."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from mpicoll.benchmarks import scale
from mpicoll.cost.network import network
from mpicoll.plans.lowering import lower
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.schedule import schedule
from mpicoll.selection.modelled import modelled_rules


def run(*words):
    return CliRunner().invoke(scale.scale, [*words])


@pytest.mark.once
def test_plans_and_starts(tmp_path):
    path = tmp_path / "scale.jsonl"
    words = ["--ranks", "5,64", "--algorithms", "barrier dissemination,alltoall bruck(k=4)", "--starts", "1"]
    done = run(*words, "--json", str(path), "--svg", str(tmp_path / "scale.svg"))
    assert done.exit_code == 0, done.output
    *plans, start = map(json.loads, path.read_text().splitlines())
    assert [(x["collective"], x["algorithm"], x["ranks"]) for x in plans] == [
        (*name, p) for name in (("barrier", "dissemination"), ("alltoall", "bruck(k=4)")) for p in (5, 64)
    ]
    assert all(x["seconds"] > 0 and x["table_bytes"] > x["rows"] > 0 for x in plans)
    assert "alltoall bruck(k=4)" in (tmp_path / "scale.svg").read_text()
    assert start["comm_seconds"] > start["first_seconds"] > 0 and start["private_mib"] > 1 and start["modules"] > 50
    assert "one rank's plan" in done.output and "starting, the median of 1" in done.output


@pytest.mark.once
def test_rules(tmp_path):
    path = tmp_path / "scale.jsonl"
    words = ["--ranks", "2,8", "--algorithms", "", "--starts", "0", "--rules", "1,4", "--network", "fugaku"]
    done = run(*words, "--json", str(path))
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    shapes = [(x["ranks"], x["ranks_per_node"]) for x in rows if x["collective"] == "bcast"]
    assert shapes == [(2, 1), (8, 1), (8, 4)]  # two ranks fill no node of four
    net, nodes = network("fugaku"), by_blocks(8, 4)
    wanted = {name: len(modelled_rules(net, name, 8, True, nodes)) for name in ("bcast", "scan")}
    assert wanted.items() <= {x["collective"]: x["rules"] for x in rows[-len(rows) // 3 :]}.items()
    assert all(x["seconds"] > 0 for x in rows) and "8 by 4" in done.output


def instructions(work):
    """Count Python's instructions, a time that does not vary."""
    done = 0

    def count(frame, event, argument):
        nonlocal done
        frame.f_trace_opcodes = True
        done += event == "opcode"
        return count

    before = sys.gettrace()
    for _ in range(2):  # CPython 3.12 begins to count with the second frame that asks for it
        done = 0
        sys.settrace(count)
        try:
            work()
        finally:
            sys.settrace(before)
    return done


@pytest.mark.parametrize(("collective", "algorithm"), [
    ("allreduce", "ring"), ("reduce_scatter", "ring"), ("allgather", "ring"), ("alltoall", "pairwise"),
])
def test_a_step_takes_as_long_however_many_ranks_there_are(collective, algorithm):
    a_rank = [
        instructions(lambda p=p: lower(schedule(collective, algorithm, p), p // 3, 5 * p, 1)) / p for p in (16, 64)
    ]
    assert a_rank[1] < 1.1 * a_rank[0]


def test_layers_of_others_take_no_time():
    """A rank's program of a hierarchical schedule takes steps for its own group, and for the blocks."""
    scheduled = {p: schedule("allgather", "hierarchical", p, groups=4) for p in (32, 128)}
    a_block = [instructions(lambda p=p: lower(scheduled[p], 1, 1, 1)) / p for p in scheduled]
    assert a_block[1] < 1.3 * a_block[0]


@pytest.mark.parametrize(("words", "message"), [
    (["--ranks", "1000000000"], "p is 1000000000; a schedule has at least 1 rank, and no machine has more than 16,777"),
    (["--ranks", "0"], "--ranks"),
    (["--ranks", "few"], "few"),
    (["--algorithms", "ring"], "it needs a collective and an algorithm of it"),
    (["--algorithms", "bcast hop"], "no bcast algorithm is called 'hop'"),
    (["--bytes", "much"], "much"),
    (["--rules", "0"], "--rules"),
    (["--network", "nowhere"], "presets are"),
])
def test_words_that_make_no_sense(words, message):
    done = run(*words, "--starts", "0")
    assert done.exit_code == 2 and message in done.output
