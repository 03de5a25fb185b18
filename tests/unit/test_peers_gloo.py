"""The program that times Gloo, on a torch.distributed of one rank that is made here; and who finds and reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpicoll.benchmarks.peers import Call, Gloo, Measured, Missing, gloo, gloo_worker
from mpicoll.benchmarks.peers.peer import PeerFailed


class Tensor(np.ndarray):
    """As much of a tensor as the program uses."""

    def numpy(self) -> np.ndarray:
        return self.view(np.ndarray)

    def view(self, *shape: Any) -> Any:
        return super().reshape(*shape) if isinstance(shape[0], int) else super().view(*shape)


def tensor(values: Any, dtype: Any = None) -> Tensor:
    return np.asarray(values, dtype).view(Tensor)


def copy(to: Tensor, source: Tensor) -> None:
    to[:] = source


TORCH = SimpleNamespace(from_numpy=tensor, tensor=tensor, float64=np.float64)
DONE = dict.fromkeys(("all_reduce", "reduce", "broadcast", "barrier"), lambda *_, **__: None)  # by one rank alone
COPY = dict.fromkeys(("reduce_scatter_tensor", "all_gather_into_tensor", "all_to_all_single"), copy)


def timer(**broken: Any) -> gloo_worker.Timer:
    dist = SimpleNamespace(
        **{**DONE, **COPY,
           "gather": lambda sent, parts, root: copy(parts[0], sent),
           "scatter": lambda result, parts, root: copy(result, parts[0]),
           "ReduceOp": SimpleNamespace(MAX="max"), **broken}
    )
    return gloo_worker.Timer(dist, TORCH, gloo_worker.Maker(dist, TORCH, 0, 1, "float64"))


@pytest.mark.parametrize("collective", gloo_worker.COLLECTIVES)
def test_every_collective_is_timed_as_often_as_asked(collective):
    measured = timer().measure(collective, 800, 3)
    assert measured["note"] == "" and measured["valid"] is True
    assert len(measured["samples_us"]) == 3 and min(measured["samples_us"]) >= 0


@pytest.mark.parametrize("collective, method", [
    ("allgather", "all_gather_into_tensor"), ("alltoall", "all_to_all_single"), ("gather", "gather"),
    ("scatter", "scatter"), ("reduce_scatter", "reduce_scatter_tensor"),
])
def test_an_answer_that_does_not_come_is_wrong(collective, method):
    assert timer(**{method: lambda *_: None}).measure(collective, 800, 2)["valid"] is False


@pytest.mark.parametrize("right, valid", [((1, 2, 3, 4), True), ((1, 2, 3), False), ((2, 3, 4), False)])
def test_the_first_answer_and_the_last_are_checked(right, valid):
    calls = []

    def all_gather(result: Tensor, sent: Tensor) -> None:
        calls.append(1)
        copy(result, sent * (len(calls) in right))

    assert timer(all_gather_into_tensor=all_gather).measure("allgather", 800, 3)["valid"] is valid


def test_an_answer_of_the_call_before_does_not_count():
    calls = []

    def all_gather(result: Tensor, sent: Tensor) -> None:
        calls.append(1)
        if len(calls) == 1:
            copy(result, sent)

    assert timer(all_gather_into_tensor=all_gather).measure("allgather", 800, 3)["valid"] is False


def test_collectives_that_gloo_lacks_or_refuses_have_a_note():
    def refuse(*_: Any) -> None:
        raise RuntimeError("ProcessGroupGloo does not support this\nand more")

    for collective, words in (("scan", "Gloo has no scan"), ("call", "Gloo has no call"),
                              ("allgather", "Gloo refuses allgather: ProcessGroupGloo does not support this")):
        measured = timer(all_gather_into_tensor=refuse).measure(collective, 800, 3)
        assert (measured["note"], measured["valid"], measured["samples_us"]) == (words, None, [])


def test_contents_tell_blocks_apart_and_sums_are_exact():
    n = 300
    blocks = [gloo_worker.moved(source, to, n) for source in range(5) for to in range(5)]
    assert len({block.tobytes() for block in blocks}) == 25
    assert not np.array_equal(gloo_worker.moved(7, 0, n), gloo_worker.moved(0, 31, n))  # 7 times 31 is 31 times 7
    everyone = sum(gloo_worker.contributed(rank, n) for rank in range(7))
    assert np.array_equal(gloo_worker.summed(7, n), everyone)
    assert not np.array_equal(everyone, np.roll(everyone, 1))


def test_rank_and_size_come_from_the_launcher():
    assert gloo_worker.place({"PMI_RANK": "2", "PMI_SIZE": "8"}) == (2, 8)
    assert gloo_worker.place({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3", "PMI_RANK": ""}) == (0, 3)
    with pytest.raises(LookupError, match="PMI_RANK"):
        gloo_worker.place({"PMI_SIZE": "8"})


def test_the_program_needs_neither_mpicoll_nor_torch_to_be_read():
    blocked = "import sys, runpy; sys.modules.update(mpi4py=None, mpicoll=None, torch=None); "
    code = blocked + f"runpy.run_path({gloo_worker.__file__!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, gloo_worker.__file__], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("usage: mpiexec")


# -- on this side


class Launched:
    """A launch that writes these lines and prints that."""

    ranks = 2

    def __init__(self, lines: str, status: int | None = 0, output: str = "") -> None:
        self.lines, self.done = lines, SimpleNamespace(status=status, output=output)

    def __call__(self, arguments: Any, **_: Any) -> Any:
        self.cases = json.loads(Path(arguments[2]).read_text())
        self.meeting = arguments[4]
        if self.lines:
            Path(arguments[3]).write_text(self.lines)
        return self.done


LINE = '{"collective": "bcast", "size": 8, "valid": true, "note": "", "samples_us": [1.0, 2.0]}\n'


def test_results_come_back_and_half_a_line_is_left_out(tmp_path):
    launch = Launched('{"torch": "2"}\n' + LINE + LINE[:20])
    results = Gloo(Path("python"), "2").measure(launch, {Call("bcast", 8): 2}, tmp_path)
    assert results == {Call("bcast", 8): Measured([1.0, 2.0], True)}
    assert launch.cases == {"dtype": "float64", "cases": [{"collective": "bcast", "size": 8, "rounds": 2}]}
    assert launch.meeting == f"file://{tmp_path}/meeting"


@pytest.mark.parametrize("status", [1, None])
def test_a_launch_that_ends_early_is_a_failure_that_has_its_results(tmp_path, status):
    with pytest.raises(PeerFailed) as failed:
        Gloo(Path("python"), "2").measure(Launched(LINE, status=status), {Call("bcast", 8): 2}, tmp_path)
    assert failed.value.measured == {Call("bcast", 8): Measured([1.0, 2.0], True)}


@pytest.mark.parametrize("status, output, words", [
    (3, "first\n  RuntimeError: no route \n", "gloo ended with status 3: RuntimeError: no route"),
    (None, "", "time was up"), (0, "", "no results"),
])
def test_a_launch_without_results_says_why(tmp_path, status, output, words):
    (tmp_path / "results.jsonl").write_text(LINE)  # of an earlier launch
    with pytest.raises(PeerFailed, match=words):
        Gloo(Path("python"), "2").measure(Launched("", status, output), {Call("bcast", 8): 2}, tmp_path)


def test_an_environment_without_torch_is_missing_with_advice(monkeypatch, tmp_path):
    python = tmp_path / "python"
    with pytest.raises(Missing, match=r"No such file.*--torch-python"):
        Gloo.find(python)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv(gloo.VARIABLE, str(python))
    with pytest.raises(Missing, match=rf"{python} has no torch.*pip install 'mpicoll\[peers\]'"):
        Gloo.find()
    python.write_text("#!/bin/sh\necho 2.9\n")
    assert Gloo.find().about == "Gloo of torch 2.9" and Gloo.find().python == python
