"""Jobs under a real Slurm on this machine alone: rendered, submitted, stopped, resumed, gathered, on each MPI."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guide import consoles
from support.slurm import (
    CPUS,
    LIMIT,
    NODES,
    SRUN,
    WHOLE_TIME,
    jobs,
    outputs,
    results,
    site,
    steps,
    until,
)

from mpicoll.benchmarks.cases.scaling import SCALINGS
from mpicoll.jobs import testbed
from mpicoll.jobs.kinds import KINDS

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def test_a_sweep_from_render_to_report(run, tmp_path):
    """One allocation, in which smaller steps run on fewer nodes; then what it measured, as a page."""
    words = ("--nodes", "1:4", "--collectives", "allreduce", "--sizes", "8,4K", "--seconds", 1)
    jobs(run, "render", "sweep", "--site", "site.toml", *words)
    assert "cd " in jobs(run, "submit", "--dry-run", "sweep") and not (tmp_path / "sweep/submitted.jsonl").exists()
    assert re.fullmatch(r"sweep.sbatch: job \d+\n", jobs(run, "submit", "sweep"))
    assert "COMPLETED" in jobs(run, "status", "--wait", "sweep"), outputs(tmp_path)
    for nodes in (1, 2, 4):
        rows = results(tmp_path / f"sweep/results/n{nodes}-allreduce.jsonl")
        assert [(row["algorithm"], row["size"], row["ranks"], row["valid"]) for row in rows] == [
            (who, size, nodes, True) for size in (8, 4096) for who in ("native", "auto")
        ]
        assert all(row["ran"]["engine"] == "compiled" for row in rows if row["algorithm"] == "auto")
    assert "3 of 3 steps are complete" in jobs(run, "collect", "sweep")
    page = (tmp_path / "sweep/report.html").read_text()
    assert '"families":[{"title":"1 host","x":"ranks","places":[0,1,2]}]' in page
    (environment,) = (tmp_path / "sweep/results").glob("*.env")
    (facts,) = (json.loads(path.read_text()) for path in (tmp_path / "sweep/results").glob("*.info.json"))
    assert len(facts["ranks"]) == 4 and all(rank["cpus"] for rank in facts["ranks"]) and "findings" in facts
    assert "NodeList=n[1-4]" in environment.read_text() and "\nn4\n" in environment.read_text()


@pytest.mark.once
def test_a_cancelled_job_keeps_what_it_had_and_goes_on_when_submitted_again(run, tmp_path):
    words = ("--nodes", 2, "--collectives", "barrier,bcast", "--sizes", "8,1K,64K", "--seconds", 6)
    jobs(run, "render", "sweep", "--site", "site.toml", *words, "-o", "s", *WHOLE_TIME)
    number = re.search(r"job (\d+)", jobs(run, "submit", "s"))[1]
    part = tmp_path / f"s/results/n2-bcast.{number}-0.part.jsonl"
    assert "is not over; --again" in jobs(run, "submit", "s", status=2)
    until(lambda: part.exists() and part.read_text().count("\n") > 1, tmp_path)
    run("scancel", number)
    assert "CANCELLED" in jobs(run, "status", "--wait", "s")
    until(lambda: "submit it again to go on" in outputs(tmp_path), tmp_path)
    assert steps(run, "s") == {"n2-barrier": "complete", "n2-bcast": "stopped"}
    assert "n2-bcast: stopped" in jobs(run, "collect", "s") and results(part)
    first = (tmp_path / "s/results/n2-barrier.jsonl").read_bytes()
    jobs(run, "submit", "s")
    assert "COMPLETED" in jobs(run, "status", "--wait", "s")
    assert set(steps(run, "s").values()) == {"complete"} and part.exists()
    assert (tmp_path / "s/results/n2-barrier.jsonl").read_bytes() == first
    assert "all steps are complete" in jobs(run, "submit", "s")


@pytest.mark.once
def test_a_job_whose_time_is_up_queues_again_and_goes_on(run, tmp_path):
    words = ("--nodes", 1, "--collectives", "bcast,barrier", "--sizes", "8,1K,64K", "--seconds", 4)
    jobs(run, "render", "sweep", "--site", "site.toml", *words, "-o", "s", *WHOLE_TIME)
    number = re.search(r"job (\d+)", jobs(run, "submit", "s"))[1]
    until((tmp_path / f"s/results/n1-barrier.{number}-0.part.jsonl").exists, tmp_path)
    run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does when the time is nearly up
    until(lambda: "PENDING" in jobs(run, "status", "s"), tmp_path)
    assert steps(run, "s") == {"n1-bcast": "complete", "n1-barrier": "stopped"}
    run("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm would wait two minutes
    assert "COMPLETED" in jobs(run, "status", "--wait", "s"), outputs(tmp_path)
    assert set(steps(run, "s").values()) == {"complete"}
    (output,) = (path.read_text() for path in tmp_path.rglob("*.out"))  # both starts, one after the other
    assert "stopped by USR1" in output and "n1-bcast: complete since an earlier start" in output
    assert {path.name for path in (tmp_path / "s/results").glob("*.env")} == {f"{number}-0.env", f"{number}-1.env"}


def test_the_other_kinds_a_job_for_each_number_of_nodes(run, tmp_path):
    kinds = {
        "tune": ("--nodes", "1,2", "--collectives", "allreduce", "--sizes", "8", "--seconds", 1),
        "train": ("--nodes", "1,2", "--scaling", "weak", "--seconds", 1),
        "sanity": ("--seconds", 3),
    }
    for kind, words in kinds.items():
        jobs(run, "render", kind, "--site", "site.toml", "--allocation", "each", *words)
        jobs(run, "submit", kind)
    for kind in kinds:
        output = jobs(run, "status", "--wait", kind)
        assert set(re.findall(r"job \d+ (\w+)", output)) == {"COMPLETED"}, output + outputs(tmp_path)
    assert "2 tables" in jobs(run, "collect", "tune")
    tables = json.loads((tmp_path / "tune/tuning.json").read_text())["tables"]
    assert [table["nodes"] for table in tables] == [["0"], ["0-1"]]  # to MPI, all these nodes are one
    for kind, number in (("train", 2), ("sanity", 1)):
        assert f"{number} of {number} steps are complete" in jobs(run, "collect", kind)
    assert {row["ranks"] for row in results(tmp_path / "train/results/n2-data_parallel.jsonl")} == {2}
    rows = results(tmp_path / "sanity/results/n1-all.jsonl")
    assert all(row["valid"] for row in rows) and {row["collective"] for row in rows} >= {"barrier", "alltoallw"}


@pytest.mark.once
def test_srun_starts_the_ranks_of_mpich(run, tmp_path):
    (tmp_path / "site.toml").write_text(site(mpi=SRUN))
    jobs(run, "render", "sanity", "--site", "site.toml", "--ranks-per-node", 2)
    assert "exec srun --mpi=pmi2" in (tmp_path / "sanity/sanity.sbatch").read_text()
    jobs(run, "submit", "sanity")
    assert "COMPLETED" in jobs(run, "status", "--wait", "sanity"), outputs(tmp_path)
    rows = results(tmp_path / "sanity/results/n1-all.jsonl")
    assert rows and all(row["ranks"] == 2 and row["valid"] for row in rows)


@pytest.mark.once
def test_a_launch_of_ranks_that_do_not_know_each_other_measures_nothing(run, tmp_path):
    (tmp_path / "site.toml").write_text(site(mpi=SRUN))
    jobs(run, "render", "sanity", "--site", "site.toml", "--ranks-per-node", 2)
    script = tmp_path / "sanity/sanity.sbatch"
    script.write_text(script.read_text().replace("srun --mpi=pmi2", '"srun" --mpi=none'))  # hidden from `submit`
    jobs(run, "submit", "sanity")
    assert "FAILED" in jobs(run, "status", "--wait", "sanity")
    output = outputs(tmp_path)
    assert "something is wrong with this launch" in output and "--mpi=pmi2" in output, output
    assert steps(run, "sanity") == {"n1-all": "waiting"}


@pytest.mark.once
def test_the_environment_is_staged(run, tmp_path):
    """Ranks import from the copy, and compile nothing; afterwards it is gone."""
    place = tmp_path / "disk"
    place.mkdir()
    (tmp_path / "staged.toml").write_text(site(f'stage = "{place}"'))
    words = ("--nodes", 2, "--collectives", "allreduce", "--sizes", "8", "--seconds", 1)
    jobs(run, "render", "sweep", "--site", "staged.toml", *words, "-o", "s")
    script = tmp_path / "s/sweep.sbatch"
    script.write_text(script.read_text().replace("info --check --facts", "info --facts"))
    jobs(run, "submit", "s")
    assert "COMPLETED" in jobs(run, "status", "--wait", "s"), outputs(tmp_path)
    output = outputs(tmp_path)
    assert re.search(rf"^library  {re.escape(str(place))}/mpicoll-\d+-0/lib/", output, re.MULTILINE), output
    assert re.search(rf"^cache    {re.escape(str(place))}/", output, re.MULTILINE), output
    assert re.search(r"^kernels  0 compiled, \d+ loaded", output, re.MULTILINE), output
    (head,) = (json.loads(line) for line in (tmp_path / "s/results/n2-allreduce.jsonl").read_text().splitlines()[:1])
    versions = json.loads((tmp_path / "s/study.json").read_text())["made"]
    assert head["environment"]["commit"] == versions["commit"]
    assert list(place.iterdir()) == []


@pytest.mark.once
@pytest.mark.parametrize(("words", "says"), [
    (("--nodes", NODES + 1), f"asks for {NODES + 1} nodes, and partition debug has {NODES}"),
    (("--seconds", 30000), "min, and partition debug allows 720"),
    (("--ranks-per-node", 2 * CPUS), "Requested node configuration is not available"),
])
def test_missing_features_of_this_slurm(words, says, run):
    jobs(run, "render", "sanity", "--site", "site.toml", *words)
    message = jobs(run, "submit", "sanity", status=2)
    assert says in message and message.count("\n") == 1
    assert "not submitted" in jobs(run, "status", "sanity")


@pytest.mark.once
def test_nothing_is_left(tmp_path):
    """The command that users have: the exit status is the command's, and no daemon or job stays."""
    before = processes()
    program = "srun --nodes=4 hostname && sbatch --wrap 'exec sleep 300' && sleep 3 && squeue -h && exit 7"
    done = subprocess.run([sys.executable, "-m", testbed.NAME, "sh", "-c", program], cwd=tmp_path, capture_output=True,
                          text=True, timeout=LIMIT)  # fmt: skip
    assert done.returncode == 7, done.stdout + done.stderr
    assert re.search(r"\bwrap\b.* R ", done.stdout), done.stdout
    until(lambda: processes() <= before, Path("/nonexistent"))


