"""Flatten the programs of all ranks into arrays, and match the two ends of every message: for the compiled event loop.

Strands are numbered rank by rank, and so are their steps and ops; an op is one end of a message. Ends match in order:
the k-th message that a rank sends to another in a strand is the k-th that the other receives from it in that strand.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..garbage import collection_off
from ..schedules.ir import Copy, Reduce, Send
from ..schedules.schedule import Schedule
from .profile import reduced_and_copied

STRANDS, STEPS, OPS, MESSAGES, SECTIONS = range(5)  # the header of words: where these begin
RANK, FIRST_STEP, END_STEP, STRAND_COLUMNS = range(4)  # columns of strands
SENDER, RECEIVER, SEND_PLACE, RECEIVE_PLACE, MESSAGE_COLUMNS = range(5)  # columns of messages


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a schedule, and the steps that send and receive them.

    - words: int64. They begin with a header of SECTIONS words, which says where each section begins:
      strands: rank, first step, end step; shape (strands, 3).
      steps: first op of each step, and the end of the last; shape (steps + 1,).
      ops: 2 * message + 1 for the end that sends, 2 * message for the end that receives; shape (ops,).
      messages: the strands that send and receive it, and how many messages of its step are sent before it is, and are
      received before it is; shape (messages, 4).
    - blocks: the bytes of each message as a multiple of a block's; shape (messages,).
    - local: how many blocks each step reduces, and how many it copies or packs; shape (steps, 2).
    """

    words: np.ndarray
    blocks: np.ndarray
    local: np.ndarray

    @property
    def strands(self) -> np.ndarray:
        """The strands; shape (strands, 3)."""
        return self.words[self.words[STRANDS] : self.words[STEPS]].reshape(-1, STRAND_COLUMNS)

    def ranks(self, column: int) -> np.ndarray:
        """Return the rank that sends (SENDER) or receives (RECEIVER) each message; shape (messages,)."""
        strands = self.words[self.words[MESSAGES] :].reshape(-1, MESSAGE_COLUMNS)[:, column]
        ranks: np.ndarray = self.strands[strands, RANK]
        return ranks


@lru_cache(maxsize=1)  # a command simulates an algorithm at several sizes
def messages_of(schedule: Schedule, folded: bool) -> Messages:
    """Return the messages of a schedule.

    folded: those of rank 0 alone, which stands for all ranks of a uniform algorithm: what it sends to the rank that is
    d further on, it receives itself, in the place of what it has from the rank that is d back.
    Raises RuntimeError if messages have no other side.
    """
    p = schedule.p
    strands, nth, steps, local, peers, sends, blocks = _flattened(schedule, range(1 if folded else p))
    counts = np.diff(steps)
    strand = np.repeat(np.repeat(np.arange(len(nth)), strands[:, END_STEP] - strands[:, FIRST_STEP]), counts)
    rank, sent = strands[strand, RANK], np.append(0, np.cumsum(sends))
    first = np.repeat(steps[:-1], counts)  # op of each op's step
    sent_before = sent[:-1] - sent[first]
    place = np.where(sends, sent_before, np.arange(len(peers)) - first - sent_before)
    senders, receivers = (0, -peers % p) if folded else (peers, rank)  # of what ops receive
    pairs = np.where(sends, rank * p + peers, senders * p + receivers) * (nth.max(initial=0) + 1) + nth[strand]
    out, into = np.flatnonzero(sends), np.flatnonzero(sends == 0)
    out, into = out[np.argsort(pairs[out], kind="stable")], into[np.argsort(pairs[into], kind="stable")]
    _check_pairs(pairs[out], pairs[into])
    ops = np.empty(len(peers), np.int64)
    ops[out] = 2 * np.arange(len(out)) + 1
    ops[into] = 2 * np.arange(len(out))
    messages = np.column_stack([strand[out], strand[into], place[out], place[into]])
    sections = [strands.ravel(), steps, ops, messages.ravel()]
    header = np.cumsum([SECTIONS, *map(len, sections[:-1])])
    return Messages(np.concatenate([header, *sections]), blocks[out], local)


@collection_off()  # there may be millions of objects, none of them garbage
def _flattened(schedule: Schedule, ranks: Iterable[int]) -> tuple[np.ndarray, ...]:
    """Return the programs of ranks.

    That is strands, their numbers among those of their ranks, the first op of each step, the blocks that steps reduce
    and copy, and for each op its peer, whether it sends, and its blocks.
    """
    strands, nth, steps, local, peers, sends = integers = [array("q") for _ in range(6)]
    blocks = array("d")
    for rank in ranks:
        for number, strand in enumerate(schedule.program(rank)):
            nth.append(number)
            strands.extend((rank, len(steps), len(steps) + len(strand)))
            for step in strand:
                steps.append(len(peers))
                local.extend(reduced_and_copied(step))
                for op in step:
                    if not isinstance(op, (Reduce, Copy)):
                        peers.append(op.peer)
                        blocks.append(schedule.blocks_moved(op))
                        sends.append(isinstance(op, Send))
    steps.append(len(peers))
    widths = (STRAND_COLUMNS,), (), (), (2,), (), (), ()
    columns: list[array[Any]] = [*integers, blocks]
    return tuple(
        np.frombuffer(column, column.typecode).reshape(-1, *width) if column else np.zeros((0, *width), column.typecode)
        for column, width in zip(columns, widths, strict=True)
    )


def _check_pairs(sent: np.ndarray, received: np.ndarray) -> None:
    """Raise RuntimeError unless as many messages are sent between any two ranks as received."""
    if not np.array_equal(sent, received):
        both = np.concatenate([sent, received])
        pairs, at = np.unique(both, return_inverse=True)
        more = np.bincount(at[: len(sent)], minlength=len(pairs)) - np.bincount(at[len(sent) :], minlength=len(pairs))
        raise RuntimeError(f"{np.abs(more).sum()} messages of the schedule have no other side")
