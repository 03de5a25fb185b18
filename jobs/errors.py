"""Errors about jobs, each in one line for the user."""

from __future__ import annotations

from mpicoll.errors import MpicollError


class JobsError(MpicollError, ValueError):
    """A job that cannot be written, submitted or gathered."""


class NoSlurm(JobsError):
    """A command of Slurm's that is not here."""
