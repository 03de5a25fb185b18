"""Steps of the training patterns as the page shows them: the run's own calls, and what ranks held."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI
from unit.test_explore import unpacked

from mpicoll.benchmarks.train import compare
from mpicoll.benchmarks.train.cli import train
from mpicoll.benchmarks.train.data import Digits, text
from mpicoll.benchmarks.train.patterns import PATTERNS, TEXT, Work, in_turn
from mpicoll.describe.explore.training import BEGINS, CALL, ENDS, POSTS, Training, order
from mpicoll.describe.explore.training import step as page_step
from mpicoll.training.account import MESSAGES

DRAW = np.random.default_rng(2)
STEPS = 2
PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS = range(4)


@pytest.fixture(scope="module")
def work():
    x, y = DRAW.random((300, 64)), DRAW.integers(0, 10, 300)
    return Work(Digits(x, y, x, y), text(), width=24, layers=2, batch=20, windows=6)


@pytest.fixture
def recorded(comm, work):
    """Return recorded(name): this rank's record, and on rank 0 the page's step and all ranks' steps, else None."""

    def run(name):
        gc.collect()
        measured = compare.run(MPI.Intracomm(comm), name, work, STEPS, record=True)
        ranks = comm.gather(measured.step)
        if ranks is None:
            return measured, None, None
        entry = page_step(Training(name, "", ranks, compare.whole_bytes(name, work, STEPS)), {})
        return measured, entry, ranks

    return run


def events(entry):
    return [(category, edge, name) for category, edge, name, _, _ in entry["moments"]]


@pytest.mark.parametrize("name", PATTERNS)
def test_a_step_has_every_call_of_the_run_once_on_each_of_its_ranks(comm, recorded, name):
    measured, entry, ranks = recorded(name)
    names_by_rank = comm.gather([event.name for event in measured.account.events])
    if entry is None:
        return
    collectives = [sum(name not in MESSAGES for name in of_rank) for of_rank in names_by_rank]
    on_page = [sum(own.rank in call["ranks"] for call in entry["calls"] if call["algorithm"]) for own in ranks]
    calls_alone = [n - shown for n, shown in zip(collectives, on_page)]  # on a communicator of one rank
    has_such = PATTERNS[name].model == TEXT or comm.size == 1
    assert min(calls_alone) >= 0 and (has_such or not any(calls_alone))
    sent = sum(name.lower().endswith("send") for of_rank in names_by_rank for name in of_rank)
    messages = [call for call in entry["calls"] if not call["algorithm"]]
    assert len(messages) == sent and all(len(call["ranks"]) == len(call["parts"]) == 2 for call in messages)
    assert all(len(call["parts"]) == len(call["ranks"]) > 1 for call in entry["calls"])
    assert all(call["link"] for call in entry["calls"] if call["algorithm"] not in ("native", ""))
    ends = [(call, rank) for category, edge, call, _, on in entry["moments"] for rank in on
            if (category, edge) == (CALL, ENDS)]
    assert len(ends) == len(set(ends)) == sum(len(call["ranks"]) - (not call["algorithm"]) for call in entry["calls"])


@pytest.mark.parametrize("name", PATTERNS)
def test_phases_are_on_every_rank_in_order(comm, recorded, name):
    _, entry, ranks = recorded(name)
    if entry is None:
        return
    for own in ranks:
        phases = [phase for phase, rank, *_ in sorted(entry["phases"], key=lambda row: row[2]) if rank == own.rank]
        assert phases[0] == "forward" and {"forward", "backward"} <= set(phases)
        updates = name != "parameter_server" or own.rank == 0
        assert ("optimizer" in phases) == updates and phases.index("backward") > phases.index("forward")
        shown = [(at[own.rank], event) for event, at in order(ranks) if own.rank in at]
        assert [at for at, _ in shown] == sorted(at for at, _ in shown)


def check_activations(entry):
    """Check that each rank holds its activations after the forward pass, and none after the backward pass."""
    whole, held = entry["whole"][ACTIVATIONS], np.array(entry["held"])[:, :, ACTIVATIONS]
    forward, backward = (held[events(entry).index(("phase", ENDS, name))] for name in ("forward", "backward"))
    assert forward.sum() == whole and (forward < whole).all() and (forward == held.max(axis=0)).all()
    assert not backward.any()