@pytest.mark.once
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda sent: sent.name)
def test_nothing_is_left_by_a_signal(sent, tmp_path):
    before = processes()
    words = ["sh", "-c", "srun --nodes=1 sleep 300 & sleep 2; touch up; wait"]
    with subprocess.Popen([sys.executable, "-m", testbed.NAME, *words], cwd=tmp_path, stderr=subprocess.DEVNULL,
                          preexec_fn=default_signals) as process:  # fmt: skip
        until((tmp_path / "up").exists, tmp_path)
        process.send_signal(sent)
    assert process.returncode == 128 + sent
    until(lambda: processes() <= before, tmp_path)


def default_signals() -> None:
    """Restore Ctrl-C, which the parent of the tests may have turned off."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def processes() -> set[str]:
    """Return the ids of the processes of Slurm, munge and the test's job that are no zombies."""
    listing = subprocess.run(["ps", "-e", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    wanted = re.compile(r"\b(slurmctld|slurmd|slurmstepd|munged|sleep 300)\b")
    rows = (line.split(None, 2) for line in listing.splitlines())
    return {row[0] for row in rows if len(row) == 3 and not row[1].startswith("Z") and wanted.search(row[2])}


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "SLURM.md"


def plain(lines: list[str]) -> list[str]:
    """Return lines without job numbers, sizes of pages, widths of columns and the note on a checkout with changes."""
    blurred = (re.sub(r"job \d+", "job #", re.sub(r"\d+\.\d+ MB", "# MB", " ".join(line.split()))) for line in lines)
    return [line for line in blurred if line and not line.startswith("mpicoll's checkout has changes")]


@pytest.mark.once
def test_the_guide(run, tmp_path):
    """docs/SLURM.md, word for word."""
    blocks = consoles(GUIDE.read_text())
    assert sum(len(block.commands) for block in blocks) == 7
    for block in blocks:
        block.write(tmp_path)
        for command, shown in block.commands:
            assert plain(run("bash", "-c", command).splitlines()) == plain(shown), outputs(tmp_path)


def test_the_guide_names_what_there_is(run):
    """And what it only mentions can be rendered as it stands."""
    text = GUIDE.read_text()
    mentioned = re.findall(r"^    (mpicoll jobs render .*?)\s+#", text, re.MULTILINE)
    assert len(mentioned) == 4
    for command in mentioned:
        run("bash", "-c", command)
    for kind in KINDS:
        assert f"mpicoll jobs render {kind} " in text
    assert all(f"`{name}`" in text for name in SCALINGS)
    output = jobs(run, "site")
    assert all(f"# {key} = " in output for key in re.findall(r"`(\w[\w-]*) = ", text))
