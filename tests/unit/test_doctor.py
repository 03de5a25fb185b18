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
    """One of a node with 8 cores of one hardware thread, bound to a CPU of its own."""
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
        "hosts": len({each["node"] for each in ranks}),
        "mpi": {"library": library, "library_version": VERSIONS[library], "path": "/opt/lib/libmpi.so.12"},
        "mpiexec": "/opt/bin/mpiexec",
        "settings": {"refused": None, "untuned": None},
        **more,
    }


def only(check, facts):
    """The one finding, whose words are all there; no other check has one."""
    (found,) = check(facts)
    assert found.what and found.seen and found.type
    assert report.findings(facts) == [found]
    return found


def nothing(facts):
    assert report.findings(facts) == []


def test_nothing_is_wrong():
    facts = world(rank(0), rank(1), rank(2, [0], "b"), rank(3, [1], "b"))
    nothing(facts)
    assert doctor.status([]) == 0
    words = doctor.lines(facts, [])
    assert words == f"4 ranks on 2 hosts, MPICH 5.0.2\nnothing wrong: {len(report.CHECKS)} things looked at"


# -- launchers ------------------------------------------------------------------------------------------------------

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"}


@pytest.mark.parametrize(
    ("library", "advice"),
    [
        ("MPICH 5.0.2", "srun --mpi=pmi2 PROGRAM"),
        ("Intel MPI 2021.18.1", "I_MPI_PMI_LIBRARY=/usr/lib/x86_64-linux-gnu/libpmi2.so"),
        ("Open MPI 5.0.11", "srun --mpi=pmix PROGRAM"),
    ],
)
def test_tasks_of_srun_that_are_a_world_each(library, advice):
    environ = {**STEP, "SLURM_MPI_TYPE": "none"}
    found = only(launchers.one_world, world(rank(0, environ=environ), library=library))
    assert found.severity == WRONG and advice in found.type
    assert "srun started 4 processes, and each is rank 0 of 1" in found.what
    assert "SLURM_STEP_NUM_TASKS=4, SLURM_MPI_TYPE=none; " + library in found.seen


def test_srun_speaks_pmi2_and_the_library_does_not():
    found = only(launchers.one_world, world(rank(0, environ={**STEP, "PMI_SIZE": "4"}), library="Open MPI 5.0.11"))
    assert "srun started 4" in found.what and "pmix" in found.type


@pytest.mark.parametrize(
    ("environ", "library", "who"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "MPICH 5.0.2", "Open MPI's launcher"),
        ({"PMI_SIZE": "3"}, "Open MPI 5.0.11", "a launcher that speaks PMI"),
        ({"OMPI_COMM_WORLD_SIZE": "3", **STEP, "SLURM_STEP_NUM_TASKS": "1"}, "MPICH 5.0.2", "Open MPI's launcher"),
    ],
)
def test_a_launcher_of_another_mpi(environ, library, who):
    found = only(launchers.one_world, world(rank(0, environ=environ), library=library))
    assert found.severity == WRONG and found.what.startswith(f"{who} started 3 processes, and each is rank 0 of 1")
    assert found.type == ("srun --mpi=pmi2 PROGRAM" if "SLURM_JOB_ID" in environ else "/opt/bin/mpiexec -n 3 PROGRAM")


def test_a_launcher_whose_mpiexec_is_not_found():
    found = only(launchers.one_world, world(rank(0, environ={"PMI_SIZE": "3"}), mpiexec=None))
    assert found.type == "the mpiexec of MPICH, which stands beside its library: -n 3 PROGRAM"


def test_a_world_that_is_smaller_than_what_was_started():
    found = only(launchers.one_world, world(*(rank(i, environ={"PMI_SIZE": "4"}) for i in range(2))))
    assert "started 4 processes, and MPI.COMM_WORLD has 2" in found.what


