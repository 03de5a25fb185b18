"""Replace mpi4py's communicators and requests by subclasses whose collectives are mpicoll's."""
