"""Check mode: before a call runs, the ranks compare what they are about to do.

Each rank gives a signature of its call; where they differ, every rank raises, naming who differs in what.
A rank whose own arguments are wrong gives its error instead, so that the others do not wait for it.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.arguments import Arguments, set_counts
from ..errors import MismatchError, MpicollError
from ..kernels.digest import digest
from ..plans.plan import Shares
from ..progress.operation import CallId, Operation
from ..progress.stages import AllgatherStage
from ..runtime.comm_state import CommState
from ..schedules.collectives import COLLECTIVES, NONBLOCKING
from ..selection.select import FLOAT32, native_choice
from .call import Call

SIZE = 2048  # bytes of a signature, pickled
LONG = 300  # bytes of one value; ten of them and their names must fit
Signature = dict[str, Any]


class Exchange(AllgatherStage):
    """A stage: the signatures of all ranks, compared when they are in."""

    def __init__(self, comm: MPI.Comm, signature: Signature) -> None:
        data = pickle.dumps({what: _short(value) for what, value in signature.items()})
        super().__init__(comm, np.frombuffer(data.ljust(SIZE, b"\0"), np.uint8), "the signatures")

    def advance(self, seconds: float) -> bool:
        """Poll; when all are in, compare. Raises MismatchError."""
        if not super().advance(seconds):
            return False
        compare([pickle.loads(row.tobytes()) for row in self.all])
        return True


def compare(signatures: list[Signature]) -> None:
    """Raise MismatchError for the first thing the ranks differ in; what a rank leaves None is not compared."""
    for what in (
        "error",
        "sequence",
        "collective",
        "form",
        "recvcounts",
        "root",
        "bytes",
        "count",
        "type",
        "op",
        "accumulate",
        "algorithm",
        "chunk_bytes",
    ):
        values = [s.get(what) for s in signatures]
        if what == "error":
            if any(values):
                raise MismatchError("the arguments: a rank refused its own", [v or "fine" for v in values])
            continue
        distinct_values = {v for v in values if v is not None}
        if len(distinct_values) > 1:
            raise MismatchError(what, values)


def _short(value: Any) -> Any:
    """Return a value, or what stands for it where it is long: its beginning and a digest of all of it."""
    text = repr(value)
    if len(text.encode()) <= LONG:
        return value
    of_all = digest(text.encode(), 6).hex()
    return f"{text.encode()[: LONG - 40].decode(errors='ignore')}… ({len(text)} characters, {of_all})"


# -- at the calls ---------------------------------------------------------------------------------------


def signature(call: Call, sequence: int, any_form: bool = False) -> dict[str, Any]:
    """Return what all ranks must agree on, for check mode; None where this rank cannot know, or may differ in form."""
    arguments = call.arguments
    buffer = (arguments.send or arguments.recv) if arguments is not None else None
    shares = call.counts if isinstance(call.counts, Shares) else None
    has_types = call.collective.endswith("alltoallw")  # of its own for each block
    return {
        "sequence": sequence,
        "collective": call.collective,
        "form": None if any_form else call.form,
        "recvcounts": "given" if call.collective == "reduce_scatter" else None,
        "root": call.root,
        "bytes": call.prepared.nbytes if shares is None else None,
        "count": shares.every if shares else call.counts if COLLECTIVES[call.collective].reduces else None,
        "type": buffer.facts.basic if buffer is not None and buffer.size and not has_types else None,
        "op": call.operator.name if call.operator else None,
        "accumulate": (FLOAT32 if call.prepared.float32_sums else "none") if call.operator else None,
        "algorithm": call.prepared.choice.algorithm,
        "chunk_bytes": call.prepared.choice.chunk_bytes,
    }


def gather_recvcounts(state: CommState, arguments: Arguments, name: str) -> None:
    """Reduce_scatter without recvcounts: ask all ranks for theirs. In check mode, first whether all of them ask."""
    assert arguments.recv is not None
    if state.is_checked(state.sequence + 1):
        sequence = state.next_sequence()
        mine = {"sequence": sequence, "collective": "reduce_scatter", "recvcounts": "left out"}
        state.queue.run(comparison(state, mine, name))
    counts = AllgatherStage(state.comm, np.array([arguments.recv.count], np.int64))
    choice = native_choice("reduce_scatter", "asking for recvcounts")
    state.queue.run(Operation(choice, state.next_sequence(), [lambda: counts], lambda: None, None, name=name))
    set_counts(arguments, counts.all[:, 0].tolist(), state.rank)


def compare_objects(state: CommState, name: str) -> None:
    """Before a collective of objects: compare that all ranks make it. Raises MismatchError."""
    mine = {"sequence": state.next_sequence(), "collective": f"{name} of objects"}
    state.queue.run(comparison(state, mine, name))


def refuse(state: CommState, error: MpicollError, form: str, name: str) -> None:
    """Tell of wrong arguments on this rank: in check mode to all others, so that they raise too; else to who asks.

    No form waits longer than it would have: that of a nonblocking call goes on in the background.
    """
    state.fail(CallId(state.sequence + 1, 0, name), error, was_made=False)
    if state.is_checked(state.sequence + 1) and not state.rank_failure.is_known:
        sequence = state.next_sequence()
        operation = comparison(state, {"sequence": sequence, "error": str(error)}, "a call with wrong arguments")
        if form == NONBLOCKING:
            state.queue.begin(operation)
        else:
            with suppress(MismatchError):  # this rank raises its own error
                state.queue.run(operation)


def comparison(state: CommState, mine: Signature, name: str) -> Operation:
    """Return an operation that exchanges signatures and nothing else; it raises MismatchError."""
    exchange = Exchange(state.comm, mine)
    choice = native_choice(mine.get("collective", "a call"), "comparing signatures")
    return Operation(choice, mine["sequence"], [lambda: exchange], lambda: None, None, name=name)