@pytest.mark.parametrize(
    "environ",
    [
        {},
        STEP | {"SLURM_STEP_NUM_TASKS": "2"},
        {"PMI_SIZE": "2"},
        {"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "4"},  # one launcher in another: the inner one made the world
        STEP | {"PMI_SIZE": "2"},  # a launcher that started its helpers by srun
        {"PMI_SIZE": "two"},
    ],
)
def test_a_world_that_is_whole(environ):
    nothing(world(rank(0, environ=environ), rank(1, environ=environ)))


PMIX = {"PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "library", "said"),
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
def test_what_may_end_as_it_starts_is_told_before(environ, library, said):
    told = launchers.doubt(environ, VERSIONS[library])
    assert said in told and bool(said) == bool(told)
    assert launchers.doubt(environ, "an MPI that nobody knows") == ""


BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
INTERACTIVE = {**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize("environ", [BATCH, INTERACTIVE], ids=["batch", "interactive"])
def test_a_shell_of_a_job_is_no_task(environ):
    found = only(launchers.all_of_it, world(rank(0, environ=environ)))
    assert found.severity == WARNING and "one process in a job of 4 tasks" in found.what
    assert found.type == "srun --mpi=pmi2 python -m mpicoll info --check"


@pytest.mark.parametrize("environ", [BATCH | {"SLURM_NTASKS": "1"}, BATCH | {"PMI_SIZE": "1"}, {"SLURM_JOB_ID": "7"}])
def test_a_shell_of_a_job_that_needs_no_more(environ):
    nothing(world(rank(0, environ=environ)))


# -- sameness -------------------------------------------------------------------------------------------------------


def test_two_libraries_in_one_process():
    two = ["/opt/lib/libmpi.so.12", "/usr/lib/libmpi.so.40"]
    found = only(sameness.one_mpi, world(rank(0), rank(1, libraries=two), rank(2, libraries=two)))
    assert found.severity == WRONG and found.what.startswith("ranks 1-2 loaded 2 MPI libraries")
    assert "/opt/lib/libmpi.so.12, /usr/lib/libmpi.so.40" in found.seen


def test_mpi4py_of_another_mpi():
    facts = world(rank(0))
    facts["mpi"]["library_version"] = VERSIONS["Intel MPI 2021.18.1"]
    found = only(sameness.one_mpi, facts)
    assert found.severity == WARNING and found.what == "mpi4py was built for MPICH, and Intel MPI is loaded"


@pytest.mark.parametrize(("key", "severity"), [(key, severity) for key, _, severity, _ in sameness.SAME])
def test_software_that_differs(key, severity):
    other = rank(2, [0], "b", software={**SOFTWARE, key: "other"})
    found = only(sameness.same_software, world(rank(0), rank(1), other))
    assert found.severity == severity
    assert found.seen == f"{key} 1 on ranks 0-1 (a); other on rank 2 (b)"


def test_variables_that_differ():
    found = only(sameness.same_variables, world(rank(0, environ={"MPICOLL_TIMEOUT": "30"}), rank(1)))
    assert found.severity == WARNING and "MPICOLL_TIMEOUT" in found.what
    assert found.seen == "30 on rank 0 (a); not set on rank 1 (a)"
    nothing(world(rank(0, environ={"OMP_NUM_THREADS": "1"}), rank(1)))


def test_an_engine_that_does_not_work():
    found = only(sameness.same_engine, world(rank(0), rank(1, compiled_engine="no luck")))
    assert found.severity == WARNING and "on rank 1" in found.what and "no luck" in found.seen


# -- placement ------------------------------------------------------------------------------------------------------


def test_ranks_that_share_a_cpu():
    found = only(placement.shared_cpus, world(rank(0, [3]), rank(1, [3]), rank(2)))
    assert found.severity == WRONG
    assert found.what.startswith("ranks 0-1 on a share CPU 3, and 8 CPUs would do for all 3")
    assert found.type == "mpiexec -bind-to core PROGRAM"


def test_ranks_of_two_nodes_share_nothing():
    nothing(world(rank(0, [0]), rank(1, [0], "b")))
    nothing(world(rank(0, [0]), {**rank(1, [0]), "node": "a another"}))


def test_ranks_that_may_move_out_of_each_others_way():
    nothing(world(rank(0, [0, 1]), rank(1, [0, 1])))
    assert only(placement.shared_cpus, world(rank(0, [0, 1]), rank(1, [0, 1]), rank(2, [0]), rank(3))).what.startswith(
        "ranks 0-2 on a share CPUs 0-1"
    )


@pytest.mark.parametrize(
    ("library", "environ", "advice"),
    [
        ("Open MPI 5.0.11", {}, "mpiexec --map-by core --bind-to core PROGRAM"),
        ("Intel MPI 2021.18.1", {}, "I_MPI_PIN=1 I_MPI_PIN_DOMAIN=core mpiexec PROGRAM"),
        ("MPICH 5.0.2", STEP | {"SLURM_STEP_NUM_TASKS": "2"}, "srun --cpu-bind=cores PROGRAM"),
    ],
)
def test_how_to_bind(library, environ, advice):
    facts = world(rank(0, [0], environ=environ), rank(1, [0], environ=environ), library=library)
    assert only(placement.shared_cpus, facts).type == advice


def test_more_ranks_than_cpus():
    ranks = [rank(i, [0, 1], available=[0, 1], environ={"OMP_NUM_THREADS": "1"}) for i in range(3)]
    found = only(placement.oversubscribed, world(*ranks))
    assert found.severity == WARNING and found.what.startswith("a has 3 ranks and 2 CPUs for them")
    assert found.type.endswith("mpiexec -n 2 PROGRAM")
    ranks = [{**each, "environ": STEP | {"SLURM_STEP_NUM_TASKS": "3"}} for each in ranks]
    assert only(placement.oversubscribed, world(*ranks)).type.endswith("srun --ntasks-per-node=2 PROGRAM")


def test_hardware_threads_of_one_core():
    ranks = [rank(0, [0], cores=[0]), rank(1, [4], cores=[0])]
    found = only(placement.shared_cores, world(*ranks))
    assert found.severity == WARNING and found.what.startswith("ranks 0-1 on a have 1 core between them")
    nothing(world(*({**each, "available_cores": 1} for each in ranks)))
    nothing(world(*({**each, "cores": None, "available_cores": None} for each in ranks)))


def test_ranks_that_are_not_bound():
    every = list(range(8))
    found = only(placement.bound, world(rank(0, every), rank(1, every)))
    assert found.severity == WARNING and found.what.startswith("ranks 0-1 on a are not bound: each may run on any of 8")
    nothing(world(rank(0, every)))
    nothing(world(rank(0, every), rank(1, every, "b")))
    nothing(world(rank(0, [0, 1, 2, 3]), rank(1, [0, 1, 2, 3])))  # to one socket


def test_more_threads_than_cpus():
    found = only(placement.threads, world(rank(0, environ={"OMP_NUM_THREADS": "4,2"}), rank(1, [1, 2])))
    assert found.severity == WARNING and found.what.startswith("rank 0 on a may start 4 threads each")
    nothing(world(rank(0, [0, 1], environ={"OMP_NUM_THREADS": "2"}), rank(1, [2, 3], environ={"OMP_NUM_THREADS": "x"})))


def test_more_threads_than_cpus_together():
    ranks = [rank(i, [0, 1, 2, 3, 4], environ={"OMP_NUM_THREADS": "5"}) for i in range(2)]
    assert "the 2 ranks on a may start 10 threads, on 8 CPUs" in only(placement.threads, world(*ranks)).what
    nothing(world(*({**each, "environ": {"OMP_NUM_THREADS": "4"}} for each in ranks)))


def test_others_on_the_node():
    found = only(placement.alone, world(rank(0, busy=3.25), rank(1, busy=2.0)))
    assert found.severity == WARNING and found.what.startswith("others use 2.0 CPUs of a")
    nothing(world(rank(0, busy=3.0), rank(1, busy=0.2)))  # one came late, and the other saw it
    nothing(world(rank(0, busy=None)))


@pytest.mark.parametrize(
    ("given", "cores", "shared"),
    [("4(x2),6", 8, True), ("4,8", 8, False), ("16", 8, False), ("4", None, False), ("", 8, False)],
)
def test_part_of_a_node(given, cores, shared):
    facts = world(rank(0, environ={"SLURM_JOB_CPUS_PER_NODE": given}, machine_cores=cores))
    if not shared:
        return nothing(facts)
    found = only(placement.alone, facts)
    assert found.what.startswith("the job has 6 of the 8 cores of a") and "--exclusive" in found.type


def test_a_system_that_tells_no_cpus():
    unknown = {"available": None, "cores": None, "available_cores": None, "machine_cores": None, "busy": None}
    nothing(world(*({**rank(i), **unknown, "cpus": None} for i in range(2))))


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ({0: [0, 1], 1: [0]}, None),  # rank 0 must give way
        ({0: [0, 1], 1: [1, 2], 2: [0], 3: [0, 1]}, ([0, 2, 3], [0, 1])),
        ({0: [0, 1], 1: [1, 2], 2: [0], 3: [0, 1, 2, 3]}, None),
        ({0: [0, 1], 1: [0, 1], 2: [0, 1]}, ([0, 1, 2], [0, 1])),
        ({}, None),
    ],
)
def test_who_can_have_a_place(places, found):
    assert placement.crowded(places) == found


# -- files ----------------------------------------------------------------------------------------------------------


def test_settings():
    found = only(files.settings, world(rank(0), settings={"refused": "cannot read x", "untuned": None}))
    assert found.severity == WRONG and found.seen == "cannot read x" and "mpicoll tune -o FILE" in found.type
    found = only(files.settings, world(rank(0), settings={"refused": None, "untuned": "x is not for MPICH"}))
    assert found.severity == WARNING and found.seen == "x is not for MPICH" and "mpicoll tune -o FILE" in found.type


def test_a_cold_cache_on_a_shared_filesystem():
    cache = {"directory": "/home/x", "filesystem": "nfs4", "compiled": 3}
    found = only(files.kernel_cache, world(rank(0, cache=cache), rank(1)))
    assert found.severity == WARNING and "for rank 0" in found.what
    assert found.seen == "/home/x is on nfs4; 3 kernels were compiled just now" and "NUMBA_CACHE_DIR" in found.type
    nothing(world(rank(0, cache={**cache, "compiled": 0})))
    nothing(world(rank(0, cache={**cache, "filesystem": "xfs"})))


def test_no_cache():
    cache = {"directory": None, "filesystem": None, "compiled": 3}
    found = only(files.kernel_cache, world(rank(0), rank(1, cache=cache)))
    assert found.severity == WARNING and found.what.startswith("rank 1 cannot keep") and "NUMBA_CACHE_DIR" in found.type


# -- all of them, and how they are told -----------------------------------------------------------------------------


def test_every_check_is_made():
    """Each function of these modules from facts to findings."""
    modules = (launchers, sameness, placement, files)
    every = [value for module in modules for value in vars(module).values()]
    there = {value for value in every if getattr(value, "__annotations__", {}).get("return") == "Iterator[Finding]"}
    assert there | {report.complete} == set(report.CHECKS) and len(there) == len(report.CHECKS) - 1


def test_a_check_that_cannot_be_made_spoils_no_other():
    lame = {key: value for key, value in rank(1).items() if key in ("rank", "host", "node", "cpus", "compiled_engine")}
    found = report.findings(world(rank(0), {**lame, "environ": {}, "busy": None, "failed": "OSError: no"}))
    said = {each.what for each in found}
    assert "rank 1 could not look at everything: some checks were not made" in said
    assert "the check sameness.one_mpi could not be made" in said
    assert all(each.severity == WARNING for each in found) and "KeyError: 'libraries'" in {each.seen for each in found}


def test_what_is_wrong_comes_first():
    facts = world(rank(0, [3], compiled_engine="no luck"), rank(1, [3]))
    found = report.findings(facts)
    assert [each.severity for each in found] == [WRONG, WARNING] and doctor.status(found) == 1
    assert doctor.status(found[1:]) == 0
    assert doctor.lines(facts, found).splitlines()[:4] == [
        "2 ranks on 1 host, MPICH 5.0.2",
        f"wrong: {found[0].what}",
        f"  seen: {found[0].seen}",
        f"  type: {found[0].type}",
    ]
    assert "nothing wrong" not in doctor.lines(facts, found)


def test_what_the_guide_shows():
    guide = (Path(__file__).resolve().parents[2] / "docs" / "TROUBLESHOOTING.md").read_text()
    every = list(range(64))
    facts = world(*(rank(i, [0], "node7", available=every) for i in range(2)))
    assert indent(doctor.lines(facts, report.findings(facts)), "    ") in guide


def test_hosts_of_one_name():
    ranks = [rank(0), {**rank(1), "node": "a second"}, {**rank(2), "node": "a third"}, rank(3, host="ab")]
    assert list(nodes(world(*ranks))) == ["a", "a (2)", "a (3)", "ab"]


@pytest.mark.parametrize("status", [0, 1])
def test_the_command(monkeypatch, tmp_path, status):
    found = report.findings(world(rank(0, [3]), rank(1, [3])))
    for name in cli.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "examine", lambda: (world(rank(0), rank(1)), found, status))
    plain, as_json = (
        CliRunner().invoke(cli.main, ["info", "--check", *more], prog_name="mpicoll")
        for more in (["--facts", str(tmp_path / "facts")], ["--json"])
    )
    assert plain.exit_code == as_json.exit_code == status
    assert plain.output.startswith("2 ranks on 1 host, MPICH 5.0.2\nwrong: ranks 0-1 on a share CPU 3")
    assert (tmp_path / "facts").read_text() == as_json.output
    told = json.loads(as_json.output)
    assert told["findings"][0]["severity"] == WRONG and told["ranks"][0]["node"] == "a boot"


