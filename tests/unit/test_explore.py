"""The page of `mpicoll explore` has the values of the symbolic execution, at every step, in one small safe file."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import sys
from pathlib import Path

import pytest
from support.command import good, refused, run
from unit.every import EVERY, served
from unit.mutants import adhoc, documented, op_mutants

from mpicoll import algorithm
from mpicoll.cost.network import network
from mpicoll.cost.simulation import Simulation
from mpicoll.describe import text
from mpicoll.describe.explore import choose, faults, page
from mpicoll.describe.explore.presets import PRESETS
from mpicoll.describe.explore.record import DONE, HEARD, REDUCED, Words, record
from mpicoll.describe.explore.sources import sources
from mpicoll.describe.explore.timing import SIZES, Clock, short
from mpicoll.describe.picture import ranks
from mpicoll.errors import VerifyError
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.symbolic import SymbolicExecution
from mpicoll.proofs.values import contributors
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.ir import INPUT, Recv, RecvReduce, Send
from mpicoll.schedules.registry import find, registered
from mpicoll.schedules.schedule import Schedule, schedule

MARKUP = '</script><img src=x onerror="window.hacked=1"><!-- {{ data }} & "quotes"'


class Snapshots(SymbolicExecution):
    """An execution that records every rank's state before and after each step."""

    def __init__(self, schedule):
        super().__init__(schedule)
        self.start = [self.now(rank) for rank in range(schedule.p)]
        self.changes = []
        self.execute()

    def now(self, rank):
        state = {(buffer, block): ranks(contributors(value))
                 for buffer, held in self.trace.memory[rank].items() if buffer != INPUT
                 for block, value in held.items()}
        if self.schedule.collective.naming == "none":
            state[HEARD, 0] = ranks(contributors(self.trace.known[rank]))
        return state

    def _finish(self, line):
        super()._finish(line)
        self.changes.append((line.finish, line.rank, self.now(line.rank)))

    def frame(self, t):
        """Return every rank's state after all steps that end by t; each strand changes only its own places."""
        state = [dict(own) for own in self.start]
        before = {rank: dict(own) for rank, own in enumerate(self.start)}
        for end, rank, now in self.changes:
            changed = {place: value for place, value in now.items() if before[rank].get(place) != value}
            before[rank] = now
            if end <= t:
                state[rank].update(changed)
        return state


def frame(entry, words, schedule, t):
    """Return the state after time t, as the page computes it."""
    state = [{} for _ in range(schedule.p)]
    for end, rank, buffer, block, value, _ in entry["writes"]:
        if end <= t:
            name = schedule.blocks[block] if schedule.blocks else block
            state[rank][entry["buffers"][buffer], name] = words.texts[value]
    return state


def recorded(schedule):
    words = Words()
    return record(schedule, words), words


# -- what the page has ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("least", [2, 3, 5, 8])
def test_every_frame_is_the_symbolic_execution(entry, least):
    own = Schedule(entry, served(entry, least))
    got, words = recorded(own)
    executed = Snapshots(own)
    assert "fault" not in got and got["steps"] == executed.trace.steps
    assert [write[0] for write in got["writes"]] == sorted(write[0] for write in got["writes"])
    for t in range(got["steps"] + 1):
        assert frame(got, words, own, t) == executed.frame(t), f"step {t}"
    ends = {(rank, block) for _, rank, _, block, _, flags in got["writes"] if flags & DONE}
    assert ends >= {(rank, block) for rank, blocks in enumerate(got["ends"]) for block in blocks}


@pytest.mark.parametrize("entry", EVERY)
def test_numbers_are_those_of_show(entry):
    own = Schedule(entry, served(entry, 5))
    got, _ = recorded(own)
    assert got["headline"] == text.draw(own).partition("\n")[0]
    assert len(got["messages"]) == len(own_messages(own))
    assert got["claimed"]["steps"] == str(entry.claims.evaluate(entry.claims.steps, own.p, **own.resolved))


def own_messages(schedule):
    return [op for r in range(schedule.p) for strand in schedule.program(r) for step in strand for op in step
            if isinstance(op, Send)]


