"""The benchmark of the reduction kernels."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from click.testing import CliRunner

from mpicoll.benchmarks import kernels

WORDS = ["--op", "sum,max", "--dtype", "float64,complex64", "--sizes", "8K"]


def run(*words):
    return CliRunner().invoke(kernels.kernels, [*WORDS, "--seconds", "0.01", *words])


def test_every_pair_that_mpi_has(tmp_path):
    done = run("--json", str(tmp_path / "k.jsonl"))
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "k.jsonl").read_text().splitlines()]
    assert [(row["op"], row["dtype"], row["size"], row["operands"]) for row in rows] == [
        ("sum", "float64", 8192, 2), ("sum", "complex64", 8192, 2), ("max", "float64", 8192, 2)]
    speeds = [row[who] for row in rows for who in ("kernel", "numpy", "copy")]
    assert all(speed["median"] > 0 and speed["values"] >= 6 for speed in speeds)
    assert done.output.count("8 KiB") == 3


def test_a_slow_kernel_is_slower(monkeypatch):
    monkeypatch.setattr(kernels, "finish_step", lambda *_: time.sleep(0.001))
    timing = kernels.timed("sum", "float64", 8192, 4, 0.01)
    assert timing.ratio.verdict == "slower" and timing.ratio.median < 0.1
    assert 0 < timing.kernel.median <= 5 * 8192 / 0.001 and timing.numpy.median > timing.kernel.median


@pytest.mark.parametrize("operands", [2, 3, 5])
def test_the_timed_kernel_reduces_so_many_operands(operands):
    values = [np.arange(6000.0) + i for i in range(operands)]
    into = values[0].copy()
    kernels._reduction(kernels._work("SUM", into.dtype), into, values[1:])()
    assert (into == sum(values)).all()


@pytest.mark.parametrize(("words", "message"), [
    (["--op", "mean"], "no operator is called 'mean'"),
    (["--dtype", "float8"], "no dtype is called 'float8'"),
    (["--op", "max", "--dtype", "complex64"], "none of these operators"),
    (["--sizes", "x"], "x"),
    (["--operands", "1"], "--operands"),
    (["--operands", "2,x"], "--operands"),
    (["--operands", ","], "--operands"),
    (["--seconds", "0"], "--seconds"),
])
def test_words_that_make_no_sense(words, message):
    done = run(*words)
    assert done.exit_code == 2 and message in done.output
