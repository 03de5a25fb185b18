"""`mpicoll run`: whose options are whose, what --using says, and programs that run as under plain `python`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import import_module
from io import StringIO

import pytest
from rich.console import Console
from support import command as by_hand

from mpicoll.cli.program import Program
from mpicoll.cli.run import parse_using
from mpicoll.diagnostics.record import Record
from mpicoll.diagnostics.trace import Tally
from mpicoll.selection.select import Overrides

command = import_module("mpicoll.cli.run")


@pytest.fixture
def without_waits(monkeypatch):
    monkeypatch.setattr("mpicoll.stderr.REPORT_SECONDS", 0.0)


def run(*args, env=None):
    return by_hand.run("run", *args, env=env)


@pytest.fixture
def asked(monkeypatch):
    """Return what the command would run, without running it."""
    import_module(command.MODULE)  # else the command prepares only when the program imports it
    calls = []
    monkeypatch.setattr(command, "_prepare", lambda *what: calls.append(what))
    monkeypatch.setattr(command, "_run", lambda program: None)

    def ask(*args):
        result = run(*args)
        assert result.exit_code == 0, result.output
        program, overrides, *flags = calls.pop()
        return (program.kind, program.what, tuple(program.arguments)), dict(overrides.algorithms), tuple(flags)

    return ask


@pytest.mark.parametrize(
    ("args", "program", "algorithms", "summary"),
    [
        (("a.py",), ("script", "a.py", ()), {}, False),
        (("a.py", "-h", "--summary", "--", "x"), ("script", "a.py", ("-h", "--summary", "--", "x")), {}, False),
        (("--summary", "a.py", "--using", "x"), ("script", "a.py", ("--using", "x")), {}, True),
        (("--using", "bcast=chain", "a.py"), ("script", "a.py", ()), {"bcast": "chain"}, False),
        (("--using=bcast=chain", "-m", "mod", "-m"), ("-m", "mod", ("-m",)), {"bcast": "chain"}, False),
        (("-mhash", "--help"), ("-m", "hash", ("--help",)), {}, False),
        (("-c", "-1", "-c"), ("-c", "-1", ("-c",)), {}, False),
        (("--summary", "-", "-h"), ("-", "", ("-h",)), {}, True),
        (("--torch", "a.py", "--summary"), ("script", "a.py", ("--summary",)), {}, False),
        (("--summary", "--", "a.py", "--"), ("script", "a.py", ("--",)), {}, True),
    ],
)
def test_options_end_where_the_program_is_named(asked, args, program, algorithms, summary):
    assert asked(*args) == (program, algorithms, (summary, "--torch" in args))


def test_help_is_of_the_command_before_the_program():
    assert "--using NAME=VALUE" in run("--summary", "-h").stdout


def test_using():
    words = ["allreduce=recursive_multiplying(k=5)", "engine=mpi4py", "chunk_bytes=4096", "window=2", "bcast=native"]
    algorithms = (("allreduce", "recursive_multiplying(k=5)"), ("bcast", "native"))
    assert parse_using(words) == Overrides(algorithms, 4096, 2, "mpi4py")
    assert parse_using([]) == Overrides()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no program was named; give a script, -m MODULE, -c CODE, or - for standard input"),
        (("-m",), "-m needs the name of a module after it"),
        (("-c",), "-c needs code after it"),
        (("--summery", "a.py"), "No such option '--summery'. Did you mean '--summary'?"),
        (("--using",), "Option '--using' requires an argument."),
        (("--using", "ring", "a.py"), "--using 'ring' is not NAME=VALUE; write allreduce=ring or engine=mpi4py"),
        (("--using", "allreduce=", "a.py"), "--using 'allreduce=' is not NAME=VALUE"),
        (("--using", "allreduce=rung", "a.py"), "no allreduce algorithm is called 'rung'; did you mean 'ring' or"),
        (("--using", "allreduse=ring", "a.py"), "no collective is called 'allreduse'; did you mean"),
        (("--using", "engine=fast", "a.py"), "engine is 'fast'; it must be one of auto, mpi4py, compiled"),
        (("--using", "chunk_bytes=1K", "a.py"), "chunk_bytes is '1K'; it must be an integer of at least 1"),
        (("--using", "window=0", "a.py"), "window is 0; it must be an integer of at least 1"),
        (("--using", "window=2", "--using", "window=3", "a.py"), "--using window is given twice, as '2' and '3'"),
    ],
)
@pytest.mark.usefixtures("without_waits")
def test_usage_errors_are_one_line_of_rank_0(args, message):
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("mpicoll") and result.stderr.count("\n") == 1
    assert message in result.stderr
    other = run(*args, env={"PMI_RANK": "1"})
    assert (other.exit_code, other.output) == (2, "")


# -- a program as `python` runs it ------------------------------------------------------------------------

SHOW = """\
import sys
class Pickled: pass
import pickle
pickle.loads(pickle.dumps(Pickled()))
main = sys.modules["__main__"]
print(main.__dict__ is globals(), Pickled.__module__, sys.argv, sys.path)
print(sorted(set(globals()) - {"__conditional_annotations__"}), type(__loader__).__name__, __package__, __doc__)
print(__spec__ and __spec__.name, globals().get("__file__"), __builtins__, globals().get("__cached__"), __annotations__)
"""
FAIL = SHOW + """
import atexit
atexit.register(lambda: print("left", __name__, sys.argv[0]))
def inner(): raise KeyError("words")
try:
    inner()
