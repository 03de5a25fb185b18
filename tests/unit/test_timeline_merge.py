"""Several timelines of one run laid together, and those that cannot be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import command
from unit.test_timeline import call, exchange, message, of, with_turns

from mpicoll.errors import TimelineError
from mpicoll.plans.plan import RECV, SEND
from mpicoll.timeline import merge as merge_module
from mpicoll.timeline import model, read, trace_events, waits
from mpicoll.timeline.merge import merge
from mpicoll.timeline.model import Identity, Span
from mpicoll.timeline.read import Part

ALONE = "pass each of them alone"


def saved(path, timelines, run="job", clock="boot", host="node1"):
    """Save a file of ranks whose processes are those of this run and host; return its path."""
    ranks = [
        timeline._replace(identity=Identity(run, clock, f"{clock}:{run}:{timeline.rank}"), host=host)
        for timeline in timelines
    ]
    trace_events.write(trace_events.trace(ranks), path)
    return str(path)


def later(timelines, number, by):
    """Return the same ranks with a call of another number, `by` microseconds later."""
    moved = []
    for timeline in timelines:
        rows = [part.messages.copy() for part in timeline.calls]
        for row in rows:
            row[:, 8:] += 1000 * by
        calls = [
            part._replace(number=number, messages=row, **{key: getattr(part, key) + by * 1e-6 for key in TIMES})
            for part, row in zip(timeline.calls, rows)
        ]
        turns = timeline.turns.copy()
        turns[:, [model.BEGAN, model.ENDED]] += 1000 * by
        moved.append(timeline._replace(calls=calls, turns=turns))
    return moved


TIMES = "began", "waited", "ended"


def merged(*paths):
    return merge([read.read(path) for path in paths])


def test_blocks_of_a_run_are_on_one_clock(tmp_path):
    """Files in any order give times since the earliest start, and messages match within their file alone."""
    first = saved(tmp_path / "first.json", exchange(late=5))
    second = saved(tmp_path / "second.json", later(exchange(), 2, 1000))
    together, reverse = merged(first, second), merged(second, first)
    for recorded in (together, reverse):
        began = {key[1]: [part.began for part in parts] for key, parts in recorded.calls.items()}
        assert began == {1: pytest.approx([0, 5]), 2: pytest.approx([1000, 1000])}
        assert {part.began for part in recorded.steps["ranks 0-1", 2, 0] if "sends" in part.facts} == {1001}
        assert recorded.facts["messages"] == 4 and recorded.facts["ranks"] == 2
        numbers = [
            number for parts in recorded.steps.values() for part in parts for *_, number in part.facts.get("sends", ())
        ]
        assert sorted(numbers) == [0, 1, 2, 3]
    assert together.path == f"{first}, {second}" and waits.slowest(together)[0].facts["call"] == 1
    output = command.run("timeline", first, second).output
    assert "2 ranks, 2 calls in 1.01 ms" in output and "clocks agree to 1 µs" in output


def test_parts_of_the_ranks_are_laid_side_by_side(tmp_path):
    sent, taken = message(SEND, 1, 1, 2), message(RECV, 0, 1, 2)
    low = saved(tmp_path / "low.json", [of(0, call(0, 9, sent)), of(1, call(0, 9, taken))])
    sent, taken = message(SEND, 3, 1, 2), message(RECV, 2, 1, 2)
    high = [of(rank, call(4, 9, row)._replace(communicator="ranks 2-3")) for rank, row in ((2, sent), (3, taken))]
    together = merged(low, saved(tmp_path / "high.json", high))
    assert {key[0]: [part.rank for part in parts] for key, parts in together.calls.items()} == {
        "ranks 0-1": [0, 1], "ranks 2-3": [2, 3],
    }  # fmt: skip
    assert together.calls["ranks 2-3", 1, 0][0].began == pytest.approx(4) and together.facts["ranks"] == 4


def test_what_two_files_recorded_counts_once(tmp_path):
    """A timeline inside another: its calls, waits and spans are in both."""
    whole, waiting = exchange(), call(40, 60, form="nonblocking", waited=50, number=2)
    whole[0].spans.append(Span("forward", 0.0, 1e-5))
    whole[0].calls.append(waiting)
    part = [of(0, waiting, spans=[Span("forward", 1e-9, 1e-5), Span("forward", 5e-5, 6e-5)])]
    paths = saved(tmp_path / "whole.json", whole), saved(tmp_path / "part.json", part)
    for together in (merged(*paths), merged(*paths[::-1])):
        assert sorted(part.name for part in together.program) == ["forward", "forward", "wait for Allreduce"]
        assert sorted((key[1], len(parts)) for key, parts in together.calls.items()) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("count", [100, 1000])
def test_a_span_is_compared_with_those_close_to_it_alone(count, monkeypatch):
    """The work does not grow with the number of spans: of three files, the last has half of the first one's again."""
    spans = [Part(0, 0, "step", 100.0 * i, 100.0 * i + 10, {}) for i in range(count)]
    between = [span._replace(began=span.began + 50, ended=span.ended + 50) for span in spans]
    again = [span._replace(began=span.began - 1, ended=span.ended + 1) for span in spans[::2]]
    files = [read.TimelineFile(str(i), {}, {}, program, {}) for i, program in enumerate((spans, between, again))]
    compared, has_close = [], merge_module._has_close
    monkeypatch.setattr(
        merge_module, "_has_close", lambda close, *rest: (compared.append(len(close)), has_close(close, *rest))[1]
    )
    assert list(merge_module._program(files, {}, 2.0)) == spans + between
    assert sum(compared) == len(again) and max(compared) == 1


