"""The programs of OMB that have a counterpart here, one for each collective and form, and three between two ranks."""

from __future__ import annotations

from dataclasses import dataclass

from mpicoll.schedules.collectives import base_collective

from ..cases.forms import BLOCKING, FORMS
from ..cases.patterns import PATTERNS

VERSION = "7.4"
COLLECTIVE, LATENCY, BANDWIDTH = "collective", "latency", "bandwidth"
PERSONALIZED = "Personalized Exchange"
NAMES = {
    "barrier": "Barrier",
    "bcast": "Broadcast",
    "scatter": "Scatter",
    "gather": "Gather",
    "allgather": "Allgather",
    "reduce": "Reduce",
    "reduce_scatter": "Reduce_scatter",
    "allreduce": "Allreduce",
    "alltoall": f"All-to-All {PERSONALIZED}",
    "scatterv": "Scatterv",
    "gatherv": "Gatherv",
    "allgatherv": "Allgatherv",
    "alltoallv": f"All-to-Allv {PERSONALIZED}",
    "alltoallw": f"All-to-Allw {PERSONALIZED}",
}
# By form: the program, and its title with two that OMB spells in a way of their own.
SPELLED = {
    "blocking": ("osu_{}", "{} Latency Test"),
    "nonblocking": ("osu_i{}", "Non-blocking {} Latency Test"),
    "persistent": ("osu_{}_persistent", "{} Persistent Latency Test"),
}
ODD = {
    "osu_ibcast": "Non-Blocking Broadcast Latency Test",
    "osu_ialltoall": "Non-blocking All-to-All Latency Test",
}
PAIRS = {
    "latency": ("osu_latency", "Latency Test", LATENCY, "mixbcuTz"),
    "bw": ("osu_bw", "Bandwidth Test", BANDWIDTH, "mixtWbcuTz"),
    "bibw": ("osu_bibw", "Bi-Directional Bandwidth Test", BANDWIDTH, "mixtWbcuTz"),
}


@dataclass(frozen=True)
class Program:
    """One of OMB's programs; letters are the options it takes besides -h and -v."""

    name: str
    title: str
    kind: str
    letters: str
    collective: str = ""
    form: str = BLOCKING

    @property
    def sized(self) -> bool:
        """Return whether the program has messages, and so sizes and types."""
        return self.collective != "barrier"

    @property
    def overlaps(self) -> bool:
        """Return whether the program computes during its calls and prints the overlap."""
        return self.form == "nonblocking"

    @property
    def collects(self) -> bool:
        """Return whether a buffer holds a share of every rank, so that it needs memory for p sizes."""
        meaning = PATTERNS[self.collective].meaning if self.collective else None
        return meaning is not None and not meaning.reduces and meaning.naming in ("rank", "pair")

    def refuse(self, p: int) -> None:
        """Raise ValueError unless it runs on p ranks."""
        if self.kind != COLLECTIVE and p != 2:
            raise ValueError(f"This test requires exactly two processes, mpiexec -n 2; there {_are(p)}")
        if p < 2:
            raise ValueError(f"This test requires at least two processes, mpiexec -n 2; there {_are(p)}")


def _are(p: int) -> str:
    return f"are {p}" if p > 1 else "is 1"


def program(benchmark: str, form: str) -> Program:
    """Return the program for a collective in a form, or for latency, bw and bibw. Raises ValueError."""
    if form not in FORMS:
        raise ValueError(f"--form is {form!r}; there is {', '.join(FORMS)}")
    if benchmark in PAIRS:
        if form != BLOCKING:
            raise ValueError(f"{benchmark} has no {form} form here; leave out --form")
        return Program(*PAIRS[benchmark])
    if benchmark not in NAMES:
        raise ValueError(f"OSU has no benchmark of {benchmark!r}; there is {', '.join((*NAMES, *PAIRS))}")
    name, title = (spelled.format(word) for spelled, word in zip(SPELLED[form], (benchmark, NAMES[benchmark])))
    return Program(name, ODD.get(name, title), COLLECTIVE, letters(benchmark, form), benchmark, form)


def letters(collective: str, form: str) -> str:
    """Return the options of a collective's program.

    They are -t while it computes, -l where MPI has MPI_IN_PLACE, -k for a root.
    """
    test = "t" * (form == "nonblocking")
    if collective == "barrier":
        return "fmixMz" + ("" if test else "u") + test
    root = base_collective(collective) in ("scatter", "gather", "reduce") and form != "persistent"
    return "fmixMcuTz" + test + "l" * (collective != "bcast") + "k" * root
