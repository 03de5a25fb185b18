"""Prove schedules and lowered plans for a number of ranks, by playing them symbolically. Needs no MPI."""
