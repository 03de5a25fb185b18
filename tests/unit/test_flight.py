"""An operation and what comes between: errors, interrupts, and another that must be done first."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from mpi4py import MPI

from mpicoll.dispatch.execute import ActiveCall
from mpicoll.engines import mpi4py as reference
from mpicoll.errors import MismatchError, RequestError
from mpicoll.progress.operation import MAX_POLL_GAP, Operation, Raised


class Stage:
    """Raises what it is given, one a step, and then is done."""

    progress, is_over = (0, 0, 0), False

    def __init__(self, *errors):
        self.errors = list(errors)

    def advance(self, seconds):
        if self.errors:
            raise self.errors.pop(0)
        return True


def start_operation(*stages, finish=lambda: None):
    choice = SimpleNamespace(collective="bcast")
    return Operation(choice, 1, [lambda stage=stage: stage for stage in stages], finish, keep="memory")


@pytest.mark.parametrize("error", [TimeoutError("alarm"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_of_a_signal_handler_ends_no_operation(error):
    operation = start_operation(Stage(error))
    with pytest.raises(type(error)):
        operation.step(0.0)
    assert not operation.done and operation.error is None
    assert operation.step(0.0) and operation.error is None and not operation.was_aborted


@pytest.mark.parametrize("error", [MPI.Exception(MPI.ERR_OTHER), MismatchError("root", [0, 1]), MemoryError()])
def test_an_error_of_a_stage_is_raised_in_wait(error):
    operation = start_operation(Stage(error))
    assert operation.step(0.0) and operation.was_aborted and operation.keep == "memory"
    with pytest.raises(type(error)):
        operation.raise_error()
    operation.raise_error()


def test_in_another_thread_no_handler_raises():
    operation = start_operation(Stage(RuntimeError("a defect")))
    thread = threading.Thread(target=operation.step, args=(0.0,))
    thread.start()
    thread.join()
    assert operation.done and isinstance(operation.error, RuntimeError)


@pytest.mark.parametrize("error", [ValueError("of the operator"), SystemExit(1), KeyboardInterrupt()])
def test_an_error_of_an_operator_is_raised_in_wait(error):
    def finish():
        raise Raised(error)

    operation = start_operation(Stage(), finish=finish)
    assert operation.step(0.0) and not operation.was_aborted
    with pytest.raises(type(error)):
        operation.raise_error()


def test_an_interrupt_before_the_request_is_told_of_the_end():
    operation, notices = start_operation(Stage()), []
    operation.step(0.0)
    operation.on_done = lambda: notices.append("done")  # as if the interrupt had come between
    assert operation.step(0.0) and operation.step(0.0) and notices == ["done"]


def test_an_interrupt_while_the_request_is_told_of_the_end():
    """The report is repeated, since the process cannot know how much of it arrived."""
    operation = start_operation(Stage())
    operation.on_done = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        operation.step(0.0)
    assert operation.step(0.0) and operation.step(0.0) and operation.on_done is None


def test_an_operation_that_waits_for_an_earlier_one_is_not_stalled():
    first, second = start_operation(Stage()), start_operation(Stage())
    second.predecessor = first
    for now in range(10):
        assert second.stalled(float(now)) == 0.0
    first.step(0.0)
    assert second.stalled(10.0) == 0.0 and second.stalled(10.5) == 0.5


def test_time_without_a_look_is_no_stall():
    """A program that computes for a minute between two looks has waited for a moment of it."""
    operation = start_operation(Stage())
    operation.stalled(0.0)
    assert operation.stalled(60.0) == MAX_POLL_GAP and operation.stalled(60.5) == MAX_POLL_GAP + 0.5


class Interrupts:
    """Stands for a function in whose last moments Ctrl-C came, the first time."""

    def __init__(self, function=lambda *_: None):
        self.function, self.calls = function, 0

    def __call__(self, *arguments):
        self.function(*arguments)
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["after", "record"])
def test_an_interrupted_end_gives_back_once(where):
    returned, interrupted = [], Interrupts()
    state = SimpleNamespace(next_sequence=lambda: 1, sinks=[], scratch=SimpleNamespace(give_back=returned.append))
    prepared = SimpleNamespace(give_back=returned.append, choice=None)
    under_way = ActiveCall(state, SimpleNamespace(operator=None, prepared=prepared, began=0.0, form="blocking"), 1)
    under_way.execution = "execution"
    under_way.memory = SimpleNamespace(copy_result=interrupted if where == "after" else None, scratch="scratch")
    if where == "record":
        under_way._record = interrupted
    with pytest.raises(KeyboardInterrupt):
        under_way.finish()
    assert returned == []
    under_way.finish()
    under_way.finish()
    assert returned == ["execution", "scratch"] and interrupted.calls == 2


def test_the_reference_engine_does_not_go_on_where_messages_were_lost():
    execution = reference.Execution.__new__(reference.Execution)
    execution.plan, execution.posting = SimpleNamespace(lanes=1, window=1), False
    execution.lanes, execution._post = [reference._Lane(0, 0, 0, 1)], Interrupts()
    with pytest.raises(KeyboardInterrupt):
        execution.advance(0.0)
    with pytest.raises(RequestError, match="interrupted this call while it posted messages"):
        execution.advance(0.0)


def test_the_reference_engine_reduces_once(monkeypatch):
    folded = []
    monkeypatch.setattr(reference, "finish_step", Interrupts(lambda *arguments: folded.append(arguments[1:])))
    execution = reference.Execution.__new__(reference.Execution)
    execution.plan = SimpleNamespace(lanes=1, window=1, rows=None, segments=None)
    execution.tables = SimpleNamespace(address=0)
    execution.finished = 0
    execution.posting, execution.steps = False, [(0, 1, 2, 1, 1), (2, 3, 4, 1, 1)]
    execution.lanes, execution._post = [reference._Lane(0, 0, 0, 2)], lambda lane: []
    with pytest.raises(KeyboardInterrupt):
        execution.advance(0.0)
    assert execution.advance(0.0)
    assert [rows[:3] for rows in folded] == [(0, 1, 2), (2, 3, 4)] and execution.finished == 2
