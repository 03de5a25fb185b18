"""Share fixtures between unit tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.harness import keep, sample

from mpicoll.schedules.registry import _REGISTRY, parse_spec


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = config.option
    keep(config, items, sample(items, options.sample, options.sample_seed, size=1, of_each=options.sample_each))


@pytest.fixture
def registry() -> Iterator[None]:
    """Remove the algorithms that a test registers after it."""
    before = {collective: dict(entries) for collective, entries in _REGISTRY.items()}
    yield
    for collective, entries in before.items():
        _REGISTRY[collective].clear()
        _REGISTRY[collective].update(entries)
    parse_spec.cache_clear()


@pytest.fixture
def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the page of a report without charts, which take seconds."""
    monkeypatch.setattr("mpicoll.benchmarks.report.page.specs", lambda look: {})
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_: "")
