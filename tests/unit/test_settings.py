"""Read settings from the environment."""

from __future__ import annotations

import pytest

from mpicoll.errors import ArgumentError
from mpicoll.selection import settings
from mpicoll.selection.settings import Settings, read


def test_nothing_set():
    assert read({}) == Settings() == Settings("auto", False, settings.REPORT_AFTER, False, True)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("ENGINE", "auto", Settings()),
        ("ENGINE", "mpi4py", Settings(engine="mpi4py")),
        ("ENGINE", "compiled", Settings(engine="compiled")),
        ("CHECK", "1", Settings(check=True)),
        ("CHECK", "0", Settings()),
        ("PROGRESS", "0", Settings(progress=False)),
        ("PROGRESS", "1", Settings()),
        ("TIMEOUT", "2.5", Settings(timeout=2.5, abort=True)),
        ("TIMEOUT", "300", Settings(timeout=300, abort=True)),
        ("LOG", "info", Settings(log=True)),
        ("LOG", "", Settings()),
        ("TUNING", "", Settings()),
        ("NETWORK", "", Settings()),
        ("NETWORK", "measure", Settings(keeps_network=False)),
        ("NETWORK", "none", Settings(measures_network=False, keeps_network=False)),
        ("LEARN", "1", Settings(learn="bits")),
    ],
)
def test_read(variable, text, expected):
    assert read({f"MPICOLL_{variable}": text, "ENGINE": "ignored"}) == expected


@pytest.mark.parametrize(
    ("variable", "texts", "range_"),
    [
        ("ENGINE", ["", "Auto", "native", "mpi4py "], "one of auto, mpi4py, compiled"),
        ("CHECK", ["", "yes", "2", "true"], "0 or 1"),
        ("PROGRESS", ["", "on", "-1"], "0 or 1"),
        ("TIMEOUT", ["", "soon", "0", "-1", "inf", "nan", "1s"], "a number of seconds above 0"),
        ("LOG", ["debug"], "info or nothing"),
    ],
)
def test_errors_name_the_variable_and_what_it_said(variable, texts, range_):
    for text in texts:
        with pytest.raises(ArgumentError, match=f"^MPICOLL_{variable} is {text!r}; it must be {range_}$"):
            read({f"MPICOLL_{variable}": text})


def test_reads_the_environment(monkeypatch):
    monkeypatch.setenv("MPICOLL_ENGINE", "mpi4py")
    assert read().engine == "mpi4py"


def test_docstring_names_every_variable():
    for variable in ("ENGINE", "CHECK", "TIMEOUT", "PROGRESS", "TUNING", "NETWORK", "LEARN", "LOG"):
        assert f"MPICOLL_{variable}" in settings.__doc__
