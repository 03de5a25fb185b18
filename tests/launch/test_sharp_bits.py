"""The examples of docs/SHARP_BITS.md that fork, or end MPI: as programs of their own."""

from __future__ import annotations

import sys

import pytest
import sharp_bits

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("heading", sharp_bits.examples(alone=True))
def test_example(mpiexec, tmp_path, heading):
    program = tmp_path / "program.py"
    program.write_text(sharp_bits.beginning() + sharp_bits.examples(alone=True)[heading])
    finished = mpiexec(2, sys.executable, program)
    assert finished.status == 0, finished.output


def test_the_page_is_read_whole():
    text = sharp_bits.GUIDE.read_text()
    programs = {**sharp_bits.examples(alone=False), **sharp_bits.examples(alone=True)}
    assert len(programs) == text.count("\n### ") == text.count("\n```python\n") - 1 > 15
    assert text.count(sharp_bits.ALONE) == len(sharp_bits.examples(alone=True)) == 2
