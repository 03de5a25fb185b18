"""Schedules as GOAL text: read back, checked, and played by an independent player beside the simulation."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner
from unit.goal_player import Player, check_order, messages, read

from mpicoll.cli import main
from mpicoll.cost.goal import Goal
from mpicoll.cost.network import Level, Network, network
from mpicoll.cost.placement import place
from mpicoll.cost.simulation import COMPUTES, RECEIVES, Simulation
from mpicoll.errors import ArgumentError
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.schedule import schedule
from mpicoll.selection.modelled import candidates, modelled_rules
from mpicoll.selection.rules import UNKNOWN_TO_ALL

RANKS = (2, 3, 5, 8, 13)
SMALL, LARGE = 64.0, 3e5
LINKS = Level(latency=2.0, rendezvous=0.0, gap=0.001, short_rate=10000.0, rate=10000.0)
NET = Network("plain", LINKS, LINKS, 1e9, 5000.0, 6000.0)  # one kind of message, and one of links
KNOWN_TO_ALL = [name for name in COLLECTIVES if name not in UNKNOWN_TO_ALL]
UNEXPLAINED = {("allreduce", "dual_root"), ("exscan", "double_tree")}  # 0.88 to 1.2 times on 2 and 3 ranks


def text_of(goal):
    return "\n".join(goal.lines()) + "\n"


def played(schedule_, nbytes, chunk_bytes=None, net=NET, *, loggopsim):
    """Return the µs of a schedule by the player, and by the simulation."""
    goal = Goal(schedule_, net, nbytes, chunk_bytes, 2)
    player = Player(text_of(goal), *goal.arguments(net.links), loggopsim=loggopsim)
    return player.end / 1e6, Simulation(schedule_, net, nbytes, None, chunk_bytes, 2).us


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("collective", KNOWN_TO_ALL)
def test_every_send_has_its_receive_and_nothing_waits_in_a_circle(collective, p):
    for algorithm in candidates(collective, p, True, by_blocks(p, 2)):
        own = schedule(collective, algorithm, p, nodes=by_blocks(p, 2))
        for chunk_bytes in (None, 5000):
            goal = Goal(own, NET, 1e5, chunk_bytes, 2)
            ranks = read(text_of(goal))
            assert len(ranks) == p and len(messages(ranks)) == goal.messages
            assert goal.messages == Simulation(own, NET, 1e5, None, chunk_bytes, 2).messages
            check_order(ranks)


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("collective", KNOWN_TO_ALL)
def test_short_messages_take_what_the_simulation_says(collective, p):
    """By both models, all algorithms: bytes take no time, so nothing occupies a processor."""
    for algorithm in candidates(collective, p, True, None):
        for loggopsim in (True, False):
            got, simulated = played(schedule(collective, algorithm, p), SMALL, loggopsim=loggopsim)
            assert got == pytest.approx(simulated, rel=0.02), algorithm


def occupies_its_processor(spans):
    """Tell whether a rank computes or begins to send while it receives, which occupies its processor in LogGOPSim."""
    received = [span for span in spans if span.what == RECEIVES]
    return any(
        busy.begin < span.end - 1e-6 and span.begin + 1e-6 < (busy.end if busy.what == COMPUTES else busy.begin)
        for span in received for busy in spans if busy.rank == span.rank and busy.what != RECEIVES
    )  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("p", RANKS)
def test_whole_blocks_take_what_the_simulation_says(p):
    """Compare the algorithms in which no rank has to send or compute while it receives."""
    compared = 0
    for collective in KNOWN_TO_ALL:
        for algorithm in candidates(collective, p, True, None):
            own = schedule(collective, algorithm, p)
            simulation = Simulation(own, NET, LARGE, None, None, 2, record=True)
            if (collective, algorithm) not in UNEXPLAINED and not occupies_its_processor(simulation.spans):
                got, _ = played(own, LARGE, loggopsim=True)
                assert got == pytest.approx(simulation.us, rel=0.02), (collective, algorithm)
                compared += 1
    assert compared > 40


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("bcast", "linear"), ("gather", "linear"), ("bcast", "knomial(k=8)"), ("reduce", "knomial(k=8)"),
     ("barrier", "linear")],
)  # fmt: skip
def test_messages_of_a_step_leave_a_gap(collective, algorithm):
    net = replace(NET, links=replace(LINKS, gap=1.0))
    got, simulated = played(schedule(collective, algorithm, 8), SMALL, net=net, loggopsim=True)
    assert got == pytest.approx(simulated, rel=0.02) and got > LINKS.latency + 6


CHUNKED = [("bcast", "chain"), ("bcast", "linear"), ("bcast", "binomial"), ("allgather", "ring"), ("scan", "linear"),
           ("alltoall", "pairwise"), ("gather", "linear"), ("allreduce", "ring"), ("reduce_scatter", "ring"),
           ("reduce", "chain"), ("reduce", "linear")]  # fmt: skip


@pytest.mark.parametrize("p", RANKS)
def test_chunks_take_what_the_simulation_says(p):
    """The player follows LogGP: in LogGOPSim no chunk is received while another one is reduced."""
    net = replace(NET, links=replace(LINKS, gap=0.0), fold_rate=20000.0)
    for collective, algorithm in CHUNKED:
        own = schedule(collective, algorithm, p)
        got, simulated = played(own, LARGE, 10000, net, loggopsim=False)
        assert got == pytest.approx(simulated, rel=0.02), (collective, algorithm)
        whole, _ = played(own, LARGE, None, net, loggopsim=False)
        assert p < 5 or algorithm != "chain" or got < 0.7 * whole


@pytest.mark.once
def test_the_page_has_these_times():
    """Compute the rows of LogGOPSim's rule in docs/SIMULATING.md."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "SIMULATING.md").read_text()
    cases = [schedule(collective, algorithm, p) for collective in KNOWN_TO_ALL for p in RANKS
             for algorithm in candidates(collective, p, True, None)]  # fmt: skip

    def times(nbytes, chunk_bytes):
        pairs = [played(case, nbytes, chunk_bytes, loggopsim=True) for case in cases]
        return [got / simulated for got, simulated in pairs if simulated]

    short, whole, chunked = times(SMALL, None), times(LARGE, None), times(LARGE, 10000)
    near = sum(abs(time - 1) <= 0.02 for time in whole) / len(whole)
    assert f"({len(cases)} cases)" in page
    assert max(abs(time - 1) for time in short) <= 0.02
    assert f"within 2 % in {100 * near:.0f} % of the cases; {min(whole):.2f} to {max(whole):.2f}" in page
    assert f"{min(chunked):.2f} to {max(chunked):.2f}, the median {median(chunked):.2f}" in page


