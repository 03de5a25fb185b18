"""Lowering: layouts, chunks, lanes, tags, scratch, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from unit.every import ALONE, EVERY, SIZED, VECTORS, served
from unit.mutants import messages, of_ranks

from mpicoll.plans.lowering import lower
from mpicoll.plans.plan import (
    ALIGN,
    CODED,
    IN,
    MAX_MESSAGE,
    MAX_STRANDS,
    MAX_WINDOW,
    NOTE_TAGS,
    OUT,
    RECV,
    REDUCE,
    SCRATCH,
    SEND,
    SEQUENCES,
    WHOLE,
    is_staged,
    lanes_of,
    layout,
    tag,
)
from mpicoll.plans.rows import merged
from mpicoll.proofs.cases import OneCell
from mpicoll.proofs.check_plan import Case, check_tables, lower_all
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.wellformed import sound_row
from mpicoll.schedules import blocks as parts
from mpicoll.schedules.combinators import parallel
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send, Strands
from mpicoll.schedules.schedule import Schedule, schedule


def counts_of(schedule, per_block):
    """Return the counts for `per_block` elements in every block, as the collective takes them."""
    return per_block * (len(schedule.blocks) if schedule.collective.naming == "vector" else schedule.parts)


# -- chunks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", VECTORS)
@pytest.mark.parametrize("chunk_bytes", [1, 8, 24, 1000, None])
def test_chunks_do_not_move_the_boundaries_of_blocks(entry, chunk_bytes):
    """The operands of an element are the same elements in the same order for every chunk size."""
    schedule = Schedule(entry, served(entry, 5))
    ends = {8 * x for x in (*parts.offsets(parts.sizes(43, len(schedule.blocks))), 43)}
    for rank in range(schedule.p):
        plan = lower(schedule, rank, 43, 8, chunk_bytes=chunk_bytes, codec=OneCell())
        assert plan.slice == WHOLE or plan.slice % 8 == 0
        for base, at, length in plan.segments.tolist():
            if base < SCRATCH:
                assert {at, at + length} <= ends


@pytest.mark.parametrize("entry", SIZED)
@pytest.mark.parametrize("chunk_bytes", [8, 24, 40])
def test_lanes_and_slices(entry, chunk_bytes):
    schedule = Schedule(entry, served(entry, 5))
    for rank in range(schedule.p):
        plan = lower(schedule, rank, counts_of(schedule, 11), 8, chunk_bytes=chunk_bytes, window=3, codec=OneCell())
        assert (plan.slice, plan.lanes, plan.itemsize) == (chunk_bytes, -(-88 // chunk_bytes), 8)
        assert plan.window == min(3, plan.lanes)


@pytest.mark.parametrize(
    ("chunk_bytes", "expected"),
    [
        (None, (WHOLE, 1)),
        (88, (WHOLE, 1)),
        (1 << 40, (WHOLE, 1)),
        (87, (80, 2)),
        (8, (8, 11)),
        (1, (8, 11)),
        (15, (8, 11)),
    ],
)
def test_slices_are_whole_elements(chunk_bytes, expected):
    assert lanes_of(88, 440, 8, 5, chunk_bytes) == expected


@pytest.mark.parametrize("window", [1, 2, 4, 31, 32, 33, 1000])
def test_window_is_no_more_than_there_are_lanes_or_tags(window):
    ring = schedule("allreduce", "ring", 3)
    assert lower(ring, 0, 30_000, 1, chunk_bytes=1, window=window).window == min(window, MAX_WINDOW)
    assert lower(ring, 0, 30, 1, chunk_bytes=5, window=window).window == min(window, 2)


def test_all_ranks_cut_alike():
    """Shares of different sizes: the largest sets the lanes, for every rank."""
    plans = lower_all(schedule("reduce_scatter", "ring", 4), Case((0, 7, 1, 100), 4, 16, 4), False)
    assert {(plan.slice, plan.lanes, plan.window) for plan in plans} == {(16, 25, 4)}


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("chunk_bytes", [None, 1 << 28, 1 << 31])
def test_no_message_passes_the_limit(entry, chunk_bytes):
    """MPI's counts are 32 bits wide; longer messages are cut, whatever the chunk."""
    schedule = Schedule(entry, served(entry, 6))
    counts = 0 if entry.collective.naming == "none" else counts_of(schedule, (1 << 30) // 8 + 5)
    for rank in range(schedule.p):
        plan = lower(schedule, rank, counts, 8, chunk_bytes=chunk_bytes, codec=OneCell())
        for row in itertools.chain.from_iterable(messages(plan)):
            first, end = plan.rows[row, 2:4]
            assert sum(min(plan.slice, int(n)) for n in plan.segments[first:end, 2]) <= MAX_MESSAGE


def test_limit_is_no_chunking_below_it():
    chain = schedule("bcast", "chain", 3)
    assert lower(chain, 0, MAX_MESSAGE, 1, in_place=True).lanes == 1
    assert lower(chain, 0, MAX_MESSAGE + 1, 1, in_place=True).lanes == 2


# -- empty messages and tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", SIZED)
def test_nothing_to_send_is_not_sent(entry):
    schedule = Schedule(entry, served(entry, 5))
    for plan in lower_all(schedule, Case(0, 8, None, 4), False):
        assert len(plan.rows) == len(plan.segments) == plan.scratch_bytes == plan.most_messages == 0


@pytest.mark.parametrize("count", [3, 5])
def test_empty_blocks_are_left_out_of_messages(count):
    """Of five blocks as many are sent as there are elements, eight times each."""
    plans = lower_all(schedule("allreduce", "ring", 5), Case(count, 8, None, 4), False)
    assert sum((plan.rows[:, 0] == SEND).sum() for plan in plans) == count * 8


@pytest.mark.parametrize("p", [2, 3, 8])
def test_tokens_are_sent(p):
    for plan in lower_all(schedule("barrier", "dissemination", p), Case(0, 1, None, 4), False):
        assert len(plan.rows) == 2 * (p - 1).bit_length()
        assert (plan.rows[:, 2] == plan.rows[:, 3]).all() and (plan.rows[:, 4] == -1).all()
        assert plan.most_messages == 2


def test_tokens_beside_data():
    """A message of no blocks is sent even where there is nothing else to send."""
    exchange = of_ranks("bcast", [Send(1, (0,)), Recv(1, ())], [Recv(0, (0,)), Send(0, ())])
    assert [len(lower(exchange, r, n, 1, in_place=True).rows) for n in (0, 1) for r in (0, 1)] == [1, 1, 2, 2]


# -- layouts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "algorithm", "p", "counts", "places", "largest", "total"),
    [
        ("allreduce", "ring", 3, 7, [(6, 0, 0), (4, 6, 6), (4, 10, 10)], 6, 14),
        ("allgather", "ring", 3, 2, [(4, 0, 0), (4, 0, 4), (4, 0, 8)], 4, 12),
        ("gather", "linear", 3, 2, [(4, 0, 0), (4, 0, 4), (4, 0, 8)], 4, 12),
        ("scatter", "linear", 3, 2, [(4, 0, 0), (4, 4, 0), (4, 8, 0)], 4, 12),
        ("reduce_scatter", "ring", 3, 2, [(4, 0, 0), (4, 4, 0), (4, 8, 0)], 4, 12),
        ("reduce_scatter", "ring", 3, (3, 0, 2), [(6, 0, 0), (0, 6, 0), (4, 6, 0)], 6, 10),
        ("alltoall", "pairwise", 2, 3, [(6, 0, 0), (6, 6, 0), (6, 0, 6), (6, 6, 6)], 6, 12),
    ],
)
def test_layout(collective, algorithm, p, counts, places, largest, total):
    """Sizes, places in the input and in the output; what a rank has one block of lies at the start of its buffer."""
    scheduled = schedule(collective, algorithm, p)
    placed = layout(scheduled, counts, 2, False)
    assert [(placed.size(b), placed.input_at(b), placed.output_at(b)) for b in scheduled.blocks] == places
    assert (placed.largest, placed.total) == (largest, total)


