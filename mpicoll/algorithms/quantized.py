"""Collectives that move codes of float32 in the place of them: fewer bytes, a bounded error, the same bits everywhere.

`codec` and its `group` are those of mpicoll.compression. A contribution is encoded once; a reduction reduces what comes
out in float32 and encodes the result once more. To encode a sum at every hop would add an error at every hop; no
algorithm here does.
"""

from ..schedules.combinators import coded, then
from ..schedules.grids import over
from ..schedules.ir import CODES, REST, RESULTS, VALUE, Copy, Loc, Recv, RecvReduce, Send, Steps, Strands
from ..schedules.parameters import OWN, Codec, GroupSize, YesOrNo
from ..schedules.registry import algorithm
from . import allgather as gathering
from . import bcast as broadcasting


def _reduce_codes(p: int, rank: int) -> Steps:
    """Pairwise reduce-scatter of codes, each encoded while the one before is in flight."""
    if p > 1:
        yield Copy(Loc(CODES, (rank + 1) % p), Loc(VALUE, (rank + 1) % p))
    for i in range(1, p):
        to, after = (rank + i) % p, (rank + i + 1) % p
        moved = Send(to, (to,), CODES), RecvReduce((rank - i) % p, (rank,), "left", coded=True)
        yield (*moved, Copy(Loc(CODES, after), Loc(VALUE, after))) if i < p - 1 else moved


@algorithm("reduce_scatter", grid=[over((3,), codec=("int4",)), over((2, 3, 5), feedback=("yes",))])
def quantized(p: int, rank: int, *, codec: Codec = "int8", group: GroupSize = OWN, feedback: YesOrNo = "no") -> Strands:
    """Send each rank codes of its block; decode the codes received, and reduce them in float32.

    With feedback the rank's own block is encoded too, and the send buffer is left as what codes of the blocks lack.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p * codec.share
    Scratch: at most 3 * n / p
    Encoded: p > 1
    Cost: (p - 1) α + n (p - 1)/p (s β + γ), s the bytes of codes for each byte
    Source: Alistarh et al., QSGD: communication-efficient SGD via gradient quantization and encoding, 2017

    >>> [type(op).__name__ for step in quantized(2, 0)[0] for op in step]
    ['Copy', 'Send', 'RecvReduce']
    """
    value, codes = Loc(VALUE, rank), Loc(CODES, rank)
    own = [Copy(codes, value), Copy(Loc(REST, rank), value), Copy(value, codes)] if feedback == "yes" and p > 1 else []
    return then(own, _reduce_codes(p, rank))


@algorithm(
    "allreduce",
    blocks=lambda p, **_: p,
    name="quantized",
    grid=[
        over((3,), codec=("int4",)),
        over((2, 3, 5), feedback=("yes",)),
        over((3,), group=(64,)),
    ],
)
def allreduce(p: int, rank: int, *, codec: Codec = "int8", group: GroupSize = OWN, feedback: YesOrNo = "no") -> Strands:
    """Reduce-scatter codes pairwise, encode the sum of the own block, and send those codes round the ring.

    With feedback the rank's contribution is left as what no codes hold of it: of other ranks' blocks what its codes
    lack, of its own block what the codes of the sum lack. So the send buffer changes, unlike with any other algorithm.

    Steps: 2 * (p - 1)
    Bytes per rank: 2 * n * (p - 1) / p * codec.share
    Scratch: at most 3 * n / p
    Encoded: 2 * (p > 1)
    Cost: 2 (p - 1) α + n (p - 1)/p (2 s β + γ), s the bytes of codes for each byte
    Source: Markov et al., CGX: adaptive system support for communication-efficient deep learning, 2022

    >>> allreduce(3, 0)[0][2][0].blocks, allreduce(3, 0)[0][2][1].coded
    ((2,), True)
    """
    if p == 1:
        return Strands(((),))
    value, codes = Loc(VALUE, rank), Loc(RESULTS, rank)
    rest = [Copy(Loc(REST, rank), value)] if feedback == "yes" else []
    return then(_reduce_codes(p, rank), [Copy(codes, value), *rest, Copy(value, codes)], coded(gathering.ring(p, rank)))


@algorithm("allgather", name="quantized", grid=[over((3,), codec=("int4",))])
def allgather(p: int, rank: int, *, codec: Codec = "int8", group: GroupSize = OWN) -> Strands:
    """Encode the own block and send codes round the ring; every rank, the sender too, ends with the decoded values.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p * codec.share
    Scratch: at most 3 * n / p
    Encoded: p > 1
    Cost: (p - 1) α + n (p - 1)/p s β, s the bytes of codes for each byte
    Source: Wang et al., ZeRO++: extremely efficient collective communication for giant model training, 2023

    >>> len(allgather(3, 0)[0])
    4
    """
    if p == 1:
        return Strands(((),))
    value, codes = Loc(VALUE, rank), Loc(RESULTS, rank)
    return then([Copy(codes, value), Copy(value, codes)], coded(gathering.ring(p, rank)))


@algorithm("bcast", name="quantized", grid=[over((3,), codec=("int4",))])
def bcast(p: int, rank: int, *, codec: Codec = "int8", group: GroupSize = OWN) -> Strands:
    """Encode the vector at the root and hand codes down the chain; the root's own stays as it is.

    Steps: p - 1
    Bytes per rank: n * (p > 1) * codec.share
    Scratch: at most n
    Encoded: p > 1
    Cost: (p - 2 + chunks) (α + n/chunks s β), s the bytes of codes for each byte
    Source: Wang et al., ZeRO++: extremely efficient collective communication for giant model training, 2023

    >>> [type(op).__name__ for step in bcast(3, 1)[0] for op in step]
    ['Recv', 'Copy', 'Send']
    """
    encode = [Copy(Loc(RESULTS, 0), Loc(VALUE, 0))] if rank == 0 and p > 1 else []
    return then(encode, coded(broadcasting.chain(p, rank)))


@algorithm("alltoall", name="quantized", grid=[over((3,), codec=("int4",))])
def alltoall(p: int, rank: int, *, codec: Codec = "int8", group: GroupSize = OWN) -> Steps:
    """Swap codes with the rank i further on in step i; what a rank keeps for itself is not encoded.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p * codec.share
    Scratch: at most 3 * n / p
    Encoded: p > 1
    Cost: (p - 1) (α + n/p s β), s the bytes of codes for each byte
    Source: Wang et al., ZeRO++: extremely efficient collective communication for giant model training, 2023

    >>> [op.peer for step in alltoall(3, 0)[0] for op in step if isinstance(op, Send)]
    [1, 2]
    """
    for i in range(1, p):
        sent, got = (rank, (rank + i) % p), ((rank - i) % p, rank)
        yield Copy(Loc(CODES, sent), Loc(VALUE, sent))
        yield Send(sent[1], (sent,), CODES), Recv(got[0], (got,), CODES), Copy(Loc(VALUE, got), Loc(CODES, got))
