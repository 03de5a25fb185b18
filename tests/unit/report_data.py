"""Plausible results of schema 2: what the report's tests read."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpicoll.benchmarks.measure.stats import estimate, ratio

SIZES = (8, 512, 8192, 65536, 1 << 20, 4 << 20)
PLACES = ((4, 1), (4, 2), (8, 2), (16, 4), (32, 8))
ALGORITHMS = {
    "allreduce": ("ring", "ring_bidirectional", "recursive_doubling", "recursive_multiplying", "rabenseifner",
                  "halving_doubling", "parameter_server", "reduce_bcast", "tree", "double_tree", "hierarchical",
                  "butterfly"),
    "bcast": ("linear", "binomial", "knomial", "knomial(k=4)", "chain", "binary_tree", "split_binary",
              "double_tree", "scatter_allgather", "hierarchical"),
    "reduce": ("linear", "binomial", "knomial", "chain", "binary_tree", "in_order_binary", "double_tree",
               "rabenseifner"),
    "allgather": ("linear", "ring", "bruck", "recursive_doubling", "neighbor_exchange", "gather_bcast"),
    "alltoall": ("linear", "pairwise", "bruck", "hierarchical"),
    "reduce_scatter": ("ring", "pairwise", "recursive_halving", "recursive_doubling", "reduce_scatterv", "butterfly"),
    "scatter": ("linear", "knomial", "binomial", "hierarchical"),
    "gather": ("linear", "knomial", "binomial", "hierarchical"),
    "barrier": ("linear", "tree", "recursive_doubling", "dissemination", "double_ring"),
}  # fmt: skip
RATE = 6.25e6  # bytes per second of a link
ENVIRONMENT = {
    "time": "2026-05-04T10:20:30Z", "mpi": "MPICH 5.0.2", "mpi_standard": "5.0", "placement": "block",
    "binding": [1, 1], "cores": 2, "caches": {"L1d": 32768, "L2": 1048576}, "cpu": "Some Processor",
    "system": "Linux x86_64",
    "python": "3.11.2", "mpicoll": "0.1.0", "numpy": "2.3.0", "commit": "0123456789abcdef", "rate": 50e6,
    "mpi_settings": {"UCX_TLS": "tcp,self"},
}  # fmt: skip


def model(algorithm: str, size: int, ranks: int, hosts: int) -> float:
    """Return microseconds: some latency and some share of the bandwidth for each name, always the same."""
    nature = random.Random(algorithm)
    steps = nature.choice((1.0, math.log2(ranks) / ranks * 3, 1.5))
    latency = nature.uniform(8, 20) * (1 + steps * ranks / 4) * (1 + hosts / 2)
    return latency + nature.uniform(1.05, 3.0) * limit(size, ranks, hosts)


def limit(size: int, ranks: int, hosts: int) -> float:
    """Return the microseconds that the links need."""
    return size / (RATE if hosts > 1 else 4e9) * 1e6 * 2 * (ranks - 1) / ranks


def result(
    collective: str,
    algorithm: str,
    size: int,
    ranks: int,
    hosts: int,
    *,
    rounds: int = 24,
    faster: float = 1.0,
    form: str = "blocking",
    seed: object = 0,
    **other: Any,
) -> dict[str, Any]:
    """Return one line; native's samples come from the same seed, so ratios are paired."""
    native = sampled(collective, "native", size, ranks, hosts, rounds, seed)
    own = [time / faster for time in sampled(collective, algorithm, size, ranks, hosts, rounds, seed)]
    time, against = estimate(own), ratio(native, own)
    ours = algorithm != "native"
    algbw = size / time.median * 1e6
    busbw = algbw * 2 * (ranks - 1) / ranks
    least = limit(size, ranks, hosts) if size and hosts > 1 else None
    fields = {
        "kind": "result", "schema": 2, "collective": collective, "form": form, "size": size, "dtype": "float64",
        "op": "sum", "root": 0, "in_place": False, "counts": "even", "ranks": ranks, "hosts": hosts,
        "algorithm": algorithm, "engine": "auto" if ours else None,
        "ran": {"algorithm": "ring" if algorithm == "auto" else algorithm, "engine": "compiled"} if ours else {},
        "paired": True, "valid": True, "note": "", "median_us": time.median, "interval_us": time.spread,
        "rounds": rounds, "late": 0, "algbw": algbw if size else None, "busbw": busbw if size else None,
        "limit_us": least,
        "of_limit": least and least / time.median, "ratio": against.median if ours else None,
        "ratio_interval": against.spread if ours else None,
        "verdict": against.verdict.replace("same", "no difference") if ours else None, "overlap": None,
        "samples_us": own,
    }  # fmt: skip
    if form == "nonblocking":
        percent = min(99.0, 20 + 10 * math.log10(size or 1))
        fields["overlap"] = {
            "percent": percent, "interval": [percent - 5, percent + 5], "overall_us": 1.2 * time.median,
            "compute_us": time.median, "init_us": 2.0, "wait_us": 0.2 * time.median,
        }  # fmt: skip
    return fields | other


