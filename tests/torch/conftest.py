"""Programs of torch.distributed under mpiexec: the default group is mpicoll's, and one of Gloo's stands beside it."""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.harness import install as pytest_configure  # noqa: F401
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_flatten

import mpicoll.torch

# Two ranks add in one order only. More add in the order of their algorithm: what differs is the rounding of sums,
# which several steps of training carry on.
TOLERANCES = {
    torch.float64: {"rtol": 1e-11, "atol": 1e-13},
    torch.float32: {"rtol": 2e-5, "atol": 2e-6},
    torch.float16: {"rtol": 2e-3, "atol": 2e-4},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-3},
}
LIMIT = timedelta(seconds=50)       # less than a test's: a rank that waits reports for what
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def world():
    """Yield the default group, mpicoll's."""
    dist.init_process_group("mpicoll", timeout=LIMIT)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def gloo(world):
    """Return a group of all ranks, Gloo's."""
    return dist.new_group(backend="gloo", timeout=LIMIT)


@pytest.fixture
def ours(world):
    """Yield a group of all ranks, mpicoll's, for this test alone: ranks compare the first calls of a group."""
    group = dist.new_group(timeout=LIMIT)
    yield group
    dist.destroy_process_group(group)


@pytest.fixture(scope="session")
def ranks(world):
    return world.size()


@pytest.fixture(scope="session")
def rank(world):
    return world.rank()


@pytest.fixture
def served(world):
    """Count the operations by name that mpicoll's groups served on this rank since the test began."""
    with mpicoll.torch.count() as counts:
        yield counts


@pytest.fixture(scope="session")
def meshes(world):
    """Return meshes(2, 2): a mesh of that shape whose groups are mpicoll's, and another of Gloo's, created once.

    Their dimensions have other names: to torch, meshes of one shape and the same names are one and the same.
    """
    cache: dict[tuple[int, ...], list[DeviceMesh]] = {}

    def get(*shape: int) -> list[DeviceMesh]:
        if shape not in cache:
            cache[shape] = [
                init_device_mesh("cpu", shape, mesh_dim_names=tuple(f"{backend}-{i}" for i in range(len(shape))),
                                 backend_override=dict.fromkeys(range(len(shape)), backend) if chosen else None)
                for backend, chosen in (("mpicoll", False), ("gloo", True))
            ]
            for mesh, backend in zip(cache[shape], ("mpicoll", "gloo")):
                assert all(dist.get_backend(group) == backend for group in mesh.get_all_groups())
        return cache[shape]

    return get


@pytest.fixture(scope="session")
def agree(ranks):
    """Return agree(ours, theirs): compare values in any nesting; to the last bit on two ranks or one.

    ``summed`` is the type that sums were rounded to on their way to the values, where that isn't the values' own.
    """
    def check(ours, theirs, exactly: bool = ranks <= 2, summed: torch.dtype | None = None) -> None:
        (mine, structure), (others, same) = tree_flatten(ours), tree_flatten(theirs)
        assert structure == same and mine
        for actual, other in zip(mine, others):
            if not isinstance(actual, torch.Tensor):
                assert actual == other
            elif exactly or not actual.is_floating_point():
                torch.testing.assert_close(actual, other, rtol=0, atol=0, equal_nan=True)
                assert not actual.is_floating_point() or torch.equal(torch.signbit(actual), torch.signbit(other))
            else:
                torch.testing.assert_close(actual, other, **TOLERANCES[summed or actual.dtype])

    return check


@pytest.fixture
def directory(world, rank):
    """Yield a directory that all ranks see; rank 0 makes it and removes it."""
    path = [tempfile.mkdtemp(prefix="mpicoll-tests-") if rank == 0 else None]
    dist.broadcast_object_list(path)
    yield Path(path[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(path[0])
