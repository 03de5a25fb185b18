"""Fixtures of the tests that start whole programs."""

from support.slurm import run, slurm  # noqa: F401
