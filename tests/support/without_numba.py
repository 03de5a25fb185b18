"""A pytest plugin: numba cannot be imported in this process, as on a machine that has none.

    pytest -p support.without_numba tests/mpi
"""

from __future__ import annotations

import sys

for name in ("numba", "llvmlite"):
    sys.modules[name] = None  # type: ignore[assignment]
