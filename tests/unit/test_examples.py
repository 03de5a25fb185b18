"""The examples in docstrings; those of algorithms are in test_claims.py."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import mpicoll

PACKAGE = Path(mpicoll.__file__).parent
SHOWING = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]
MODULES = [".".join(["mpicoll", *path.relative_to(PACKAGE).with_suffix("").parts]) for path in SHOWING]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    found = doctest.testmod(import_module(name))
    assert found.failed == 0
    assert found.attempted or name.startswith("mpicoll.algorithms.")
