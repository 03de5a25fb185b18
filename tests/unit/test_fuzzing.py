"""Programs of collectives as values: what is run in CI, how they are printed, made smaller, and counted."""

from __future__ import annotations

import json

import pytest
import run
import soak
from fuzzing import record
from fuzzing.program import Call, Program, programs_of

PROGRAM = Program(
    comms=((0, 1, 2), (2, 0)),
    calls=(Call(method="Allreduce", algorithm="ring", counts=(9,), chunk_bytes=8, on=1),
           Call(method="Gatherv", algorithm="knomial(k=3)", counts=(4, 0), root=1, form="persistent")),
    rounds=2, skew=5,
)


def test_five_hundred_programs_in_a_test_run():
    ranks = [launch.ranks for launch in run.plan(run.parse([])) if launch.suite == "mpi"]
    assert sum(map(programs_of, ranks)) >= 500
    assert max(ranks) == 8


def test_what_is_printed_makes_it_again():
    assert eval(repr(PROGRAM)) == PROGRAM
    assert repr(Call(method="Bcast")) == "Call(method='Bcast')"


def test_smaller_programs_are_programs_on_communicators_they_have():
    smaller = list(PROGRAM.smaller())
    assert Program(comms=PROGRAM.comms, calls=PROGRAM.calls[1:], rounds=2, skew=5) in smaller
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
    assert account.programs == 1
    assert account.by(0, 2) == {("allreduce", "blocking"): 2, ("gatherv", "persistent"): 2}
    assert account.by(1) == {("ring",): 2, ("knomial",): 2}


def test_an_account_of_a_failure(tmp_path):
    path, account = tmp_path / "log", record.Account()
    with path.open("w") as log:
        record.failed(log, PROGRAM, ["rank 0: wrong"])
    log = record.read(path, account)
    assert (log.failed, log.wrong, account.programs) == (repr(PROGRAM), ["rank 0: wrong"], 0)
    assert json.loads(path.read_text())["failed"] == repr(PROGRAM)


@pytest.mark.parametrize(("words", "said"), [
    (["--minutes", "soon"], "'soon' is no number of minutes above 0"),
    (["--minutes", "0"], "'0' is no number of minutes above 0"),
    (["--ranks", "2,x"], "'2,x' is no list of numbers of ranks, like 1,2,8"),
])
def test_bad_arguments(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        soak.parse(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
