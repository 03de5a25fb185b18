"""Intel's MPI benchmarks, IMB-MPI1, on Intel MPI.

IMB prints t_max, the longest over ranks of a rank's mean time. One call a line makes that the longest time of this
call over ranks, which is our statistic: so every length is listed as many times as there are rounds, each of one
repetition. IMB always makes an untimed call before it, with any options. Its sizes are the vector for allreduce,
reduce and bcast, and otherwise one rank's share, also for reduce_scatter, as the bytes on a link show. Reductions
are of doubles; the other collectives move bytes. Answers are not checked: this build of IMB cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..report import imb as reader
from .peer import Call, Launch, Measured, Missing, PeerFailed, Times, checked

BENCHMARKS = {
    "allreduce": "Allreduce",
    "reduce": "Reduce",
    "reduce_scatter": "Reduce_scatter",
    "bcast": "Bcast",
    "allgather": "Allgather",
    "alltoall": "Alltoall",
    "gather": "Gather",
    "scatter": "Scatter",
}
ELEMENT = 8  # bytes of a double
OPTIONS = {
    "iter": "1",
    "iter_policy": "off",  # or it would change the number
    "sync": "on",  # a barrier before every call
    "root_shift": "off",
    "time": "3600",  # seconds, so that no length is cut short
    "red_data_type": "double",
}


@dataclass(frozen=True)
class Imb:
    """IMB-MPI1 in an environment, given by its Python."""

    python: Path
    name: str = "IMB"

    @property
    def about(self) -> str:
        return "IMB-MPI1 of Intel MPI"

    @property
    def program(self) -> Path:
        return self.python.parent / "IMB-MPI1"

    @classmethod
    def find(cls, python: Path) -> Imb:
        """Return the IMB of an environment. Raises Missing."""
        peer = cls(python)
        if not peer.program.exists():
            raise Missing(f"{peer.program} does not exist; `make MPI=intel env` makes its environment")
        return peer

    @property
    def starting(self) -> float:
        return 1.5

    def calls(self, rounds: int) -> int:
        return 2 * rounds

    def measure(self, launch: Launch, rounds: Mapping[Call, int], directory: Path) -> dict[Call, Measured]:
        """Measure in one launch all collectives that have the same lengths."""
        measured = {call: Measured([], note=f"IMB-MPI1 has no {call.collective}") for call in rounds
                    if call.collective not in BENCHMARKS}
        for lengths, collectives in batches(rounds, launch.ranks).items():
            file = directory / "lengths"
            file.write_text("".join(f"{length}\n" for length in lengths))
            done = launch(
                [str(self.program), *arguments(launch.ranks, file), *(BENCHMARKS[name] for name in collectives)],
                python=self.python,
                env={"LD_LIBRARY_PATH": str(self.python.parent.parent / "lib")},
            )
            checked(done, self.name, measured)
            asked = {call: n for call, n in rounds.items() if call.collective in collectives}
            try:
                measured |= {call: Measured(times) for call, times in parse(done.output, asked).items()}
            except PeerFailed as error:
                raise PeerFailed(str(error), measured) from None
        return measured


def arguments(ranks: int, lengths: Path) -> list[str]:
    """Return IMB's options."""
    options = {"npmin": str(ranks), "msglen": str(lengths), **OPTIONS}
    return [word for name, value in options.items() for word in (f"-{name}", value)]


def length(call: Call, p: int) -> int:
    """Return what IMB calls the length, in bytes.

    >>> [length(Call("reduce_scatter", n), 6) for n in (1 << 20, 40)], length(Call("allgather", 64), 6)
    ([174760, 8], 64)
    """
    return max(ELEMENT, call.size // p // ELEMENT * ELEMENT) if call.collective == "reduce_scatter" else call.size


def batches(rounds: Mapping[Call, int], p: int) -> dict[tuple[int, ...], list[str]]:
    """Return the collectives that IMB has, by the list of lengths that they need.

    >>> batches({Call("bcast", 8): 2, Call("reduce", 8): 2, Call("scatter", 4): 1, Call("scan", 8): 2}, 2)
    {(8, 8): ['bcast', 'reduce'], (4,): ['scatter']}
    """
    lengths: dict[str, list[int]] = defaultdict(list)
    for call, n in rounds.items():
        if call.collective in BENCHMARKS:
            lengths[call.collective] += [length(call, p)] * n
    by_lengths: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for collective, listed in lengths.items():
        by_lengths[tuple(listed)].append(collective)
    return dict(by_lengths)


def parse(text: str, rounds: Mapping[Call, int]) -> dict[Call, Times]:
    """Return the times of every call in what IMB printed, which is in the order of the lengths. Raises PeerFailed."""
    printed: dict[str, Times] = defaultdict(list)
    for row in reader.parse("IMB-MPI1", text).rows:
        if row.median_us is not None:
            printed[row.setting.collective].append(row.median_us)
    by_call = {}
    for call, n in rounds.items():
        times = printed[call.collective]
        if len(times) < n:
            raise PeerFailed(f"IMB-MPI1 printed too few times of {call.collective}: {len(times)} where {n} are left")
        by_call[call], printed[call.collective] = times[:n], times[n:]
    return by_call
