"""Define the sparse exchange of a communicator: a rank names only the ranks to which it sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from ..dispatch import check_mode, sparse_exchange
from ..errors import MpicollError
from ..progress.operation import Operation
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, NONBLOCKING
from .requests import Request

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NAMES = {BLOCKING: "Sparse_alltoall", NONBLOCKING: "Isparse_alltoall"}


class Sparse(MPI.Intracomm):
    """Exchanges in which a rank does not know from which ranks it receives."""

    _open: Callable[[], CommState]

    def Sparse_alltoall(self, parts: Mapping[int, ArrayLike]) -> dict[int, np.ndarray]:
        """Send arrays to some ranks, and return the arrays that other ranks sent to this one. Collective.

        parts: arrays of any shape, and of any dtype without objects, by destination rank; MPI.PROC_NULL is ignored. An
        array for this rank itself is copied. The result has new arrays by source rank, in rank order, with their dtypes
        and shapes. No rank needs to know its sources, or the lengths of arrays. A rank sends to its own destinations
        only, and takes part in one barrier of O(log p) steps.

        Raises ArgumentError, RankError, MessageSpecError or DatatypeError before anything is sent.
        Source: Hoefler, Siebert, Lumsdaine, Scalable communication protocols for dynamic sparse data exchange, 2010.
        """
        received: dict[int, np.ndarray] = {}
        state = self._open()
        state.queue.run(self._exchange(state, parts, received, BLOCKING))
        return received

    def Isparse_alltoall(self, parts: Mapping[int, ArrayLike]) -> tuple[dict[int, np.ndarray], Request]:
        """Start Sparse_alltoall; return (the dict of results, its request).

        The dict is empty until the request is complete. Until then the arrays in parts must not change. Several
        exchanges may be in flight on one communicator.
        """
        received: dict[int, np.ndarray] = {}
        state = self._open()
        return received, Request.launch(state, self._exchange(state, parts, received, NONBLOCKING))

    def _exchange(
        self, state: CommState, parts: Mapping[int, ArrayLike], received: dict[int, np.ndarray], form: str
    ) -> Operation:
        try:
            arrays = sparse_exchange.check_parts(parts, state.size)
        except MpicollError as error:
            error.rank = state.rank
            check_mode.report_refusal(state, error, form, NAMES[form])
            raise
        state.check_tags()
        return sparse_exchange.operation(state, arrays, received, form, NAMES[form])
