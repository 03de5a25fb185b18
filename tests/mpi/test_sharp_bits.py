"""Every example of docs/SHARP_BITS.md runs; those that end the process or fork are in tests/launch."""

from __future__ import annotations

import os

import pytest
import sharp_bits


@pytest.fixture
def environment():
    """Yield, then restore the environment variables."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("heading", sharp_bits.examples(alone=False))
def test_example(comm, heading):
    """Run an example on a communicator of its own."""
    program = sharp_bits.beginning() + sharp_bits.examples(alone=False)[heading]
    exec(compile(program.replace("MPI.COMM_WORLD", "WORLD"), heading, "exec"), {"WORLD": comm})
