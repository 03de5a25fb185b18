"""Tuning tables: what a file must be, whose ranks it is for, and what auto makes of it."""

from __future__ import annotations

import copy
import json

import pytest

from mpicoll.errors import MpicollError, TuningError
from mpicoll.selection import settings, tables
from mpicoll.selection.rules import WINDOW
from mpicoll.selection.select import NATIVE, Overrides, choose

GOOD = {
    "schema": tables.SCHEMA,
    "tables": [
        {
            "mpi": "MPICH 5.0.2",
            "nodes": ["0-1", "2-3"],
            "measured": "2026-11-22T04:51:02Z",
            "rules": {
                "allreduce": [
                    {"from_bytes": 0, "algorithm": "ring", "chunk_bytes": None},
                    {"from_bytes": 1000, "algorithm": "native", "at_bytes": 4096, "us": 3.5, "native_us": 3.25},
                    {"from_bytes": 50_000, "algorithm": "hierarchical(middle=ring)", "chunk_bytes": 4096, "window": 3},
                ],
                "allgatherv": [{"from_bytes": 0, "algorithm": "linear"}],
            },
        },
        {"mpi": "Open MPI 5.0.11", "nodes": ["0-3"], "rules": {}},
    ],
}


def changed(*path, to=None, without=False):
    """Return the good table with one entry changed, or left out."""
    table = copy.deepcopy(GOOD)
    *way, last = path
    inner = table
    for step in way:
        inner = inner[step]
    if without:
        del inner[last]
    else:
        inner[last] = to
    return table


def parsed(content):
    return tables.parse(json.dumps(content), "table.json")


TABLE = ("tables", 0)
RULE = (*TABLE, "rules", "allreduce", 1)


def test_a_good_one():
    first, second = parsed(GOOD).tables
    assert (first.mpi, first.nodes, second.rules) == ("MPICH 5.0.2", ("0-1", "2-3"), {})
    assert [(r.above, r.algorithm, r.chunk_bytes, r.window) for r in first.rules["allreduce"]] == [
        (0, "ring", None, WINDOW), (1000, NATIVE, None, WINDOW), (50_000, "hierarchical(middle=ring)", 4096, 3),
    ]
    assert first.rules["allreduce"][0].why == "as the tuning table says"
    assert first.rules["allreduce"][1].why == "measured: 4096 bytes took 3.5 µs, native's 3.25"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "table.json: $: [] is not of type 'object'"),
        (changed("schema", to="mpicoll-tuning-9"), "table.json: $.schema: 'mpicoll-tuning-1' was expected"),
        (changed("tables", without=True), "table.json: $: 'tables' is a required property"),
        (changed(*TABLE, "mpi", without=True), "table.json: $.tables[0]: 'mpi' is a required property"),
        (changed(*TABLE, "nodes", to=["0-"]), "$.tables[0].nodes[0]: '0-' does not match"),
        (changed(*TABLE, "nodes", to=["0-1", "3"]), "$.tables[0].nodes: ['0-1', '3'] does not name every rank"),
        (changed(*TABLE, "nodes", to=["0, 1", "2-3"]), "every rank from 0 on once, in order and in short"),
        (changed(*TABLE, "nodes", to=["2-3", "0-1"]), "every rank from 0 on once, in order and in short"),
        (changed(*RULE, "from_bytes", without=True), "$.tables[0].rules.allreduce[1]: 'from_bytes' is a required"),
        (changed(*RULE, "from_bytes", to=-1), "$.tables[0].rules.allreduce[1].from_bytes: -1 is less than"),
        (changed(*RULE, "from_bytes", to=0), "allreduce[1].from_bytes: 0 must be above 0, the one before"),
        (changed(*TABLE, "rules", "allreduce", 0, "from_bytes", to=8), "8 must be 0, since it is the first"),
        (changed(*RULE, "chunk", to=8), "Additional properties are not allowed ('chunk' was unexpected)"),
        (changed(*RULE, "chunk_bytes", to=0), "$.tables[0].rules.allreduce[1].chunk_bytes: 0 is less than"),
        (changed(*RULE, "window", to=0), "$.tables[0].rules.allreduce[1].window: 0 is less than"),
        (changed(*RULE, "algorithm", to="rung"), "allreduce[1].algorithm: no allreduce algorithm is called 'rung'"),
        (changed(*RULE, "algorithm", to="ring(k=3)"), "allreduce[1].algorithm: allreduce ring has no parameter k"),
        (changed(*TABLE, "rules", "bcasts", to=[{"from_bytes": 0, "algorithm": "ring"}]), "'bcasts'"),
        (changed(*TABLE, "rules", "gatherv", to=[{"from_bytes": 0, "algorithm": "linear"}]), "only their own counts"),
        (changed("tables", 1, to=GOOD["tables"][0]), "$.tables[1]: there are two for MPICH 5.0.2, 4 ranks on 2 nodes"),
    ],
)
def test_a_wrong_one_says_where(content, message):
    with pytest.raises(TuningError) as raised:
        parsed(content)
    assert message in str(raised.value) and str(raised.value).startswith("table.json")
    assert isinstance(raised.value, MpicollError) and isinstance(raised.value, ValueError)


