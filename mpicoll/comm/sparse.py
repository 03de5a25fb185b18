"""The sparse exchange of a communicator: each rank names only the ranks that it sends to."""

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
    """Exchanges whose receivers do not know who sends to them."""

    _open: Callable[[], CommState]

    def Sparse_alltoall(self, parts: Mapping[int, ArrayLike]) -> dict[int, np.ndarray]:
        """Send an array to each of some ranks; return the arrays that ranks sent to this one. Collective.

        parts: arrays of any dtype without objects, and of any shape, by destination rank; MPI.PROC_NULL is left out.
        An array for this rank itself is copied. The result has the arrays by source rank, in rank order, with dtype
        and shape as they were sent; they are new arrays. No rank needs to know who sends to it, or how much: a rank
        sends only to its own destinations and takes part in one barrier, whose steps grow with the logarithm of the
        number of ranks.

        Raises ArgumentError, RankError, MessageSpecError or DatatypeError before anything is sent.
        Source: Hoefler, Siebert, Lumsdaine, Scalable communication protocols for dynamic sparse data exchange, 2010.
        """
        received: dict[int, np.ndarray] = {}
        state = self._open()
        state.queue.run(self._exchange(state, parts, received, BLOCKING))
        return received

    def Isparse_alltoall(self, parts: Mapping[int, ArrayLike]) -> tuple[dict[int, np.ndarray], Request]:
        """As Sparse_alltoall, nonblocking: return (the dict of results, its request).

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