@pytest.mark.mpi(min_size=2)
def test_fully_sharded_ranks_hold_whole_units_only_while_they_use_them(comm, recorded):
    _, entry, _ = recorded("zero3")
    if entry is None:
        return
    whole, held, share = np.array(entry["whole"]), np.array(entry["held"]), 1 / comm.size
    rounded = 64 * 8 * comm.size
    for at in (0, -1):
        assert (abs(held[at, :, [PARAMETERS, OPTIMIZER]] - share * whole[PARAMETERS]) < rounded).all()
        assert not held[at, :, [GRADIENTS, ACTIVATIONS]].any()
    names = [call["name"] for call in entry["calls"]]
    assert {call["name"]: call["moves"] for call in entry["calls"]} == {
        "Iallgather": "parameters", "Ireduce_scatter_block": "gradients", "Allreduce": ""}
    gathers = [at for at, (category, edge, call) in enumerate(events(entry))
               if (category, edge) == (CALL, POSTS) and names[call] == "Iallgather"]
    assert gathers and (held[gathers][:, :, PARAMETERS] > held[0, :, PARAMETERS]).all()
    assert (held[:, :, PARAMETERS].max(axis=0) > held[0, :, PARAMETERS] * 1.2).all()
    check_activations(entry)


@pytest.mark.mpi(min_size=2)
def test_data_parallel_ranks_hold_all_but_activations_whole(recorded):
    _, entry, _ = recorded("data_parallel")
    if entry is None:
        return
    held = np.array(entry["held"])
    assert (held[:, :, :ACTIVATIONS] == entry["whole"][:ACTIVATIONS]).all()
    check_activations(entry)
    assert {call["moves"] for call in entry["calls"] if call["name"] == "Iallreduce"} == {"gradients"}
    posted = events(entry).index((CALL, POSTS, 0))
    assert posted < events(entry).index(("phase", ENDS, "backward")), "the first bucket overlaps the backward pass"


@pytest.mark.mpi(min_size=2)
def test_tensor_parallel_ranks_hold_a_part_of_the_model(comm, recorded):
    _, entry, _ = recorded("tensor_parallel")
    if entry is None:
        return
    held, whole = np.array(entry["held"]), np.array(entry["whole"])
    assert (held[:, :, PARAMETERS] < whole[PARAMETERS]).all() and (held[:, :, PARAMETERS] > 0).all()
    assert held[0, :, PARAMETERS].sum() >= whole[PARAMETERS]


@pytest.mark.mpi(min_size=2)
def test_stages_of_a_pipeline_wait_for_their_messages(comm, recorded):
    _, entry, _ = recorded("pipeline")
    if entry is None:
        return
    held, shown = np.array(entry["held"]), events(entry)
    pipelines, _, stages = in_turn(comm.size)
    assert held[0, :, PARAMETERS].sum() == pipelines * entry["whole"][PARAMETERS], "each unit is on one stage"
    for number, call in enumerate(entry["calls"]):
        if not call["algorithm"]:
            assert shown.index((CALL, POSTS, number)) < shown.index((CALL, ENDS, number))
            assert abs(call["ranks"][0] - call["ranks"][1]) == 1
    first = {rank: min(at for phase, other, at, _ in entry["phases"] if other == rank) for rank in range(comm.size)}
    assert stages == 1 or any(call["bytes"] for call in entry["calls"] if not call["algorithm"])
    for begin in range(0, comm.size, stages):
        began = [first[rank] for rank in range(begin, begin + stages)]
        assert began == sorted(began), "a later stage begins later"
    assert shown[first[0]] == ("phase", BEGINS, "forward")


def test_the_command_writes_the_page(comm, tmp_path):
    page = tmp_path / "page.html"
    words = ["zero3,pipeline", "--steps", "2", "--width", "16", "--batch", "12", "--explore", str(page)]
    done = CliRunner().invoke(train, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if comm.rank == 0:
        content = unpacked(page.read_text())
        assert list(content["trainings"]) == ["training/zero3", "training/pipeline"]
        assert f"{page}: 2 patterns" in done.output
        links = {call["link"] for entry in content["trainings"].values() for call in entry["calls"]} - {""}
        assert links == set(content["schedules"]) and bool(links) == (comm.size > 1)
