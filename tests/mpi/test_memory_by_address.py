"""Memory given by its address, as torch's tensors are: with a datatype that has holes it goes on behind what was said.

A program says how many bytes of data there are (`MPI.buffer.fromaddress`), and not how far apart they are; Heat does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from support import types

from mpicoll.buffers import parse, vector
from mpicoll.errors import BufferTooSmallError

ROWS, COLUMNS = 4, 3
ELEMENT = ("RESIZED", ["DOUBLE"], {"lb": 0, "extent": 8 * COLUMNS})        # one of a column, as often as there are rows


def column(matrix: np.ndarray, i: int, rows: int) -> Any:
    """Return the address of a column, and its bytes of data."""
    return MPI.buffer.fromaddress(matrix[:, i:].ctypes.data, 8 * rows)


def test_the_data_is_where_the_datatype_says():
    """In one buffer, in blocks of one type, and in blocks of several; calls are in test_interface.py."""
    memory = np.arange(1.0 * ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    with types.committed(ELEMENT) as datatype:
        declared = column(memory, 1, ROWS)
        for parsed in (parse.parse_buffer([declared, ROWS, datatype]),
                       vector.parse_vector([declared, [1, 3], [0, 1], datatype], False, 2),
                       vector.parse_typed_vector([declared, [1, 3], [0, 8 * COLUMNS], [datatype] * 2], False, 2)):
            assert parsed.pack().view("d").tolist() == memory[:, 1].tolist()


def test_more_data_than_was_said_is_refused():
    memory = np.zeros((ROWS, COLUMNS))
    with types.committed(ELEMENT) as datatype:
        declared = column(memory, 1, 2)
        parse.parse_buffer([declared, 2, datatype])
        vector.parse_vector([declared, [2], [1], datatype], False, 1)
        for refused in (lambda: parse.parse_buffer([declared, 3, datatype]),
                        lambda: parse.parse_buffer([declared, 3, MPI.DOUBLE]),
                        lambda: vector.parse_vector([declared, [3], [0], datatype], False, 1)):
            with pytest.raises(BufferTooSmallError):
                refused()


def test_an_object_has_an_end():
    """Its own, whatever the datatype."""
    memory = np.zeros(2)
    with types.committed(ELEMENT) as datatype:
        for obj in (memory, MPI.buffer.frombuffer(memory), bytearray(16)):
            with pytest.raises(BufferTooSmallError):
                parse.parse_buffer([obj, 2, datatype])
            with pytest.raises(BufferTooSmallError):
                vector.parse_vector([obj, [2], [0], datatype], False, 1)
