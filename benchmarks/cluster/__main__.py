"""`python -m mpicoll.benchmarks.cluster`."""

from .cli import NAME, cluster

if __name__ == "__main__":
    cluster.main(prog_name=f"python -m {NAME}")
