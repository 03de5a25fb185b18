"""Compare the ranks' calls before they run: check mode.

Every rank sends a signature of its call. If signatures differ, every rank raises MismatchError, which names the ranks
and their values. A rank that refuses its own arguments sends its error instead, so that the others do not wait for it.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import MismatchError, MpicollError
from ..kernels.digest import digest
from ..plans.plan import Shares
from ..progress.operation import CallId, Operation
from ..progress.stages import AllgatherStage
from ..runtime.comm_state import CommState
from ..schedules.collectives import COLLECTIVES, NONBLOCKING
from ..selection.select import FLOAT32, native_choice
from .call import Call

SIGNATURE_BYTES = 2048  # bytes of a signature, pickled
MAX_VALUE_BYTES = 300  # of one value; ten of them and their names must fit
Signature = dict[str, Any]


class SignatureExchange(AllgatherStage):
    """A stage that gathers the signatures of all ranks, and compares them."""

    def __init__(self, comm: MPI.Comm, signature: Signature) -> None:
        data = pickle.dumps({field: _shortened(value) for field, value in signature.items()})
        super().__init__(comm, np.frombuffer(data.ljust(SIGNATURE_BYTES, b"\0"), np.uint8), "the signatures")

    def advance(self, seconds: float) -> bool:
        """Poll for at most so many seconds; compare the signatures once they have arrived. Raises MismatchError."""
        if not super().advance(seconds):
            return False
        compare([pickle.loads(row.tobytes()) for row in self.all])
        return True


def compare(signatures: list[Signature]) -> None:
    """Raise MismatchError for the first field in which ranks differ. A rank's None is not compared."""
    for field in (
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
        values = [s.get(field) for s in signatures]
        if field == "error":
            if any(values):
                raise MismatchError("the arguments: a rank refused its own", [v or "fine" for v in values])
            continue
        distinct_values = {v for v in values if v is not None}
        if len(distinct_values) > 1:
            raise MismatchError(field, values)


def _shortened(value: Any) -> Any:
    """Return a value; of a long value, its beginning and a digest of all of it."""
    text = repr(value)
    if len(text.encode()) <= MAX_VALUE_BYTES:
        return value
    text_digest = digest(text.encode(), 6).hex()
    return f"{text.encode()[: MAX_VALUE_BYTES - 40].decode(errors='ignore')}… ({len(text)} characters, {text_digest})"


# -- signatures of calls --------------------------------------------------------------------------------


def signature(call: Call, sequence: int, any_form: bool = False) -> dict[str, Any]:
    """Return the fields in which all ranks must agree; None for a field that this rank does not know or may choose."""
    arguments = call.arguments
    buffer = (arguments.send or arguments.recv) if arguments is not None else None
    shares = call.counts if isinstance(call.counts, Shares) else None
    has_types = call.collective.endswith("alltoallw")  # one for every block
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


def compare_calls_without_recvcounts(state: CommState, name: str) -> None:
    """Check that all ranks have left out the recvcounts of a Reduce_scatter, in check mode. Raises MismatchError."""
    if state.is_checked(state.sequence + 1):
        sequence = state.next_sequence()
        own = {"sequence": sequence, "collective": "reduce_scatter", "recvcounts": "left out"}
        state.queue.run(comparison(state, own, name))


def compare_objects(state: CommState, name: str) -> None:
    """Check that all ranks make the same collective call of objects. Raises MismatchError if they do not."""
    own = {"sequence": state.next_sequence(), "collective": f"{name} of objects"}
    state.queue.run(comparison(state, own, name))


def report_refusal(state: CommState, error: MpicollError, form: str, name: str) -> None:
    """Report that this rank refused its arguments: in check mode to all ranks, so that they raise too.

    Otherwise only ranks that ask for this rank's status learn of it. The exchange of a nonblocking call continues in
    the background, so that the call does not block.
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


def comparison(state: CommState, own: Signature, name: str) -> Operation:
    """Return an operation that only compares signatures. It ends with MismatchError if they differ."""
    exchange = SignatureExchange(state.comm, own)
    choice = native_choice(own.get("collective", "a call"), "comparing signatures")
    return Operation(choice, own["sequence"], [lambda: exchange], lambda: None, None, name=name)