@pytest.mark.parametrize("name", ["ring", "recursive_halving"])
@pytest.mark.parametrize("counts", [(5, 0, 3, 1, 9), (0, 0, 0, 0, 7), (0, 0, 0, 0, 0)])
def test_unequal_shares_are_sent_as_they_are(name, counts):
    """In all, every rank but the last hop's reduces p - 1 times each byte of each share."""
    plans = lower_all(schedule("reduce_scatter", name, 5), Case(counts, 8, None, 4), False)
    rows = [(plan, *row) for plan in plans for row in plan.rows.tolist()]
    sent, received = (
        sum(int(plan.segments[a:b, 2].sum()) for plan, kind, _, a, b, _ in rows if kind == wanted)
        for wanted in (SEND, RECV)
    )
    assert received == sent >= 4 * 8 * sum(counts)
    assert sent == 4 * 8 * sum(counts) or name != "ring"


# -- one rank -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [x for x in SIZED if x in ALONE and x.values[0].collective.naming != "edge"])
def test_one_rank_copies_its_input(entry):
    """But exscan's, whose result on rank 0 is nothing; and not in place."""
    schedule = Schedule(entry, 1)
    plan = lower(schedule, 0, 6, 8)
    kept = bool(schedule.ends(0))
    assert plan.rows.tolist() == kept * [[REDUCE, 0, 0, 2, -1]]
    assert plan.segments.tolist() == kept * [[OUT, 0, 48], [IN, 0, 48]]
    assert plan.scratch_bytes == 0
    if entry.collective.name != "scatter":
        assert len(lower(schedule, 0, 6, 8, in_place=True).rows) == 0