@given(st.lists(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=12), min_size=2, max_size=3))
def test_spans_of_several_files_are_those_of_a_loop(times):
    files = [
        read.TimelineFile("", {}, {}, [Part(0, 0, "step", a, a + b, {}) for a, b in program], {}) for program in times
    ]
    kept = []
    for file in files:
        close = lambda a, b: max(abs(a.began - b.began), abs(a.ended - b.ended)) <= 2
        kept += [part for part in file.program if not any(close(part, other) for other in kept)]
    assert list(merge_module._program(files, {}, 2.0)) == kept


def test_turns_of_two_files_count_once_and_later(tmp_path):
    first, second = saved(tmp_path / "a.json", exchange()), saved(tmp_path / "b.json", later(with_turns(), 2, 1000))
    again = saved(tmp_path / "c.json", later(with_turns(), 2, 1000))
    for paths in ((first, second), (second, first, again)):
        assert [(turn.key[1], turn.began) for turn in merged(*paths).turns] == [
            (2, pytest.approx(began)) for began in (1010, 1020, 1035)
        ]


def test_the_file_with_more_ranks_of_a_call_counts(tmp_path):
    """One of them may have dropped the call on some ranks."""
    fewer, all_ranks = saved(tmp_path / "a.json", exchange()[:1]), saved(tmp_path / "b.json", exchange())
    assert [part.rank for part in merged(fewer, all_ranks).calls["ranks 0-1", 1, 0]] == [0, 1]


def test_the_largest_error_is_that_of_all(tmp_path):
    worse = [timeline._replace(error=timeline.error * 3) for timeline in later(exchange(), 2, 50)]
    paths = saved(tmp_path / "a.json", worse), saved(tmp_path / "b.json", exchange())
    assert merged(*paths).facts["clock_error_us"] == 3


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"run": "other"}, "{0} and {1} are of different runs; " + ALONE),
        ({"clock": "boot2", "host": "node2"}, "{0} and {1} are of different runs"),  # the ranks are other processes
        (
            {"clock": "boot2", "host": "node2", "ranks": (2, 3)},
            "{0} is on the clock of node1, and {1} on that of node2, which were not compared; " + ALONE,
        ),
    ],
    ids=["another run", "other processes", "another host"],
)
def test_files_that_cannot_be_laid_together(tmp_path, how, words):
    ranks = how.pop("ranks", (0, 1))
    other = [of(rank, call(0, 9)) for rank in ranks]
    first, second = saved(tmp_path / "a.json", exchange()), saved(tmp_path / "b.json", other, **how)
    assert words.format(first, second) in command.refused("timeline", first, second)


def test_the_same_file_twice(tmp_path):
    path = saved(tmp_path / "a.json", exchange())
    assert "is given 2 times" in command.refused("timeline", path, path)


@pytest.mark.parametrize("damage", [
    {"run": 1}, {"clock": None}, {"origin_us": "0"}, {"origin_us": float("nan")}, {"origin_us": 10**400},
    {"processes": {"0": 1}},
], ids=lambda damage: str(damage)[:40])  # fmt: skip
def test_a_file_that_does_not_name_its_run(tmp_path, damage):
    path, other = saved(tmp_path / "a.json", exchange()), saved(tmp_path / "b.json", later(exchange(), 2, 50))
    content = json.loads((tmp_path / "b.json").read_text())
    content["otherData"] |= damage
    (tmp_path / "b.json").write_text(json.dumps(content))
    with pytest.raises(TimelineError, match=r"b.json does not name its run and its clock; pass it alone"):
        merged(path, other)
    assert read.read(other).calls  # alone it is fine


def test_a_host_that_a_terminal_would_obey(tmp_path):
    paths = saved(tmp_path / "a.json", exchange()), saved(tmp_path / "b.json", later(exchange(), 2, 50), host="\x1b[2J")
    with pytest.raises(TimelineError, match="characters that control a terminal"):
        merged(*paths)

