"""Prepare charts: looks, cells of the map, families, specifications."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from unit.report_data import ALGORITHMS, result, results, run_line, write

from mpicoll.benchmarks.report import pictures
from mpicoll.benchmarks.report.charts import AXES, MEASURES, curves
from mpicoll.benchmarks.report.groups import gather
from mpicoll.benchmarks.report.look import CHOICE, COLOURS, NEUTRAL, looks, name_of
from mpicoll.benchmarks.report.points import cells, records
from mpicoll.benchmarks.report.read import read
from mpicoll.benchmarks.report.scaling import families


def groups_of(folder: Path, lines):
    return gather([read(write(folder / "results", lines))])


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    return groups_of(tmp_path_factory.mktemp("every"), results(tuple(ALGORITHMS), ((4, 1), (8, 2)), (8, 65536)))


def test_one_look_for_each_contender_everywhere(every):
    styles = looks(every)
    assert styles["native"].colour == NEUTRAL and styles["auto"].colour == CHOICE
    assert {look.colour for name, look in styles.items() if name not in ("native", "auto")} <= set(COLOURS)
    assert styles["knomial"].colour == styles["knomial(k=4)"].colour and styles["knomial"] != styles["knomial(k=4)"]
    assert list(styles)[:2] == ["native", "auto"]


def test_looks_that_meet_differ(every):
    styles = looks(every)
    for group in every:
        shown = {row.contender for row in group.rows}
        assert len({styles[name] for name in shown}) == len(shown)
        shared = Counter(styles[name].colour for name in {name_of(name) for name in shown} & set(styles))
        assert max(shared.values()) <= -(-len(shown) // len(COLOURS))


# How light is seen with no cones for red or green (Machado, Oliveira, Fernandes, 2009), on linear sRGB.
EYES = {
    "all cones": np.eye(3),
    "no red": np.array([0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998]),
    "no green": np.array([0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen(colour: str, eye: np.ndarray) -> np.ndarray:
    """Return a colour in CIELAB, where distances are as an eye perceives them: 2 is just noticeable."""
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(eye.reshape(3, 3) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES.values(), ids=EYES)
def test_colours_are_told_apart(eye):
    every = [seen(colour, eye) for colour in (NEUTRAL, CHOICE, *COLOURS)]
    assert min(np.linalg.norm(a - b) for a, b in combinations(every, 2)) > 18
    assert all(35 < lightness < 75 for lightness, _, _ in (seen(colour, EYES["all cones"]) for colour in COLOURS))


def times(folder, chose="ring", **of):
    """Return a group of one size: each algorithm's median, with an interval of 5 % about it, and the choice of auto."""
    lines = [
        result("bcast", name, 8, 4, 1)
        | {"median_us": t, "interval_us": [t * 0.95, t * 1.05], "ratio": None if name == "native" else of["native"] / t}
        | ({"ran": {"algorithm": chose, "engine": "compiled"}} if name == "auto" else {})
        for name, t in of.items()
    ]
    return groups_of(folder, lines)


def test_the_map_tells_the_fastest_and_its_margin(tmp_path):
    ((cell,),) = map(cells, times(tmp_path, native=10.0, chain=5.0, linear=6.0))
    assert (cell["contender"], cell["next"], cell["margin"], cell["tie"]) == ("chain", "linear", 1.2, False)
    assert cell["ratio"] == 2.0 and cell["words"] == "chain\n2.00× native"


@pytest.mark.parametrize(("chose", "of", "fastest", "ours", "following", "margin", "ratio"), [
    ("binomial", {"chain": 11.6}, "binomial", "auto: binomial", "native", 1.4, 1.4),  # not measured by its name
    ("chain", {"chain": 8.0, "linear": 9.0}, "chain", "auto: chain", "linear", 1.26, 1.4),
    ("chain", {"chain": 7.0, "linear": 9.0}, "chain", "chain", "linear", 1.29, 1.43),
    ("chain", {}, "chain", "auto: chain", "native", 1.4, 1.4),
    ("native", {}, "native", "auto: native", "native", 1.4, 1.4),
], ids=["alone", "auto ahead", "name ahead", "only auto", "native"])  # fmt: skip
def test_auto_counts_once_as_what_it_chose(tmp_path, chose, of, fastest, ours, following, margin, ratio):
    (group,) = times(tmp_path, chose, native=10.0, auto=10 / 1.4, **of)
    (cell,) = cells(group)
    assert (cell["contender"], cell["ours"], cell["next"]) == (fastest, ours, following)
    assert cell["margin"] == pytest.approx(margin, abs=0.005) and cell["ratio"] == pytest.approx(ratio, abs=0.005)
    assert cell["words"].replace("\n", " ") == f"{ours} {ratio:.2f}× native"
    assert cell["ours_words"].replace("\n", " ") == f"{ratio:.2f}× {ours}" and cell["contender"] in looks([group])


AUTO_TO_COMPILED, ON_COMPILED = ("auto", "auto", "compiled", 4.0), ("ring", "compiled", "compiled", 5.0)
ON_MPI4PY, AUTO_ON_MPI4PY = ("ring", "mpi4py", "mpi4py", 6.0), ("auto", "mpi4py", "mpi4py", 4.0)


