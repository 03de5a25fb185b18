"""`python -m mpicoll.jobs.warm`: compiles the commonest reductions, so that no rank of a job has to."""

import numpy as np

from mpicoll.kernels import reduce

OPERATORS = ("SUM", "PROD", "MAX", "MIN")
TYPES = ("f4", "f8", "i4", "i8")

if __name__ == "__main__":
    for operator in OPERATORS:
        for name in TYPES:
            reduce.address(operator, np.dtype(name))
