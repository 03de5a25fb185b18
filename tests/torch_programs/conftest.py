"""Share fixtures between the tests that start whole programs, and draw their sample."""

from __future__ import annotations

import pytest
from support.harness import keep, sample
from support.slurm import run, slurm  # noqa: F401


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep(config, items, sample(items, config.option.sample, config.option.sample_seed, size=1))
