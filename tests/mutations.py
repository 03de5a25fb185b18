"""Break the code in one place after another, and check that the tests notice: what a faster suite may leave out.

    python tests/mutations.py                        # each against its named file of tests, then `make test`'s suites
    python tests/mutations.py --named                # against the named files only: minutes
    python tests/mutations.py --only 3,7 --thorough  # some, as `tests/run.py --thorough` runs tests
    python tests/mutations.py --jobs 4 --list

Each mutation is made in a copy of the tree, and as many copies work side by side as there are cores (--jobs). It is
first held against the file named in its `noticed_by`, as `make test` runs that file. Only a mutation that this file
misses runs the suites, each up to its first failure. Files that fail without any change are listed first: they notice
nothing. The exit status says whether all were noticed. Random samples use the seed 0, so that two runs hold the same
tests against a mutation.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", ".*_cache", ".hypothesis")  # __pycache__ has the kernels
FAILED = "FAILED"
LIMIT = 1200  # seconds of one command
OWN = "tests/unit/test_run.py::test_mutations_are_of_the_source_as_it_is"  # which a mutation breaks in any case
TORCH = ROOT / ".venv-torch" / "bin" / "python"

Item = TypeVar("Item")
Result = TypeVar("Result")
Trees = queue.SimpleQueue[Path]


class Mutation(NamedTuple):
    """A change of a source file, and the file of tests that should notice it first."""

    path: str
    before: str
    after: str
    noticed_by: str


MUTATIONS = [
    # kernels
    Mutation(
        "kernels/reduce.py",
        "return x if (x > y) | (x != x) else y  # a NaN",
        "return x if x > y else y  # a NaN",
        "unit/test_kernels_reduce.py",
    ),
    Mutation(
        "kernels/reduce.py", "return (x != 0) != (y != 0)", "return (x != 0) == (y != 0)", "unit/test_kernels_reduce.py"
    ),
    Mutation("kernels/extended.py", '"uno", x, x', '"uno", x, y', "unit/test_kernels_reduce.py"),
    Mutation("kernels/extended.py", "n * repeats):\n            _DIVIDE", "n):\n            _DIVIDE",
             "unit/test_kernels_scale.py"),
    Mutation("kernels/scale.py", "        n *= parts\n", "        n *= 1\n", "unit/test_kernels_scale.py"),
    Mutation("kernels/pack.py", "    return at + turn * extent\n", "    return at\n", "unit/test_kernels_pack.py"),
    Mutation(
        "kernels/cache.py",
        "        part.write_bytes(content)\n        part.replace(path)\n",
        "        path.write_bytes(content)\n",
        "unit/test_kernels_cache.py",
    ),
    Mutation(
        "kernels/reference.py",
        "    first = np.where(tie, a[index] <= b[index], better)\n",
        "    first = better\n",
        "unit/test_kernels_reduce.py",
    ),
    # schedules, plans, proofs
    Mutation(
        "mpicoll/schedules/combinators.py",
        "range(last - 1, first - 1, -1)",
        "range(first, last)",
        "unit/test_algorithms.py",
    ),
    Mutation(
        "mpicoll/schedules/combinators.py",
        "for step in reversed(strand)) for strand",
        "for step in strand) for strand",
        "unit/test_combine.py",
    ),
    Mutation(
        "mpicoll/schedules/combinators.py",
        "program(p, (rank - by) % p)",
        "program(p, (rank + by) % p)",
        "unit/test_combine.py",
    ),
    Mutation(
        "mpicoll/schedules/combinators.py", "if new or not op.blocks else []", "if new else []", "unit/test_combine.py"
    ),
    Mutation("mpicoll/plans/plan.py", "at[b] - at[b - b % n]", "0", "unit/test_spread.py"),
    Mutation(
        "mpicoll/plans/plan.py",
        "parts.offsets(list(sizes[i * n : (i + 1) * n]))]",
        "parts.offsets(list(sizes[:n]))]",
        "unit/test_spread.py",
    ),
    Mutation(
        "mpicoll/plans/lowering.py",
        "joined(segments) if self.single else segments",
        "joined(segments)",
        "unit/test_plan.py",
    ),
    Mutation(
        "mpicoll/plans/lowering.py",
        "max(self.index, self.last_read.get(place, -1))",
        "max(self.index, self.last_read.get(place, -1) - 1)",
        "unit/test_plan.py",
    ),
    Mutation(
        "mpicoll/plans/lowering.py",
        "max(self.index, self.last_read.get(place, -1))",
        "max(self.index, self.last_read.get(place, -1) + 1)",
        "unit/test_plan.py",
    ),
    Mutation(
        "mpicoll/plans/lowering.py",
        "if place in self.kept and (place in self.whole or self.last_write[place] == self.index):",
        "if place in self.kept:",
        "unit/test_plan.py",
    ),
    Mutation(
        "mpicoll/plans/template.py",
        "                offset += min(",
        "                offset += 0 * min(",
        "unit/test_plan.py",
    ),
    Mutation(
        "mpicoll/plans/rolled.py",
        "            if equal(unrolled(rolled_plan), plan):",
        "            if True:",
        "unit/test_rolled.py",
    ),
    Mutation(
        "mpicoll/engines/compiled.py",
        "peer = rows[r, 1] + rows[r, PEER_STRIDE] * turn\n",
        "peer = rows[r, 1]\n",
        "mpi/test_loops.py",
    ),
    Mutation(
        "mpicoll/plans/lowering.py",
        "if row is not None and (self.early or place not in read):",
        "if row is not None:",
        "unit/test_averages.py",
    ),
    Mutation(
        "mpicoll/plans/plan.py",
        "((sequence % SEQUENCES) * MAX_STRANDS + strand) * MAX_WINDOW + slot",
        "((sequence % SEQUENCES) * MAX_STRANDS) * MAX_WINDOW + slot",
        "unit/test_plan.py",
    ),
    Mutation("mpicoll/proofs/wellformed.py", "stage + sum(whole) > plan.lane_scratch", "False", "unit/test_plan.py"),
    Mutation("mpicoll/proofs/wellformed.py", "len(plain) <= 1 and len(codes) <= 1", "True", "unit/test_plan.py"),
    # cost model
    Mutation("mpicoll/cost/model.py", "(lanes - 1) * np", "lanes * np", "unit/test_cost.py"),
    Mutation("mpicoll/cost/model.py", "profile.steps - longest) * hop", "longest) * 0 * hop", "unit/test_cost.py"),
    Mutation("mpicoll/cost/model.py", "transfer = nbytes * sharing", "transfer = nbytes * 1.0", "unit/test_cost.py"),
    Mutation("mpicoll/cost/model.py", "np.maximum(numbers - 1, 0) * level.gap", "0 * level.gap", "unit/test_cost.py"),
    Mutation("mpicoll/cost/profile.py", "p] != self.home[rank]", "p] == rank", "unit/test_cost.py"),
    Mutation("mpicoll/cost/profile.py", "steps=0.0, waits=False", "steps=steps, waits=True", "unit/test_cost.py"),
    Mutation("mpicoll/selection/modelled.py", "(us > least).all()", "(us > least).any()", "unit/test_cost.py"),
    Mutation("mpicoll/selection/modelled.py", "(moved / rate", "(9 * moved / rate", "unit/test_cost.py"),
    Mutation("mpicoll/cost/profile.py", "shares[few_blocks, SENT:] *= few / p", "pass", "unit/test_cost.py"),
    Mutation("mpicoll/selection/modelled.py", "> MOST_SCRATCH * sizes + FREE_SCRATCH", "> np.inf", "unit/test_cost.py"),
    Mutation("mpicoll/selection/modelled.py", "times[:, i].argmin()", "times[:, i].argmax()", "unit/test_cost.py"),
    Mutation(
        "mpicoll/dispatch/prepare.py", "        state.agreed.network,\n", "", "mpi/test_tuning.py"
    ),
    Mutation(
        "mpicoll/fastpath/any_counts.py", "            state.agreed.network,\n", "", "mpi/test_tuning.py"
    ),
    Mutation("mpicoll/schedules/stencils.py", "== 1 for d, x", "> 0 for d, x", "unit/test_graphs.py"),
    Mutation("mpicoll/selection/stencils.py", "times[0] <= margin * times.min(axis=0)", "times[0] < 0",
             "unit/test_select.py"),
    Mutation("mpicoll/comm/comm.py", "self._child(type(self), comm, self._open().stencil)",
             "self._child(type(self), comm)", "mpi/test_stencils.py"),
    Mutation("mpicoll/cost/model.py", "waits + work / network.cores", "waits", "unit/test_cost.py"),
    Mutation("mpicoll/cost/model.py", "network.turn * ranks / network.cores", "network.turn", "unit/test_cost.py"),
    Mutation("mpicoll/cost/profile.py", "() if has_rows else by_node", "by_node", "unit/test_cost.py"),
    Mutation("mpicoll/cost/profile.py", "total * (len(ranks) / len(some))", "total", "unit/test_cost.py"),
    Mutation("mpicoll/selection/kept_rules.py", "{p} {commutative} {nodes}", "{p} {nodes}", "unit/test_kept_rules.py"),
    Mutation("mpicoll/selection/kept_rules.py", "{nodes} {forced}", "{nodes}", "unit/test_kept_rules.py"),
    Mutation("mpicoll/selection/select.py", "is_known and not overrides.chunk_bytes", "is_known",
             "unit/test_select.py"),
    Mutation("mpicoll/selection/modelled.py", "<= ROUGHLY * least[i]", "<= least[i]", "unit/test_cost.py"),
    Mutation("mpicoll/fastpath/any_counts.py", "counts=list(integers.recvcounts), is_full=True",
             "counts=list(integers.recvcounts)", "mpi/test_any_counts.py"),
    Mutation("mpicoll/fastpath/any_counts.py", "integers.recvcounts is not None and schedule.parts > 1", "False",
             "mpi/test_any_counts.py"),
    Mutation("mpicoll/fastpath/rebind.py", "total += lengths[i] * exists[i]", "total += lengths[i]",
             "mpi/test_any_counts.py"),
    Mutation("mpicoll/dispatch/slow_path.py", "(plain_buffers(send, recv) or (send, recv))", "(send, recv)",
             "mpi/test_fast_path.py"),
    Mutation("mpicoll/fastpath/entry.py", "if array > 0:", "if array > 0 and n > 6:", "mpi/test_fast_path.py"),
    Mutation("mpicoll/dispatch/slow_path.py", "describe_call(invocation, parsed, form)  # checks", "pass  # checks",
             "mpi/test_bad_input.py"),
    Mutation("mpicoll/dispatch/slow_path.py", "return send, recv, op, gathered.tolist()", "return arguments",
             "mpi/test_fast_path_messages.py"),
    Mutation("mpicoll/dispatch/slow_path.py", "state.fast_path.note_line()  # the caller", "pass  # the caller",
             "mpi/test_history.py"),
    Mutation("mpicoll/dispatch/slow_path.py", "state.fast_path.note_line()  # as in", "pass  # as in",
             "mpi/test_history.py"),
    Mutation("mpicoll/comm/sparse.py", "if state.sequence == before + 1 and", "if False and", "mpi/test_sparse.py"),
    Mutation("mpicoll/dispatch/personalized_exchange.py", "self.sizes |= FLAG", "pass", "mpi/test_sparse.py"),
    Mutation("mpicoll/selection/modelled.py", "np.array([LONG * p])", "np.array([p])", "unit/test_cost.py"),
    Mutation("mpicoll/selection/modelled.py", "return (fixed,)", "return rules(collective, p, commutative, None)",
             "unit/test_cost.py"),
    Mutation("mpicoll/runtime/network_cache.py", "if agree(cached, measured, max(map(len, nodes))):", "if True:",
             "unit/test_network_cache.py"),
    Mutation("mpicoll/selection/learning.py", "self.seconds[:, UNTIMED:]", "self.seconds",
             "unit/test_learning.py"),
    Mutation("mpicoll/selection/learning.py", ".sum(axis=1) >= SURE", ".sum(axis=1) >= 0", "unit/test_learning.py"),
    Mutation("mpicoll/selection/learning.py", "frozenset(map(made_of, parts))", "0", "unit/test_learning.py"),
    Mutation("mpicoll/dispatch/learning.py", "state.forget()", "pass", "mpi/test_learning.py"),
    Mutation("mpicoll/dispatch/learning.py", "    if in_doubt:", "    if False:", "mpi/test_learning.py"),
    Mutation("mpicoll/dispatch/slow_path.py", "learning.is_learning(state, call) or state.is_checked",
             "state.is_checked", "mpi/test_learning.py"),
    Mutation("mpicoll/dispatch/overlapping.py", "all(operation.done for operation in self.operations)", "True",
             "mpi/test_learning.py"),
    Mutation("mpicoll/dispatch/overlapping.py", "if self.agreed is not None:", "if False:", "mpi/test_learning.py"),
    Mutation("mpicoll/dispatch/learning.py", "state.queue.advance_until_done(pending.last_turn)", "state.queue.poll()",
             "mpi/test_learning.py"),
    Mutation("mpicoll/cost/simulation.py", "max(ports[first], at) + transfer", "at + transfer",
             "unit/test_simulation.py"),
    Mutation("mpicoll/cost/simulation.py", "number + self.window < self.lanes", "number < 0",
             "unit/test_simulation.py"),
    Mutation("mpicoll/cost/simulation.py", "max(self._busy[rank], at) + local", "at + local",
             "unit/test_simulation.py"),
    Mutation("mpicoll/cost/event_loop.py", "if not kind & LONG:", "if kind & LONG:", "unit/test_simulation.py"),
    Mutation("mpicoll/cost/event_loop.py", "HAS_RECEIVER | RECEIVER_FIRST", "HAS_RECEIVER", "unit/test_simulation.py"),
    Mutation("mpicoll/cost/messages.py", "(0, -peers % p) if", "(0, peers % p) if", "unit/test_simulation.py"),
    Mutation("mpicoll/cost/profile.py", "steps, not one_way", "steps, False", "unit/test_simulation.py"),
    Mutation("mpicoll/cost/fabric.py", "room -= np.bincount(", "room -= 0 * np.bincount(", "unit/test_topology.py"),
    Mutation("mpicoll/cost/fabric.py", "rates = fair_rates(", "rates = 0.5 * fair_rates(", "unit/test_topology.py"),
    Mutation("mpicoll/cost/topology.py", "2 * ahead == size and coordinate % 2 == 0", "2 * ahead == size",
             "unit/test_topology.py"),
    Mutation("mpicoll/cost/topology.py", "% self.groups % self.routers", "% self.routers", "unit/test_topology.py"),
    Mutation("mpicoll/cost/simulation.py", "if at != flow.end or", "if", "unit/test_topology.py"),
    Mutation("mpicoll/cost/simulation.py", "max(passed, flow.sending[1] + flow.latency)", "passed",
             "unit/test_topology.py"),
    Mutation("mpicoll/cost/simulation.py", "if begin <= at), None)", "), None)", "unit/test_topology.py"),
    Mutation("mpicoll/cost/network.py", "ports = ceil(links.ports / slowdown)", "ports = links.ports",
             "unit/test_topology.py"),
    Mutation("mpicoll/cost/placement.py", "0 if placement == BLOCK else turn", "turn", "unit/test_topology.py"),
    # selection
    Mutation(
        "mpicoll/selection/select.py",
        "for rule in reversed(modelled)",
        "for rule in iter(modelled)",
        "unit/test_select.py",
    ),
    Mutation(
        "mpicoll/selection/select.py",
        " or (rule.algorithm == NATIVE and nbytes >= TOO_LARGE)",
        "",
        "unit/test_tuning.py",
    ),
    Mutation(
        "mpicoll/selection/select.py",
        "        if not commutative:\n            check_order",
        "        if False:\n            check_order",
        "unit/test_select.py",
    ),
    # engines
    Mutation(
        "mpicoll/engines/compiled.py",
        "step, lane = first, lane + window",
        "step, lane = first, lane + 1",
        "mpi/test_collectives.py",
    ),
    Mutation(
        "mpicoll/engines/compiled.py",
        "progress[1] += n if kind == SEND else 0",
        "progress[1] += n",
        "mpi/test_engines.py",
    ),
    Mutation(
        "mpicoll/engines/compiled.py",
        "call[TAG] + strand * MAX_WINDOW + slot",
        "call[TAG] + slot",
        "mpi/test_collectives.py",
    ),
    Mutation("mpicoll/engines/compiled.py", "load_short(count) != n", "False", "mpi/test_message_lengths.py"),
    Mutation(
        "mpicoll/engines/mpi4py.py",
        "not in (None, status.Get_count(_BYTE))",
        "in ()",
        "mpi/test_message_lengths.py",
    ),
    Mutation("mpicoll/engines/mpi4py.py", "lane.lane + plan.window", "lane.lane + 1", "mpi/test_collectives.py"),
    Mutation(
        "mpicoll/engines/local_ops.py",
        "            into = left  # a later operand",
        "            into = to  # a later operand",
        "unit/test_local.py",
    ),
    # buffers
    Mutation(
        "mpicoll/buffers/vector_arguments.py",
        "    if sent != received:",
        "    if sent < received:",
        "mpi/test_bad_input.py",
    ),
    Mutation("mpicoll/buffers/typemap.py", "[x * part.extent for x in", "[x for x in", "unit/test_typemap.py"),
    Mutation(
        "mpicoll/buffers/typemap.py", "        stride *= size\n", "        stride *= subsize\n", "unit/test_typemap.py"
    ),
    Mutation(
        "mpicoll/buffers/snapshot.py",
        "        return part.copy()\n",
        "        return part\n",
        "mpi/test_arguments_that_change.py",
    ),
    Mutation(
        "mpicoll/buffers/arguments.py",
        "    if whole.count != total:",
        "    if whole.count < total:",
        "mpi/test_bad_input.py",
    ),
    # runtime
    Mutation(
        "mpicoll/runtime/tags.py",
        "self.used[self.sequence] = 0",
        "self.used[self.sequence] = 1",
        "mpi/test_requests.py",
    ),
    Mutation(
        "mpicoll/progress/queue.py",
        "operation.predecessor = operation.predecessor or self.slots.get(slot)",
        "operation.predecessor = operation.predecessor",
        "mpi/test_counters_that_wrap.py",
    ),
    Mutation(
        "mpicoll/runtime/comm_state.py",
        "            self.counters[BROKEN + sequence % SEQUENCES] = sequence\n",
        "            pass\n",
        "mpi/test_counters_that_wrap.py",
    ),
    Mutation(
        "mpicoll/progress/operation.py",
        "self.stalled_for += min(now - self.polled_at, MAX_POLL_GAP)",
        "self.stalled_for += now - self.polled_at",
        "unit/test_flight.py",
    ),
    Mutation("mpicoll/runtime/cache.py", "len(self.order) > MAX_ENTRIES or ", "", "mpi/test_kept.py"),
    Mutation(
        "mpicoll/runtime/scratch.py",
        "self._fast_path.reclaim_scratch(in_use)",
        "self._fast_path.reclaim_scratch(True)",
        "mpi/test_fast_path.py",
    ),
    # dispatch
    Mutation(
        "mpicoll/dispatch/prepare.py",
        "call.averages, in_place),",
        "call.averages),",
        "mpi/test_collectives.py",
    ),
    Mutation(
        "mpicoll/dispatch/prepare.py",
        "call.unit, call.root, call.commutative",
        "call.unit, call.commutative",
        "mpi/test_collectives.py",
    ),
    Mutation(
        "mpicoll/dispatch/staging.py",
        'return call.collective != "exscan" or rank != 0',
        "return True",
        "mpi/test_check_mode.py",
    ),
    Mutation("mpicoll/dispatch/check_mode.py", '        "root",\n', "", "mpi/test_check_mode.py"),
    Mutation(
        "mpicoll/dispatch/count_exchange.py",
        "    if n != expected:",
        "    if n > expected:",
        "mpi/test_vectors.py",
    ),
    # neighbourhoods
    Mutation("mpicoll/schedules/graphs.py", ".sends[i ^ 1]", ".sends[i]", "unit/test_graphs.py"),
    Mutation("mpicoll/dispatch/count_exchange.py", "_check_count(call, rank, edge[0], every[edge], expected)", "pass",
             "mpi/test_stencils.py"),
    Mutation("mpicoll/proofs/wellformed.py", "if base == OUT:\n", "if base == SEND:\n", "unit/test_tables.py"),
    Mutation(
        "mpicoll/dispatch/staging.py",
        "_output(memory, recv, call.keeps_output, read_back",
        "_output(memory, recv, arguments.in_place, read_back",
        "mpi/test_neighbor.py",
    ),
    # the history of calls
    *(
        Mutation(f"mpicoll/{name}.py", before, after, f"{tests}/test_history.py")
        for name, before, after, tests in (
            ("diagnostics/history_reader", " == check)\n", " == check) | (serial > 0)\n", "unit"),
            ("diagnostics/history_reader", " and (seconds is None or seconds > -INEXACT)", "", "unit"),
            ("diagnostics/history", "if self.words[at + SERIAL] == serial:", "if True:", "unit"),
            ("diagnostics/history", "> room or", "> WORDS or", "unit"),
            ("fastpath/entry", "        history_rows.end(context)\n    request", "        pass\n    request", "mpi"),
            ("fastpath/entry", "1 if n == 5 else 2)", "1)", "mpi"),
            ("fastpath/history_rows", "row[BEGAN], row[ENDED] = -now, 0", "row[BEGAN] = -now", "mpi"),
            ("fastpath/sites", "            return site[LOCATION]\n", "            return 0\n", "mpi"),
            ("fastpath/compiled_path", "= True, clock, row_in_history", "= True, clock, 0", "mpi"),
        )
    ),
    # the fast path
    Mutation(
        "mpicoll/fastpath/entry.py",
        "if from_ < to + row[RECV_BYTES] and to < from_ + row[SEND_BYTES]:",
        "if from_ < to and to < from_:",
        "mpi/test_fast_path.py",
    ),
    Mutation(
        "mpicoll/fastpath/rows.py",
        "            if details[i] != kept[i] and (any_counts == 0 or",
        "            if details[i] != kept[i] and (False and any_counts == 0 or",
        "mpi/test_fast_path_messages.py",
    ),
    *(
        Mutation(f"mpicoll/fastpath/{name}.py", before, after, "mpi/test_any_counts.py")
        for name, before, after in (
            ("rebind", "words[side + SIZE] * blocks == nbytes", "words[side + SIZE] * blocks <= nbytes"),
            ("rebind", "[recv + IS_USED] and words[recv + SIZE] != size:", "[recv + IS_USED] and False:"),
            ("rebind", "        if n < 0 or n > most:\n", "        if n > most:\n"),
            ("rebind", "            if place < 0 or place > last_place:\n", "            if place > last_place:\n"),
            ("rebind", "        if extents[i] != extent:\n", "        if i == first:\n"),
            ("rebind", "offsets[i] = place * place_extent", "offsets[i] = place * extent"),
            ("pack", "header[RECV_AT] = words[side + rebind.OFFSET], ", "header[RECV_AT] = 0, "),
            ("pack", "            blocks[i, ELEMENTS] = lengths[first + i]\n", ""),
            ("packed_buffers", "result_blocks(call, rank) if is_written else ()", "result_blocks(call, rank)"),
            ("any_counts", "RECV_COUNT if is_in_place else SEND_COUNT", "SEND_COUNT"),
            ("rebind", "offsets[i] < offsets[j] + lengths[j] and", "offsets[i] < offsets[j] and"),
            ("rebind", "        if not are_disjoint(lengths,", "        if False and not are_disjoint(lengths,"),
            ("rebind", "return words[OWN_SENT] == NONE or", "return True or"),
            ("rebind", "words[MIN_BYTES] <= nbytes <= words[MAX_BYTES] and", "nbytes <= words[MAX_BYTES] and"),
            ("rebind", "words[MIN_BYTES] <= nbytes <= words[MAX_BYTES]", "words[MIN_BYTES] <= nbytes"),
            ("rebind", "words[MIN_BLOCK] <= longest <= words[MAX_BLOCK]", "words[MIN_BLOCK] <= longest"),
            ("rebind", "elif words[BOUND] == words[UNITS]:", "elif words[BOUND] >= 0:"),
            ("rebind", "(share + (size_from[i] < rest)) * unit", "(share + (size_from[i] <= rest)) * unit"),
            ("any_counts", "= prepared.plan.slice, call.unit\n", "= prepared.plan.slice, 8\n"),
            ("rebind", "(block * words[UNITS] + part", "(block + part"),
            ("rows", "row[SEND_OFFSET + s] = words[side + rebind.OFFSET]\n", "row[SEND_OFFSET + s] = 0\n"),
        )
    ),
    *(
        Mutation(f"mpicoll/{name}.py", before, after, f"mpi/test_{tests}.py")
        for name, before, after, tests in (
            ("fastpath/pack", "[SCRATCH] + header[SEND_AT + side]\n", "[SCRATCH] + header[SEND_AT]\n", "holes"),
            ("fastpath/packed_buffers", "(is_root if is_bcast else call.keeps_output)", "is_root", "holes"),
            ("fastpath/signature", "        return load(attribute)\n", "        return thing\n", "holes"),
            ("fastpath/signature", "else facts_of_recipe(context, handle)\n", "else thing\n", "holes"),
            ("fastpath/recipe", "slot[LENGTH] != 0 and is_committed(context, handle)", "slot[LENGTH] != 0", "holes"),
            ("fastpath/compiled_path", "if cached.packed is not None and scratch is not None:", "if False:", "holes"),
            ("fastpath/entry", "        if row[PACKS] != 0:", "        if False:", "holes"),
            ("fastpath/entry", "        if context[field.PACKS] != 0:", "        if 0 != 0:", "holes"),
            ("comm/persistent", "self.memory.copy_result = self.fast_start.packed.unpack", "pass", "holes"),
            ("fastpath/signature", "handle_of(context, op) == context[field.OP_NULL]", "False", "user_operators"),
            ("fastpath/signature", "not is_predefined(context, op)", "0 != 0", "user_operators"),
            ("fastpath/entry", "(errors != 0 and load(errors) != 0)", "False", "user_operators"),
            ("fastpath/compiled_path", "cached.error()) is None", "None) is None", "user_operators"),
            ("buffers/operators", "            elif dst != a:", "            elif True:", "user_operators"),
        )
    ),
    Mutation("mpicoll/fastpath/signature.py", "& WRITEABLE == 0:", "& 0 != 0:", "mpi/test_fast_path.py"),
    Mutation(
        "mpicoll/fastpath/compiled_path.py",
        "if call.arguments and call.arguments.shared_buffer is not None and not",
        "if False and not",
        "mpi/test_one_buffer.py",
    ),
    Mutation(
        "mpicoll/fastpath/table.py",
        "        return before == served\n",
        "        return before is not None\n",
        "unit/test_fast_path_table.py",
    ),
    Mutation(
        "mpicoll/fastpath/start.py",
        "        self.context[field.OPEN] = False\n",
        "        pass\n",
        "mpi/test_fast_path.py",
    ),
    # comm
    Mutation(
        "mpicoll/comm/persistent.py",
        "if self.in_flight is not None and self.in_flight.was_aborted:",
        "if False:",
        "mpi/test_fast_path.py",
    ),
    Mutation("mpicoll/comm/persistent.py", "= [self.slot.free, lambda", "= [lambda", "mpi/test_requests.py"),
    Mutation(
        "mpicoll/comm/requests.py",
        "                if operation.done:  # else an interrupt",
        "                if True:  # else an interrupt",
        "mpi/test_requests.py",
    ),
    Mutation("mpicoll/comm/requests.py", "    owner.call = call,", "    owner.call = None,", "mpi/test_requests.py"),
    Mutation("mpicoll/comm/release.py", "    _waiting.append(free)", "    free()", "mpi/test_requests.py"),
    Mutation(
        "mpicoll/comm/prequest.py",
        "            vars(self).pop(function, None)",
        "            pass",
        "mpi/test_requests.py",
    ),
    Mutation(
        "mpicoll/fastpath/entry.py",
        " or numbers[IN_FLIGHT + tags] != 0\n",
        "\n",
        "mpi/test_counters_that_wrap.py",
    ),
    Mutation(
        "mpicoll/progress/table.py",
        "            remove.entry(self._table.at, self.at)\n",
        "",
        "unit/test_progress.py",
    ),
    Mutation(
        "mpicoll/progress/driver.py",
        "alive, moved, ended = pass_over(control, advances, True)",
        "alive, moved, ended = pass_over(control, False, True)",
        "unit/test_progress.py",
    ),
    Mutation(
        "mpicoll/progress/driver.py",
        "            control[CONTENDED_UNTIL] = at + _CONTENDED_FOR\n",
        "            pass\n",
        "unit/test_progress.py",
    ),
    Mutation(
        "mpicoll/progress/thread.py",
        "self.computes = self.computed_at > started",
        "self.computes = False",
        "unit/test_progress.py",
    ),
    Mutation(
        "mpicoll/progress/thread.py",
        "if not self.asleep or self._is_needed():  # this",
        "if not self.asleep:  # what",
        "unit/test_progress.py",
    ),
    Mutation(
        "mpicoll/diagnostics/fault_tolerance.py",
        "if not isinstance(error, MPI.Exception) or missing():",
        "if not isinstance(error, MPI.Exception):",
        "mpi/test_survivors.py",
    ),
    Mutation(
        "mpicoll/proofs/check_schedule.py",
        "blocks + codes * schedule.code_share",
        "blocks + codes",
        "unit/test_algorithms.py",
    ),
    Mutation(
        "mpicoll/diagnostics/peer_records.py",
        "if process is None or self.place.name in process.ambiguous:",
        "if process is None:",
        "unit/test_peer_records.py",
    ),
    Mutation(
        "mpicoll/diagnostics/flight_reader.py",
        'communicator["slot"] >= 0 and not only_text:',
        'communicator["slot"] >= 0:',
        "unit/test_peer_records.py",
    ),
    Mutation(
        "mpicoll/cost/shares.py",
        "(nbytes > 0) | ",
        "(nbytes >= 0) | ",
        "unit/test_uneven.py",
    ),
    Mutation(
        "mpicoll/diagnostics/peer_status.py",
        "return not self.pending and not self.sent_unasked",
        "return True",
        "mpi/test_making_communicators.py",
    ),
    Mutation(
        "mpicoll/runtime/free_barrier.py",
        "return self.request.Test()",
        "return True",
        "mpi/test_making_communicators.py",
    ),
    Mutation(
        "mpicoll/runtime/free_barrier.py",
        "except MPI.Exception:",
        "except ZeroDivisionError:",
        "unit/test_free_barrier.py",
    ),
    Mutation(
        "kernels/compiler.py",
        "for libraries in (_libc(), []):",
        "for libraries in ([],):",
        "unit/test_kernels_cache.py",
    ),
    # elements of few bits, codes
    Mutation(
        "kernels/elements.py",
        "u + np.uint32(0x7FFF) +",
        "u + np.uint32(0x8000) +",
        "unit/test_kernels_lowp.py",
    ),
    Mutation(
        "kernels/elements.py",
        "if chance < scaled - np.float32(whole)",
        "if chance < np.float32(0.5)",
        "unit/test_kernels_lowp.py",
    ),
    Mutation(
        "kernels/codecs.py",
        "largest(part), np.float32(127.0)",
        "largest(part), np.float32(90.0)",
        "unit/test_compression.py",
    ),
    Mutation(
        "kernels/codecs.py",
        "spare -= 1",
        "spare -= 0",
        "unit/test_compression.py",
    ),
    Mutation(
        "mpicoll/plans/rows.py",
        "(with_codes or a[0] != CODED) and ",
        "",
        "unit/test_plan.py",
    ),
    Mutation(
        "mpicoll/proofs/encodings.py",
        "(rank, times + 1) for rank",
        "(rank, times) for rank",
        "unit/test_compression.py",
    ),
    Mutation(
        "mpicoll/engines/local_ops.py",
        "return operands > 2 or",
        "return operands > 9 or",
        "unit/test_local.py",
    ),
    Mutation(
        "mpicoll/compression/feedback.py",
        "sent += buffer.ravel()",
        "sent[:] = buffer.ravel()",
        "mpi/test_compression.py",
    ),
    Mutation(
        "mpicoll/dispatch/prepare.py",
        "before.engine, codec=before.codec",
        "before.engine",
        "mpi/test_compression.py",
    ),
    Mutation(
        "mpicoll/compression/exact.py",
        "comm.Allreduce(MPI.IN_PLACE, number)",
        "number[0] = number[0]",
        "mpi/test_compression.py",
    ),
    # torch
    Mutation(
        "mpicoll/torch/operators.py",
        "    _KINDS.MIN: MPI.MIN,\n",
        "    _KINDS.MIN: MPI.MAX,\n",
        "torch/test_operations.py",
    ),
    Mutation(
        "mpicoll/torch/operators.py",
        "return op.__getstate__()[1] if kind == _KINDS.PREMUL_SUM else None",
        "return None",
        "torch/test_operations.py",
    ),
    Mutation(
        "mpicoll/torch/tensors.py",
        "return staged, lambda: copy_back([(tensor, staged)])",
        "return staged, None",
        "torch/test_operations.py",
    ),
    Mutation(
        "mpicoll/torch/tensors.py",
        "and tensor.storage_offset() == at + total",
        "and tensor.storage_offset() >= at + total",
        "torch/test_operations.py",
    ),
    Mutation("mpicoll/torch/calls.py", "COMPARED = 64 ", "COMPARED = 0 ", "torch/test_failures.py"),
    Mutation("mpicoll/torch/calls.py", "_ALL if debugs else COMPARED", "COMPARED", "torch/test_failures.py"),
    Mutation(
        "mpicoll/torch/work.py",
        "operation.raises_on_stall, operation.deadline = True, time.monotonic() + seconds",
        "operation.raises_on_stall = True",
        "torch/test_failures.py",
    ),
    Mutation(
        "mpicoll/torch/hooks.py", "error_feedback=feedback)", "error_feedback=False)", "torch/test_data_parallel.py"
    ),
    Mutation("mpicoll/torch/hooks.py", "self.waiting.put(self._forget)", "pass", "torch/test_data_parallel.py"),
    Mutation("mpicoll/torch/work.py", "self.end_range()\n", "pass\n", "torch/test_profiles.py"),
    Mutation("mpicoll/torch/hooks.py", "gradients.add_(left)", "gradients.add_(0)", "torch/test_sharded_codecs.py"),
    Mutation("mpicoll/torch/hooks.py", "gradients.mul_(how.factor)", "gradients", "torch/test_sharded_codecs.py"),
    # the sparse exchange
    Mutation(
        "mpicoll/runtime/inbox.py",
        "self.arrivals[sequence].append",
        "self.arrivals[max(self.arrivals, default=sequence)].append",
        "mpi/test_sparse.py",
    ),
    Mutation(
        "mpicoll/dispatch/sparse_exchange.py",
        "not self.sends and self.barrier.execution.advance(0.0)",
        "not self.sends",
        "mpi/test_sparse.py",
    ),
    Mutation(
        "mpicoll/dispatch/sparse_exchange.py",
        "self.barrier_is_over and all(arrival.request.Test() for arrival in self._arrivals())",
        "self.barrier_is_over",
        "mpi/test_sparse.py",
    ),
    Mutation("mpicoll/runtime/inbox.py", "self.comm.Issend", "self.comm.Isend", "mpi/test_sparse.py"),
    Mutation("mpicoll/cost/simulation.py", "SENDS, message.left, left", "SENDS, left, left",
             "unit/test_simulation.py"),
    # algorithms, and what they are proved on; the proofs hold every schedule against what it should do
    Mutation("mpicoll/algorithms/circulant.py", "limit = met", "limit = 2 * p", "unit/test_circulant.py"),
    Mutation("mpicoll/schedules/grids.py", "(i + j * p) % len", "i % len", "unit/test_parameters.py"),
    Mutation(
        "mpicoll/cost/profile.py",
        "and op.peer in sent for op in step",
        "and False for op in step",
        "unit/test_cost.py",
    ),
    # timelines and flight records
    Mutation(
        "mpicoll/engines/compiled.py",
        "record_time(call, first_event, state[unit, COUNT], ARRIVED",
        "record_time(call, first_event + 1, state[unit, COUNT], ARRIVED",
        "mpi/test_timeline.py",
    ),
    Mutation(
        "mpicoll/timeline/match.py",
        "by_call[receives[by_call]]",
        "by_call[receives[by_call]][::-1]",
        "unit/test_timeline.py",
    ),
    Mutation(
        "mpicoll/timeline/path.py",
        "key=lambda source: source.part.began, default=step",
        "key=lambda source: -source.part.began, default=step",
        "unit/test_timeline.py",
    ),
    Mutation(
        "mpicoll/fastpath/ring_rows.py",
        "kind, comm, sequence, start, nbytes\n",
        "kind, comm, sequence, 0, nbytes\n",
        "mpi/test_timeline.py",
    ),
    Mutation(
        "mpicoll/diagnostics/ring.py",
        "rows[:, FIRST] >= messages - room",
        "rows[:, FIRST] >= 0",
        "unit/test_ring.py",
    ),
    Mutation(
        "mpicoll/timeline/clock.py",
        "self.first.ahead + drift *",
        "self.first.ahead + 0 *",
        "unit/test_timeline_clock.py",
    ),
    Mutation("mpicoll/timeline/trace_events.py", "sum(errors[:2])", "max(errors)", "unit/test_timeline_clock.py"),
    Mutation("mpicoll/timeline/merge.py", "place.origin_us - first for", "0.0 for", "unit/test_timeline_merge.py"),
    Mutation("mpicoll/diagnostics/flight.py", "self.ended or ended", "ended", "unit/test_flight_record.py"),
    Mutation(
        "mpicoll/diagnostics/flight.py",
        "1 - int(self.words[VALID])",
        "int(self.words[VALID])",
        "unit/test_flight_record.py",
    ),
    Mutation("mpicoll/diagnostics/status.py", "    del frame", "    pass", "launch/test_lifetime.py"),
    # pages
    Mutation(
        "mpicoll/describe/explore/record.py",
        "yield got.end, got.rank, loc, value, loc in got.reduced",
        "yield got.end + 1, got.rank, loc, value, loc in got.reduced",
        "unit/test_explore.py",
    ),
    Mutation(
        "mpicoll/describe/explore/record.py",
        "sorted(expected - has), []",
        "[], []",
        "unit/test_explore.py",
    ),
    Mutation(
        "mpicoll/describe/explore/page.py",
        '"title": html.escape(title)',
        '"title": title',
        "unit/test_explore.py",
    ),
    Mutation(
        "mpicoll/describe/explore/timing.py",
        "self._at[lane] - 1] = at",
        "self._at[lane] - 1] = 0.0",
        "unit/test_explore.py",
    ),
    Mutation(
        "mpicoll/describe/explore/measured.py",
        "complete[(len(complete) - 1) // 2]",
        "complete[0]",
        "unit/test_measured.py",
    ),
    Mutation(
        "mpicoll/describe/explore/recording.py",
        "times(simulation, names, writes, self.late)",
        "times(simulation, names, writes)",
        "unit/test_measured.py",
    ),
    Mutation(
        "mpicoll/describe/explore/recording.py",
        "min(of_step[k][0], posted)",
        "posted",
        "unit/test_measured.py",
    ),
]


def check() -> None:
    """Check that each change is one of the source as it is now. Raises ValueError."""
    for number, mutation in enumerate(MUTATIONS):
        if (count := (ROOT / mutation.path).read_text().count(mutation.before)) != 1:
            raise ValueError(f"mutation {number}: {mutation.path} has {mutation.before!r} {count} times, and not once")


@contextmanager
def mutated(mutation: Mutation, tree: Path) -> Iterator[None]:
    """Have a change in a tree; what was compiled from the unchanged source is good again afterwards."""
    path = tree / mutation.path
    source, stat = path.read_text(), path.stat()
    path.write_text(source.replace(mutation.before, mutation.after))
    try:
        yield
    finally:
        path.write_text(source)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def named(file: str, thorough: bool) -> list[str]:
    """Return the command that runs one file of tests."""
    python = str(TORCH) if file.startswith("torch/") else sys.executable
    pytest = [python, "-m", "pytest", "-q", "-x", *([] if thorough else ["--quick"]), f"tests/{file}"]
    on_ranks = file.startswith(("mpi/", "torch/"))
    return [python, "tests/launcher.py", "-n", "2", *pytest] if on_ranks else pytest


def suites(thorough: bool) -> Iterator[list[str]]:
    """Yield the commands that run the suites of `make test`."""
    run = [sys.executable, "tests/run.py", "--seed", "0", "--limit", "900", *(["--thorough"] if thorough else [])]
    for suite, more in (("unit", ["--deselect", OWN]), ("mpi", []), ("launch", [])):
        yield [*run, "--suites", suite, "--", "-q", "-x", *more]


def first_failure(commands: Iterable[list[str]], tree: Path) -> str:
    """Run tests in a tree, and return the first that fails, empty where none does."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "CI": ""}
    for command in commands:
        limited = ["timeout", str(LIMIT), *command]
        done = subprocess.run(limited, cwd=tree, env=environment, capture_output=True, text=True, errors="replace")
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.startswith(FAILED)]
            return (lines or [f"exit status {done.returncode}: {done.stderr[-200:]}"])[-1]
    return ""


