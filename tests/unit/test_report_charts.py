"""What charts are made from: looks, cells of the map, families, specifications."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from unit.report_data import ALGORITHMS, result, results, write

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
    found = looks(every)
    assert found["native"].colour == NEUTRAL and found["auto"].colour == CHOICE
    assert {look.colour for name, look in found.items() if name not in ("native", "auto")} <= set(COLOURS)
    assert found["knomial"].colour == found["knomial(k=4)"].colour and found["knomial"] != found["knomial(k=4)"]
    assert list(found)[:2] == ["native", "auto"]


def test_looks_that_meet_differ(every):
    found = looks(every)
    for group in every:
        shown = {row.contender for row in group.rows}
        assert len({found[name] for name in shown}) == len(shown)
        shared = Counter(found[name].colour for name in {name_of(name) for name in shown} & set(found))
        assert max(shared.values()) <= -(-len(shown) // len(COLOURS))


def times(folder, **of):
    """A group of one size: each algorithm's median, with an interval of 5 % about it."""
    lines = [
        result("bcast", name, 8, 4, 1)
        | {"median_us": t, "interval_us": [t * 0.95, t * 1.05], "ratio": of["native"] / t}
        for name, t in of.items()
    ]
    return groups_of(folder, lines)


def test_the_map_tells_the_fastest_and_its_margin(tmp_path):
    ((cell,),) = map(cells, times(tmp_path, native=10.0, chain=5.0, linear=6.0, auto=4.0))
    assert (cell["contender"], cell["next"], cell["margin"], cell["tie"]) == ("chain", "linear", 1.2, False)
    assert cell["ratio"] == 2.0 and cell["words"] == "chain\n2.00× native"


def test_the_map_tells_a_tie_and_native_ahead(tmp_path):
    ((cell,),) = map(cells, times(tmp_path, native=10.0, chain=5.0, recursive_doubling_of_pairs=4.9))
    assert cell["tie"] and cell["words"] == "≈ recursive_\ndoubling_of_\npairs\n2.04× native" and cell["lines"] == 4
    ((cell,),) = map(cells, times(tmp_path, native=4.0, chain=5.0))
    assert cell["contender"] == "native" and cell["words"] == "native\n1.25× the next" and cell["ratio"] == 0.8


def test_what_is_wrong_or_unpaired_wins_no_cell(tmp_path):
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
    found = families(groups_of(tmp_path, [result("bcast", "chain", 8, *place) for place in places]))
    said = {(family.title, family.x): [getattr(g.place, family.x) for g in family.groups] for family in found}
    assert said == {
        ("1 rank per host", "hosts"): [2, 4],
        ("4 ranks per host", "hosts"): [2, 4],
        ("2 hosts", "ranks"): [2, 8],
        ("4 hosts", "ranks"): [4, 8, 16],
    }


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("x", AXES)
def test_curves_are_complete_specifications(every, measure, x):
    spec = curves(measure, x, looks(every)).to_dict()
    text = str(spec)
    assert f"{measure}_low" in text and ("limit of the links" in text) == (MEASURES[measure].limit is not None)
    assert any(param["name"] == "hidden" for param in spec["params"])
