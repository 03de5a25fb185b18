"""Train by patterns: `python -m mpicoll.benchmarks.train`."""

from .cli import train

if __name__ == "__main__":
    train.main(prog_name="python -m mpicoll.benchmarks.train")
