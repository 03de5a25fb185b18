"""Random programs of collectives, drawn by hypothesis: see fuzzing/. `make soak` plays them for an hour.

Which ones is up to --fuzz-seed, so a run is like the one before; a failure is printed as the least program that shows
it, to be played again by tests/fuzz.py --play and to be kept in test_regressions.py.
"""

from __future__ import annotations

import pytest
from fuzzing.drive import OUTPUT, PATIENCE, fuzz
from fuzzing.program import programs_of
from mpi_harness import PLUGIN


@pytest.mark.unsampled
@pytest.mark.timeout(300 + PATIENCE)
def test_random_programs(comm, request, capsys):
    OUTPUT[0] = request.config.pluginmanager.get_plugin(PLUGIN).stderr.fileno()
    number = request.config.option.fuzz_programs or programs_of(comm.size)
    seed = request.config.option.fuzz_seed
    outcome = fuzz(comm, seed, number)
    if comm.rank == 0:
        with capsys.disabled():
            print(f"\nfuzz: {outcome.played} programs, {outcome.calls} calls on {comm.size} ranks, --fuzz-seed {seed}")
    assert outcome.program is None, str(outcome)
    assert outcome.played >= number
