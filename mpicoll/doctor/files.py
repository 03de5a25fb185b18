"""The files that a run uses: the tuning table, and the cache of compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import spans
from .finding import WARNING, WRONG, Facts, Finding, named

# Filesystems that many nodes see, as mountinfo names them.
DISKS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "panfs", "pvfs2", "wekafs", "9p")
FUSE = ("fuse.sshfs", "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.beegfs")
SHARED = frozenset(DISKS + FUSE)


def settings(facts: Facts) -> Iterator[Finding]:
    """Check that mpicoll's variables make sense, and the tuning table is for these ranks."""
    refused, untuned = facts["settings"]["refused"], facts["settings"]["untuned"]
    if refused:
        yield Finding(
            WRONG,
            "making a Comm will raise an error",
            refused,
            "unset the variable or correct it; a table is written by: mpiexec -n RANKS mpicoll tune -o FILE",
        )
    if untuned:
        yield Finding(
            WARNING,
            "the file that MPICOLL_TUNING names has no table for these ranks: auto goes by its rules",
            untuned,
            "where the run is to be, with as many ranks on as many nodes: mpiexec -n RANKS mpicoll tune -o FILE",
        )


def kernel_cache(facts: Facts) -> Iterator[Finding]:
    """Check that compiled kernels are kept, and not compiled by all nodes at once on a filesystem that they share."""
    ranks = facts["ranks"]
    lost = [rank["rank"] for rank in ranks if rank["cache"]["directory"] is None]
    cold = [rank for rank in ranks if rank["cache"]["filesystem"] in SHARED and rank["cache"]["compiled"]]
    if lost:
        yield Finding(
            WARNING,
            f"{named(spans(lost))} cannot keep compiled kernels: every process compiles them at its first calls",
            "no directory for compiled kernels can be written",
            "export NUMBA_CACHE_DIR=/tmp/$USER-numba, or another directory on a node's own disk",
        )
    if cold:
        cache = cold[0]["cache"]
        yield Finding(
            WARNING,
            "the kernel cache lies on a filesystem that nodes share, and kernels were missing in it for "
            f"{named(spans(rank['rank'] for rank in cold))}: a large run would wait for compilers and that filesystem",
            f"{cache['directory']} is on {cache['filesystem']}; {cache['compiled']} kernels were compiled just now",
            "export NUMBA_CACHE_DIR=/tmp/$USER-numba, or another directory on a node's own disk; "
            "or run this once on one rank before the large run, to fill the cache",
        )
