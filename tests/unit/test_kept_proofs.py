"""Proofs kept between runs of `mpicoll verify`: served only while every source they depend on is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.command import good, run
from unit.every import barrier

from mpicoll.cli import kept_proofs, proofs
from mpicoll.schedules.registry import find

RUN = ("verify", "barrier", "--max-ranks", "3", "--jobs", "1")
KEPT = "kept from earlier runs, which --no-cache proves again"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Return an empty cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mpicoll" / "proofs"


@pytest.fixture
def proved(monkeypatch):
    """Return the list of tasks that were proved rather than read from the cache."""
    done, real = [], proofs.prove
    monkeypatch.setattr(proofs, "prove", lambda name, p: done.append((name, p)) or real(name, p))
    return done


def without_times(output):
    """Return the table without CPU seconds, which differ, and the last line."""
    return [line.split()[:-1] for line in output.splitlines()[:-1]]


def test_a_second_run_proves_nothing_and_says_so(proved, directory):
    first = good(*RUN)
    count = len(proved)
    assert count and KEPT not in first and len(list(directory.iterdir())) == 1
    second = good(*RUN)
    assert len(proved) == count and KEPT in second
    assert without_times(first) == without_times(second)


def test_only_what_is_missing_is_proved(proved):
    good(*RUN)
    proved.clear()
    output = good("verify", "barrier", "--max-ranks", "4", "--jobs", "1")
    assert proved and {p for _, p in proved} == {4} and KEPT in output
    assert KEPT in good(*RUN)  # what a later run adds takes nothing away


def test_no_cache_proves_all_and_keeps_nothing(proved, directory):
    good(*RUN)
    before, count = [file.stat().st_mtime_ns for file in directory.iterdir()], len(proved)
    assert KEPT not in good(*RUN, "--no-cache")
    assert len(proved) == 2 * count and before == [file.stat().st_mtime_ns for file in directory.iterdir()]


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:-5], lambda data: data.replace(b"[", b"{", 1), lambda data: b"\xff" * 99,
    lambda data: data.replace(b" 3\"", b" 4\""), lambda data: b"[]",
], ids=["empty", "cut", "no JSON", "no text", "other numbers", "no digest"])  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(damage, proved, directory):
    good(*RUN)
    (file,) = directory.iterdir()
    count = len(proved)
    file.write_bytes(damage(file.read_bytes()))
    assert KEPT not in good(*RUN) and len(proved) == 2 * count
    assert KEPT in good(*RUN)


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
@pytest.mark.parametrize("name", kept_proofs.SOURCES)
def test_a_change_of_any_source_makes_another_file(name, change, tmp_path, monkeypatch):
    package = tmp_path / "package"
    for source in kept_proofs.SOURCES:
        file = package / source if source.endswith(".py") else package / source / "deep" / "module.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    monkeypatch.setattr(kept_proofs, "PACKAGE", package)
    before = kept_proofs._path()
    place = package / name
    module = place if place.is_file() else place / "deep" / "module.py"
    if change == "edit":
        module.write_text("x = 2\n")
    elif change == "add" and place.is_dir():
        (module.parent / "another.py").write_text("")
    else:
        module.unlink()
    assert before is not None and kept_proofs._path() != before


def test_a_source_that_changes_during_a_run_keeps_nothing(monkeypatch, directory):
    good("verify", "barrier", "--max-ranks", "1", "--jobs", "1")
    (file,) = directory.iterdir()
    content, paths = file.read_bytes(), iter([file, directory / "other.json"])
    monkeypatch.setattr(kept_proofs, "_path", lambda: next(paths))
    good("verify", "barrier", "--max-ranks", "2", "--jobs", "1")
    assert [file.read_bytes() for file in directory.iterdir()] == [content]


def test_the_sources_are_all_that_a_proof_imports():
    code = (
        "import sys; from mpicoll.cli import proofs\n"
        "for name in [('allreduce', 'quantized'), ('alltoall', 'bruck'), ('reduce', 'hierarchical')]:\n"
        "    assert proofs.prove(name, 4).failure is None\n"
        "print(*(m.__file__ for k, m in sys.modules.items() if k.startswith('mpicoll') and m.__file__), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    loaded = {Path(line).resolve() for line in done.stdout.split()}
    covered = {file.resolve() for file in kept_proofs.source_files()}
    package = kept_proofs.PACKAGE
    # The command line around proofs, and the package itself, which decide nothing.
    names = "__init__", "_version", "garbage", "launcher", "stderr", "user_cache"
    around = {package / f"{name}.py" for name in names}
    assert {file for file in loaded - covered - around if file.parent != package / "cli"} == set()


def test_algorithms_from_outside_are_proved_each_time_and_so_is_all_else(registry, proved, directory):
    good(*RUN)
    count = len(proved)
    fails = False

    def own(p, rank):
        if fails:
            raise ZeroDivisionError("now it fails")
        return find("barrier", "dissemination")(p, rank)

    barrier("own", own)
    assert KEPT not in good(*RUN) and len(proved) == 2 * count + 3
    fails = True
    assert run(*RUN).exit_code == 1
    assert len(list(directory.iterdir())) == 1


def test_a_loaded_file_that_is_edited_is_proved_as_it_is(tmp_path):
    file = tmp_path / "mine.py"
    source = (
        "import mpicoll\nfrom mpicoll.schedules.registry import find\n\n\n"
        '@mpicoll.algorithm("barrier")\ndef mine(p, rank):\n'
        '    """A barrier.\n\n    Steps: lg(p)\n    Bytes per rank: 0\n    Scratch: 0\n'
        '    Cost: none\n    Source: me\n    """\n'
        '    return find("barrier", "dissemination")(p, rank)\n'
    )

    def verified():
        words = [sys.executable, "-m", "mpicoll", "--load", str(file), "verify", "barrier", "--max-ranks", "3"]
        return subprocess.run(words, capture_output=True, text=True, timeout=100)

    file.write_text(source)
    assert verified().returncode == 0
    file.write_text(source.replace("return find", "return 1 / 0 or find"))
    done = verified()
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout and KEPT not in done.stdout


def test_failures_are_not_kept(proved, monkeypatch):
    real = proofs.prove
    monkeypatch.setattr(proofs, "prove", lambda name, p: real(name, p)._replace(failure="out of memory"))
    assert run(*RUN).exit_code == 1
    monkeypatch.setattr(proofs, "prove", real)
    assert KEPT not in good(*RUN)


@pytest.mark.parametrize("obstacle", ["file", "no home"])
def test_a_cache_that_cannot_be_written_changes_nothing(obstacle, tmp_path, monkeypatch):
    if obstacle == "file":
        (tmp_path / "mpicoll").write_text("")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(kept_proofs.Path, "home", no_home)
    assert KEPT not in good(*RUN) and KEPT not in good(*RUN)


def no_home():
    """Fail as Path.home does for a user without an entry."""
    raise RuntimeError("no home directory")


def test_old_files_are_removed(directory):
    directory.mkdir(parents=True)
    for number in range(2 * kept_proofs.FILES):
        (directory / f"{number}.json").write_text("")
    good(*RUN)
    assert len(list(directory.iterdir())) == kept_proofs.FILES and kept_proofs._path().exists()