@pytest.mark.parametrize(("rows", "fastest", "ours", "following", "margin"), [
    ([AUTO_TO_COMPILED, ON_COMPILED, ON_MPI4PY], "ring", "auto: ring", "ring @mpi4py", 1.5),
    ([AUTO_ON_MPI4PY, ("ring", "auto", "compiled", 5.0)], "ring @mpi4py", "auto @mpi4py: ring", "ring", 1.25),
])
def test_auto_is_the_same_as_what_it_chose_on_the_engine_that_it_took(tmp_path, rows, fastest, ours, following, margin):
    """Each row is who was asked for on which engine, what ran there, and how long it took."""
    lines = [
        result("bcast", name, 8, 4, 1) | {"engine": asked, "ran": {"algorithm": "ring", "engine": ran}, "median_us": t}
        for name, asked, ran, t in rows
    ]
    ((cell,),) = map(cells, groups_of(tmp_path, lines))
    assert (cell["contender"], cell["ours"], cell["next"], cell["margin"]) == (fastest, ours, following, margin)


def test_only_native_wins_no_cell(tmp_path):
    """A file to which the same was measured twice has two rows of it."""
    assert [cells(group) for group in groups_of(tmp_path, [result("bcast", "native", 8, 4, 1)] * 2)] == [[]]


def test_the_map_tells_a_tie_and_native_ahead(tmp_path):
    ((cell,),) = map(cells, times(tmp_path, native=10.0, chain=5.0, recursive_doubling_of_pairs=4.9))
    assert cell["tie"] and cell["words"] == "≈ recursive_\ndoubling_of_\npairs\n2.04× native"
    ((cell,),) = map(cells, times(tmp_path, native=4.0, chain=5.0))
    assert cell["contender"] == "native" and cell["words"] == "native\n1.25× the next" and cell["ratio"] == 0.8


def test_wrong_or_unpaired_results_win_no_cell(tmp_path):
    lines = [result("bcast", name, 8, 4, 1) | {"median_us": t} | more for name, t, more in (
        ("native", 9.0, {}), ("chain", 8.0, {}), ("linear", 1.0, {"valid": False}), ("gloo", 2.0, {"paired": False}),
        ("binomial", None, {"interval_us": None, "valid": None}))]  # fmt: skip
    ((cell,),) = map(cells, groups_of(tmp_path, lines))
    assert cell["contender"] == "chain"


def test_the_limit_as_a_bandwidth(tmp_path):
    (group,) = groups_of(tmp_path, [result("bcast", "chain", 65536, 8, 2)])
    (record,) = records(group)
    assert record["limit_bandwidth"] * record["limit"] == pytest.approx(record["bandwidth"] * record["time"])


def test_families_over_hosts_and_ranks(tmp_path):
    places = ((2, 2), (4, 4), (8, 2), (8, 4), (16, 4))
    grouped = families(groups_of(tmp_path, [result("bcast", "chain", 8, *place) for place in places]))
    series = {(family.title, family.x): [getattr(g.place, family.x) for g in family.groups] for family in grouped}
    assert series == {
        ("1 rank per host", "hosts"): [2, 4],
        ("4 ranks per host", "hosts"): [2, 4],
        ("2 hosts", "ranks"): [2, 8],
        ("4 hosts", "ranks"): [4, 8, 16],
    }


def test_ranks_of_one_host_belong_to_any_placement(tmp_path):
    """The curve over hosts begins with one host, whose ranks lie in no placement."""
    runs = [
        read(write(tmp_path / name, [result("bcast", "chain", 8, ranks, hosts)], placement=placement))
        for name, ranks, hosts, placement in (("a", 2, 1, "one host"), ("b", 4, 2, "block"), ("c", 8, 4, "block"))
    ]
    (family,) = families(gather(runs))
    assert (family.x, [group.place for group in family.groups]) == ("hosts", [(2, 1, ""), (4, 2, ""), (8, 4, "")])
    runs.append(read(write(tmp_path / "d", [result("bcast", "chain", 8, 8, 4)], placement="cyclic")))
    assert {group.place.where for group in gather(runs)} == {"", "block", "cyclic"}


@pytest.mark.parametrize(("scaling", "sizes", "words"), [
    ("weak", {2: 16, 4: 32}, "8 B of each rank"), ("strong", {2: 8, 4: 8}, "8 B of all ranks"),
])
def test_sizes_that_scale_are_one_curve(scaling, sizes, words, tmp_path, monkeypatch):
    for function in ("curves", "best", "_whole"):  # which take seconds
        monkeypatch.setattr(pictures, function, lambda *_: None)
    runs = []
    for ranks, size in sizes.items():
        lines = [run_line(), result("bcast", "chain", size, ranks, 1), result("bcast", "chain", 8 * size, ranks, 1)]
        lines[0]["settings"] |= {"scaling": scaling, "sizes": [8, 64]}
        (tmp_path / str(ranks)).write_text("".join(json.dumps(line) + "\n" for line in lines))
        runs.append(read(tmp_path / str(ranks)))
    groups = gather(runs)
    assert [row.base for group in groups for row in group.rows] == [words, words.replace("8", "64")] * 2
    assert {record["base"] for group in groups for record in records(group)} == {words, words.replace("8", "64")}
    over = [name for name, _ in pictures.charts(groups) if name.endswith("over-ranks")]
    assert over == [f"bcast-blocking-float64-root-0-{'-'.join(w.lower().split())}-1-host-over-ranks"
                    for w in (words, words.replace("8", "64"))]  # fmt: skip


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("x", AXES)
def test_curves_are_complete_specifications(every, measure, x):
    spec = curves(measure, x, looks(every)).to_dict()
    text = str(spec)
    assert f"{measure}_low" in text and ("limit of the links" in text) == (MEASURES[measure].limit is not None)
    assert any(param["name"] == "hidden" for param in spec["params"])
