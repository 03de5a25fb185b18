"""The figures that are to be reached between two ranks, and what launches say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpicoll.benchmarks import launch
from mpicoll.benchmarks.bench import options
from mpicoll.benchmarks.full import cli
from mpicoll.benchmarks.full.figures import FIGURES, Figure, on, ratios, reached
from mpicoll.errors import MpicollError

TEST = Figure("test", "allreduce --sizes 8,64", 1, per_size=on(0.9, intel=1.2), mean=on(1.5))


def row(algorithm, size, ratio):
    return {"collective": "allreduce", "size": size, "algorithm": algorithm, "ratio": ratio, "valid": True}


def test_ratios_are_those_of_auto():
    rows = [row("native", 8, None), row("auto", 8, 1.5), row("ring", 8, 3.0), row("auto", 64, None)]
    assert ratios(rows) == {("allreduce", 8): 1.5}


def test_the_median_launch_counts():
    small, large = ("allreduce", 8), ("allreduce", 64)
    launches = [{small: 1.0, large: 4.0}, {small: 0.5, large: 8.0}, {small: 1.1, large: 1.0}]
    mean, worst = reached(TEST, "mpich", launches)
    assert mean.launches == pytest.approx([1.1**0.5, 2.0, 2.0]) and mean.is_met
    assert (worst.value, worst.launches, worst.is_met, worst.below) == (1.0, [0.5, 1.0, 1.1], True, [])
    _, missed = reached(TEST, "intel", launches)
    assert not missed.is_met and missed.below == [small] and cli.verdict(missed) == "missed: allreduce 8 B"
    assert reached(TEST, "mpich", []) == []


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_every_figure_is_a_command_of_mpicoll_bench(figure):
    from mpicoll.benchmarks.bench.cli import bench

    parameters = bench.make_context("bench", [*figure.words.split(), "--algorithms", "native,auto"]).params
    parameters.pop("path")
    assert options.settings(2, **parameters).sizes
    assert all(set(wanted) == {"mpich", "openmpi", "intel"} for wanted in (figure.per_size, figure.mean) if wanted)
    assert figure.per_size or figure.mean


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Return a function that runs the command; `mpicoll bench` writes prepared results and ends with a status."""
    started = []

    def command(ranks, words):
        started.append((ranks, words))
        return words

    def run_group(words, limit, env, output):
        output.write(b"some words\nthe last of them\n")
        lines = {"kind": "run", "environment": {}}, {"kind": "result", **row("auto", 8, 1.0 + len(started))}
        Path(words[words.index("--json") + 1]).write_text("\n".join(map(json.dumps, lines)))
        return bench.status

    monkeypatch.setattr(launch, "command", command)
    monkeypatch.setattr(launch, "run_group", run_group)
    monkeypatch.setattr(launch, "flavour", lambda *_: "mpich")

    def bench(*words):
        return CliRunner().invoke(cli.full, ["--out", str(tmp_path), *words])

    bench.status, bench.started, bench.out = 0, started, tmp_path / "mpich"
    return bench


def test_every_figure_is_launched_so_often(bench):
    (old := bench.out / "small-7.jsonl").parent.mkdir()
    old.write_text("")
    done = bench("--figures", "small,fresh", "--launches", "3")
    assert done.exit_code == 0, done.output
    names = [f"{figure}-{n}" for figure in ("fresh", "small") for n in (1, 2, 3)]
    assert sorted(file.stem for file in bench.out.iterdir()) == names
    assert [(ranks, "--fresh" in words) for ranks, words in bench.started] == [(2, False), (2, True)] * 3
    assert "small, at every size" in done.output and "2.00 4.00 6.00" in done.output and "met" in done.output
    again = bench("--figures", "small", "--show")
    assert len(bench.started) == 6 and "2.00 4.00 6.00" in again.output and "fresh" not in again.output


@pytest.mark.parametrize(("status", "message"), [(1, "status 1: the last of them"), (None, "time was up: the last")])
def test_a_launch_that_failed_is_told(bench, status, message):
    bench.status = status
    done = bench("--figures", "small", "--launches", "1")
    assert done.exit_code == 1 and f"small-1: {message}" in done.output and "small, at every size" in done.output


@pytest.mark.parametrize("text", ["", "smal", "small,medium,x"])
def test_figures_that_are_none(bench, text):
    done = bench("--figures", text)
    assert done.exit_code == 2 and "it takes a list of small, fresh" in done.output and not bench.started


def test_no_mpi(bench, monkeypatch):
    def flavour():
        raise launch.LaunchError("mpiexec: neither here nor there")

    monkeypatch.setattr(launch, "flavour", flavour)
    done = bench()
    assert done.exit_code == 2 and "neither here nor there" in done.output
    assert issubclass(launch.LaunchError, ValueError | MpicollError)