def test_whole_numbers_may_be_written_with_a_point():
    content = changed(*RULE, "chunk_bytes", to=512.0)
    content["tables"][0]["rules"]["allreduce"][1].update(from_bytes=1000.0, window=1.0)
    rule = parsed(content).tables[0].rules["allreduce"][1]
    assert (rule.above, rule.chunk_bytes, rule.window) == (1000, 512, 1)
    assert {type(rule.above), type(rule.chunk_bytes), type(rule.window)} == {int}


def test_a_file_is_read_once(tmp_path, monkeypatch):
    """Since the first rank of a part of the world may be where there is none."""
    monkeypatch.setattr(tables, "READ", {})
    path = tmp_path / "t.json"
    path.write_text(json.dumps(GOOD))
    first = settings.read({"MPICOLL_TUNING": str(path)}).tuning
    path.unlink()
    assert settings.read({"MPICOLL_TUNING": str(path)}).tuning is first


def test_an_algorithm_that_the_ranks_do_not_suit():
    content = changed(*TABLE, "nodes", to=["0-2"])
    content["tables"][0]["rules"] = {"allgather": [{"from_bytes": 0, "algorithm": "neighbor_exchange"}]}
    with pytest.raises(TuningError, match=r"\$\.tables\[0\]\.rules\.allgather\[0\]\.algorithm: .*even number of ranks"):
        parsed(content)


def test_files_that_are_none(tmp_path):
    with pytest.raises(TuningError, match=r"cannot read .*no\.json: No such file"):
        tables.read(tmp_path / "no.json")
    (tmp_path / "no.json").write_text("{")
    with pytest.raises(TuningError, match=r"no\.json is no JSON: .*line 1"):
        tables.read(tmp_path / "no.json")


def test_whose_ranks_it_is_for():
    tables = parsed(GOOD)
    assert tables.table("MPICH 5.0.2", ((0, 1), (2, 3))) == (tables.tables[0], "")
    assert tables.table("Open MPI 5.0.11", ((0, 1, 2, 3),)) == (tables.tables[1], "")
    for mpi, nodes in (("MPICH 5.0.3", ((0, 1), (2, 3))), ("MPICH 5.0.2", ((0, 2), (1, 3))), ("MPICH 5.0.2", ((0,),))):
        table, why = tables.table(mpi, nodes)
        assert table is None
        assert why.startswith(f"table.json is not for {mpi}, {sum(map(len, nodes))} rank")
        assert "; it is for MPICH 5.0.2, 4 ranks on 2 nodes (0-1; 2-3); Open MPI 5.0.11, 4 ranks on one node" in why


# -- what auto makes of it ----------------------------------------------------------------------------------


def chosen(nbytes, collective="allreduce", commutative=True, algorithms=None, chunk_bytes=None, window=None):
    overrides = Overrides().merged(algorithms or {}, chunk_bytes, window, None)
    rules = parsed(GOOD).tables[0].rules.get(collective, ())
    return choose(collective, nbytes, 4, commutative, overrides, "compiled", ((0, 1), (2, 3)), rules)


@pytest.mark.parametrize(
    ("nbytes", "algorithm", "chunk", "window", "engine"),
    [
        (0, "ring", None, WINDOW, "compiled"),
        (999, "ring", None, WINDOW, "compiled"),
        (1000, NATIVE, None, WINDOW, NATIVE),
        (50_000, "hierarchical(middle=ring)", 4096, 3, "compiled"),
    ],
)
def test_auto_goes_by_it(nbytes, algorithm, chunk, window, engine):
    choice = chosen(nbytes)
    assert (choice.algorithm, choice.chunk_bytes, choice.window, choice.engine) == (algorithm, chunk, window, engine)
    assert choice.measured and not choice.forced
    assert choice.why == f"{nbytes} bytes on 4 ranks: {choice.rule}"


def test_collectives_without_a_table_use_the_rules():
    assert not chosen(8, "bcast").measured


@pytest.mark.parametrize("forced", [{"algorithms": {"allreduce": "tree"}}, {"chunk_bytes": 64}, {"window": 2}])
def test_using_comes_before_it(forced):
    choice = chosen(1000, **forced)
    assert choice.algorithm != NATIVE and not choice.measured


@pytest.mark.parametrize("nbytes", [100_000, 1 << 31])
def test_auto_in_a_table_uses_the_rules(nbytes):
    """Use the rules for `auto` in a table, and instead of native from 2 GiB on, which not every MPI supports."""
    last = {"from_bytes": 1, "algorithm": "native" if nbytes == 1 << 31 else "auto"}
    content = changed(*TABLE, "rules", "allreduce", to=[{"from_bytes": 0, "algorithm": "tree"}, last])
    measured = parsed(content).tables[0].rules["allreduce"]
    choice = choose("allreduce", nbytes, 4, True, Overrides(), "compiled", None, measured)
    assert choice == choose("allreduce", nbytes, 4, True, Overrides(), "compiled")


def test_operand_order_is_kept():
    assert chosen(8, commutative=False).algorithm == "recursive_doubling"
    assert chosen(1000, commutative=False).algorithm == NATIVE


# -- the environment ----------------------------------------------------------------------------------------


def test_the_environment_names_it(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(GOOD))
    assert settings.read({"MPICOLL_TUNING": str(tmp_path / "t.json")}).tuning == tables.read(tmp_path / "t.json")
    with pytest.raises(TuningError, match="cannot read"):
        settings.read({"MPICOLL_TUNING": str(tmp_path / "u.json")})
