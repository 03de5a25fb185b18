"""IMB-MPI1: what it is asked, and what is read of what it prints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpicoll.benchmarks.peers import Call, Imb, Measured, Missing, imb
from mpicoll.benchmarks.peers.peer import PeerFailed

PRINTED = """
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.11, MPI-1 part
#----------------------------------------------------------------
# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_DOUBLE
# MPI_Op                         :   MPI_SUM

#----------------------------------------------------------------
# Benchmarking {benchmark}
# #processes = 3
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
        65536            1        11.00        99.00        50.00
        65536            1        12.00        30.50        21.00
        65536            1        13.00        31.25        21.00
         1024            1         1.00         9.00         5.00
         1024            1         1.00         2.00         1.50
"""


def test_times_are_the_longest_over_ranks_in_the_order_asked():
    rounds = {Call("reduce_scatter", 196608): 3, Call("reduce_scatter", 3072): 2}
    times = imb.parse(PRINTED.format(benchmark="Reduce_scatter"), rounds)
    assert times == {Call("reduce_scatter", 196608): [99.0, 30.5, 31.25], Call("reduce_scatter", 3072): [9.0, 2.0]}


def test_too_few_times_are_no_result():
    with pytest.raises(PeerFailed, match="too few times of bcast: 2 where 3 are left"):
        imb.parse(PRINTED.format(benchmark="Bcast"), {Call("bcast", 65536): 3, Call("bcast", 1024): 3})


class Launched:
    ranks = 3

    def __init__(self, status: int | None = 0) -> None:
        self.status, self.words, self.lengths = status, list[list[str]](), list[str]()

    def __call__(self, arguments: list[str], **how: Any) -> Any:
        self.words.append(arguments)
        self.how = how
        self.lengths.append(Path(arguments[arguments.index("-msglen") + 1]).read_text())
        printed = "".join(PRINTED.format(benchmark=word) for word in arguments if word in imb.BENCHMARKS.values())
        return SimpleNamespace(status=self.status, output=printed)


def test_each_length_is_listed_once_a_round(tmp_path):
    launch, python = Launched(), Path("env/bin/python")
    rounds = {Call("bcast", 65536): 3, Call("bcast", 1024): 2, Call("reduce", 65536): 3, Call("reduce", 1024): 2,
              Call("reduce_scatter", 65536): 1, Call("scan", 65536): 2}
    results = Imb(python).measure(launch, rounds, tmp_path)
    assert launch.lengths == ["65536\n" * 3 + "1024\n" * 2, "21840\n"]  # of three ranks' shares, whole doubles
    assert [words[0] for words in launch.words] == ["env/bin/IMB-MPI1"] * 2
    assert [words[-2:] for words in launch.words] == [["Bcast", "Reduce"], ["double", "Reduce_scatter"]]
    assert launch.how == {"python": python, "env": {"LD_LIBRARY_PATH": "env/lib"}}
    options = dict(zip(launch.words[0][1:-2:2], launch.words[0][2:-2:2]))
    assert options["-npmin"] == "3" and options["-iter"] == "1"
    assert results[Call("bcast", 65536)] == Measured([99.0, 30.5, 31.25])
    assert results[Call("bcast", 1024)] == Measured([9.0, 2.0])
    assert results[Call("scan", 65536)] == Measured([], note="IMB-MPI1 has no scan")


def test_a_launch_that_fails_says_so(tmp_path):
    with pytest.raises(PeerFailed, match="IMB ended with status 5"):
        Imb(Path("env/bin/python")).measure(Launched(5), {Call("bcast", 8): 1}, tmp_path)


def test_a_later_launch_that_fails_keeps_the_earlier_times(tmp_path):
    class Failing(Launched):
        def __call__(self, arguments: list[str], **how: Any) -> Any:
            self.status = 5 if self.words and arguments[-1] != "Bcast" else 0
            return super().__call__(arguments, **how)

    rounds = {Call("bcast", 65536): 3, Call("reduce", 8): 2}
    with pytest.raises(PeerFailed, match="IMB ended with status 5") as failed:
        Imb(Path("env/bin/python")).measure(Failing(), rounds, tmp_path)
    assert failed.value.measured == {Call("bcast", 65536): Measured([99.0, 30.5, 31.25])}


def test_an_environment_without_it_is_missing(tmp_path):
    with pytest.raises(Missing, match="IMB-MPI1 does not exist; `make MPI=intel env`"):
        Imb.find(tmp_path / "python")
    (tmp_path / "IMB-MPI1").touch()
    assert Imb.find(tmp_path / "python").program == tmp_path / "IMB-MPI1"
