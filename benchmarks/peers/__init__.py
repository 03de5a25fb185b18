"""Other people's collectives, timed as ours are, as `mpicoll.benchmarks.peers`.

peer.py           what a peer is: cases in, times out
gloo.py           Gloo, through torch.distributed
gloo_worker.py    the program that does it, in an environment of its own that has torch
imb.py            Intel's IMB-MPI1, from an environment with the wheel impi-rt
rows.py           results of separate launches, pooled and put beside native's
"""

from .gloo import Gloo
from .imb import Imb
from .peer import Call, Measured, Missing, Peer

__all__ = ["Call", "Gloo", "Imb", "Measured", "Missing", "Peer"]
