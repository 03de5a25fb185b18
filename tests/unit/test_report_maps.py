"""Maps by the cost model: the fastest algorithm over size and ranks, and the price of another choice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from support import command
from unit.report_data import result, write

from mpicoll.benchmarks.report import fixed, modelled
from mpicoll.benchmarks.report.groups import gather
from mpicoll.benchmarks.report.look import NEUTRAL, looks
from mpicoll.benchmarks.report.points import cells
from mpicoll.benchmarks.report.read import read
from mpicoll.cost.network import network
from mpicoll.cost.placement import place
from mpicoll.schedules.collectives import base_collective
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.schedule import schedule
from mpicoll.selection.modelled import costs
from mpicoll.selection.rules import rules

NET = network("leonardo")


def good(*args):
    return command.good("report", *args)


def blocks(ranks_per_node):
    return lambda p: by_blocks(p, ranks_per_node)


def tiles(areas, against):
    """Return the cell of each collective, p and size."""
    groups = gather([modelled.run(NET, areas, against)])
    return {(g.setting.collective, g.place.ranks, cell["size"]): cell for g in groups for cell in cells(g)}


@pytest.mark.parametrize("against", ["rules", "mpich", "openmpi"])
def test_a_tile_has_the_least_time_and_the_price_of_the_other_choice(against):
    areas = modelled.areas(["allreduce", "bcast"], [4, 16, 60], blocks(4), [8, 65536, 1 << 22])
    found_cells = tiles(areas, against)
    assert len(found_cells) == 2 * 3 * 3
    dear = 0
    for (collective, p, size), cell in found_cells.items():
        nodes = by_blocks(p, 4)
        lines = costs(NET, collective, p, True, nodes, np.array([size]))
        least = min(us[0] for *_, us in lines)
        assert cell["time"] == pytest.approx(least)
        choice = fixed.choices(against)[1](collective, size, p, nodes)
        assert cell["against"] == f"{against}: {choice.algorithm}"
        times = [us[0] for name, chunk, _, us in lines if (name, chunk) == (choice.algorithm, choice.chunk_bytes)]
        if times:
            assert cell["ratio"] == pytest.approx(times[0] / least)
        dear += cell["ratio"] > 1.5
    assert dear


def test_one_algorithm_everywhere():
    found_cells = tiles(modelled.areas(["allreduce"], [8], blocks(1), [8, 1 << 22]), "ring")
    small, large = found_cells["allreduce", 8, 8], found_cells["allreduce", 8, 1 << 22]
    assert small["against"] == "always ring: ring" and small["ratio"] > 5 > large["ratio"] >= 1
    lines = costs(NET, "allreduce", 8, True, by_blocks(8, 1), np.array([1 << 22]))
    ring, least = min(us[0] for name, *_, us in lines if name == "ring"), min(us[0] for *_, us in lines)
    assert large["ratio"] == pytest.approx(ring / least)        # in its best chunks
    own = tiles(modelled.areas(["bcast"], [8], blocks(1), [8]), "knomial(k=3)")["bcast", 8, 8]
    assert own["against"] == "always knomial(k=3): knomial(k=3)" and own["ratio"] > 1
    none = tiles(modelled.areas(["bcast"], [8], blocks(1), [8]), "ring")["bcast", 8, 8]
    assert none["against"] == "" and none["ratio"] is None


def test_sizes_are_those_of_bench():
    """The size of an allgather is a rank's share: the call has p times as many bytes."""
    ((_, cell),) = tiles(modelled.areas(["allgather"], [16], blocks(4), [4096]), "rules").items()
    lines = costs(NET, "allgather", 16, True, by_blocks(16, 4), np.array([16 * 4096]))
    assert cell["time"] == pytest.approx(min(us[0] for *_, us in lines))


