"""Strong and weak scaling: which size a collective is to have on how many ranks."""

from __future__ import annotations

from mpicoll.schedules.collectives import COLLECTIVES, base_collective

OSU, STRONG, WEAK = SCALINGS = ("osu", "strong", "weak")
ELEMENT = 8  # bytes: a size is so many, or a multiple
WORDS = {STRONG: "of all ranks", WEAK: "of each rank"}


def scaled(size: int, collective: str, ranks: int, scaling: str) -> int | None:
    """Return the bytes that a size stands for on so many ranks, as the OSU benchmarks mean sizes.

    None stands for less than ELEMENT.

    osu: the size itself. strong: all ranks' blocks together are of this size, at any number of ranks. weak: one rank's.

    >>> [scaled(4096, name, 4, "strong") for name in ("allreduce", "allgather", "alltoall")]
    [4096, 1024, 256]
    >>> [scaled(4096, name, 4, "weak") for name in ("allreduce", "allgather", "alltoall")]
    [16384, 4096, 1024]
    >>> scaled(784, "allgather", 49, "strong"), scaled(16, "alltoall", 4, "weak")
    (16, None)
    """
    naming = COLLECTIVES[base_collective(collective)].naming
    if not size or scaling == OSU or naming == "none":
        return size
    divisions = {"vector": 0, "rank": 1, "pair": 2}[naming] - (scaling == WEAK)
    nbytes = size * ranks if divisions < 0 else size // ranks**divisions
    return nbytes // ELEMENT * ELEMENT or None
