"""Query Slurm and submit jobs through its own commands."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import JobsError, NoSlurm

PATIENCE = 60.0  # seconds for an answer
RUNNING = ("RUNNING", "COMPLETING", "SIGNALING")
WAITING = ("PENDING", "CONFIGURING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT")
GONE = "no longer known"
UNKNOWN = "unknown"  # since Slurm does not answer
_OPTION = re.compile(r"^#SBATCH\s+(-\w|--[a-z-]+)(?:[= ]\s*(\"[^\"]*\"|'[^']*'|[^\s#]+))?", re.MULTILINE)
_SHORT = {"-p": "--partition", "-N": "--nodes", "-t": "--time"}


@dataclass(frozen=True)
class Partition:
    """A partition of the cluster. nodes: how many it has; minutes: the longest job, None without a limit."""

    name: str
    nodes: int
    minutes: int | None


def ask(*words: str, directory: Path | None = None) -> str:
    """Return what a command of Slurm's prints. Raises JobsError where it is missing or fails."""
    if shutil.which(words[0]) is None:
        raise NoSlurm(f"no Slurm here: {words[0]} is not on the PATH")
    try:
        done = subprocess.run(words, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=PATIENCE)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise JobsError(f"{words[0]} did not answer within {PATIENCE:g} s") from None
    if done.returncode:
        message = "; ".join((done.stderr or done.stdout).split("\n")).strip("; ")
        raise JobsError(f"{' '.join(words[:2])}: {message or f'exit status {done.returncode}'}")
    return done.stdout + done.stderr if words[:2] == ("srun", "--mpi=list") else done.stdout


def partition(name: str) -> Partition:
    """Return a partition, or the default one for "". Raises JobsError, naming those there are."""
    rows = [line.split("|") for line in ask("sinfo", "--noheader", "--all", "--format=%P|%D|%l|%a").splitlines()]
    by_name: dict[str, list[tuple[int, str]]] = {}
    for title, count, limit, _ in rows:  # one line for each group of nodes of one state
        by_name.setdefault(title.removesuffix("*"), []).append((int(count), limit))
    default = next((title.removesuffix("*") for title, *_ in rows if title.endswith("*")), "")
    if (name or default) not in by_name:
        there = ", ".join(by_name)
        raise JobsError(f"there is no partition {name!r}; there are {there}" if name else
                        f"there is no default partition; name one of {there} in the site")  # fmt: skip
    groups = by_name[name or default]
    return Partition(name or default, sum(count for count, _ in groups), minutes(groups[0][1]))


def minutes(text: str) -> int | None:
    """Return a time limit as Slurm writes it; None for infinite, and for what is no time.

    >>> [minutes(text) for text in ("infinite", "1-12:00:00", "30:00", "2:00:00", "5", "1h")]
    [None, 2160, 30, 120, 5, None]
    """
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return None
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours, mins = (parts[0], parts[1]) if len(parts) == 3 or (days and len(parts) == 2) else (0, parts[0])
    if days and len(parts) == 1:
        hours, mins = parts[0], 0
    return (int(days or 0) * 24 + hours) * 60 + mins


def plugins() -> list[str]:
    """Return what `srun --mpi=` can be."""
    return parse_plugins(ask("srun", "--mpi=list"))


def parse_plugins(output: str) -> list[str]:
    r"""Return the names in what srun says, and those of versions.

    >>> parse_plugins("MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\npmix plugin versions available: pmix_v4")
    ['pmi2', 'pmix', 'pmix_v4']
    """
    head, _, versions = output.partition("versions available:")
    names = re.findall(r"^\s+(\w+)\s*$|^srun: (\w+)\s*$", head, re.MULTILINE)
    return sorted({*(plain or prefixed for plain, prefixed in names), *re.findall(r"\w+", versions)} - {"none"})


def options(script: str) -> dict[str, str]:
    r"""Return the options in a script's #SBATCH lines, by their long names.

    >>> options('#SBATCH -N 4\n#SBATCH --exclusive\n#SBATCH --partition="a,b" # two\n')
    {'nodes': '4', 'exclusive': '', 'partition': 'a,b'}
    """
    return {_SHORT.get(name, name).lstrip("-"): value.strip("\"'") for name, value in _OPTION.findall(script)}


def check(script: Path) -> None:
    """Check that this Slurm can run a script; a person may have edited it. Raises JobsError with the reason.

    What is not understood is left to sbatch.
    """
    text = script.read_text(encoding="utf-8")
    directives = options(text)
    there = [partition(name) for name in directives.get("partition", "").split(",")]
    names, most = ", ".join(entry.name for entry in there), max(entry.nodes for entry in there)
    nodes, limit = directives.get("nodes", ""), minutes(directives.get("time", ""))
    if nodes.isdecimal() and int(nodes) > most:
        raise JobsError(f"{script.name} asks for {nodes} nodes, and partition {names} has {most}")
    allowed = [entry.minutes for entry in there if entry.minutes]
    if limit and len(allowed) == len(there) and limit > max(allowed):
        raise JobsError(f"{script.name} asks for {limit} min, and partition {names} allows {max(allowed)}")
    plugin = re.search(r"^(?!\s*#).*\bsrun\b.*--mpi=(?!none\b)(\w+)", text, re.MULTILINE)
    if plugin and plugin[1] not in (offered := plugins()):
        has = ", ".join(offered)
        raise JobsError(f"{script.name} starts ranks by srun --mpi={plugin[1]}, and this Slurm offers {has}")
    ask("sbatch", "--test-only", script.name, directory=script.parent)


def submit(script: Path) -> int:
    """Return the number of the job."""
    return int(ask("sbatch", "--parsable", script.name, directory=script.parent).split(";")[0])


def states(jobs: Sequence[int]) -> dict[int, str]:
    """Return what each job is doing, as Slurm calls it; of one that it has forgotten, GONE. Raises JobsError."""
    by_job = dict.fromkeys(jobs, GONE)
    for job in jobs:
        try:
            output = ask("scontrol", "--oneliner", "show", "job", str(job))
        except JobsError as error:
            if "Invalid job id" not in str(error):
                raise
            output = _accounted(job)
        if state := re.search(r"\bJobState=(\w+)", output):
            reason = re.search(r"\bReason=(\S+)", output)
            waits = state[1] == "PENDING" and reason and reason[1] != "None"
            by_job[job] = f"{state[1]} ({reason[1]})" if waits and reason else state[1]
    return by_job


def _accounted(job: int) -> str:
    """Return the state of a job that only the accounting remembers, in scontrol's words."""
    try:
        output = ask("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State")
    except JobsError:
        return ""
    return f"JobState={output.split()[0]}" if output.split() else ""


def under_way(state: str) -> bool:
    """Return whether a job in this state may still do something."""
    return state.startswith((*RUNNING, *WAITING, UNKNOWN))
