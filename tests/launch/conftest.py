"""Tests that start mpiexec themselves. They run under plain pytest, and never under mpiexec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import launcher
import pytest
from support.browser import browser  # noqa: F401 - a fixture
from support.harness import keep, sample
from support.slurm import run, slurm  # noqa: F401 - fixtures


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if item.get_closest_marker("quick")] if config.option.quick else items
    keep(config, items, sample(chosen, config.option.sample, config.option.sample_seed, size=1))


@dataclass
class Finished:
    """A launch that is over: its exit status, None if it had to be killed, and all that it printed."""

    status: int | None
    output: str

    @property
    def own_lines(self) -> list[str]:
        """All lines; where Open MPI's launcher adds words of its own to a program that ends badly, mpicoll's."""
        lines = self.output.splitlines()
        return [line for line in lines if launcher.flavour() != "openmpi" or line.startswith("mpicoll")]


@pytest.fixture
def mpiexec() -> Callable[..., Finished]:
    """Return mpiexec(ranks, program, *arguments, limit=seconds, env={...})."""

    def start(ranks: int, *arguments: object, limit: float = 45.0,
              env: dict[str, str] | None = None) -> Finished:
        command = launcher.command(ranks, [str(argument) for argument in arguments])
        return Finished(*launcher.output_of(command, limit, env))

    return start
