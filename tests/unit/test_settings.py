"""What the environment says."""

from __future__ import annotations

import pytest

from mpicoll.errors import ArgumentError, MpicollError
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
    ],
)
def test_read(variable, text, expected):
    assert read({f"MPICOLL_{variable}": text, "ENGINE": "ignored"}) == expected


@pytest.mark.parametrize(
    ("variable", "text"),
    [("ENGINE", x) for x in ("", "Auto", "native", "mpi4py ")]
    + [("CHECK", x) for x in ("", "yes", "2", "true")]
    + [("PROGRESS", x) for x in ("", "on", "-1")]
    + [("TIMEOUT", x) for x in ("", "soon", "0", "-1", "inf", "nan", "1s")],
)
def test_errors_name_the_variable_and_what_it_said(variable, text):
    with pytest.raises(ArgumentError) as error:
        read({f"MPICOLL_{variable}": text})
    assert f"MPICOLL_{variable} is {text!r}; it must be" in str(error.value)
    assert isinstance(error.value, MpicollError) and isinstance(error.value, TypeError)


@pytest.mark.parametrize("engine", settings.ENGINES)
def test_error_lists_the_engines(engine):
    with pytest.raises(ArgumentError, match=engine):
        read({"MPICOLL_ENGINE": "warp"})


def test_reads_the_environment(monkeypatch):
    monkeypatch.setenv("MPICOLL_ENGINE", "mpi4py")
    assert read().engine == "mpi4py"


def test_docstring_names_every_variable():
    for variable in ("ENGINE", "CHECK", "TIMEOUT", "PROGRESS"):
        assert f"MPICOLL_{variable}" in settings.__doc__