def test_the_window_is_in_the_text():
    """With one chunk in flight a rank begins the second when it is done with the first, with two the third."""
    own = schedule("bcast", "chain", 3)
    texts = [text_of(Goal(own, NET, 40.0, 10, window)) for window in (1, 2, 4)]
    middle = [text.split("rank 1 {\n")[1].split("}")[0].splitlines() for text in texts]
    first = ["l1: recv 10b from 0 tag 0", "l2: send 10b to 2 tag 0", "l2 requires l1", "l3: recv 10b from 0 tag 1"]
    assert middle[0][:5] == [*first, "l3 requires l2"] and "l5 requires l4" in middle[0]
    assert middle[1][:4] == first and "l3 requires l2" not in middle[1] and "l5 requires l2" in middle[1]
    assert not any(re.fullmatch(r"l[357] requires .*", line) for line in middle[2])


def test_reductions_and_copies_are_calculations():
    """A step ends with its reductions: p - 1 blocks of 1000 bytes at 5000 bytes/µs on every rank."""
    ranks = read(text_of(Goal(schedule("reduce_scatter", "ring", 4), NET, 4000.0)))
    times = [[op.size for op in operations if op.kind == "calc" and op.size] for operations in ranks]
    assert times == [[200_000] * 3] * 4
    assert {op.size for operations in ranks for op in operations if op.kind != "calc"} == {1000}


def test_many_messages_of_a_step_do_not_make_many_more_lines():
    """A calculation of no time joins them: the next chunk requires that, and not every message."""
    goal = Goal(schedule("alltoall", "linear", 13), NET, 13e5, 25000, 2)
    assert goal.chunks == 4 and len(list(goal.lines())) < 4 * 2 * goal.messages


def test_empty_messages_have_a_byte():
    sizes = {op.size for operations in read(text_of(Goal(schedule("barrier", "dissemination", 5), NET, 0.0)))
             for op in operations if op.kind != "calc"}  # fmt: skip
    assert sizes == {1}


def test_the_options_are_of_the_longest_message():
    net = network("infiniband")
    short, long = (Goal(schedule("bcast", "linear", 4), net, nbytes).arguments(net.links) for nbytes in (8, 1 << 20))
    assert (short.L, short.G) == (2_700_000, 250) and (long.L, long.G) == (5_100_000, 125)
    assert str(short) == "-L 2700000 -o 0 -g 300000 -G 250 -S 16384"


@pytest.mark.parametrize("broken", ["tag", "size", "lost"])
def test_the_checks_notice_a_broken_text(broken):
    text = text_of(Goal(schedule("allgather", "ring", 3), NET, 30.0))
    wrong = {
        "tag": text.replace("to 1 tag 0", "to 1 tag 7", 1),
        "size": text.replace("send 10b", "send 11b", 1),
        "lost": re.sub(r"recv .*", "calc 1", text, count=1),
    }[broken]
    with pytest.raises(ValueError, match="do not match"):
        messages(read(wrong))


