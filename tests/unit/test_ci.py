"""The steps of CI: which run beside each other, how their totals are added up, and which tests a change calls for."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import changed
import pytest
import run

pytestmark = pytest.mark.once


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Return the module .ci/steps.py, with its files elsewhere."""
    spec = importlib.util.spec_from_file_location("steps", run.ROOT / ".ci" / "steps.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "steps", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    return module


def step(steps, name, code, cores=1, limit=60.0):
    return steps.Step(name, [sys.executable, "-c", code], limit, cores)


# -- steps --------------------------------------------------------------------------------------------------


def test_totals_are_the_sums_and_a_failed_step_fails_the_run(steps, capfd):
    """A step may print several lines of totals; one that fails without any failed test counts as a failure."""
    good = "print('2 passed, 0 failed, 1 skipped'); print('3 passed, 0 failed, 0 skipped')"
    bad = "print('FAILED, unit: test_x: why'); print('said, unit: last words'); print('4 passed, 2 failed, 0 skipped')"
    died = "print('7 passed, 0 failed, 0 skipped'); raise SystemExit(3)"
    plain, broken = "print('style is good')", "raise SystemExit(1)"
    every = [step(steps, f"step{i}", code) for i, code in enumerate((good, bad, died, plain, broken))]
    steps.run(every, 2)
    assert [entry.totals for entry in every] == [(5, 0, 1), (4, 2, 0), (7, 1, 0), (1, 0, 0), (0, 1, 0)]
    capfd.readouterr()
    assert not steps.summarize(every, 1.0)
    output = capfd.readouterr().out
    assert output.splitlines()[-1] == "17 passed, 4 failed, 1 skipped"
    assert "FAILED, unit: test_x: why\nsaid, unit: last words\n" in output
    assert "FAILED, step2: see its output" in output and "FAILED, step4: see its output" in output
    assert steps.summarize([every[0], every[3]], 1.0)


def test_steps_run_beside_each_other_while_cores_are_free(steps, tmp_path, capfd):
    """Two of one core meet, each waiting for the other's file; one of two cores runs without them."""
    def meets(own, other):
        return (f"import pathlib, time; d = pathlib.Path({str(tmp_path)!r}); (d / '{own}').touch()\n"
                f"while not (d / '{other}').exists(): time.sleep(0.01)\nprint('{own} met {other}')")

    alone = f"import pathlib; d = pathlib.Path({str(tmp_path)!r}); print((d / 'a').exists(), (d / 'b').exists())"
    first, second = step(steps, "one", meets("a", "b")), step(steps, "two", meets("b", "a"))
    every = [first, step(steps, "all", alone, cores=2), second]
    steps.run(every, 2)
    assert [entry.status for entry in every] == [0, 0, 0]
    assert every[1].output == "True True\n"
    output = capfd.readouterr().out
    assert output.count("a met b\n########") == output.count("b met a\n########") == 1     # each output in one piece
    wide = step(steps, "wide", "pass", cores=8)
    steps.run([wide], 2)
    assert wide.status == 0


def test_a_step_beyond_its_limit_is_killed_and_fails(steps):
    code = "import time; print('0 passed, 0 failed, 0 skipped', flush=True); time.sleep(600)"
    slow = step(steps, "slow", code, limit=1)
    steps.run([slow], 2)
    assert slow.status is None and slow.totals == (0, 1, 0)
    assert slow.process.poll() is not None


def test_uv_gets_the_settings_of_pip(steps):
    listed = ":env:.timeout='9'\n:env:.find-links='/wheels'\nglobal.index-url='https://here/simple'\n"
    assert steps.uv_settings(listed + "install.constraint='/a /b'\n") == {
        "UV_INDEX_STRATEGY": "unsafe-best-match", "UV_FIND_LINKS": "/wheels", "UV_CONSTRAINT": "/a /b",
        "UV_DEFAULT_INDEX": "https://here/simple",
    }  # fmt: skip


def test_an_environment_that_uv_cannot_make_is_made_by_pip(steps, monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "UV", Path("/nowhere/uv"))
    monkeypatch.setattr(steps, "uv_settings", lambda listed: {})
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "UV=$UV with $UV_CONSTRAINT"\ntest -z "$UV"\n')
    make.chmod(0o755)
    for entry in steps.environments():
        if entry.name != "env-newest":   # its commands are no make
            path = f"{tmp_path}:{os.environ['PATH']}"
            environment = {**entry.environment, "PATH": path}
            done = subprocess.run(entry.command, env=environment, capture_output=True, text=True)
            lowest = str(run.ROOT / "tests" / "lowest.txt") * (entry.name == "env-oldest")
            assert done.stdout == f"UV=/nowhere/uv with {lowest}\nUV= with {lowest}\n"


def test_steps_name_files_that_exist(steps, monkeypatch):
    """Options of tests/run.py in the commands of steps are ones that it takes."""
    monkeypatch.setattr(steps, "tools_changed", lambda: False)
    launches = 0
    for entry in steps.tests():
        for word in entry.command:
            if word.startswith("TEST_ARGS=") and "--" in word:
                words = subprocess.run(["sh", "-c", f"printf '%s\\n' {word.removeprefix('TEST_ARGS=')}"],
                                       capture_output=True, text=True).stdout.splitlines()
                launches += len(run.plan(run.parse(words)))
    assert launches > 12
    assert {"lint", "site", "openmpi", "intel", "torch-mpich"} <= {entry.name for entry in steps.tests()}
    full = [entry.name for entry in steps.tests() if "--smoke-tools" not in str(entry.command)]
    assert not {"mpich-unit", "mpich-mpi", "mpich-launch"} & {*full}


# -- what Gloo passes ---------------------------------------------------------------------------------------


@pytest.fixture
def suite(monkeypatch):
    """Return the module tests/torch/suite.py, as on the version of torch that the Makefile names."""
    spec = importlib.util.spec_from_file_location("suite", run.TESTS / "torch" / "suite.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    named = re.search(r"^TORCH \?= torch==(.*)$", (run.ROOT / "Makefile").read_text(), re.MULTILINE)
    module.named = named[1]
    monkeypatch.setattr(module, "torch_version", lambda: module.named)
    return module


def test_what_gloo_passes_is_kept_for_the_torch_of_the_makefile(suite):
    """After a change of the version this fails until `tests/torch/suite.py --keep` has run."""
    for ranks in (2, 3):
        names = suite.kept(ranks, "")
        assert len(names) > 50 and {"test_all_reduce_sum", "test_broadcast"} <= {*names}
        assert {*suite.kept(ranks, "broadcast")} == {name for name in names if "broadcast" in name}
    ours = dict.fromkeys(names, (suite.PASSED, ""))
    assert suite.Counter(outcome for outcome, _ in suite.compared(ours, names).values()) == {"passed": len(names)}
    del ours["test_broadcast"]
    assert suite.compared(ours, names)["test_broadcast"][0] == suite.FAILED


def test_gloo_runs_where_what_it_passes_is_not_known(suite, monkeypatch, tmp_path):
    path, ran = tmp_path / "passes.json", []
    suite.keep({3: {"test_b": (suite.PASSED, ""), "test_a": (suite.SKIPPED, "why")}}, path)
    monkeypatch.setattr(suite, "launched", lambda *words: ran.append(words) or {})
    monkeypatch.setattr(suite, "kept", functools.partial(suite.kept, path=path))
    assert suite.theirs_of(3, "", tmp_path) == {"test_b": (suite.PASSED, "")} and not ran
    suite.theirs_of(2, "", tmp_path)
    monkeypatch.setattr(suite, "torch_version", lambda: "1.0")
    suite.theirs_of(3, "b", tmp_path)
    assert ran == [("gloo", 2, "", tmp_path), ("gloo", 3, "b", tmp_path)]
    with pytest.raises(SystemExit, match="Gloo failed test_c; run it on an idle machine"):
        suite.keep({3: {"test_b": (suite.PASSED, ""), "test_c": (suite.FAILED, "timeout")}}, path)
    assert json.loads(path.read_text()) == {"torch": suite.named, "passed": {"3": ["test_b"]}}


# -- what changed -------------------------------------------------------------------------------------------


def git(directory, *words):
    names = ("AUTHOR", "COMMITTER")
    who = {f"GIT_{name}_{what}": "x@example.org" for name in names for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=directory, check=True, capture_output=True, env={**os.environ, **who})


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a repository in which benchmarks import one module of two."""
    for name, text in {"benchmarks/a.py": "from mpicoll import used\n", "jobs/b.py": "import os\n", "README.md": "",
                       "mpicoll/used.py": "", "mpicoll/other.py": "import mpicoll.used\n",
                       "tests/unit/test_jobs.py": "", "tests/unit/test_plan.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "checkout", "-qb", "topic")
    git(tmp_path, "commit", "-qm", "second", "--allow-empty")
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    monkeypatch.delenv("MPICOLL_CHANGED_SINCE", raising=False)
    return tmp_path


@pytest.mark.parametrize(("file", "status"), [
    ("README.md", 0), ("mpicoll/other.py", 0), ("tests/unit/test_plan.py", 0),
    ("mpicoll/used.py", 1), ("benchmarks/a.py", 1), ("jobs/b.py", 1), ("tests/unit/test_jobs.py", 1),
])
def test_tools_are_tested_in_full_where_they_or_what_they_import_changed(checkout, capsys, file, status):
    assert changed.main() == 0
    (checkout / file).write_text("import sys\n")
    git(checkout, "commit", "-qam", "third")
    git(checkout, "commit", "-qm", "fourth", "--allow-empty")
    assert changed.main() == status
    assert (f": {file};" in capsys.readouterr().out) == bool(status)


def test_without_a_known_base_everything_counts_as_changed(checkout, tmp_path, capsys, monkeypatch):
    """On main itself, with fewer commits than land at once, and in a shallow clone."""
    git(checkout, "checkout", "-q", "main")
    git(checkout, "branch", "-qD", "topic")
    assert changed.main() == 1 and "git knows no commit to compare with" in capsys.readouterr().out
    for _ in range(changed.LANDED):
        git(checkout, "commit", "-qm", "more", "--allow-empty")
    assert changed.main() == 0
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", str(tmp_path / "shallow"))
    monkeypatch.setattr(changed, "ROOT", tmp_path / "shallow")
    assert changed.main() == 1
    monkeypatch.setenv("MPICOLL_CHANGED_SINCE", "no-such-commit")
    assert changed.main() == 1
    monkeypatch.setenv("MPICOLL_CHANGED_SINCE", "HEAD")
    assert changed.main() == 0


def test_smoke_keeps_some_tests_of_tools_and_all_others():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--quick", "-p", "no:cacheprovider",
               "tests/unit/test_benchmarks_stats.py", "tests/unit/test_blocks.py"]

    def listed(*more):
        done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=run.ROOT)
        names = [line for line in done.stdout.splitlines() if "::" in line]
        return [sum(file in name for name in names) for file in ("test_benchmarks_stats", "test_blocks")]

    every, some = listed(), listed("--smoke-tools")
    assert 0 < some[0] < every[0] and some[1] == every[1] > 0