def in_copies(work: Callable[[Item, Path], Result], items: Iterable[Item], trees: Trees) -> Iterator[Result]:
    """Yield what the work gives for each item, in their order; as many run at once as there are trees."""

    def run(item: Item) -> Result:
        tree = trees.get()
        try:
            return work(item, tree)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(trees.qsize()) as pool:
        yield from pool.map(run, items)


def title(number: int) -> str:
    mutation = MUTATIONS[number]
    return f"{number:>3} {mutation.path}: {mutation.before.strip()[:60]!r} -> {mutation.after.strip()[:40]!r}"


def hold(numbers: list[int], commands: Callable[[Mutation], Iterable[list[str]]], trees: Trees) -> list[int]:
    """Make each mutation in turn and run tests; print what notices it, and return the numbers of those unnoticed."""

    def work(number: int, tree: Path) -> tuple[str, float]:
        began = time.monotonic()
        with mutated(MUTATIONS[number], tree):
            return first_failure(commands(MUTATIONS[number]), tree), time.monotonic() - began

    survived = []
    for number, (test, seconds) in zip(numbers, in_copies(work, numbers, trees), strict=True):
        survived += [] if test else [number]
        print(f"{title(number)}: {test[:160] or 'NOT NOTICED'} ({seconds:.0f} s)", flush=True)
    return survived


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--only", type=lambda text: [int(part) for part in text.split(",")], help="the numbers of some")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="copies that work side by side (default: %(default)s)")
    add("--named", action="store_true", help="run the files named in `noticed_by` only, never the suites")
    add("--thorough", action="store_true", help="hold them against `tests/run.py --thorough`")
    add("--list", action="store_true", help="print them, and run nothing")
    arguments = parser.parse_args()
    check()
    numbers = arguments.only if arguments.only is not None else list(range(len(MUTATIONS)))
    if arguments.list:
        print(*map(title, numbers), sep="\n")
        return
    with tempfile.TemporaryDirectory() as place:
        trees: Trees = queue.SimpleQueue()
        for job in range(arguments.jobs):
            trees.put(Path(shutil.copytree(ROOT, Path(place, str(job)), symlinks=True, ignore=LEFT_OUT)))
        files = sorted({MUTATIONS[number].noticed_by for number in numbers})
        unchanged = in_copies(lambda file, tree: first_failure([named(file, arguments.thorough)], tree), files, trees)
        broken = {file: test for file, test in zip(files, unchanged, strict=True) if test}
        for file, test in broken.items():
            print(f"{file} fails without any change: {test}", flush=True)
        good = [number for number in numbers if MUTATIONS[number].noticed_by not in broken]
        missed = hold(good, lambda mutation: [named(mutation.noticed_by, arguments.thorough)], trees)
        survived = sorted({*numbers} - {*good} | {*missed})
        by_name = len(numbers) - len(survived)
        if survived and not arguments.named:
            if test := first_failure(suites(arguments.thorough), Path(place, "0")):
                sys.exit(f"a test fails without any change: {test}")
            by_others = {number for number in survived if not MUTATIONS[number].noticed_by.startswith("torch/")}
            torch = [number for number in survived if number not in by_others]  # no suite of `make test` has torch
            survived = sorted([*torch, *hold(sorted(by_others), lambda _: suites(arguments.thorough), trees)])
    words = f"; not: {survived}" if survived else ""
    print(f"{len(numbers) - len(survived)} of {len(numbers)} noticed, {by_name} by the file that is named{words}")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