# -- scratch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", SIZED)
@pytest.mark.parametrize("p", [*range(1, 9), 13, *(pytest.param(p, marks=pytest.mark.slow) for p in (16, 33))])
def test_scratch_of_chunks_is_what_the_docstring_says_times_the_window(entry, p):
    """But neighbouring blocks no longer lie in one piece: what is staged only then comes on top."""
    schedule = Schedule(entry, served(entry, p))
    in_place = entry.collective.name == "bcast"
    k = len(schedule.blocks) if entry.collective.naming in ("vector", "rank") else schedule.p
    claimed = entry.claims.evaluate(entry.claims.scratch, schedule.p, k * ALIGN, **schedule.resolved)
    whole = lower_all(schedule, Case(counts_of(schedule, ALIGN), 1, None, 4), in_place)
    chunked = lower_all(schedule, Case(counts_of(schedule, 5 * ALIGN), 1, ALIGN, 3), in_place)
    room = k * ALIGN if staged(chunked) > staged(whole) else 0
    scratch = max(plan.scratch_bytes for plan in chunked)
    assert scratch <= 3 * (claimed + room)
    assert entry.claims.scratch.startswith("at most ") or 3 * claimed <= scratch


def staged(plans):
    """Count the messages that go through a stage."""
    return sum(int((plan.rows[:, 4] >= 0).sum()) for plan in plans)


# -- tags ---------------------------------------------------------------------------------------------------


def test_tags_are_distinct_and_fit_any_mpi():
    every = [tag(*x) for x in itertools.product(range(SEQUENCES), range(MAX_STRANDS), range(MAX_WINDOW))]
    assert sorted([*every, *NOTE_TAGS]) == list(range(1 << 15))
    assert tag(SEQUENCES + 3, 1, 2) == tag(3, 1, 2)


# -- rows ---------------------------------------------------------------------------------------------------


def test_neighbours_go_in_one_piece():
    """Blocks that follow each other in memory are one segment, until a chunk cuts through them."""
    binomial = schedule("scatter", "binomial", 4)
    whole, cut = (lower(binomial, 0, 10, 8, chunk_bytes=chunk) for chunk in (None, 16))
    assert whole.segments[whole.rows[0, 2] : whole.rows[0, 3]].tolist() == [[IN, 160, 160]]
    assert cut.rows[0, 3] - cut.rows[0, 2] == 2 and cut.rows[0, 4] >= 0


def test_nothing_is_copied_that_need_not_be():
    """A ring reads the input where it lies and ends in the output: no stage and no copies."""
    for plan in lower_all(schedule("allreduce", "ring", 4), Case(64, 8, None, 4), False):
        assert (plan.rows[:, 4] == -1).all()
        folds = [end - first for kind, _, first, end, _ in plan.rows.tolist() if kind == REDUCE]
        assert folds == [3, 3, 3]