def test_the_checks_notice_a_circle():
    text = "num_ranks 2\n" + "".join(
        f"rank {rank} {{\nl1: recv 8b from {1 - rank} tag 0\nl2: send 8b to {1 - rank} tag 0\nl2 requires l1\n}}\n"
        for rank in (0, 1)
    )
    with pytest.raises(ValueError, match="4 operations wait for each other"):
        check_order(read(text))


def test_a_schedule_of_too_many_messages_is_an_error():
    with pytest.raises(ArgumentError, match=r"1,500,000 are written at most; take fewer ranks$"):
        Goal(schedule("allreduce", "ring", 2000), NET, 8.0)


# -- the command ------------------------------------------------------------------------------------------------------


def run(*words):
    return CliRunner().invoke(main, ["export", *map(str, words)])


def test_the_command_writes_a_file_that_can_be_played(tmp_path):
    out = tmp_path / "ring.goal"
    done = run("allreduce", "ring", "-p", 4, "--size", "64K", "--chunk", "4K", "--window", 3, "--goal", out)
    assert done.exit_code == 0, done.output
    title = "allreduce ring, p = 4, 64 KiB in chunks of 4 KiB, 3 in flight, infiniband"
    assert done.output.startswith(f"{out}: {title}: 96 messages\ntxt2bin -i {out} -o {out}.bin && LogGOPSim -L ")
    text = out.read_text()
    options = "-L 2700000 -o 0 -g 300000 -G 250 -S 16384"
    assert text.startswith(f"// {title}\n// LogGOPSim {options}, times in picoseconds\n")
    goal = Goal(schedule("allreduce", "ring", 4), network("infiniband"), 1 << 16, 4096, 3)
    assert "".join(line for line in text.splitlines(True) if not line.startswith("//")) == text_of(goal)


def test_without_an_algorithm_the_choice_of_auto_is_written():
    on, nodes = network("leonardo"), by_blocks(16, 4)
    for size in (8, 1 << 20, 1 << 24):
        done = run("bcast", "-p", 16, "--ranks-per-node", 4, "--network", "leonardo", "--size", size, "--goal", "-")
        rules = modelled_rules(on, "bcast", 16, True, nodes)
        rule = next(rule for rule in reversed(rules) if rule.fits(size, 16))
        goal = Goal(schedule("bcast", rule.algorithm, 16, nodes=nodes), on, size, rule.chunk_bytes, rule.window)
        assert done.exit_code == 0 and done.output.endswith(text_of(goal))


@pytest.mark.parametrize(("words", "nodes"), [
    (["--ranks-per-node", 4, "--placement", "cyclic"], place((4, 4, 4, 4), "cyclic")),
    (["--tasks-per-node", "2,6(x2),2", "--node-list", "n[1-4]"], place((2, 6, 6, 2))),
])  # fmt: skip
def test_ranks_are_placed_as_for_simulate(words, nodes):
    """The groups of a hierarchical algorithm are the nodes."""
    done = run("allreduce", "hierarchical", "-p", 16, *words, "--goal", "-")
    goal = Goal(schedule("allreduce", "hierarchical", 16, nodes=nodes), network("infiniband"), 1 << 16)
    assert done.exit_code == 0 and done.output.endswith(text_of(goal))


def test_nodes_are_not_in_the_text(tmp_path):
    out = tmp_path / "x.goal"
    apart, together = (run("allreduce", "ring", "-p", 4, "--ranks-per-node", n, "--goal", out).output for n in (2, 4))
    assert "one kind of link" in apart and "one kind of link" not in together
    assert "-L 500000 " in together


@pytest.mark.parametrize(("words", "message"), [
    (["allreduce", "rinng"], "did you mean 'ring'"), (["ring", "allreduce"], "mpicoll export allreduce ring"),
    (["alltoallv"], "so name an algorithm"), (["allreduce", "ring", "--root", 1], "has no root"),
    (["allreduce", "ring", "--network", "nowhere"], "presets are"),
    (["allreduce", "ring", "--size", "x"], "not a size"),
    (["allreduce", "ring", "--tasks-per-node", "3"], "places 3 ranks, not 4"),
    (["allreduce", "ring", "-n", 4], "the number of ranks is -p N"),
])  # fmt: skip
def test_export_refuses_in_words(words, message):
    done = run(*words, "-p", 4, "--goal", "-")
    assert done.exit_code == 2 and message in done.output


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    done = run("allreduce", "ring", "-p", 4, "--goal", tmp_path / "no" / "x.goal")
    assert done.exit_code == 1 and "cannot write" in done.output
