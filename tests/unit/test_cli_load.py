"""`mpicoll --load FILE`: algorithms of one's own in every command, and files that do not load."""

from __future__ import annotations

import sys
import types

import pytest
from mine import MINE
from support.command import good, refused, run

import mpicoll
from mpicoll import stderr
from mpicoll.cli import group

DECORATED = 5 if sys.version_info >= (3, 11) else 6  # the line of a decorator's call in tracebacks


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch, registry):
    """Keep sys.path and the registry as they were before the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("args", "message"), [
    (("list",), " mine "),
    (("show", "bcast", "mine", "-p", "3"), "bcast mine, p = 3: 2 steps, 2 messages, at most 2 n bytes per rank"),
    (("verify", "bcast", "mine", "--max-ranks", "4", "--jobs", "1"), "all hold: 1 algorithm, 10 schedules"),
    (("verify", "bcast", "mine", "--max-ranks", "3", "--jobs", "2"), "all hold: 1 algorithm, 6 schedules"),
])
def test_a_loaded_algorithm_is_like_any_other(mine, args, message):
    assert message in good("--load", mine, *args)


def test_several_files_each_once(mine, tmp_path):
    """And nothing of them is kept in a cache, so that a change is seen at once."""
    other = tmp_path / "other.py"
    other.write_text(MINE.replace("def mine", "def other"), encoding="utf-8")
    good("--load", mine, "--load", other, "--load", mine, "show", "bcast", "mine")
    assert {"mine", "other"} <= set(mpicoll.list_algorithms()["bcast"])
    assert not list(tmp_path.glob("**/__pycache__"))


def test_a_file_may_import_what_lies_beside_it(tmp_path):
    (tmp_path / "beside_it.py").write_text("NAME = 'no particular name'")
    path = tmp_path / "mine.py"
    path.write_text("import beside_it\n" + MINE + "assert beside_it.NAME\n")
    assert good("--load", path, "show", "bcast", "mine")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ndef f(:\n", "mine.py, line 2: invalid syntax"),
        ("x = 1\n1 / 0\n", "mine.py, line 2: ZeroDivisionError: division by zero"),
        ("import no_such_module\n", "mine.py, line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n", "mine.py registers no algorithm; see mpicoll.algorithm"),
        ("raise SystemExit('enough')", "mine.py, line 1: SystemExit: enough"),
        (
            MINE.replace("    Source: none\n", ""),
            f"mine.py, line {DECORATED}: the docstring of bcast mine lacks Source; "
            "see mpicoll/schedules/claims.py for the grammar",
        ),
        (MINE.replace("def mine", "def chain"), f"mine.py, line {DECORATED}: bcast chain is registered twice"),
        ("x = 1\nraise ValueError", "mine.py, line 2: ValueError"),
        (
            MINE.replace('"bcast"', '"bcasts"'),
            f"mine.py, line {DECORATED}: no collective is called 'bcasts'; did you mean 'bcast'?",
        ),
        (
            MINE.replace("(p, rank)", "(p, rank, *, k=3)"),
            f"mine.py, line {DECORATED}: the parameter k of bcast mine has no kind; annotate it, "
            "see mpicoll/schedules/parameters.py",
        ),
    ],
)
def test_a_file_that_does_not_load_is_one_line(tmp_path, content, message):
    path = tmp_path / "mine.py"
    path.write_text(content, encoding="utf-8")
    line = refused("--load", path, "list")
    assert line.startswith("mpicoll: ") and message in line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    assert refused("--load", tmp_path / "no.py", "list").endswith("no.py: No such file or directory")
    assert "Is a directory" in refused("--load", tmp_path, "list")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert "binary.py is no Python file" in refused("--load", tmp_path / "binary.py", "list")
    (tmp_path / "null.py").write_bytes(b"x = 1\0")
    assert "null.py" in refused("--load", tmp_path / "null.py", "list")


@pytest.mark.parametrize(("rank", "waits"), [(0, False), (1, True)])
def test_only_rank_0_says_so_and_the_others_let_it_speak(monkeypatch, tmp_path, rank, waits):
    slept = []
    monkeypatch.setattr(stderr.time, "sleep", slept.append)
    result = run("--load", tmp_path / "no.py", "list", env={"PMI_RANK": str(rank)})
    assert result.exit_code == 2
    assert (result.output == "", bool(slept)) == (waits, waits)


def test_a_failed_load_on_one_rank_ends_all(monkeypatch):
    """The report names the lowest rank that has trouble, unless all ranks have it."""
    seen = []

    def world(*troubles):
        def allgather(mine):
            seen.append(mine)
            return list(troubles)

        mpi = types.SimpleNamespace(COMM_WORLD=types.SimpleNamespace(allgather=allgather))
        monkeypatch.setitem(sys.modules, "mpi4py", types.SimpleNamespace(MPI=mpi))

    world("", "", "")
    assert group._first("") == ""
    world("", "no file", "no file")
    assert group._first("") == "on rank 1: no file"
    world("no file", "no file")
    assert group._first("no file") == "no file"
    assert seen == ["", "", "no file"]
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert group._first("no file") == "no file"


def test_bench_asks_all_ranks(mine, monkeypatch):
    asked = []
    monkeypatch.setattr(group, "_first", lambda trouble: asked.append(trouble) or trouble)
    assert run("--load", mine, "bench", "--help").exit_code == 0
    assert run("--load", "/no/file.py", "bench", "bcast").exit_code == 2
    assert run("--load", "/no/file.py", "list").exit_code == 2
    assert asked == ["", "cannot read /no/file.py: No such file or directory"]
