"""Make the execution of a kind of call with any counts, and the words by which compiled code binds it to a call.

count_sources.py finds where the arguments of a call say sizes and offsets of blocks, and checks that against the
parsed arguments. rebind.py defines the words and arrays that are set here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..dispatch import execute, prepare
from ..dispatch.call import Call
from ..dispatch.methods import ALLTOALLW, NEIGHBOR_ALLTOALLW
from ..engines import compiled
from ..kernels.memory import address_of, addresses
from ..plans.plan import MAX_MESSAGE, MAX_WINDOW, WHOLE, Shares
from ..plans.rolled import RolledPlan, add_loop_columns
from ..plans.template import SLICE, Binding, Template, bind
from ..runtime.comm_state import CommState
from ..schedules.collectives import NEIGHBORHOOD, Block, is_of_neighbours
from ..schedules.schedule import Schedule
from ..selection.select import same_choice
from ..selection.uneven import COLLECTIVES as UNEVEN
from ..selection.uneven import RANKS, skew_limits
from . import rebind
from .count_sources import Integers, Side, UnknownCounts, side_of
from .rebind import NONE, SIDE, SIDES, WORDS
from .signature import RECV_COUNT, SEND_COUNT

BlockNumbers = dict[Block, int]
Sides = tuple[Side | None, Side | None]  # to send and to receive


class AnyCounts:
    """An execution that compiled code binds to the counts of every call, with the words for rebind.py.

    Raises UnknownCounts for a call whose counts compiled code cannot read.
    """

    def __init__(self, state: CommState, call: Call, integers: Integers, details: np.ndarray) -> None:
        if call.prepared.float32_sums or call.arguments is None:
            raise UnknownCounts("the call has no counts")
        if is_of_neighbours(call.collective) and state.graph.has_equal_blocks:
            raise UnknownCounts("the choice of algorithm depends on the bytes of one block")
        if not call.arguments.contiguous or integers.words != len(details):
            raise UnknownCounts("buffers have holes")
        sides = _sides_of(call, integers, state.rank)
        shares = call.counts if isinstance(call.counts, Shares) else None
        if integers.recvcounts is not None:
            shares = _shares_of(call, state.rank)
        self.words = np.zeros(WORDS + 2 * rebind.ARRAYS, np.int64)
        self.exists: list[bool] = []  # for all blocks of both sides, whether the neighbour exists
        schedule, template = prepare.template_of_any_counts(state, call)
        if integers.recvcounts is not None and schedule.parts > 1:
            raise UnknownCounts("a schedule cuts shares in parts of whole elements")
        self._set_sides(sides, call.arguments.send is None)
        if call.prepared.staged and sides[1] is not None:
            self.words[rebind.RESULT_BLOCKS] = 1 if call.collective == "reduce_scatter" else sides[1].blocks
        if shares is not None:
            ends = state.graph.ends(state.rank) if is_of_neighbours(call.collective) else (None, None)
            numbers = self._set_vectors(schedule, state.rank, shares, sides, details, ends)
            if call.collective in NEIGHBORHOOD:
                self.words[rebind.SHARES] = NONE
        else:
            assert isinstance(call.counts, int)
            numbers = self._set_equal(schedule, call.counts * call.unit, template, sides, details)
        self._set_range(state, call)
        self._set_execution(state, call, template)
        self._set_arrays(template, sides, integers.mask(), *numbers)
        self.at = address_of(self.words)
        self.described = (0, 0, -1)  # (chunks, scratch of a chunk, bytes of the call) in execution.plan

    @property
    def nbytes(self) -> int:
        """Return roughly how many bytes this object takes."""
        return 3 * self.execution.plan.nbytes + sum(array.nbytes for array in self.arrays)

    @property
    def call_bytes(self) -> int:
        """Return the bytes of the call that was bound last, as selection counts them."""
        return int(self.words[rebind.NBYTES])

    def update_plan(self) -> None:
        """Update execution.plan to the call that was bound last, for a call that leaves the fast path."""
        lanes, scratch = self.execution.geometry[[rebind.LANES, rebind.LANE_SCRATCH]].tolist()
        bound = lanes, scratch, self.call_bytes
        if bound != self.described or self.words[rebind.HAS_VECTORS]:
            self.execution.plan = replace(self.execution.plan, lanes=lanes, lane_scratch=scratch)
            self.described = bound

    def _set_sides(self, sides: Sides, is_in_place: bool) -> None:
        first, lengths = 0, (RECV_COUNT if is_in_place else SEND_COUNT, RECV_COUNT)
        for at, side, length in zip((SIDES, SIDES + SIDE), sides, lengths):
            if side is not None:
                count, place = (
                    NONE if side.is_vector or where is None else where for where in (side.counts, side.displacements)
                )
                sizes = side.array.itemsize, side.buffer.facts.extent
                self.words[at : at + rebind.OFFSET] = (1, side.is_vector, *sizes, side.blocks, first, count, place)
                self.words[at + rebind.IS_FULL], self.words[at + rebind.LENGTH_AT] = side.is_full, length
                self.words[at + rebind.PLACE_EXTENT] = 1 if side.types else side.buffer.facts.extent
                first += side.blocks

    def _set_equal(
        self,
        schedule: Schedule,
        nbytes: int,
        template: Template,
        sides: Sides,
        details: np.ndarray,
    ) -> tuple[BlockNumbers, BlockNumbers, BlockNumbers]:
        """Set the words for equal blocks. Return the part that each block is, and the input and output blocks."""
        for side in filter(None, sides):
            if side.is_vector:
                raise UnknownCounts("equal blocks have a list of counts")
            every = range(side.blocks)
            side.check_blocks(details, every, [nbytes] * side.blocks, [i * nbytes for i in every])
        is_vector = schedule.collective.naming == "vector"
        n = len(schedule.blocks) if is_vector else schedule.parts
        self.words[[rebind.PARTS, rebind.SHARES]] = n, 1 if is_vector else schedule.p
        parts = {block: block % n if n > 1 else 0 for block in template.blocks}  # type: ignore[operator]
        inputs = {block: entry for entry, block in template.input_blocks.items()}
        outputs = {block: entry - template.inputs for entry, block in template.output_blocks.items()}
        return parts, inputs, outputs

    def _set_vectors(
        self,
        schedule: Schedule,
        rank: int,
        shares: Shares,
        sides: Sides,
        details: np.ndarray,
        ends: Sequence[Sequence[Any] | None],
    ) -> tuple[BlockNumbers, BlockNumbers, BlockNumbers]:
        """Set the words for vector forms. Return the index of every template block, input and output block.

        Indices count the blocks of the send side, then those of the receive side. If the schedule cuts shares in parts,
        these are counted instead. ends: the edges of the neighbours, None for one that does not exist; None for ranks.
        """
        if shares.every not in (None, shares.receives):
            raise UnknownCounts("only other ranks know some counts")
        numbers: list[BlockNumbers] = [{}, {}]
        first, parts = 0, schedule.parts
        for number, side, edges, blocks, sizes, places in zip(
            numbers,
            sides,
            ends,
            (schedule.starts(rank), schedule.ends(rank)),
            (shares.sends, shares.receives),
            (shares.send_at, shares.recv_at),
        ):
            if side is not None:
                at = [i for i, edge in enumerate(edges or range(side.blocks)) if edge is not None]
                if side.blocks == 1 and parts == 1:  # neighbours get the same block
                    at = [0] * len(blocks)
                if len(at) * parts != len(blocks):
                    raise UnknownCounts("there is not one count for every block")
                side.check_blocks(details, at, sizes, places)
                number.update({block: (first + at[i // parts]) * parts + i % parts for i, block in enumerate(blocks)})
                self.exists += [i in at for i in range(side.blocks)]
                first += side.blocks
        own = {tuple(number[block] // parts for number in numbers) for block in numbers[0] if block in numbers[1]}
        if len(own) > 1:
            raise UnknownCounts("a rank sends itself several blocks")
        self.words[[rebind.OWN_SENT, rebind.OWN_RECEIVED]] = own.pop() if own else (NONE, NONE)
        self.words[rebind.PARTS] = parts
        is_one = sides[0] is not None and sides[0].blocks == 1
        self.words[rebind.SHARES] = len(numbers[0]) // parts if is_one else 1  # receivers of a block
        self.words[rebind.IS_SENT_ONLY] = schedule.collective.name in ("alltoall", *NEIGHBORHOOD)
        self.words[rebind.HAS_VECTORS] = 1
        return {**numbers[1], **numbers[0]}, numbers[0], numbers[1]

    def _set_range(self, state: CommState, call: Call) -> None:
        """Set the range of bytes for which the slow path would use the same choice and template."""
        prepared, overrides = call.prepared, state.overrides
        assert prepared.plan is not None
        min_bytes, max_bytes = same_choice(
            call.collective,
            prepared.nbytes,
            state.size,
            call.commutative,
            overrides,
            state.agreed.nodes,
            state.measured(call.collective),
            state.agreed.network,
            skew := prepare.skew_of(state, call),
        )
        by_skew = state.agreed.chooses_by_skew and not prepared.choice.forced
        if by_skew and skew:
            min_bytes = max(min_bytes, 1)  # without bytes, shares are even
        self.words[[rebind.MIN_BYTES, rebind.MAX_BYTES]] = min_bytes, min(max_bytes, MAX_MESSAGE // state.size)
        if call.collective in UNEVEN and state.size in RANKS and by_skew:
            peaks = *skew_limits(skew), 2 * state.size
            self.words[[rebind.LOW_PEAK, rebind.HIGH_PEAK, rebind.PEAK_RANKS]] = peaks
        chunk = prepared.choice.chunk_bytes
        whole = WHOLE if chunk is None else max(call.unit, chunk // call.unit * call.unit)
        in_chunks = prepared.plan.lanes > 1
        self.words[[rebind.MIN_BLOCK, rebind.MAX_BLOCK]] = (whole + 1, WHOLE) if in_chunks else (0, whole)
        self.words[[rebind.SLICE, rebind.UNIT]] = prepared.plan.slice, call.unit

    def _set_execution(self, state: CommState, call: Call, template: Template) -> None:
        prepared = call.prepared
        assert prepared.plan is not None
        self.binding = Binding(template)
        window = min(prepared.choice.window, MAX_WINDOW) if prepared.plan.lanes > 1 else 1
        plan = RolledPlan(
            self.binding.rows,
            self.binding.segments,
            add_loop_columns(template.steps),
            template.strands,
            slice=prepared.plan.slice,
            lanes=WHOLE,  # more than any call has: a call sets its own; strands without steps have no lanes
            window=window,
            lane_scratch=0,
            most_messages=template.most_messages,
            itemsize=call.unit,
        )
        self.execution = compiled.Execution(plan, state.comm)
        self.execution.bind(0, (0, 0, 0), execute.kernel_args(call, state.size))
        self.binding.scalars[SLICE] = plan.slice
        self.words[[rebind.BIND, rebind.BINDING]] = bind.address, self.binding.at
        self.words[[rebind.GEOMETRY, rebind.WINDOW]] = address_of(self.execution.geometry), window
        self.words[rebind.BOUND] = NONE

    def _set_arrays(
        self,
        template: Template,
        sides: Sides,
        mask: np.ndarray,
        blocks: BlockNumbers,
        inputs: BlockNumbers,
        outputs: BlockNumbers,
    ) -> None:
        if not blocks.keys() >= set(template.blocks):
            raise UnknownCounts("only other ranks know some counts")
        used = [side for side in sides if side is not None]
        extents = [extent for side in used for extent in side.extents]
        where: list[list[int]] = [[], []]
        for side in used:
            for listed, at in zip(where, (side.counts, side.displacements)):
                listed += at if isinstance(at, list) else [NONE] * side.blocks
        of_entries = {entry: inputs[block] for entry, block in template.input_blocks.items()}
        of_entries |= {entry: outputs[block] for entry, block in template.output_blocks.items()}
        n = len(where[0])
        own: list[Any] = [extents, *where, [0] * n, [0] * n]
        rest: list[Any] = [list(of_entries), [blocks[block] for block in template.blocks], list(of_entries.values())]
        of_binding = self.binding.sizes, self.binding.places
        make = lambda numbers: np.array(numbers, np.int64)
        self.arrays = [*map(make, own), *of_binding, *map(make, [*rest, self.exists]), mask]
        self.words[WORDS:] = addresses(*self.arrays[:-1]).ravel()
        self.words[rebind.MASK] = address_of(mask)


def _sides_of(call: Call, integers: Integers, rank: int) -> Sides:
    """Return the sides of a call. If its result is staged, both may be in the receive array."""
    assert call.arguments is not None
    types_differ = call.invocation.method in (ALLTOALLW, NEIGHBOR_ALLTOALLW)
    send = side_of(call.invocation.send, call.arguments.send, integers.send, types_differ)
    recv = side_of(call.invocation.recv, call.arguments.recv, integers.recv, types_differ)
    if integers.recvcounts is not None:
        vector, message = (recv, integers.recv) if send is None else (send, integers.send)
        if vector is None or not isinstance(integers.recvcounts, (list, tuple)) or {*message} - {None}:
            raise UnknownCounts("the length of the vector is not the array's")
        if send is None:
            recv = replace(vector, counts=integers.recvcounts[rank])
        send = replace(vector, counts=list(integers.recvcounts), is_full=True)
    elif call.prepared.staged and isinstance(call.counts, Shares):
        send = recv
    return send, recv


def _shares_of(call: Call, rank: int) -> Shares:
    """Return the blocks of a Reduce_scatter with recvcounts: of the vector, and this rank's of the result."""
    assert isinstance(call.counts, tuple)
    sizes = [count * call.unit for count in call.counts]
    places = tuple(sum(sizes[:i]) for i in range(len(sizes)))
    return Shares(tuple(sizes), (sizes[rank],), places, (0,))
