"""An allreduce that sends codes, and adds their error to the next call (error feedback).

The residual of a buffer is the error of its last codes. Over many calls the sum of results and of the last residuals is
the sum of contributions. Seide et al., 1-bit stochastic gradient descent, 2014; Karimireddy et al., Error feedback
fixes SignSGD, 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import CodecError
from ..kernels.memory import address_of
from .codecs import Codec, check_array, parse

__all__ = ["Allreduce"]


class Allreduce:
    """Sum float32 over the ranks of a communicator, encoded: `reduce = Allreduce(comm, "int4")`, then reduce(gradient).

    comm is an mpicoll.Comm, codec a Codec or its text. With error_feedback, each buffer, known by its address, has a
    residual, which its next call adds to the buffer before it encodes. algorithm is "quantized", or "hierarchical",
    which encodes between nodes only and has no feedback. chunk_bytes: as in using(). Raises CodecError.
    """

    def __init__(
        self,
        comm: Any,
        codec: Codec | str,
        *,
        error_feedback: bool = True,
        algorithm: str = "quantized",
        chunk_bytes: int | None = None,
    ) -> None:
        self.comm, self.codec = comm, parse(codec) if isinstance(codec, str) else codec
        self.error_feedback, self.chunk_bytes = error_feedback, chunk_bytes
        if algorithm == "hierarchical":
            if error_feedback:
                raise CodecError("hierarchical encodes sums of nodes and has no feedback; pass error_feedback=False")
            self.spec = f"hierarchical(middle=quantized(codec={self.codec}))"
        elif algorithm == "quantized":
            self.spec = f"quantized(codec={self.codec}, feedback={'yes' if error_feedback else 'no'})"
        else:
            raise CodecError(f"algorithm is {algorithm!r}; it may be quantized or hierarchical")
        self.residuals: dict[int, np.ndarray] = {}

    def __call__(self, buffer: np.ndarray, average: bool = False) -> np.ndarray:
        """Replace the buffer by the sum over the ranks, or by the average, and return it.

        Raises CodecError for other arrays than contiguous float32, for a buffer whose size has changed, and on every
        rank if any rank has NaN or infinity.
        """
        check_array(self.codec, buffer)
        sent = buffer.ravel()
        if self.error_feedback:
            sent = self._residual(buffer)
            sent += buffer.ravel()
        result = np.empty(sent.size, np.float32)
        more = {} if self.chunk_bytes is None else {"chunk_bytes": self.chunk_bytes}
        with self.comm.using(allreduce=self.spec, **more):
            try:
                self.comm.Allreduce(sent, result)
            except CodecError:
                self.residuals.pop(address_of(buffer), None)  # it has an encoded NaN or infinity
                raise
        if self.comm.size == 1 and self.error_feedback:
            sent[:] = 0
        if average:
            result /= np.float32(self.comm.size)
        buffer.reshape(-1)[:] = result
        return buffer

    def residual(self, buffer: np.ndarray) -> np.ndarray:
        """Return this rank's residual of a buffer, zeros before its first call."""
        kept = self.residuals.get(address_of(buffer))
        return np.zeros(buffer.size, np.float32) if kept is None else kept

    def _residual(self, buffer: np.ndarray) -> np.ndarray:
        """Return the buffer's residual, and keep it for the next call."""
        kept = self.residuals[address_of(buffer)] = self.residual(buffer)
        if kept.size != buffer.size:
            raise CodecError(
                f"the buffer has {buffer.size} elements and its residual {kept.size}: it belongs to one "
                "buffer, make another Allreduce for other sizes"
            )
        return kept
