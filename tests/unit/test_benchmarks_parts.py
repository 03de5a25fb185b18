"""The benchmark of a call by part."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mpicoll.benchmarks import parts
from mpicoll.dispatch import methods


def run(*words):
    return CliRunner().invoke(parts.parts, ["--seconds", "0.01", "--starts", "1", *words])


def test_parts_of_a_call_and_of_a_start(tmp_path):
    done = run("--methods", "Allreduce,Alltoallw", "--json", str(tmp_path / "parts.jsonl"))
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "parts.jsonl").read_text().splitlines()]
    for name in ("Allreduce", "Alltoallw"):
        of_one = [row for row in rows if row["method"] == name]
        assert [row["way"] for row in of_one] == ["short"] * 5 + ["long"] * 5 + ["MPI's own"]
        took = [row["seconds"]["median"] for row in of_one]
        assert all(0 < t < 0.01 for t in took)
        assert took[9] > 3 * took[3]      # the slow path is really gone
    assert [row["part"] for row in rows if row["way"] == "starting"] == list(parts.STARTING)
    assert "import mpicoll" in done.output


@pytest.mark.parametrize("name", [name for name in methods.METHODS if name != "Barrier"])
def test_every_method_has_its_parts(name):
    """Time every part of every method: shortened calls stop at the named part."""
    by_part = {(part.way, part.part.split(":")[-1].split(",")[0]): part for part in parts.timed(name, 0.001)}
    assert len(by_part) == 11


@pytest.mark.parametrize(("words", "message"), [
    (["--methods", "Barrier"], "no method with buffers is called 'Barrier'"),
    (["--methods", "allreduce"], "'allreduce'"),
    (["--seconds", "-1"], "--seconds"),
    (["--starts", "0"], "--starts"),
])
def test_words_that_make_no_sense(words, message):
    done = run(*words)
    assert done.exit_code == 2 and message in done.output