def sampled(
    collective: str, algorithm: str, size: int, ranks: int, hosts: int, rounds: int, seed: object
) -> list[float]:
    draw = random.Random(f"{collective} {algorithm} {size} {ranks} {hosts} {seed}")
    middle = model(f"{collective} {algorithm}", size, ranks, hosts)
    return [middle * math.exp(draw.gauss(0, 0.06) + draw.expovariate(20)) for _ in range(rounds)]


def untimed(collective: str, algorithm: str, size: int, ranks: int, hosts: int, note: str) -> dict[str, Any]:
    """Return the line of an algorithm that does not suit these ranks."""
    nothing = dict.fromkeys(("median_us", "interval_us", "algbw", "busbw", "of_limit", "ratio", "ratio_interval",
                             "verdict", "valid", "overlap"))  # fmt: skip
    row = result(collective, algorithm, size, ranks, hosts, rounds=6)
    return row | nothing | {"note": note, "rounds": 0, "samples_us": [], "ran": {}}


def run_line(**environment: Any) -> dict[str, Any]:
    return {
        "kind": "run",
        "schema": 2,
        "environment": ENVIRONMENT | environment,
        "settings": {"seconds": 10.0, "seed": 0},
    }


def results(
    collectives: Sequence[str] = ("allreduce", "bcast", "barrier"),
    places: Sequence[tuple[int, int]] = PLACES[2:4],
    sizes: Sequence[int] = SIZES,
    **other: Any,
) -> Iterator[dict[str, Any]]:
    """Yield lines of every kind: timed, wrong, not applicable, without interval, late, unpaired, overlapping."""
    for collective in collectives:
        for ranks, hosts in places:
            for size in sizes if collective != "barrier" else (0,):
                where = (size, ranks, hosts)
                for algorithm in ("native", "auto", *ALGORITHMS[collective]):
                    if algorithm == "neighbor_exchange":
                        yield untimed(collective, algorithm, *where, "needs an even number of ranks")
                    elif algorithm == "butterfly":
                        yield result(collective, algorithm, *where, **other) | {"valid": False, "note": "differs at 3"}
                    elif algorithm == "parameter_server":
                        yield result(collective, algorithm, *where, **{"rounds": 4, "late": 3} | other)
                    else:
                        yield result(collective, algorithm, *where, **other)
                if collective == "allreduce":
                    yield result(collective, "gloo", *where, **other) | {
                        "paired": False,
                        "ratio": None,
                        "ratio_interval": None,
                        "verdict": None,
                        "ran": {},
                        "engine": None,
                    }
                    for algorithm in ("native", "auto", "ring", "recursive_doubling", "tree"):
                        yield result(collective, algorithm, *where, form="nonblocking", **other)


def write(path: Path, lines: Iterator[dict[str, Any]] | Sequence[dict[str, Any]], **environment: Any) -> Path:
    """Write a results file, and return its path."""
    every = [run_line(**environment), *lines]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in every), encoding="utf-8")
    return path