def test_messages_say_who_sends_what_and_what_is_reduced():
    got, words = recorded(schedule("allreduce", "ring", 5))
    first = [message for message in got["messages"] if message[0] == 2 and message[1] == 0]
    assert first == [[2, 0, 1, 0, 1, "value", [2], [words.numbers["0,3-4"]]]]
    reduced = {write[0] for write in got["writes"] if write[5] & REDUCED}
    assert reduced == {1, 2, 3, 4}


def test_rank_order_and_roots_are_of_the_schedule():
    got, words = recorded(schedule("reduce", "binomial", 5, root=2, commutative=False))
    assert "root 2 in rank order" in got["headline"] and got["ends"][2] == [0]
    assert frame(got, words, schedule("reduce", "binomial", 5), got["steps"])[2]["value", 0] == "0-4"


def test_codes_count_as_what_they_take():
    own = schedule("allreduce", "quantized", 4)
    got, _ = recorded(own)
    assert got["code_share"] == float(own.code_share) < 1 and any(message[4] & 2 for message in got["messages"])


# -- which schedules ------------------------------------------------------------------------------------------------


def test_the_page_has_every_algorithm_root_and_order():
    keys = [str(key) for key, _ in choose.schedules(choose.wanted(), (4, 13))]
    assert len(keys) == len(set(keys))
    for entry in registered():
        if entry.serves(4):
            assert f"{entry.collective.name}/{entry.name}/p=4" in keys
    assert {f"bcast/binomial/p=4{root}" for root in ("", "/root=1", "/root=2", "/root=3")} <= set(keys)
    assert "bcast/binomial/p=13/root=12" in keys and "bcast/binomial/p=13/root=5" not in keys
    assert "allreduce/recursive_doubling/p=4/order=rank" in keys and "allreduce/ring/p=4/order=rank" not in keys
    assert "bcast/knomial(k=2)/p=4" in keys


def test_the_page_has_all_parameters_of_an_algorithm():
    """The page executes nothing, so that it cannot show others."""
    for collective, name in (("allgather", "gather_bcast"), ("bcast", "scatter_allgather")):
        entry = find(collective, name)
        specs = {key.spec for key, _ in choose.schedules([choose.Wanted(entry, None)], [8])}
        assert specs == {choose.spec_of(entry, parameters) for parameters, _ in entry.choices(8)} and len(specs) > 9


def test_tours_are_on_the_page():
    wanted = choose.with_tours(choose.wanted(["allreduce"]), (5, 8, 13))
    assert len(page.data(wanted)["presets"]) == len(PRESETS) == 4


def test_the_code_is_that_of_the_algorithm_and_of_its_parts():
    code = sources(find("allreduce", "ring"))
    assert list(code) == ["allreduce.ring", "reduce_scatter.ring", "allgather.ring"]
    assert code["allreduce.ring"].endswith("return then(reduce_scatter.ring(p, rank), allgather.ring(p, rank))")


# -- one safe file --------------------------------------------------------------------------------------------------


