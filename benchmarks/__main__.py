"""`python -m mpicoll.benchmarks` is `mpicoll bench`."""

from .cli import bench

bench(prog_name="mpicoll bench")
