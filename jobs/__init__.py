"""Batch jobs, as `mpicoll.jobs`: sbatch files that run the benchmarks at scale under Slurm.

bench.sbatch    one collective, over many sizes, on every rank of an allocation; JSON lines per job
"""

from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent


def template(name: str = "bench") -> Path:
    """The sbatch file of that name. Raises FileNotFoundError, naming those there are."""
    path = DIRECTORY / f"{name}.sbatch"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in DIRECTORY.glob("*.sbatch")))
        raise FileNotFoundError(f"no job is called {name!r}; there is {known}")
    return path