def unpacked(text):
    packed = re.search(r'<script id="data" type="application/octet-stream">([A-Za-z0-9+/=]*)</script>', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_markup_in_names_and_titles_stays_text(registry):
    @algorithm("allreduce")
    @documented
    def plain(p, rank):
        return find("allreduce", "naive")(p, rank)

    key = choose.Key("allreduce", f"plain(k={MARKUP})", 2)
    whole = page.build([(key, Schedule(plain, 2))], MARKUP)
    assert whole.count("<script") == 2 and whole.count("</script") == 2 and "<img" not in whole
    assert "&lt;/script&gt;&lt;img" in whole
    assert unpacked(whole)["schedules"][str(key)]["spec"] == key.spec


def test_the_page_asks_for_nothing():
    whole = page.build(choose.schedules(choose.wanted(["barrier"]), (2,)))
    assert set(re.findall(r"https?://[^\s\"')]+", whole)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<link rel=\"(?!icon)|@import|src=", whole)


@pytest.mark.slow
def test_the_page_with_everything_is_small():
    wanted = list(choose.schedules(choose.wanted(), choose.RANKS))
    assert len(wanted) > 3000
    assert len(page.build(wanted).encode()) < page.MOST_BYTES


# -- what the verifier rejects ----------------------------------------------------------------------------------------


def late(p, rank):
    """A ring that hands the wrong blocks round: it sends one step late."""
    right, left = (rank + 1) % p, (rank - 1) % p
    for s in range(p - 1):
        yield Send(right, ((rank - s) % p,)), RecvReduce(left, ((rank - s - 1) % p,))
    for s in range(p - 1):
        yield Send(right, ((rank - s) % p,)), Recv(left, ((rank - s - 1) % p,))


def twice(p, rank):
    """A ring that reduces whole vectors, so that contributions count twice."""
    for _ in range(p - 1):
        yield Send((rank + 1) % p, (0,)), RecvReduce((rank - 1) % p, (0,))


def stuck(p, rank):
    """A ring in which every rank receives before it sends."""
    yield Recv((rank - 1) % p, (0,))
    yield Send((rank + 1) % p, (0,))


def test_a_missing_contribution_is_shown():
    fault = recorded(adhoc("allreduce", late, 4, blocks=4))[0]["fault"]
    assert fault["time"] == 6 and "expected {0, 1, 2, 3}, got {0}" in fault["words"]
    assert [0, "value", 0, [1, 2, 3], [], []] in fault["places"]


def test_a_doubled_contribution_is_shown():
    got, words = recorded(own := adhoc("allreduce", twice, 3))
    fault = got["fault"]
    assert fault["time"] == got["steps"] == 2 and "would count twice" in fault["words"]
    ((rank, buffer, block, missing, doubled, surplus),) = fault["places"]
    assert (buffer, block, missing, surplus) == ("value", 0, [], []) and rank == fault["rank"]
    assert doubled == [(rank - 1) % 3]
    before, after = (frame(got, words, own, t)[rank]["value", 0] for t in (1, 2))
    assert after == before


def test_a_deadlock_says_who_waits_for_whom():
    fault = recorded(adhoc("allreduce", stuck, 3))[0]["fault"]
    assert "deadlock" in fault["words"]
    assert sorted(fault["waits"]) == [[rank, (rank - 1) % 3, False, [0]] for rank in range(3)]


@pytest.mark.parametrize(("collective", "name"), [
    ("allreduce", "ring"), ("bcast", "binomial"), ("alltoall", "bruck"), ("scan", "recursive_doubling"),
    ("barrier", "dissemination"),
])  # fmt: skip
def test_every_mutant_that_is_rejected_is_played_up_to_its_fault(collective, name):
    rejected = 0
    for title, mutant, _, _ in op_mutants(schedule(collective, name, 4), 1):
        try:
            verify(mutant)
        except VerifyError as error:
            got, rejected = recorded(mutant)[0], rejected + 1
            assert got["fault"]["words"] == str(error), title
            assert 0 <= got["fault"]["time"] <= got["steps"], title
            json.dumps(got)
    assert rejected > 5


# -- commands ---------------------------------------------------------------------------------------------------------

MINE = '''
from mpicoll import algorithm
from mpicoll.cost.network import network
from mpicoll.cost.simulation import Simulation
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.ir import RecvReduce, Send

@algorithm("allreduce")
def twice(p, rank):
    """A ring that reduces whole vectors.

    Steps: p - 1
    Bytes per rank: n * (p - 1)
    Scratch: n
    Cost: none
    Source: <script>alert(1)</script>
    """
    for _ in range(p - 1):
        yield Send((rank + 1) % p, (0,)), RecvReduce((rank - 1) % p, (0,))
'''


def test_explore_writes_a_page(tmp_path):
    out = tmp_path / "page.html"
    text = good("explore", "--collectives", "MPI_Bcast", "--algorithms", "knomial(k=3),chain", "-p", "3-4,7", "-o", out)
    assert re.fullmatch(rf"{re.escape(str(out))}: \d+ schedules, \d\.\d MB, opens in any browser .*\n", text)
    content = unpacked(out.read_text())
    assert {entry["p"] for entry in content["schedules"].values()} == {3, 4, 7}
    assert {"bcast/knomial(k=3)/p=7/root=6", "bcast/chain/p=3"} <= set(content["schedules"])
    assert "bcast/knomial/p=3" not in content["schedules"] and not content["broken"]


def test_a_large_page_is_said_to_be(tmp_path, monkeypatch):
    words = "explore", "--algorithms", "double_ring", "-p", "2", "-o", tmp_path / "page.html"
    assert run(*words).stderr == ""
    monkeypatch.setattr(page, "MOST_BYTES", 1000)
    assert "name fewer algorithms" in run(*words).stderr


def test_explore_writes_to_standard_output():
    content = unpacked(good("explore", "--algorithms", "double_ring", "-p", "3", "-o", "-"))
    assert list(content["schedules"]) == ["barrier/double_ring/p=3"]


@pytest.mark.parametrize(("args", "message"), [
    (["--collectives", "nothing"], "nothing"),
    (["--algorithms", "<b>"], "no algorithm is named '<b>'"),
    (["--collectives", "bcast", "--algorithms", "rnig"], "rnig"),
    (["--algorithms", "knomial(z=3)"], "has no parameter z"),
    (["-p", "0"], "write numbers of ranks from 1 to 64"),
    (["-p", "65"], "write numbers of ranks from 1 to 64"),
    (["-p", "5-2"], "'5-2'"),
    (["-p", "x"], "'x'"),
    (["--algorithms", "knomial(k=1)", "-p", "4"], "no schedule suits p = 4: bcast knomial: k is 1"),
    (["ring"], "--algorithms NAME,NAME"),
    (["-n", "4"], "-p 2-9,16"),
])  # fmt: skip
def test_usage_errors_are_one_line(args, message, tmp_path):
    assert message in refused("explore", "-o", tmp_path / "page.html", *args)


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    page = tmp_path / "no" / "page.html"
    message = refused("explore", "--algorithms", "double_ring", "-p", "2", "-o", page, status=1)
    assert "cannot write" in message


def test_a_page_that_cannot_be_written_is_refused_before_algorithms_are_played(tmp_path, monkeypatch):
    monkeypatch.setattr("mpicoll.describe.explore.page.build", lambda *args, **options: pytest.fail("played"))
    for path, why in ((tmp_path / "none" / "x.html", "its directory does not exist"), (tmp_path, "cannot be written")):
        assert f"cannot write {path}: {why}" in refused("explore", "-o", path, status=1)


def test_verify_writes_a_page_of_what_fails(tmp_path, registry):
    mine, out = tmp_path / "mine.py", tmp_path / "page.html"
    mine.write_text(MINE)
    result = run("--load", mine, "verify", "allreduce", "twice", "--max-ranks", "5", "--jobs", "1", "--explore", out)
    assert result.exit_code == 1 and "3 faults" in result.stdout
    content = unpacked(whole := out.read_text())
    assert content["broken"] and whole.count("<script") == 2
    assert list(content["schedules"]) == [f"allreduce/twice/p={p}" for p in (3, 4, 5)]
    assert all("twice" in entry["fault"]["words"] for entry in content["schedules"].values())
    assert "def twice(p, rank)" in "".join(content["code"].values())


def test_verify_writes_no_page_if_all_hold(tmp_path):
    out = tmp_path / "page.html"
    output = good("verify", "barrier", "double_ring", "--max-ranks", "3", "--explore", out)
    assert "not written, since all hold" in output
    assert not Path(out).exists()


def test_faults_of_schedules_that_hold_are_none():
    assert faults.schedules({("allreduce", "ring"): [3, 4]}) == []


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("per_node", [1, 2])
def test_times_are_those_of_the_simulation(entry, per_node):
    own = Schedule(entry, served(entry, 5))
    clock, words = Clock(network("infiniband"), 1 << 16, {own.p: by_blocks(own.p, per_node)}), Words()
    got = record(own, words, clock)
    simulated = Simulation(own, clock.network, clock.nbytes, by_blocks(own.p, per_node))
    time, ends = got["time"], [0.0] * own.p
    for (rank, _, _), us in clock.simulate(own).step_ends.items():
        ends[rank] = max(ends[rank], us)
    assert time["us"] == short(simulated.us) and ends == simulated.ends
    assert len(time["messages"]) == len(got["messages"]) == simulated.messages
    assert all(0 <= leave <= arrive <= time["us"] for leave, arrive in time["messages"])
    assert len(time["writes"]) == len(got["writes"]) and all(0 <= us <= time["us"] for us in time["writes"])
    for place, times in by_place(got).items():  # of a place, in the order of the steps
        assert times == sorted(times), place
    reduces = [i for i, message in enumerate(got["messages"]) if message[4] & 1]
    for i in reduces:
        _, _, rank, _, _, _, blocks, _ = got["messages"][i]
        after = [us for write, us in zip(got["writes"], time["writes"]) if write[1] == rank and write[3] in blocks]
        assert not blocks or max(after) >= time["messages"][i][1]


def by_place(entry):
    places = {}
    for (_, rank, buffer, block, *_), us in zip(entry["writes"], entry["time"]["writes"]):
        places.setdefault((rank, buffer, block), []).append(us)
    return places


def test_curves_are_those_of_the_simulation(tmp_path):
    out = tmp_path / "page.html"
    good("explore", "--algorithms", "ring,naive", "-p", "4", "--network", "infiniband", "--size", "1M", "-o", out)
    content = unpacked(out.read_text())
    clock = {"network": "infiniband", "nbytes": 1 << 20, "nodes": {"4": "4 nodes"}, "sizes": list(SIZES)}
    assert content["clock"] == clock
    curve, on = content["schedules"]["allreduce/ring/p=4"]["curve"], network("infiniband")
    nodes = by_blocks(4, 1)
    assert curve == [short(Simulation(schedule("allreduce", "ring", 4), on, size, nodes).us) for size in SIZES]
    assert "curve" not in content["schedules"]["allreduce/naive/p=4/order=rank"]


def test_ranks_are_placed_as_the_options_say(tmp_path):
    """In simulations, and in the schedules of algorithms that look at nodes, with a network and without."""
    out, placed = tmp_path / "page.html", ["--node-list", "n[1-2]", "--tasks-per-node", "3,1", "--placement", "cyclic"]
    words = "explore", "--collectives", "allreduce", "--algorithms", "ring,hierarchical", "-o", out, *placed
    good(*words, "-p", "4", "--network", "infiniband")
    content, nodes, on = unpacked(out.read_text()), ((0, 2, 3), (1,)), network("infiniband")
    assert content["clock"]["nodes"] == {"4": "2 nodes, cyclic"}
    ring, hierarchical, of_default_nodes = (
        short(Simulation(schedule("allreduce", name, 4, nodes=where), on, 1 << 16, nodes).us)
        for name, where in (("ring", None), ("hierarchical", nodes), ("hierarchical", None))
    )
    us = {key: played["time"]["us"] for key, played in content["schedules"].items()}
    assert us["allreduce/ring/p=4"] == ring
    assert us["allreduce/hierarchical/p=4"] == hierarchical != of_default_nodes
    good(*words, "-p", "4")
    in_steps, in_time = unpacked(out.read_text())["schedules"], content["schedules"]
    assert {key: played["messages"] for key, played in in_steps.items()} == {
        key: played["messages"] for key, played in in_time.items()
    }
    assert "places 4 ranks, not 5" in refused(*words, "-p", "4,5", "--network", "infiniband")


@pytest.mark.parametrize(("args", "message"), [
    (["--network", "nowhere"], "no network: cannot read nowhere"), (["--network", "infiniband", "--size", "x"], "'x'"),
])
def test_a_network_or_a_size_that_is_none_is_one_line(args, message, tmp_path):
    assert message in refused("explore", "--algorithms", "double_ring", "-o", tmp_path / "page.html", *args)


# -- notebooks --------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_the_page_in_a_frame():
    shown = schedule("allreduce", "ring", 5)._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and shown.count("<") == 2
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert list(unpacked(inside)["schedules"]) == ["allreduce/ring/p=5"]
    assert schedule("allreduce", "ring", 65)._repr_html_() is None


def test_a_notebook_that_shows_no_frames_shows_the_picture(monkeypatch):
    assert schedule("bcast", "chain", 3)._repr_svg_().startswith("<?xml")
    monkeypatch.setitem(sys.modules, "drawsvg", None)
    assert schedule("bcast", "chain", 3)._repr_svg_() is None
