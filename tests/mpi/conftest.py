"""Every test below runs on all ranks at once: see support/harness.py."""

import pytest
from support.collectives import ENGINES
from support.harness import comm as comm
from support.harness import install as pytest_configure  # noqa: F401

import mpicoll

try:
    from hypothesis import Phase, settings
except ImportError:
    pass
else:
    # Every rank must draw the same examples and none may replay or shrink one alone.
    settings.register_profile("mpi", database=None, deadline=None, derandomize=True, max_examples=25,
                              phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mpi")


@pytest.fixture
def ours(comm):
    return mpicoll.Comm(comm)


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param
