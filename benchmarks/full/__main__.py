"""Say what is reached between two ranks: `python -m mpicoll.benchmarks.full`."""

from .cli import NAME, full

if __name__ == "__main__":
    full.main(prog_name=f"python -m {NAME}")