# -- how facts are read ---------------------------------------------------------------------------------------------

MOUNTS = r"""21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
22 21 0:20 / /home rw - nfs4 server:/home rw
23 21 0:21 / /home/me/my\040disk rw shared:2 master:3 - lustre scratch rw
24 21 0:22 / /over rw - nfs server:/over rw
25 24 0:23 / /over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/homes/x", "ext4"),
        ("/home/x/y", "nfs4"),
        ("/home/me/my disk/cache", "lustre"),
        ("/over/x", "tmpfs"),
    ],
)
def test_the_filesystem_of_a_path(path, kind, tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert gathering.filesystem(path, mounts) == kind
    assert gathering.filesystem(path, tmp_path / "none") is None


def test_libraries_that_are_loaded(tmp_path):
    one, two = tmp_path / "libmpi.so.12.1", tmp_path / "libmpi.so.40"
    one.touch()
    two.touch()
    (tmp_path / "libmpi.so.12").symlink_to(one)
    maps = tmp_path / "maps"
    names = ("libmpi.so.12", "libmpi.so.12.1", "libmpifort.so.12", "libpmpi.so.12", "libmpi.so.40")
    maps.write_text("".join(f"7f00-7f01 r--p 0 fe:00 1 {tmp_path / name}\n" for name in names))
    assert gathering.loaded(maps) == [str(one), str(two)]


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
        ({"MPICOLL_TUNING": "{file}", "MPICOLL_ENGINE": "mpi4py"}, "", "MPICOLL_ENGINE chooses"),
        ({"MPICOLL_TUNING": "{other}"}, "", "is not for MPICH 5.0.2, 2 ranks on one node"),
    ],
)
def test_what_variables_come_to(variables, refused, untuned, tmp_path, monkeypatch):
    paths = {name: str(tmp_path / name) for name in ("no", "file", "other")}
    for name, nodes_of_it in {"file": ["0-1"], "other": ["0", "1"]}.items():
        content = {"schema": "mpicoll-tuning-1", "tables": [{**TABLE, "nodes": nodes_of_it}]}
        (tmp_path / name).write_text(json.dumps(content))
    for name in sameness.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(**paths))
    found = gathering.settings(SimpleNamespace(get_vendor=lambda: ("MPICH", (5, 0, 2))), [rank(0), rank(1)])
    assert (refused in (found["refused"] or "")) and bool(refused) == (found["refused"] is not None)
    assert (untuned in (found["untuned"] or "")) and bool(untuned) == (found["untuned"] is not None)


# -- ranks that do not answer ---------------------------------------------------------------------------------------


def test_nobody_waits_for_ever(monkeypatch, capfd):
    ended, aborted = threading.Event(), []
    monkeypatch.setattr(os, "_exit", lambda status: ended.set())
    with doctor.giving_up(0.05, 3, lambda: aborted.append(3)):
        assert ended.wait(10) and aborted == [3]
    assert capfd.readouterr().err.startswith("mpicoll: rank 3: not all ranks have answered for 0.05 s")


def test_who_is_done_in_time_is_not_ended():
    before, said = set(threading.enumerate()), []
    with doctor.giving_up(0.5, 0, lambda: said.append("too late")):
        (timer,) = set(threading.enumerate()) - before
    timer.join(5)
    assert not timer.is_alive() and not said