@pytest.mark.parametrize("p", [2, 5, 8, 64])
def test_choices_of_mpich_can_be_run(p):
    """Each of its algorithms is one of ours, which serves p ranks; the thresholds are those of Thakur and others."""
    for collective in fixed.OF_MPICH:
        for nbytes in (0, 8, 2048, 2049, 1 << 14, 1 << 18, 1 << 20, 1 << 26):
            schedule(collective, fixed.mpich(collective, nbytes, p, by_blocks(p, 1)).algorithm, p).program(0)
    choose = fixed.OF_MPICH
    assert [choose["bcast"](n, 8) for n in (12287, 12288, 1 << 19)] == [
        "binomial", "scatter_allgather(allgather=recursive_doubling)", "scatter_allgather",
    ]  # fmt: skip
    assert [choose["alltoall"](n * p, p) for n in (256, 257, 32768, 32769)][1:] == ["linear", "linear", "pairwise"]
    assert fixed.mpich("scan", 8, p, by_blocks(p, 1)) is None


@pytest.mark.parametrize("p", [2, 3, 8, 13, 64])
def test_choices_of_openmpi_can_be_run(p):
    for collective in fixed.OF_OPENMPI:
        for nbytes in (0, 8, 2048, 1 << 14, 370728, 1 << 20, 1 << 26):
            choice = fixed.openmpi(collective, nbytes, p, by_blocks(p, 1))
            schedule(collective, choice.algorithm, p).program(0)
    choose = fixed.OF_OPENMPI
    assert [choose["bcast"](n, 64)[:2] for n in (2047, 2048, 370727, 370728, 1 << 24, 1 << 25, 1 << 26)] == [
        ("binomial", None), ("split_binary", 1024), ("split_binary", 1024), ("chain", 8192), ("chain", 8192),
        ("chain", 65536), ("chain", 131072),
    ]  # fmt: skip
    assert [choose["reduce"](n, 16)[:2] for n in (8, 4096, 1 << 16, 1 << 18, 1 << 20, 1 << 24)] == [
        ("binomial", None), ("binomial", 1024), ("chain", 1024), ("binary_tree", 32768), ("chain", 32768),
        ("chain", 65536),
    ]  # fmt: skip
    assert [choose["allreduce"](n, 8)[:2] for n in (9999, 10000, 1 << 24)] == [
        ("recursive_doubling", None), ("ring", None), ("ring", 1 << 20),
    ]  # fmt: skip
    assert fixed.openmpi("scan", 8, p, by_blocks(p, 1)) is None


def test_the_fixed_rules_are_those_of_auto():
    for collective in modelled.USUAL:
        for nbytes in (8, 1 << 16, 1 << 22):
            rule = next(r for r in reversed(rules(collective, 16, True, by_blocks(16, 4))) if r.fits(nbytes, 16))
            assert fixed.by_rules(collective, nbytes, 16, by_blocks(16, 4))[:3] == (
                rule.algorithm, rule.chunk_bytes, rule.window,
            )  # fmt: skip


