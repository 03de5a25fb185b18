"""The communicator, its methods and requests: what stands in the place of mpi4py's classes."""
