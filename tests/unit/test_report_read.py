"""Results files of every kind, whole, cut short and wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import golden
from unit.report_data import result, results, run_line, untimed, write

from mpicoll.benchmarks.report import imb
from mpicoll.benchmarks.report.errors import ReadError
from mpicoll.benchmarks.report.groups import gather
from mpicoll.benchmarks.report.model import MEDIAN_OF_LONGEST, Setting
from mpicoll.benchmarks.report.read import read

PLOTS = Path(__file__).resolve().parents[2] / "docs" / "plots"

DATA = Path(__file__).parent / "data"
RING = result("allreduce", "ring", 1024, 8, 2)


def lines(*entries: dict[str, object]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def file(folder: Path, text: str, name: str = "results.jsonl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field_of_a_result_is_read(tmp_path):
    fields = result("reduce", "ring", 1024, 8, 2, form="nonblocking") | {
        "root": "rotating",
        "in_place": True,
        "counts": "uneven",
        "engine": "compiled",
        "late": 3,
        "note": "a note",
    }
    run = read(file(tmp_path, lines(run_line(rate=1e9), fields)))
    (row,) = run.rows
    assert run.environment["rate"] == 1e9 and run.settings["seed"] == 0 and run.left_out == 0
    assert row.setting == Setting("reduce", "nonblocking", "float64", "sum", "rotating", True, "uneven")
    assert row.contender == "ring @compiled" and row.statistic == MEDIAN_OF_LONGEST and not row.sketched
    for name in ("size", "ranks", "hosts", "ran", "paired", "valid", "note", "median_us", "rounds", "late", "algbw",
                 "busbw", "limit_us", "of_limit", "ratio", "verdict"):  # fmt: skip
        assert getattr(row, name) == fields[name], name
    assert row.interval_us == tuple(fields["interval_us"]) and row.ratio_interval == tuple(fields["ratio_interval"])
    assert row.samples_us == tuple(fields["samples_us"])
    assert row.overlap.percent == fields["overlap"]["percent"] and row.overlap.wait_us == fields["overlap"]["wait_us"]


def test_percentiles_stand_for_samples(tmp_path):
    fields = {key: value for key, value in RING.items() if key != "samples_us"} | {"sketch_us": list(range(101))}
    (row,) = read(file(tmp_path, lines(fields))).rows
    assert row.sketched and row.samples_us == tuple(range(101))


def test_a_contender_that_was_not_timed(tmp_path):
    (row,) = read(file(tmp_path, lines(untimed("allreduce", "ring", 8, 3, 1, "needs p = 2ᵏ")))).rows
    assert row.median_us is None and row.valid is None and row.note == "needs p = 2ᵏ" and not row.right


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_file_that_was_cut_short(tmp_path, cut):
    whole = lines(run_line(), RING, RING)
    run = read(file(tmp_path, whole[:-cut]))
    assert len(run.rows) == (2 if cut == 1 else 1)
    assert run.left_out == (0 if cut == 1 else 1)
    assert ("1 line left out" in run.description) == (cut != 1)


def test_a_broken_line_in_the_middle(tmp_path):
    run = read(file(tmp_path, lines(run_line(), RING) + '{"kind": "resu{"kin\n\n' + lines(RING)))
    assert (len(run.rows), run.left_out) == (2, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (lines(run_line() | {"schema": 1}), "has schema 1, and this mpicoll reads schema 2"),
        (lines(run_line(), RING | {"schema": 3}), "line 2 has schema 3"),
        (lines({"kind": "weather", "schema": 2}), "its kind is 'weather'"),
        ("{}\n", "its kind is None"),
        ('{"kind": "run", "sch', "has no whole line"),
        (lines(run_line()), "has no whole result"),
        (lines({key: value for key, value in RING.items() if key != "size"}), "a result without 'size'"),
        (lines(RING | {"median_us": "fast"}), "line 1 is no result of schema 2"),
        (lines(RING | {"interval_us": [1, 2, 3]}), "line 1 is no result of schema 2"),
        (lines(RING | {"root": [1]}), "line 1 is no result of schema 2: its root is [1], and no word or number"),
        (lines(RING | {"engine": {}}), "its engine is {}, and no word or number"),
        (lines(RING | {"size": float("inf")}), "line 1 is no result of schema 2"),
        (lines(run_line() | {"environment": [1]}, RING), "line 1 is no run of schema 2: its environment is [1]"),
        (lines(run_line() | {"settings": "all"}, RING), "line 1 is no run of schema 2: its settings is 'all'"),
        ("# Benchmarking Bcast\n#bytes t_max[usec]\n 8 1.5\n#repetitions\n", "IMB and has no whole result"),
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("size,time\n8,3\n", "is no results file"),
        ("# OSU MPI Allreduce Latency Test v7.4\n", "OSU micro-benchmarks and has no whole result"),
    ],
)
def test_invalid_results_files_are_one_line(tmp_path, text, message):
    path = file(tmp_path, text)
    with pytest.raises(ReadError) as caught:
        read(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(ReadError, match=r"cannot read .*: No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ReadError, match="is no results file"):
        path = tmp_path / "binary"
        path.write_bytes(bytes(range(256)))
        read(path)


def test_imb_and_osu():
    """Size, ranks, time, calls, bandwidth, whether it is right, how it was averaged, and overlap."""
    text = ""
    for name in ("imb-2", "imb-4", "imb-nbc", "osu-allreduce-full", "osu-iallreduce", "osu-several"):
        run = read(DATA / f"{name}.txt")
        text += f"{name}: {run.kind}, {len(run.rows)} rows, {run.left_out} left out, {run.environment}\n"
        assert not any(row.paired or row.interval_us for row in run.rows)
        for row in run.rows if "osu" in name else [row for row in run.rows if row.size in (0, 64, 256)]:
            facts = row.size, row.ranks, row.median_us, row.rounds, row.algbw, row.valid, row.statistic, row.overlap
            text += f"  {row.setting.title}: {'; '.join(map(str, facts))}\n"
    golden.compare(text, "report-read.txt")


def test_imb_counts_a_share_of_reduce_scatter():
    text = (DATA / "imb-4.txt").read_text().replace("# Benchmarking Allreduce", "# Benchmarking Reduce_scatter")
    theirs, ours = (imb.parse("a", content).rows for content in ((DATA / "imb-4.txt").read_text(), text))
    pairs = [(a, b) for a, b in zip(theirs, ours) if b.setting.collective == "reduce_scatter"]
    assert pairs and all(b.size == a.size * a.ranks and a.ranks in (2, 4) for a, b in pairs)


def test_a_block_takes_nothing_from_the_one_before_it(tmp_path):
    both = (DATA / "osu-allreduce-full.txt").read_text() + (DATA / "osu-several.txt").read_text()
    osu = read(file(tmp_path, both))
    assert {row.setting.dtype for row in osu.rows if row.setting.collective != "allreduce"} == {None}
    text = (DATA / "imb-2.txt").read_text()
    head, _, tail = text.rpartition("# #processes = 2 \n")
    imb_run = read(file(tmp_path, head + tail))
    assert {row.ranks for row in imb_run.rows if row.setting.collective == "pingpong"} == {None}


def test_runs_are_told_apart_by_what_differs(tmp_path):
    every = list(results(("bcast",), ((4, 1),), (8,)))
    mpich = read(write(tmp_path / "a.jsonl", every))
    other = read(write(tmp_path / "b.jsonl", every, mpi="Open MPI 5.0.8"))
    again = read(write(tmp_path / "c.jsonl", every))
    assert [g.place.where for g in gather([mpich, other])] == ["MPICH 5.0.2", "Open MPI 5.0.8"]
    assert [g.place.where for g in gather([mpich, again])] == ["a", "c"]
    elsewhere = read(write(tmp_path / "d.jsonl", results(("bcast",), ((8, 2),), (8,))))
    assert [g.place.where for g in gather([mpich, elsewhere])] == ["", ""]


def test_a_guest_stands_wherever_it_fits(tmp_path):
    ours = read(write(tmp_path / "a.jsonl", results(("bcast", "allreduce"), ((2, 1), (4, 2)), (8,))))
    groups = gather([ours, read(DATA / "imb-2.txt"), read(DATA / "osu-several.txt")])
    seen = {(g.setting.collective, g.setting.dtype, g.place.ranks): {row.contender for row in g.rows} for g in groups}
    assert {"native", "IMB", "OSU"} <= seen["bcast", "float64", 2]
    assert "OSU" in seen["bcast", "float64", 4] and "IMB" not in seen["bcast", "float64", 4]
    assert "IMB" not in seen["allreduce", "float64", 2]  # it reduces float32
    assert seen["allreduce", "float32", 2] == {"IMB"}
    assert seen["pingpong", None, 2] == {"IMB"}


def test_the_type_of_bytes_that_are_only_moved_does_not_matter(tmp_path):
    ours = read(write(tmp_path / "a.jsonl", results(("bcast",), ((2, 1),), (8,))))
    text = "# OSU MPI Broadcast Latency Test v7.4\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n8      1.05\n"
    (group,) = gather([ours, read(file(tmp_path, text, "osu.txt"))])
    assert group.rows[-1].contender == "OSU"


def test_two_files_of_one_program_are_told_apart(tmp_path):
    for name in ("first.txt", "second.txt"):
        file(tmp_path, (DATA / "osu-several.txt").read_text(), name)
    groups = gather([read(tmp_path / "first.txt"), read(tmp_path / "second.txt")])
    (bcast,) = (group for group in groups if group.setting.collective == "bcast")
    assert [row.contender for row in bcast.at(1)] == ["OSU", "OSU (second)"]


@pytest.mark.parametrize("file", sorted(PLOTS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_data_of_the_plots_is_read(file):
    run = read(file)
    (group,) = gather([run])
    assert file.with_suffix(".svg").exists() and {row.algorithm for row in group.rows} == {"native", "auto"}
    assert all(row.median_us and row.interval_us for row in run.rows)
    assert all(row.ratio and row.ratio_interval for row in run.rows if not row.native)
    assert file.stat().st_size < 16 << 10      # without the rounds
