"""`python -m mpicoll.jobs.warm`: compiles the commonest kernels, so that no rank of a job has to."""

import numpy as np

from mpicoll.kernels import pack, reduce

OPERATORS = ("SUM", "PROD", "MAX", "MIN")
TYPES = ("f4", "f8", "i4", "i8")

if __name__ == "__main__":
    for operator in OPERATORS:
        for name in TYPES:
            reduce.address(operator, np.dtype(name))
    for function in (pack.pack_elements, pack.unpack_elements):
        function.prepare()
