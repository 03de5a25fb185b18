"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import os
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [Path(top, name) for top, _, names in os.walk(ROOT / "mpicoll", followlinks=True) for name in names]
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts)
           for file in sorted(FILES) if file.suffix == ".py" and ">>> " in file.read_text()]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    """Run a module's examples but those of algorithms, which need names of their own: see test_claims.py."""
    done = doctest.testmod(import_module(name))
    assert not done.failed
    assert done.attempted or "algorithms" in name
