"""Programs in which random ones (fuzzing/, `make soak`) found something wrong, each with what it was."""

from __future__ import annotations

import pytest
from fuzzing.drive import play
from fuzzing.program import Call, Program

FOUND = {
    "Request.Waitall went by MPICH's Testall, which fails on persistent collectives of MPICH's own": Program(
        comms=((0,),), calls=(Call(method="Barrier", algorithm="native", form="persistent"),), progress=False),
    "A state freed in an attribute's callback probed for notes, where MPICH held a lock": Program(
        comms=((0, 1),), skew=77, check=True,
        calls=(Call(method="Scatter", algorithm="native", type="DOUBLE", root=1, form="persistent"),)),
}


@pytest.mark.parametrize("what", FOUND)
def test_found(comm, what):
    program = FOUND[what]
    if program.ranks <= comm.size:
        wrong = play(program, comm)
        assert not wrong, "\n".join(wrong)
