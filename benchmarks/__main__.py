"""`python -m mpicoll.benchmarks` is `mpicoll bench`."""

from .bench.cli import bench

bench(prog_name="mpicoll bench")
