"""Kernels that a separate process compiles: when it starts, what it delivers, when a kernel is given up."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

from mpicoll.kernels import background, cache, plain, reduce, serving

SUM = np.dtype("u1")


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch):
    """Simulate a process that has requested no kernel yet, on an empty cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("MPICOLL_COMPILE", raising=False)
    monkeypatch.setattr(background, "state", background.State())
    monkeypatch.setattr(background, "_waits", False)
    monkeypatch.setattr(background, "INTERVAL", 0.0)
    monkeypatch.setattr(serving, "_addresses", {})
    reduce._address.cache_clear()
    reduce._kernel.cache_clear()
    yield
    reduce._address.cache_clear()
    reduce._kernel.cache_clear()


def program(text):
    return sys.executable, "-c", text


def poll_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, background.state.pending
        background.poll()
        time.sleep(0.01)


def ask():
    return serving.address("SUM", SUM)


def pending():
    return list(background.state.pending)


def test_numpy_serves_until_the_compiled_kernel_is_there(monkeypatch):
    monkeypatch.setattr(background, "COMMAND", program(
        "from mpicoll.kernels import background; background.compile_all(background.read_requests())"))
    before, first = len(cache.compiled_here()), ask()
    assert first == plain.address("SUM", SUM) and ask() == first and len(pending()) == 1
    generation = background.state.generation
    poll_until(lambda: not pending())
    assert background.state.generation == generation + 1
    compiled = ask()
    assert compiled != first and compiled == reduce.address("SUM", SUM)
    assert not any("(u1" in label for label in cache.compiled_here()[before:])


def test_a_function_runs_in_python_meanwhile():
    def add_one(n):
        return n + 1

    jitted = cache.jit("int64(int64)")(add_one)
    assert jitted(1) == 2 and len(pending()) == 1 and jitted.address == 0
    background.wait()
    jitted._asked = -1
    assert jitted(1) == 2 and jitted.address != 0


def test_a_program_may_wait_as_benchmarks_do(monkeypatch):
    monkeypatch.setenv("MPICOLL_COMPILE", "wait")
    assert ask() != plain.address("SUM", SUM) and not pending()


def test_kernels_without_a_numpy_form_are_compiled_at_once():
    assert reduce.address("SUM", SUM) and not pending()


def test_one_compiler_process_runs_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "COMMAND", program(f"open({str(tmp_path / 'started')!r}, 'a').write('x')"))
    ask()
    lock = background._lock()
    background.poll()
    assert len(pending()) == 1 and not (tmp_path / "started").exists()  # another has the lock
    os.close(lock)
    background.poll()
    background._processes[-1].wait(30)
    assert (tmp_path / "started").read_text() == "x"


def test_the_compiler_process_holds_the_lock_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "COMMAND", program("import sys; sys.stdin.read(); import time; time.sleep(60)"))
    ask()
    background.poll()
    process = background._processes[-1]
    assert background._lock() is None
    process.kill()
    process.wait(30)
    lock = background._lock()
    assert lock is not None
    os.close(lock)


def test_a_kernel_that_was_not_delivered_is_given_up(monkeypatch, caplog):
    monkeypatch.setattr(background, "COMMAND", program(""))
    first = ask()
    poll_until(lambda: not pending())
    assert ask() == first and len(caplog.messages) == 1
    assert "2 compiler processes ended without it" in caplog.messages[0]


def test_the_reason_of_a_failure_is_told_and_nothing_is_tried_again(tmp_path, monkeypatch, caplog):
    compiler = f"import sys; open({str(tmp_path / 'started')!r}, 'a').write('x'); " \
           "from mpicoll.kernels import background\n" \
           "for request in background.read_requests(): sys.stderr.write(f'{request}\\tTypingError: no\\n')"
    monkeypatch.setattr(background, "COMMAND", program(compiler))
    ask()
    poll_until(lambda: not pending())
    assert caplog.messages[0].endswith("was not compiled: TypingError: no")
    assert (tmp_path / "started").read_text() == "x"


def test_without_a_compiler_process_nothing_fails(monkeypatch):
    monkeypatch.setattr(background, "COMMAND", ("/no/such/program",))
    first = ask()
    poll_until(lambda: not pending())
    assert ask() == first


def test_without_a_writable_cache_numpy_serves_and_the_reason_is_logged(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for name in ("NUMBA_CACHE_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / "file" / name))
    monkeypatch.setattr(serving, "_why", [])
    assert ask() == plain.address("SUM", SUM) and not pending()
    assert "set NUMBA_CACHE_DIR to one that can" in serving.why_plain()


def test_requests_arrive_whole(monkeypatch):
    named = reduce.__name__, "address", ("SUM", SUM)
    requests = [background.Request("math", "sqrt", (4.0,)), background.Request(*named)]
    text = "from mpicoll.kernels import background; print(background.read_requests())"
    done = subprocess.run(program(text), input=pickle.dumps([tuple(x) for x in requests]), capture_output=True,
                          check=True, timeout=60)
    assert done.stdout.decode().strip() == str(requests)


def test_failed_compilations_are_counted_and_named(capsys):
    missing = background.Request("mpicoll.kernels.reduce", "no_such_kernel")
    assert background.compile_all([missing, background.Request(reduce.__name__, "address", ("SUM", SUM))]) == 1
    assert capsys.readouterr().err.startswith(f"{missing}\tAttributeError: ")


@pytest.mark.parametrize(("mode", "served"), [(0o700, True), (0o755, True), (0o777, False)])
def test_the_temporary_directory_serves_only_if_no_other_user_can_write_to_it(tmp_path, mode, served):
    place = tmp_path / f"mpicoll-{os.getuid()}"
    place.mkdir()
    place.chmod(mode)
    is_used = any(place in directory.parents for directory in cache._directories(reduce.__file__))
    assert is_used == served
