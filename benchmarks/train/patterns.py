"""The patterns by name: how each begins, what one step is, and what it should send and hold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.training import DataParallel, Grid, Hybrid, ParameterServer, Zero, theory
from mpicoll.training.modules import Module
from mpicoll.training.optimizers import Adam, Sgd
from mpicoll.training.tensor_parallel import share
from mpicoll.training.theory import Expected
from mpicoll.training.transformer import Shape

from . import models
from .data import Digits, Text

TEXT = "transformer"
BUCKET_BYTES = 2 << 20  # for a model of a few MiB
UNITS = 6  # of the transformer: an embedding, blocks and a head
Step = Callable[[int], float]  # from the number of a step to the loss of its batch


@dataclass(frozen=True)
class Work:
    """The data, the sizes of models, and the samples of a batch over all ranks together."""

    digits: Digits
    text: Text
    dtype: Any = np.float64
    width: int = 512
    layers: int = 3
    batch: int = 96
    windows: int = 24

    def samples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels of a step; batches differ in size, as an epoch's last one does."""
        draw = np.random.default_rng([7, number])
        size = self.batch - (number % 3 == 2) * (self.batch // 5)
        chosen = draw.choice(len(self.digits.x), size, replace=False)
        return self.digits.x[chosen].astype(self.dtype), self.digits.y[chosen]

    def mlp(self) -> list[Module]:
        """Return the network for digits."""
        return models.mlp(self.dtype, self.width, self.layers)

    @property
    def shape(self) -> Shape:
        """Return the shape of the transformer."""
        return Shape(len(self.text.characters), context=32, width=64, heads=4, blocks=UNITS - 2, dtype=self.dtype)

    def optimizer(self) -> Sgd:
        """Return gradient descent for digits; text is learnt by Adam."""
        return Sgd(0.05)


@dataclass(frozen=True)
class Pattern:
    """One pattern: its idea, how a rank begins, what theory says, and what model it trains.

    blocking begins it with nothing hidden behind computing, where it has such a form.
    """

    about: str
    begin: Callable[[Any, Work], Step]
    expected: Callable[[Work, int], Expected]
    blocking: Callable[[Any, Work], Step] | None = None
    model: str = "mlp"


def _on_parts(comm: Any, trainer: Any, work: Work) -> Step:
    """Return a step in which each rank trains on its part of a batch."""

    def step(number: int) -> float:
        x, labels = work.samples(number)
        own = share(len(x), comm)
        loss: float = trainer.step(x[own], labels[own])
        return loss

    return step


def data_parallel(**how: Any) -> Callable[[Any, Work], Step]:
    """Return how data parallel ranks begin."""
    return lambda comm, work: _on_parts(comm, DataParallel(comm, work.mlp(), work.optimizer(), **how), work)


def zero(stage: int, **how: Any) -> Callable[[Any, Work], Step]:
    """Return how ranks of a stage of ZeRO begin."""
    return lambda comm, work: _on_parts(comm, Zero(comm, work.mlp(), work.optimizer(), stage=stage, **how), work)


def with_model(make: Callable[[Any, Work], list[Module]]) -> Callable[[Any, Work], Step]:
    """Return how data parallel ranks begin whose model has communication in it."""
    return lambda comm, work: _on_parts(comm, DataParallel(comm, make(comm, work), work.optimizer()), work)


def parameter_server(servers: Callable[[int], int]) -> Callable[[Any, Work], Step]:
    """Return how ranks begin of which some are servers; these talk to every rank directly."""

    def begin(comm: Any, work: Work) -> Step:
        trainer = ParameterServer(comm, work.mlp(), work.optimizer(), servers=servers(comm.size))

        def step(number: int) -> float:
            batch = work.samples(number) if comm.rank == 0 else (None, None)
            directly = comm.using(reduce="linear", bcast="linear") if hasattr(comm, "using") else nullcontext()
            with directly:
                return trainer.step(*batch)

        return step

    return begin


def hybrid(divide: Callable[[int], tuple[int, int, int]], **how: Any) -> Callable[[Any, Work], Step]:
    """Return how ranks begin that form a grid; divide gives (data, tensor, pipeline) for a number of ranks."""

    def begin(comm: Any, work: Work) -> Step:
        grid = Grid(comm, *divide(comm.size))
        trainer = Hybrid(grid, work.shape, Adam(3e-3), **how)

        def step(number: int) -> float:
            x, labels = work.text.batch(number, work.windows, work.shape.context)
            own = share(len(x), grid.data)
            return trainer.step(x[own], labels[own])

        return step

    return begin


def cube(p: int) -> tuple[int, int, int]:
    """Return data, tensor and pipeline sizes as equal as can be, the largest first.

    >>> cube(4), cube(8), cube(6), cube(5)
    ((2, 2, 1), (2, 2, 2), (3, 2, 1), (5, 1, 1))
    """
    divisors = [n for n in range(1, p + 1) if p % n == 0]
    every = [(a, b, p // (a * b)) for a in divisors for b in divisors if b <= a and p % (a * b) == 0]
    return min(sizes for sizes in every if sizes[2] <= sizes[1])


# -- what theory says ---------------------------------------------------------------------------------------


def _itemsize(work: Work) -> int:
    return int(np.dtype(work.dtype).itemsize)


def _digits(work: Work) -> tuple[int, int]:
    """Return the bytes of the digits' network, and of its largest unit."""
    sizes = [sum(parameter.size for parameter in unit.parameters()) * _itemsize(work) for unit in work.mlp()]
    return sum(sizes), max(sizes)


def _data_parallel(work: Work, p: int) -> Expected:
    return theory.data_parallel(_digits(work)[0], p, 1)


def _zero(stage: int) -> Callable[[Work, int], Expected]:
    return lambda work, p: theory.zero(_digits(work)[0], p, 1, stage, _digits(work)[1])


def _batch_norm(work: Work, p: int) -> Expected:
    n = _digits(work)[0] + 2 * work.width * _itemsize(work)
    plain = theory.data_parallel(n, p, 1)
    return plain._replace(sent=plain.sent + theory.batch_norm(work.width, _itemsize(work), 1, p))


def _exchange(work: Work, p: int) -> Expected:
    plain = _data_parallel(work, p)
    return plain._replace(sent=plain.sent + 4 * theory.exchange(work.batch / p * work.width * _itemsize(work), p))


def _experts(work: Work, p: int) -> Expected:
    """Return the expected costs if all experts get equally many tokens."""
    width, itemsize = work.width // 2, _itemsize(work)
    n = (64 * width + width + width * models.EXPERTS + 2 * width + width * models.CLASSES + models.CLASSES) * itemsize
    held = n + (4 * width**2 + 3 * width) * itemsize * -(-models.EXPERTS // p)
    tokens = 4 * theory.exchange(work.batch / p * width * itemsize, p)
    return Expected(theory.data_parallel(n, p, 1).sent + tokens, held, held, held)


def _transformer(work: Work, tensor: int = 1, stages: int = 1) -> float:
    """Return the most bytes of the transformer's parameters on a rank. Norms, embedding and output are not cut."""
    shape, width = work.shape, work.shape.width
    heads, hidden = -(-shape.heads // tensor) / shape.heads, -(-4 * width // tensor)
    block = 4 * width**2 * heads + (2 * width + 1) * hidden + 5 * width
    units = [(shape.vocabulary + shape.context) * width, *[block] * shape.blocks, (shape.vocabulary + 2) * width]
    ends = np.cumsum([len(units) // stages + (s < len(units) % stages) for s in range(stages)]).tolist()
    return max(sum(units[first:end]) for first, end in zip([0, *ends], ends)) * _itemsize(work)


def _activations(work: Work, data: int = 1) -> float:
    """Return the bytes of activations between two layers of the transformer, of one data rank's part of a batch."""
    return work.windows / data * work.shape.context * work.shape.width * _itemsize(work)


def _tensor(work: Work, p: int) -> Expected:
    held = _transformer(work, tensor=p)
    return Expected(theory.tensor_parallel(_activations(work), work.shape.blocks, p), held, held, 2 * held)


def _sequence(work: Work, p: int) -> Expected:
    """Return the costs of _tensor, and of an allgather into and one out of the part cut by positions."""
    plain = _tensor(work, p)
    return plain._replace(sent=plain.sent + 2 * theory.exchange(_activations(work), p))


def _grid(work: Work, divided: tuple[int, int, int]) -> Expected:
    data, tensor, stages = divided
    held, activations = _transformer(work, tensor, stages), _activations(work, data)
    blocks = -(-work.shape.blocks // stages)
    sent = (
        theory.tensor_parallel(activations, blocks, tensor)
        + theory.data_parallel(held, data, 2).sent
        + theory.pipeline(activations, stages)
    )
    return Expected(sent, held, held, 2 * held)


# -- the patterns -------------------------------------------------------------------------------------------


def in_turn(p: int) -> tuple[int, int, int]:
    """Return a grid of as many stages as there may be, of the transformer's units; the rest is data parallel."""
    stages = max(n for n in range(1, UNITS + 1) if p % n == 0)
    return p // stages, 1, stages


def _beside(p: int) -> tuple[int, int, int]:
    return 1, p, 1


PATTERNS: dict[str, Pattern] = {
    "data_parallel": Pattern(
        "gradients in buckets, reduced while the backward pass continues",
        data_parallel(bucket_bytes=BUCKET_BYTES),
        _data_parallel,
        blocking=data_parallel(bucket_bytes=BUCKET_BYTES, overlap=False),
    ),
    "master": Pattern(
        "gradients reduced to rank 0, which broadcasts the sums",
        data_parallel(master=True),
        lambda work, p: theory.master(_digits(work)[0], p, 1),
    ),
    "zero1": Pattern("optimizer state cut among the ranks", zero(1), _zero(1), blocking=zero(1, prefetch=False)),
    "zero2": Pattern("gradients too", zero(2), _zero(2), blocking=zero(2, prefetch=False)),
    "zero3": Pattern("parameters too: fully sharded", zero(3), _zero(3), blocking=zero(3, prefetch=False)),
    "parameter_server": Pattern(
        "rank 0 keeps the parameters, and is sent all gradients",
        parameter_server(lambda p: 1),
        lambda work, p: theory.parameter_server(_digits(work)[0], p, 1, 1),
    ),
    "parameter_servers": Pattern(
        "every rank keeps a part of them",
        parameter_server(lambda p: p),
        lambda work, p: theory.parameter_server(_digits(work)[0], p, 1, p),
    ),
    "batch_norm": Pattern(
        "data parallel, with the statistics of the whole batch",
        with_model(lambda comm, work: models.normalised(comm, work.dtype, work.width, work.layers)),
        _batch_norm,
        model="normalised",
    ),
    "exchange": Pattern(
        "data parallel, with whole columns of the batch in one layer: all-to-all",
        with_model(lambda comm, work: models.switched(comm, work.dtype, work.width, work.layers)),
        _exchange,
        model="switched",
    ),
    "experts": Pattern(
        "tokens to experts on all ranks and back, by alltoallv",
        with_model(lambda comm, work: models.experts(comm, work.dtype, work.width // 2)),
        _experts,
        model="experts",
    ),
    "tensor_parallel": Pattern("every layer cut among the ranks", hybrid(_beside, parts=1), _tensor, model=TEXT),
    "sequence_parallel": Pattern(
        "and what is between layers cut by positions",
        hybrid(_beside, parts=1, by_positions=True),
        _sequence,
        model=TEXT,
    ),
    "pipeline": Pattern(
        "units dealt out to ranks, a batch in parts",
        hybrid(in_turn, parts=4),
        lambda work, p: _grid(work, in_turn(p)),
        model=TEXT,
    ),
    "grid": Pattern("data x tensor x pipeline", hybrid(cube), lambda work, p: _grid(work, cube(p)), model=TEXT),
}