def test_native_as_it_was_measured(tmp_path):
    rows = [result("allreduce", name, 65536, ranks, 2) | {"median_us": us} for ranks in (4, 8)
            for name, us in (("native", 100.0 * ranks), ("ring", 5.0))]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    shown = good(path, "--network", "leonardo", "--collectives", "allreduce")
    table = shown[shown.index("by the model of leonardo") :]
    assert "the time of native over its" in table and "native runs" not in table
    for ranks in (4, 8):
        nodes = by_blocks(ranks, ranks // 2)
        least = min(us[0] for *_, us in costs(NET, "allreduce", ranks, True, nodes, np.array([65536])))
        assert f"{100.0 * ranks / least:.2f}" in table


@pytest.mark.parametrize(("options", "nodes"), [
    (["--placement", "cyclic"], ((0, 2, 4, 6), (1, 3, 5, 7))),
    (["--tasks-per-node", "5,3"], ((0, 1, 2, 3, 4), (5, 6, 7))),
    (["--ranks-per-node", "4", "--placement", "cyclic"], ((0, 2, 4, 6), (1, 3, 5, 7))),
])  # fmt: skip
def test_native_beside_ranks_that_are_placed_as_the_options_say(tmp_path, options, nodes):
    path = write(tmp_path / "a.jsonl", [result("reduce", "native", 65536, 8, 2) | {"median_us": 1000.0}])
    words = (path, "--network", "leonardo", "--collectives", "reduce")
    shown = [command.good("report", *words, *more).split("by the model of leonardo")[1] for more in (options, [])]
    nbytes = np.array([modelled.Shape("reduce").bytes_of_call(65536, 8)])
    for text, placed in zip(shown, (nodes, by_blocks(8, 4))):
        least = min(us[0] for *_, us in costs(NET, "reduce", 8, True, placed, nbytes))
        assert f"{1000 / least:.2f}" in text and "8 ranks on 2 hosts" in text
    assert shown[0] != shown[1]


def test_ranks_that_do_not_divide_are_on_as_many_nodes_as_they_were_measured_on(tmp_path):
    path = write(tmp_path / "a.jsonl", [result("allreduce", "native", 65536, 5, 4)])
    assert "5 ranks on 4 hosts" in good(path, "--network", "leonardo").split("by the model of leonardo")[1]


def test_the_table_in_the_terminal():
    shown = good("--network", "leonardo", "--collectives", "allreduce", "--ranks", "4,16", "--ranks-per-node", "4",
                 "--sizes", "8,64K", "--against", "mpich")  # fmt: skip
    assert "allreduce, by the model of leonardo: the fastest; the time of mpich over its, and what mpich runs" in shown
    assert "4 ranks on 1 host" in shown and "16 ranks on 4 hosts" in shown
    cells_of = tiles(modelled.areas(["allreduce"], [4, 16], blocks(4), [8, 65536]), "mpich")
    for cell in cells_of.values():
        assert cell["fastest"] in shown and f"{cell['ratio']:.2f}" in shown


def test_ranks_of_the_maps_are_placed_as_the_options_say():
    words = ["--network", "leonardo", "--collectives", "allreduce", "--ranks", "32", "--sizes", "1M"]
    placed = ["--tasks-per-node", "8(x4)", "--node-list", "n[1-4]", "--placement", "cyclic"]
    shown = good(*words, *placed, "--against", "ring")
    cyclic = tiles(modelled.areas(["allreduce"], [32], lambda p: place((8,) * 4, "cyclic"), [1 << 20]), "ring")
    by_block = tiles(modelled.areas(["allreduce"], [32], blocks(8), [1 << 20]), "ring")
    (cell,), (other,) = cyclic.values(), by_block.values()
    assert cell["ratio"] != other["ratio"] and f"{cell['ratio']:.2f}" in shown and "32 ranks on 4 hosts" in shown


@pytest.mark.once
def test_the_page_has_both_maps(tmp_path):
    page = tmp_path / "map.html"
    good("--network", "leonardo", "--collectives", "bcast", "--ranks", "4:64", "--sizes", "8,1M", "-o", page)
    text = page.read_text(encoding="utf-8")
    data = json.loads(re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)[1])
    ((setting,),) = [chart["settings"] for chart in data["collectives"]]
    assert setting["variant"] == "by the model of leonardo" and len(setting["places"]) == 3
    priced = [cell for place in setting["places"] for cell in place["cells"]]
    assert len(priced) == 6 and all(cell["against"].startswith("rules: ") for cell in priced)
    assert all(cell["price_words"].startswith(f"{cell['ratio']:.2f}×\nrules: ") for cell in priced)
    assert {"best", "price", "glance"} < set(data["specs"])
    assert "inside a node: " in text


