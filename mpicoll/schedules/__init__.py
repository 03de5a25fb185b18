"""Describe collectives and algorithms as data: blocks, steps, schedules, the registry. Needs no MPI."""
