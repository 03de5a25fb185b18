"""Templates: plans before counts are known, and what binds them."""

from __future__ import annotations

import numpy as np
import pytest
from unit.every import cases

from mpicoll.kernels.memory import table
from mpicoll.plans import template
from mpicoll.plans.lowering import Lowering, lower
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule, schedule

SIZED = cases(*(a for a in registered() if a.collective.naming != "none"))


@pytest.mark.parametrize("entry", SIZED)
def test_compiled_code_binds_as_python_does(entry):
    """Blocks of 0 to 4 chunks, whole and cut."""
    scheduled = Schedule(entry, 4)
    for single in (True, False):
        lowering = Lowering(scheduled, 1, False, True, single, False, scheduled.codec is not None)
        binding = template.Binding(lowering.template())
        binding.sizes[:] = binding.codes[:] = np.arange(len(binding.sizes)) % 5 * 40
        binding.places[:] = np.arange(len(binding.places)) * 1000
        bound = []
        for bind in (template.bind, lambda at: template.bind_tables(table(at, template.SCALARS + 1, 2))):
            binding.scalars[:] = (1 << 40 if single else 60), 60
            binding.rows[:, 4] = binding.segments[:, 1:3] = 0
            peak = bind(binding.at)
            bound.append((binding.rows.tolist(), binding.segments.tolist(), peak))
        assert bound[0] == bound[1]


def test_plans_of_different_counts_come_from_one_template():
    """Cut and whole ones from two, since what no chunk cuts is joined; and nothing of one count is left for another."""
    rabenseifner, kept, keys = schedule("allreduce", "rabenseifner", 4), {}, []

    def remember(key, make):
        keys.append(key)
        if key not in kept:
            kept[key] = make()
        return kept[key]

    for count in (1, 17, 4, 1000, 3, 4, 0, 17):
        for chunk in (None, 8):
            new = lower(rabenseifner, 2, count, 8, chunk_bytes=chunk)
            remembered = lower(rabenseifner, 2, count, 8, chunk_bytes=chunk, remember=remember)
            assert new.scalars == remembered.scalars
            assert all(map(np.array_equal, new.tables, remembered.tables))
    assert len(keys) == 16 and len(kept) == 2


def test_codes_without_a_codec_are_refused():
    quantized = schedule("allgather", "quantized", 3)
    assert quantized.codec is not None
    with pytest.raises(ValueError, match="has codes, and there is no codec"):
        lower(quantized, 0, 10, 4)