def test_measured_results_have_no_price(tmp_path):
    path = write(tmp_path / "a.jsonl", [result("bcast", name, 8, 4, 1) for name in ("native", "chain")])
    ((cell,),) = map(cells, gather([read(path)]))
    assert cell["ratio"] and "against" not in cell


def test_fixed_rules_are_grey():
    groups = gather([modelled.run(NET, modelled.areas(["bcast"], [8], blocks(1), [8]), "mpich")])
    look = looks(groups)
    assert look["mpich"].colour == NEUTRAL and look["binomial"].colour != NEUTRAL


def test_a_network_that_is_slow_elsewhere_has_another_map():
    slow = replace(NET, links=replace(NET.links, latency=1000.0))
    areas = modelled.areas(["allreduce"], [16], blocks(1), [1 << 20])
    fast, far = (cells(gather([modelled.run(net, areas, "rules")])[0])[0]["fastest"] for net in (NET, slow))
    assert fast != far


@pytest.mark.parametrize(("options", "message"), [
    ([], "Missing argument 'FILE...', or --network NAME"),
    (["--ranks", "4", "FILE"], "--ranks: of the maps that --network NAME draws"),
    (["--placement", "cyclic", "FILE"], "--placement: of the maps that --network NAME draws"),
    (["NATIVE", "--network", "leonardo", "--ranks-per-node", "4"],
     "8 ranks are on 4 nodes, and the options place them on 2; change --ranks-per-node or --tasks-per-node"),
    (["NATIVE", "--network", "leonardo", "--tasks-per-node", "1(x4)"], "--tasks-per-node places 4 ranks, not 8"),
    (["NATIVE", "--network", "leonardo", "--ranks", "4"], "leave out --ranks and --sizes"),
    (["--network", "leonardo", "--tasks-per-node", "4(x2)"], "places 8 ranks, not 4"),
    (["--network", "nowhere"], "presets are fugaku"),
    (["--network", "leonardo", "--against", "rinng"], "did you mean 'ring'"),
    (["--network", "leonardo", "--against", "ring(depth=3)"], "depth"),
    (["--network", "leonardo", "--against", "native"], "needs a FILE with native's times"),
    (["--network", "leonardo", "--ranks", "0"], "--ranks has 0"),
    (["--network", "leonardo", "--ranks", "few"], "'few' is not a size"),
    (["--network", "leonardo", "--collectives", "alltoallv"], "its ranks know only their own counts"),
    (["--network", "leonardo", "--collectives", "foo"], "no collective is called 'foo'"),
    (["FILE", "--network", "leonardo"], "no native times of blocking calls"),
    (["FILE", "--network", "leonardo", "--sizes", "8"], "has the ranks and sizes of the FILEs"),
    (["FILE", "FILE", "--compare", "--network", "leonardo"], "goes without --network"),
])  # fmt: skip
def test_bad_input(options, message, tmp_path):
    path = write(tmp_path / "a.jsonl", [result("bcast", "chain", 8, 4, 1)])
    files = {"FILE": path, "NATIVE": write(tmp_path / "b.jsonl", [result("bcast", "native", 8, 8, 4)])}
    done = command.run("report", *(files.get(word, word) for word in options))
    assert done.exit_code == 2 and message in done.output, done.output


def test_maps_start_no_mpi():
    """Neither the model nor the tables need a plot or an MPI."""
    code = (
        "import sys; from mpicoll import cli\n"
        "cli.main(['report', '--network', 'leonardo', '--ranks', '4', '--sizes', '8'], standalone_mode=False)\n"
        "bad = {'mpi4py', 'altair', 'scipy', 'vl_convert'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_usual_collective_has_a_map():
    areas = modelled.areas(["all"], [8], blocks(2), [4096])
    assert {area.collective for area in areas} >= {*modelled.USUAL, "barrier", "scan", "allgatherv"}
    found_cells = tiles(areas, "rules")
    assert len(found_cells) == len(areas)
    assert all(base_collective(key[0]) for key in found_cells)
