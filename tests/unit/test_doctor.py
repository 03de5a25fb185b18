"""The checks of `mpicoll info --check`, each with facts for and against it; and how these facts are read."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from support import golden

from mpicoll import cli, doctor
from mpicoll.doctor import facts as gathering
from mpicoll.doctor import files, launchers, placement, report, sameness
from mpicoll.doctor.finding import WARNING, WRONG, nodes

VERSIONS = {
    "MPICH 5.0.2": "MPICH Version: 5.0.2",
    "Open MPI 5.0.11": "Open MPI v5.0.11, package: Open MPI",
    "Intel MPI 2021.18.1": "Intel(R) MPI Library 2021.18 for Linux* OS",
}
SOFTWARE = {key: f"{key} 1" for key, *_ in sameness.SAME}


def rank(number, cpus=None, host="a", **more):
    """Return the facts of a rank on a node with 8 cores of one hardware thread, bound to a CPU of its own."""
    return {
        "rank": number,
        "host": host,
        "node": f"{host} boot",
        "cpus": [number] if cpus is None else cpus,
        "compiled_engine": None,
        "available": list(range(8)),
        "cores": [number] if cpus is None else cpus,
        "available_cores": 8,
        "machine_cores": 8,
        "environ": {},
        "software": SOFTWARE,
        "libraries": ["/opt/lib/libmpi.so.12"],
        "cache": {"directory": "/scratch/cache", "filesystem": "ext4", "compiled": 0},
        "busy": 0.1,
        **more,
    }


def world(*ranks, library="MPICH 5.0.2", **more):
    return {
        "ranks": list(ranks),
        "hosts": len({facts["node"] for facts in ranks}),
        "mpi": {"library": library, "library_version": VERSIONS[library], "path": "/opt/lib/libmpi.so.12"},
        "mpiexec": "/opt/bin/mpiexec",
        "settings": {"refused": None, "untuned": None},
        **more,
    }


def nothing(facts):
    assert report.findings(facts) == []


def test_nothing_is_wrong():
    facts = world(rank(0), rank(1), rank(2, [0], "b"), rank(3, [1], "b"))
    nothing(facts)
    assert doctor.status([]) == 0
    words = doctor.lines(facts, [])
    assert words == f"4 ranks on 2 hosts, MPICH 5.0.2\nnothing wrong: {len(report.CHECKS)} things looked at"


# -- what each check finds, and what it does not ---------------------------------------------------------------------

INTEL, OPENMPI = {"library": "Intel MPI 2021.18.1"}, {"library": "Open MPI 5.0.11"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}
STEP_OF_2, STEP_OF_3 = ({**STEP, "SLURM_STEP_NUM_TASKS": number} for number in "23")
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
INTERACTIVE = {**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "4"}
ALL = list(range(8))
TWO_LIBRARIES = ["/opt/lib/libmpi.so.12", "/usr/lib/libmpi.so.40"]
OF_INTEL = world(rank(0))["mpi"] | {"library_version": VERSIONS["Intel MPI 2021.18.1"]}
COLD = {"directory": "/home/x", "filesystem": "nfs4", "compiled": 3}
ON_2_CPUS = [rank(i, [0, 1], available=[0, 1], environ={"OMP_NUM_THREADS": "1"}) for i in range(3)]
HALVES = [rank(0, [0], cores=[0]), rank(1, [4], cores=[0])]  # of one core
GREEDY = [rank(i, [0, 1, 2, 3, 4], environ={"OMP_NUM_THREADS": "5"}) for i in range(2)]
UNKNOWN = dict.fromkeys(("cpus", "available", "cores", "available_cores", "machine_cores", "busy"))


def on_cpu_0(environ, **more):
    """Return two ranks that share a CPU."""
    return world(rank(0, [0], environ=environ), rank(1, [0], environ=environ), **more)


# What is found, each by one check and no other; doctor.txt has the words.
FOUND = {
    "tasks of srun, MPICH": (launchers.one_world, world(rank(0, environ={**STEP, "SLURM_MPI_TYPE": "none"}))),
    "tasks of srun, Intel MPI": (launchers.one_world, world(rank(0, environ=STEP), **INTEL)),
    "tasks of srun, Open MPI": (launchers.one_world, world(rank(0, environ=STEP), **OPENMPI)),
    "srun speaks PMI2 and the library does not": (
        launchers.one_world, world(rank(0, environ={**STEP, "PMI_SIZE": "4"}), **OPENMPI)),
    "Open MPI's launcher": (launchers.one_world, world(rank(0, environ={"OMPI_COMM_WORLD_SIZE": "3"}))),
    "another launcher": (launchers.one_world, world(rank(0, environ={"PMI_SIZE": "3"}), **OPENMPI)),
    "Open MPI's launcher in a step": (
        launchers.one_world,
        world(rank(0, environ={**STEP, "SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "3"}))),
    "a launcher whose mpiexec is not found": (
        launchers.one_world, world(rank(0, environ={"PMI_SIZE": "3"}), mpiexec=None)),
    "a world smaller than what was started": (
        launchers.one_world, world(*(rank(i, environ={"PMI_SIZE": "4"}) for i in range(2)))),
    "the shell of a batch job": (launchers.all_of_it, world(rank(0, environ=BATCH))),
    "an interactive shell of a job": (launchers.all_of_it, world(rank(0, environ=INTERACTIVE))),
    "two libraries in one process": (
        sameness.one_mpi, world(rank(0), *(rank(i, libraries=TWO_LIBRARIES) for i in (1, 2)))),
    "an mpi4py of another MPI": (sameness.one_mpi, {**world(rank(0)), "mpi": OF_INTEL}),
    "a variable that differs": (
        sameness.same_variables, world(rank(0, environ={"MPICOLL_TIMEOUT": "30"}), rank(1))),
    "an engine that does not work": (sameness.same_engine, world(rank(0), rank(1, compiled_engine="no luck"))),
    "ranks that share a CPU": (placement.shared_cpus, world(rank(0, [3]), rank(1, [3]), rank(2))),
    "three on two CPUs": (placement.shared_cpus, world(rank(0, [0, 1]), rank(1, [0, 1]), rank(2, [0]), rank(3))),
    "how to bind under Open MPI": (placement.shared_cpus, on_cpu_0({}, **OPENMPI)),
    "how to bind under Intel MPI": (placement.shared_cpus, on_cpu_0({}, **INTEL)),
    "how to bind under srun": (placement.shared_cpus, on_cpu_0(STEP_OF_2)),
    "more ranks than CPUs": (placement.oversubscribed, world(*ON_2_CPUS)),
    "more ranks than CPUs under srun": (
        placement.oversubscribed, world(*({**facts, "environ": STEP_OF_3} for facts in ON_2_CPUS))),
    "hardware threads of one core": (placement.shared_cores, world(*HALVES)),
    "ranks that are not bound": (placement.bound, world(rank(0, ALL), rank(1, ALL))),
    "more threads than CPUs": (
        placement.threads, world(rank(0, environ={"OMP_NUM_THREADS": "4,2"}), rank(1, [1, 2]))),
    "more threads than CPUs together": (placement.threads, world(*GREEDY)),
    "others on the node": (placement.alone, world(rank(0, busy=3.25), rank(1, busy=2.0))),
    "a part of a node": (placement.alone, world(rank(0, environ={"SLURM_JOB_CPUS_PER_NODE": "4(x2),6"}))),
    "a setting that is refused": (
        files.settings, world(rank(0), settings={"refused": "cannot read x", "untuned": None})),
    "a table for something else": (
        files.settings, world(rank(0), settings={"refused": None, "untuned": "x is not for MPICH"})),
    "a cold cache on a shared file system": (files.kernel_cache, world(rank(0, cache=COLD), rank(1))),
    "no cache": (files.kernel_cache, world(rank(0), rank(1, cache=COLD | {"directory": None, "filesystem": None}))),
}  # fmt: skip


@pytest.mark.parametrize(("check", "facts"), FOUND.values(), ids=FOUND)
def test_findings(check, facts):
    (finding,) = check(facts)
    assert report.findings(facts) == [finding]


def test_words():
    texts = (f"{name}: {doctor.lines(facts, [*check(facts)])}\n" for name, (check, facts) in FOUND.items())
    golden.compare("\n".join(texts), "doctor.txt")


FINE = {
    "a step that is whole": world(rank(0, environ=STEP_OF_2), rank(1, environ=STEP_OF_2)),
    "all that PMI started": world(*(rank(i, environ={"PMI_SIZE": "2"}) for i in range(2))),
    # one launcher in another: the inner one made the world
    "two launchers": world(*(rank(i, environ={"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "4"}) for i in range(2))),
    "helpers started by srun": world(*(rank(i, environ=STEP | {"PMI_SIZE": "2"}) for i in range(2))),
    "a size that is no number": world(*(rank(i, environ={"PMI_SIZE": "two"}) for i in range(2))),
    "a job of one task": world(rank(0, environ=BATCH | {"SLURM_NTASKS": "1"})),
    "one rank of a launcher's": world(rank(0, environ=BATCH | {"PMI_SIZE": "1"})),
    "a job of unknown size": world(rank(0, environ={"SLURM_JOB_ID": "7"})),
    "another variable differs": world(rank(0, environ={"OMP_NUM_THREADS": "1"}), rank(1)),
    "CPUs of two nodes": world(rank(0, [0]), rank(1, [0], "b")),
    "two nodes of one name": world(rank(0, [0]), {**rank(1, [0]), "node": "a another"}),
    "ranks that may give way": world(rank(0, [0, 1]), rank(1, [0, 1])),
    "no more cores": world(*({**facts, "available_cores": 1} for facts in HALVES)),
    "cores that are unknown": world(*({**facts, "cores": None, "available_cores": None} for facts in HALVES)),
    "one rank, not bound": world(rank(0, ALL)),
    "one on each node, not bound": world(rank(0, ALL), rank(1, ALL, "b")),
    "one of three is bound": world(rank(0, ALL), rank(1, ALL), rank(2, [2])),
    "bound to one socket": world(rank(0, [0, 1, 2, 3]), rank(1, [0, 1, 2, 3])),
    "as many threads as CPUs": world(
        rank(0, [0, 1], environ={"OMP_NUM_THREADS": "2"}), rank(1, [2, 3], environ={"OMP_NUM_THREADS": "x"})),
    "as many threads together": world(*({**facts, "environ": {"OMP_NUM_THREADS": "4"}} for facts in GREEDY)),
    "one that came late, as the other saw": world(rank(0, busy=3.0), rank(1, busy=0.2)),
    "unknown whether busy": world(rank(0, busy=None)),
    "a whole node": world(rank(0, environ={"SLURM_JOB_CPUS_PER_NODE": "4,8"})),
    "more than the cores": world(rank(0, environ={"SLURM_JOB_CPUS_PER_NODE": "16"})),
    "a part, of cores that are unknown": world(
        rank(0, environ={"SLURM_JOB_CPUS_PER_NODE": "4"}, machine_cores=None)),
    "a part that is not told": world(rank(0, environ={"SLURM_JOB_CPUS_PER_NODE": ""})),
    "a system that tells no CPUs": world(*({**rank(i), **UNKNOWN} for i in range(2))),
    "a warm cache": world(rank(0, cache={**COLD, "compiled": 0})),
    "a cold cache of one's own": world(rank(0, cache={**COLD, "filesystem": "xfs"})),
}  # fmt: skip


@pytest.mark.parametrize("facts", FINE.values(), ids=FINE)
def test_facts_without_findings(facts):
    nothing(facts)


PMIX = {"PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "library", "expected"),
    [
        (PMIX, "MPICH 5.0.2", "Open MPI's launcher started 2 processes, perhaps in a way that MPICH does not"),
        (PMI, "Open MPI 5.0.11", "type: the mpiexec of Open MPI, which stands beside its library: -n 2 PROGRAM"),
        (STEP | {"PMIX_RANK": "0"}, "Intel MPI 2021.18.1", "srun started 4 processes, perhaps"),
        (STEP, "Open MPI 5.0.11", "type: srun --mpi=pmix PROGRAM"),
        (PMI, "MPICH 5.0.2", ""),
        (STEP | PMI, "Intel MPI 2021.18.1", ""),
        (PMIX, "Open MPI 5.0.11", ""),
        (PMIX | {"OMPI_COMM_WORLD_SIZE": "1"}, "MPICH 5.0.2", ""),
        ({}, "MPICH 5.0.2", ""),
    ],
)
def test_doubts_about_launcher_and_library(environ, library, expected):
    doubt = launchers.doubt(environ, VERSIONS[library])
    assert expected in doubt and bool(expected) == bool(doubt)
    assert launchers.doubt(environ, "an unknown MPI") == ""


@pytest.mark.parametrize(("key", "severity"), [(key, severity) for key, _, severity, _ in sameness.SAME])
def test_software_that_differs(key, severity):
    other = rank(2, [0], "b", software={**SOFTWARE, key: "other"})
    (finding,) = report.findings(world(rank(0), rank(1), other))
    assert finding.severity == severity
    assert finding.seen == f"{key} 1 on ranks 0-1 (a); other on rank 2 (b)"


@pytest.mark.parametrize(
    ("places", "crowd"),
    [
        ({0: [0, 1], 1: [0]}, None),  # rank 0 must give way
        ({0: [0, 1], 1: [1, 2], 2: [0], 3: [0, 1]}, ([0, 2, 3], [0, 1])),
        ({0: [0, 1], 1: [1, 2], 2: [0], 3: [0, 1, 2, 3]}, None),
        ({0: [0, 1], 1: [0, 1], 2: [0, 1]}, ([0, 1, 2], [0, 1])),
        ({}, None),
    ],
)
def test_crowded_places(places, crowd):
    assert placement.crowded(places) == crowd


# -- all of them, and their words -----------------------------------------------------------------------------


def test_every_check_is_made():
    """Each function of these modules from facts to findings."""
    modules = (launchers, sameness, placement, files)
    every = [value for module in modules for value in vars(module).values()]
    there = {value for value in every if getattr(value, "__annotations__", {}).get("return") == "Iterator[Finding]"}
    assert there | {report.complete} == set(report.CHECKS) and len(there) == len(report.CHECKS) - 1


def test_a_check_that_cannot_be_made_spoils_no_other():
    lame = {key: value for key, value in rank(1).items() if key in ("rank", "host", "node", "cpus", "compiled_engine")}
    findings = report.findings(world(rank(0), {**lame, "environ": {}, "busy": None, "failed": "OSError: no"}))
    titles = {finding.what for finding in findings}
    assert "rank 1 could not look at everything: some checks were not made" in titles
    assert "the check sameness.one_mpi could not be made" in titles
    assert all(finding.severity == WARNING for finding in findings)
    assert "KeyError: 'libraries'" in {finding.seen for finding in findings}


def test_wrong_findings_come_first():
    facts = world(rank(0, [3], compiled_engine="no luck"), rank(1, [3]))
    findings = report.findings(facts)
    assert [finding.severity for finding in findings] == [WRONG, WARNING] and doctor.status(findings) == 1
    assert doctor.status(findings[1:]) == 0
    assert "nothing wrong" not in doctor.lines(facts, findings)


def test_the_report_in_the_guide():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "TROUBLESHOOTING.md").read_text()
    every = list(range(64))
    facts = world(*(rank(i, [0], "node7", available=every) for i in range(2)))
    assert indent(doctor.lines(facts, report.findings(facts)), "    ") in guide


def test_hosts_of_one_name():
    ranks = [rank(0), {**rank(1), "node": "a second"}, {**rank(2), "node": "a third"}, rank(3, host="ab")]
    assert list(nodes(world(*ranks))) == ["a", "a (2)", "a (3)", "ab"]


@pytest.mark.parametrize("status", [0, 1])
def test_the_command(monkeypatch, tmp_path, status):
    findings = report.findings(world(rank(0, [3]), rank(1, [3])))
    for name in cli.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "examine", lambda: (world(rank(0), rank(1)), findings, status))
    plain, as_json = (
        CliRunner().invoke(cli.main, ["info", "--check", *more], prog_name="mpicoll")
        for more in (["--facts", str(tmp_path / "facts")], ["--json"])
    )
    assert plain.exit_code == as_json.exit_code == status
    assert plain.output.startswith("2 ranks on 1 host, MPICH 5.0.2\nwrong: ranks 0-1 on a share CPU 3")
    assert (tmp_path / "facts").read_text() == as_json.output
    printed = json.loads(as_json.output)
    assert printed["findings"][0]["severity"] == WRONG and printed["ranks"][0]["node"] == "a boot"


# -- how facts are read ---------------------------------------------------------------------------------------------

MOUNTS = r"""21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /home rw - nfs4 server:/home rw
23 21 0:21 / /home/me/my\040disk rw shared:2 master:3 - lustre scratch rw
24 21 0:22 / /over rw - nfs server:/over rw
25 24 0:23 / /over rw - tmpfs tmpfs rw
"""


def test_the_filesystem_of_a_path(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    kinds = {"/homes/x": "ext4", "/home/x/y": "nfs4", "/home/me/my disk/cache": "lustre", "/over/x": "tmpfs"}
    assert {path: gathering.filesystem(path, mounts) for path in kinds} == kinds
    assert gathering.filesystem("/over/x", tmp_path / "none") is None


def test_libraries_that_are_loaded(tmp_path):
    first, two = tmp_path / "libmpi.so.12.1", tmp_path / "libmpi.so.40"
    first.touch()
    two.touch()
    (tmp_path / "libmpi.so.12").symlink_to(first)
    maps = tmp_path / "maps"
    names = ("libmpi.so.12", "libmpi.so.12.1", "libmpifort.so.12", "libpmpi.so.12", "libmpi.so.40")
    maps.write_text("".join(f"7f00-7f01 r--p 0 fe:00 1 {tmp_path / name}\n" for name in names))
    assert gathering.loaded(maps) == [str(first), str(two)]


def test_cores_are_named_by_their_first_thread(tmp_path):
    for cpu, siblings in {0: "0,4", 1: "1-2", 2: "1-2", 4: "0,4"}.items():
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings + "\n")
    assert gathering.cores([0, 2, 4], tmp_path) == [0, 1]
    assert gathering.cores([0, 3], tmp_path) is None and gathering.cores(None) is None


def test_others_are_who_is_busy(tmp_path, monkeypatch):
    """Two of four CPUs: half of the ticks, of which waiting for disks is none and what a hypervisor takes is."""
    stat = tmp_path / "stat"
    head, cpus = "cpu  100 0 100 1000 50 0 0 0 0 0\n", "".join(f"cpu{i} 0 0 0 0 0 0 0 0 0 0\n" for i in range(4))
    stat.write_text(head + cpus + "intr 1 2\n")
    later = "cpu  150 10 120 1080 70 5 5 10 50 0\n"
    monkeypatch.setattr(time, "sleep", lambda seconds: stat.write_text(later + cpus))
    assert gathering.busy(1.0, stat) == pytest.approx(2.0)
    assert gathering.busy(1.0, stat) is None  # no tick has passed
    assert gathering.busy(1.0, tmp_path / "none") is None


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="group: needs Linux")
def test_cpus_that_a_bound_process_could_have():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert before <= set(gathering.reachable())
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)


def test_files_of_a_package_are_compared(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "inner" / "b.py").write_text("2")
    first = gathering.digest(tmp_path)
    (tmp_path / "c.pyc").write_text("3")
    assert gathering.digest(tmp_path) == first
    (tmp_path / "inner" / "b.py").write_text("3")
    assert gathering.digest(tmp_path) != first != gathering.digest(tmp_path / "none")


def test_the_launcher_of_the_library(tmp_path):
    (tmp_path / "lib" / "x86").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    mpi = {"path": str(tmp_path / "lib" / "x86" / "libmpi.so"), "library_version": VERSIONS["Open MPI 5.0.11"]}
    (tmp_path / "bin" / "mpiexec").touch()
    assert gathering.mpiexec(mpi) == str(tmp_path / "bin" / "mpiexec")
    (tmp_path / "bin" / "mpiexec.openmpi").touch()
    assert gathering.mpiexec(mpi) == str(tmp_path / "bin" / "mpiexec.openmpi")
    assert gathering.mpiexec({**mpi, "path": str(tmp_path / "lib" / "libmpi.so")}) == gathering.mpiexec(mpi)
    assert gathering.mpiexec({**mpi, "path": None}) is None


TABLE = {"mpi": "MPICH 5.0.2", "nodes": ["0-1"], "rules": {}}


@pytest.mark.parametrize(
    ("variables", "refused", "untuned"),
    [
        ({}, "", ""),
        ({"MPICOLL_TIMEOUT": "soon"}, "MPICOLL_TIMEOUT is 'soon'", ""),
        ({"MPICOLL_TUNING": "{no}"}, "cannot read ", ""),
        ({"MPICOLL_TUNING": "{file}"}, "", ""),
        ({"MPICOLL_TUNING": "{file}", "MPICOLL_ENGINE": "mpi4py"}, "", "MPICOLL_ENGINE is set"),
        ({"MPICOLL_TUNING": "{other}"}, "", "is not for MPICH 5.0.2, 2 ranks on one node"),
    ],
)
def test_findings_about_variables(variables, refused, untuned, tmp_path, monkeypatch):
    paths = {name: str(tmp_path / name) for name in ("no", "file", "other")}
    for name, nodes_of_it in {"file": ["0-1"], "other": ["0", "1"]}.items():
        content = {"schema": "mpicoll-tuning-1", "tables": [{**TABLE, "nodes": nodes_of_it}]}
        (tmp_path / name).write_text(json.dumps(content))
    for name in sameness.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(**paths))
    findings = gathering.settings(SimpleNamespace(get_vendor=lambda: ("MPICH", (5, 0, 2))), [rank(0), rank(1)])
    assert (refused in (findings["refused"] or "")) and bool(refused) == (findings["refused"] is not None)
    assert (untuned in (findings["untuned"] or "")) and bool(untuned) == (findings["untuned"] is not None)


# -- ranks that do not answer ---------------------------------------------------------------------------------------


def test_no_rank_waits_for_ever(monkeypatch, capfd):
    ended, aborted = threading.Event(), []
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    with doctor.giving_up(0.05, 3, lambda: aborted.append(3)):
        assert ended.wait(10) and aborted == [3]
    assert capfd.readouterr().err.startswith("mpicoll: rank 3: not all ranks have answered for 0.05 s")


def test_ranks_that_finish_in_time_are_not_ended():
    before, reports = set(threading.enumerate()), []
    with doctor.giving_up(0.5, 0, lambda: reports.append("too late")):
        (timer,) = set(threading.enumerate()) - before
    timer.join(5)
    assert not timer.is_alive() and not reports
