"""Programs of collectives as values: what is run in CI, how they are printed, made smaller, and counted."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest
import run
import soak
from fuzzing import record
from fuzzing.program import Call, Program, programs_of
from rich.console import Console

PROGRAM = Program(
    comms=((0, 1, 2), (2, 0)),
    calls=(Call(method="Allreduce", algorithm="ring", counts=(9,), chunk_bytes=8, on=1),
           Call(method="Gatherv", algorithm="knomial(k=3)", counts=(4, 0), root=1, form="persistent")),
    rounds=2, skew=5, threads=3,
)


@pytest.mark.parametrize(("words", "programs", "most"), [([], 130, 4), (["--thorough"], 350, 8)])
def test_hundreds_of_programs_in_a_test_run(words, programs, most):
    launches = [launch for launch in run.plan(run.parse(words)) if launch.suite == "mpi" and launch.files != run.CORE]
    assert sum(programs_of(launch.ranks, launch.quick) for launch in launches) >= programs
    assert max(launch.ranks for launch in launches) == most


def test_the_printed_program_reproduces_the_failure():
    assert eval(repr(PROGRAM)) == PROGRAM
    assert repr(PROGRAM).endswith("threads=3)")
    assert repr(Call(method="Bcast")) == "Call(method='Bcast')"


def test_smaller_programs_are_programs_on_communicators_they_have():
    smaller = list(PROGRAM.smaller())
    assert Program(comms=PROGRAM.comms, calls=PROGRAM.calls[1:], rounds=2, skew=5, threads=3) in smaller
    assert smaller[:2] == [replace(PROGRAM, threads=1), replace(PROGRAM, threads=2)]
    assert all(call.on < len(program.comms) for program in smaller for call in program.calls)
    assert PROGRAM.ranks == 3


def test_an_account_of_a_launch_that_ends_in_the_middle(tmp_path):
    path, account = tmp_path / "log", record.Account()
    with path.open("w") as log:
        record.begin(log, PROGRAM)
        record.over(log, PROGRAM)
        record.begin(log, PROGRAM)
        log.write('{"ov')
    assert record.read(path, account).running == repr(PROGRAM)
    assert (account.programs, account.threads) == (1, {3: 1})
    assert account.by(0, 2) == {("allreduce", "blocking"): 6, ("gatherv", "persistent"): 6}
    assert account.by(1) == {("ring",): 6, ("knomial",): 6}


def test_the_report_says_how_many_programs_had_threads(tmp_path):
    played = soak.Soak(random.Random(0), [2], tmp_path, 40.0)
    played.account.threads.update({1: 41, 2: 7})
    with (tmp_path / "said").open("w") as output:
        soak.report(played, Console(file=output, width=160))
    words = [re.findall(r"\d+", line) for line in (tmp_path / "said").read_text().splitlines()]
    assert ["1", "41"] in words and ["2", "7"] in words


def test_an_account_of_a_failure(tmp_path):
    path, account = tmp_path / "log", record.Account()
    with path.open("w") as log:
        record.failed(log, PROGRAM, ["rank 0: wrong"])
    log = record.read(path, account)
    assert (log.failed, log.wrong, account.programs) == (repr(PROGRAM), ["rank 0: wrong"], 0)
    assert json.loads(path.read_text())["failed"] == repr(PROGRAM)


@pytest.mark.parametrize(("words", "message"), [
    (["--minutes", "soon"], "'soon' is no number of minutes above 0"),
    (["--minutes", "0"], "'0' is no number of minutes above 0"),
    (["--ranks", "2,x"], "'2,x' is no list of numbers of ranks, like 1,2,8"),
])
def test_bad_arguments(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        soak.parse(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
