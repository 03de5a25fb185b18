"""Define the sparse exchange of a communicator: a rank names only the ranks to which it sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from ..dispatch import check_mode, personalized_exchange, sparse_exchange
from ..dispatch.personalized_exchange import PersonalizedExchange
from ..dispatch.sparse_exchange import NAMES, Arrays
from ..errors import MpicollError
from ..progress.faults import may_be_an_interrupt
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, NONBLOCKING
from .requests import Request

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Sparse(MPI.Intracomm):
    """Exchanges in which a rank does not know from which ranks it receives."""

    _open: Callable[[], CommState]

    def Sparse_alltoall(self, parts: Mapping[int, ArrayLike]) -> dict[int, np.ndarray]:
        """Send arrays to some ranks, and return the arrays that other ranks sent to this one. Collective.

        parts: arrays of any shape, and of any dtype without objects, by destination rank; MPI.PROC_NULL is ignored. An
        array for this rank itself is copied. The result has new arrays by source rank, in rank order, with their dtypes
        and shapes. No rank needs to know its sources, or the lengths of arrays.

        On up to 1,024 ranks, ranks learn the sizes of arrays by an alltoall, and the arrays travel by an alltoallv (PEX
        in the source); traces and reports show these two calls. On more ranks, if a rank sends more than 1 MiB, where
        using() forces an algorithm of either, and in Isparse_alltoall, a rank sends to its own destinations only, and
        takes part in one barrier of O(log p) steps (NBX).

        Raises ArgumentError, RankError, MessageSpecError or DatatypeError before anything is sent.
        Source: Hoefler, Siebert, Lumsdaine, Scalable communication protocols for dynamic sparse data exchange, 2010.
        """
        state = self._open()
        arrays = self._check(state, parts, BLOCKING)
        if not personalized_exchange.serves(state):
            return self._run_nbx(state, arrays)
        exchange, before = PersonalizedExchange(arrays, state.size), state.sequence
        try:
            self.Alltoall(exchange.sizes, exchange.incoming)
            exchange.read_sizes()
            if exchange.is_large:
                return self._run_nbx(state, arrays)
            self.Alltoallv(*exchange.buffers())
        except BaseException as error:
            if state.sequence == before + 1 and may_be_an_interrupt(error):
                personalized_exchange.complete_later(state, exchange)
            raise
        return exchange.received()

    def Isparse_alltoall(self, parts: Mapping[int, ArrayLike]) -> tuple[dict[int, np.ndarray], Request]:
        """Start Sparse_alltoall; return (the dict of results, its request).

        The dict is empty until the request is complete. Until then the arrays in parts must not change. Several
        exchanges may be in flight on one communicator.
        """
        received: Arrays = {}
        state = self._open()
        arrays = self._check(state, parts, NONBLOCKING)
        state.check_tags()
        return received, Request.launch(state, sparse_exchange.operation(state, arrays, received, NONBLOCKING))

    def _run_nbx(self, state: CommState, arrays: Arrays) -> Arrays:
        received: Arrays = {}
        state.check_tags()
        state.queue.run(sparse_exchange.operation(state, arrays, received, BLOCKING))
        return received

    def _check(self, state: CommState, parts: Mapping[int, ArrayLike], form: str) -> Arrays:
        try:
            return sparse_exchange.check_parts(parts, state.size)
        except MpicollError as error:
            error.rank = state.rank
            check_mode.report_refusal(state, error, form, NAMES[form])
            raise
