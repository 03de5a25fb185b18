"""Prove schedules and lowered plans for a number of ranks by symbolic execution. Needs no MPI."""