def test_forwarded_blocks_stay_where_they_were_received():
    """The block that is kept arrives beside others: it goes to the output once, when nothing is missing from it."""
    for plan in lower_all(schedule("reduce_scatter", "recursive_halving", 8), Case(64, 8, None, 4), False):
        to = [int(plan.segments[first, 0]) for kind, _, first, _, _ in plan.rows.tolist() if kind == REDUCE]
        assert to.count(OUT) == 1 and to[-1] == OUT


def row_of(plan, wanted):
    """Return the first row of a kind, with a stage if it is a message, and its segments."""
    row = next(r for r in plan.rows.tolist() if r[0] == wanted and (wanted == REDUCE or r[4] >= 0))
    return row, plan.segments.tolist()[row[2] : row[3]]


def test_a_stage_beyond_its_scratch_and_a_reduction_of_unequal_operands_are_refused():
    plan = lower(schedule("gather", "binomial", 4, root=3), 1, 1, 8, chunk_bytes=8)
    row, segments = row_of(plan, SEND)
    assert sound_row(plan, row, segments) and not sound_row(plan, [*row[:4], plan.lane_scratch], segments)
    plan = lower(schedule("allreduce", "recursive_doubling", 2), 0, 4, 8)
    row, ((base, at, length), *operands) = row_of(plan, REDUCE)
    assert sound_row(plan, row, [[base, at, length], *operands])
    assert not sound_row(plan, row, [[base, at, length - 8], *operands])


def test_several_reductions_into_one_are_one_row():
    """naive takes all operands from left to right in one pass."""
    naive = schedule("allreduce", "naive", 4, commutative=False)
    (row,) = [r for r in lower(naive, 2, 4, 8).rows.tolist() if r[0] == REDUCE]
    assert row[3] - row[2] == 5


def test_results_written_to_the_input_are_staged():
    early = [(Send(1, (0,)), RecvReduce(1, (0,)))]
    late = [(Send(1, (0,), INPUT), RecvReduce(1, (0,)))]
    local = [Reduce(Loc("a", 0), Loc(INPUT, 0))]
    assert [is_staged(of_ranks("allreduce", program), 0) for program in (early, late, local)] == [False, True, True]


def test_in_place_reads_the_output():
    ring = schedule("allreduce", "ring", 3)
    assert set(lower(ring, 0, 9, 8, in_place=True).segments[:, 0].tolist()) == {OUT, SCRATCH}
    assert IN in lower(ring, 0, 9, 8).segments[:, 0]


def test_value_is_what_is_kept():
    """Of a value and an accumulator of the same block, only the value goes to the output."""
    plan = lower(of_ranks("allreduce", [Reduce(Loc("a", 0), Loc(VALUE, 0))]), 0, 4, 1)
    assert sorted(plan.segments[plan.rows[:, 2], 0].tolist()) == [OUT, SCRATCH]


def test_no_strands():
    """parallel() of nothing: what an algorithm may return for one rank."""
    empty = of_ranks("allreduce", Strands())
    verify(empty)
    check_tables(empty)


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunk_bytes", "window"), [(0, 4), (-1, 4), (8, 0), (None, 0), (8, -2)])
def test_chunks_and_windows_of_nothing(chunk_bytes, window):
    message = f"chunk_bytes is {chunk_bytes} and window {window}; both must be whole numbers of at least 1"
    with pytest.raises(ValueError, match=message):
        lower(schedule("allreduce", "ring", 3), 0, 10, 8, chunk_bytes=chunk_bytes, window=window)


def test_more_strands_than_there_are_tags_for():
    sending, other = (parallel(*([op] for _ in range(MAX_STRANDS + 1))) for op in (Send(1, ()), Recv(0, ())))
    with pytest.raises(ValueError, match=f"has {MAX_STRANDS + 1} strands; there are tags for {MAX_STRANDS}"):
        lower(of_ranks("bcast", sending, other), 0, 1, 1)


@pytest.mark.parametrize(("base", "with_codes", "rows"), [(SCRATCH, False, 1), (CODED, False, 2), (CODED, True, 1)])
def test_codes_of_two_blocks_are_not_those_of_one(base, with_codes, rows):
    """Rows that follow on are one row, but for codes of several elements together."""
    decode = [(REDUCE, 0, [(OUT, at, 1), (base, at, 1)], -1) for at in (0, 1)]
    assert len(merged(decode, with_codes)) == rows