except KeyError as error:
    raise ValueError("more") from error
"""
RUN = """\
import sys
from mpicoll.cli.program import Program, own_frames
try:
    Program.parse(sys.argv[1:]).run()
except Exception as error:
    traceback = own_frames(error.__traceback__, "<string>")
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
    sys.exit(1)
"""


@pytest.fixture
def place(tmp_path):
    """Return a directory with programs of all kinds."""
    inside = tmp_path / "inside"
    package = inside / "package"
    package.mkdir(parents=True)
    (inside / "link.py").symlink_to(tmp_path / "show.py")
    for path in (tmp_path / "show.py", tmp_path / "module.py", inside / "__main__.py", package / "__main__.py"):
        path.write_text(SHOW)
    (package / "__init__.py").write_text("import sys; print(sys.argv)")
    (inside / "exit.py").write_text("'''A text.'''\nimport sys; sys.exit('enough')")
    (inside / "latin.py").write_bytes("# coding: latin-1\nprint(ascii('é'))".encode("latin-1"))
    (inside / "fail.py").write_text(FAIL)
    (inside / "wrong.py").write_text("x = 1\ndef f(:\n")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    return tmp_path


def both(place, *words, flags=(), code=None):
    """Return (status, output, errors) of `python WORDS` and of the same run by Program."""
    runner = place / "elsewhere"
    runner.mkdir(exist_ok=True)
    (runner / "runner.py").write_text(RUN.replace('"<string>"', "__file__"))
    outcomes = []
    for start in ((), (str(runner / "runner.py"),)):
        line = [sys.executable, *flags, *start, *words]
        done = subprocess.run(line, cwd=place, input=code, capture_output=True, text=True, check=False)
        outcomes.append((done.returncode, done.stdout, done.stderr))
    return outcomes


@pytest.mark.parametrize(
    "words",
    [
        ("show.py", "-x", "y"),
        ("inside/link.py",),
        ("inside/latin.py",),
        ("inside/exit.py",),
        ("-m", "module", "-m", "x"),
        ("-mmodule",),
        ("-m", "inside.package", "x"),
        ("inside", "x"),
        ("archive.zip", "x"),
        ("-c", SHOW, "-c"),
        ("inside/fail.py", "x"),
        ("inside/wrong.py",),
        ("-c", "def f(:"),
        ("-c", "1 / 0"),
        ("-m", "no_such_module"),
        ("-m", "inside.exit"),
    ],
    ids=lambda words: " ".join(words)[:30].replace("\n", " "),
)
def test_a_program_cannot_tell_the_difference(place, words):
    plain, ours = both(place, *words)
    assert ours == plain
    assert plain[1] or plain[2]


def test_a_program_from_standard_input(place):
    program = "Program('-', b'import sys; print(sys.argv, __name__)', 'x')"
    line = [sys.executable, "-c", f"from mpicoll.cli.program import Program; {program}.run()"]
    done = subprocess.run(line, cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['-', 'x'] __main__\n"), done.stderr


def test_no_place_is_put_first_where_the_interpreter_puts_none(place):
    plain, ours = both(place, "show.py", flags=("-I",))
    assert ours == plain


def test_programs_that_cannot_be_opened():
    assert Program("script", "no/such.py").trouble() == "cannot open 'no/such.py': No such file or directory"
    assert not Program("script", __file__).trouble()
    assert not Program("-m", "no_such_module").trouble()


# -- what ran ---------------------------------------------------------------------------------------------


class CommState:
    def __init__(self):
        self.sinks = []

    def ran(self, collective, algorithm, why, nbytes=8, engine="compiled", form="blocking"):
        for sink in self.sinks:
            sink.append(Record(collective, form, algorithm, engine, nbytes, None, 1, 2, 24, 1, why))


def shown(tally):
    to = Console(width=120, file=StringIO())
    to.print(tally.table())
    return [" ".join(line.split()) for line in to.file.getvalue().splitlines() if line.strip()]


def test_a_tally_counts_over_communicators():
    tally, state, other = Tally(), CommState(), CommState()
    state.sinks.append(tally.sink())
    other.sinks.append(tally.sink())
    state.ran("bcast", "chain", "long")
    for _ in range(1500):
        state.ran("allreduce", "ring", "why not")
        other.ran("allreduce", "ring", "why not", nbytes=16)
    other.ran("allreduce", "ring", "chosen", form="persistent")
    other.ran("allreduce", "native", "missing", engine="native")
    rows = shown(tally)[2:]
    assert rows == [
        "allreduce blocking ring compiled 3,000 36,000 72,000 2 why not",
        "allreduce persistent ring compiled 1 8 24 1 chosen",
        "allreduce blocking native - 1 8 - 1 missing",
        "bcast blocking chain compiled 1 8 24 1 long",
    ]
