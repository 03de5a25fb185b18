"""Lower a schedule to the flat table that one rank runs. Needs no MPI."""
