"""Rows of several launches put together, and peers' beside native's."""

from __future__ import annotations

import pytest

from mpicoll.benchmarks.peers import Call, Measured
from mpicoll.benchmarks.peers.rows import beside, natives, pooled, together
from mpicoll.benchmarks.results.records import Row

CALL = Call("allreduce", 1000)


def row(algorithm: str, samples: list[float], **more: object) -> Row:
    """Return a row as `mpicoll bench` writes it, with a limit of 50 µs and 1,000 bytes."""
    median = sorted(samples)[len(samples) // 2] if samples else None
    fields = {
        "kind": "result", "schema": 2, "collective": "allreduce", "size": 1000, "form": "blocking", "dtype": "float64",
        "op": "sum", "root": 0, "in_place": False, "counts": "even", "ranks": 4, "hosts": 4, "algorithm": algorithm,
        "engine": None if algorithm == "native" else "auto", "ran": {}, "paired": True, "note": "",
        "valid": True if samples else None, "median_us": median, "interval_us": None, "rounds": len(samples), "late": 0,
        "algbw": median and 1000 / median * 1e6, "busbw": median and 1500 / median * 1e6,
        "limit_us": 50.0, "of_limit": median and 50 / median, "ratio": None, "ratio_interval": None, "verdict": None,
        "overlap": None, "samples_us": samples,
    }
    return fields | more


SLOW, FAST = [200.0, 202.0, 201.0], [100.0, 101.0, 100.0]


def test_one_launch_stays_as_it_was():
    rows = [row("native", SLOW), row("auto", FAST, ratio=1.9)]
    assert pooled([rows]) == rows


def test_launches_are_pooled_and_ratios_paired_by_round():
    native, auto = pooled([[row("native", [100.0, 200.0, 300.0]), row("auto", [50.0, 100.0, 150.0])],
                           [row("native", [400.0, 500.0, 600.0]), row("auto", [200.0, 250.0, 300.0])]])
    assert native["samples_us"] == [100.0, 200.0, 300.0, 400.0, 500.0, 600.0]
    assert (native["median_us"], native["rounds"], native["interval_us"]) == (350.0, 6, [100.0, 600.0])
    assert (native["of_limit"], native["algbw"]) == (pytest.approx(50 / 350, abs=1e-4), round(1000 / 350e-6))
    assert (auto["ratio"], auto["ratio_interval"], auto["verdict"]) == (2.0, [2.0, 2.0], "faster")
    assert native["ratio"] is None


def test_wrong_in_one_launch_is_wrong_and_late_calls_add_up():
    native, auto = pooled([[row("native", SLOW), row("auto", FAST, late=1)],
                           [row("native", SLOW), row("auto", FAST, late=2, valid=False)]])
    assert (auto["valid"], auto["late"], native["valid"]) == (False, 3, True)


def test_rounds_that_cannot_be_paired_have_no_ratio():
    _, auto = pooled([[row("native", SLOW), row("auto", FAST)], [row("native", SLOW), row("auto", FAST[:2])]])
    assert auto["ratio"] is None and auto["rounds"] == 5


def test_percentiles_are_never_paired_as_rounds():
    """Percentiles are sorted: paired as if they were rounds, these would say faster with a tiny interval."""
    rises, longer = [100.0 + i for i in range(101)], [101.0 + i for i in range(101)]
    sketches = [{"algorithm": name, "sketch_us": values, "rounds": 3000}
                for name, values in (("native", longer), ("auto", rises))]
    launch = [row(sketch["algorithm"], sketch["sketch_us"]) | sketch for sketch in sketches]
    for result in launch:
        del result["samples_us"]
    native, auto = pooled([launch, launch])
    assert (auto["rounds"], native["rounds"]) == (6000, 6000)
    assert auto["verdict"] == "no difference" and auto["ratio"] == pytest.approx(1.007, abs=0.003)
    assert auto["sketch_us"] == pytest.approx(rises, abs=0.6) and "samples_us" not in auto
    mixed = pooled([launch, [row("native", longer), row("auto", rises)]])
    assert mixed[1]["verdict"] == "no difference" and mixed[1]["rounds"] == 3101 and len(mixed[1]["sketch_us"]) == 101


def test_a_contender_that_did_not_run_keeps_its_note():
    untimed = row("auto", [], note="needs 8 ranks")
    assert pooled([[row("native", SLOW), untimed]] * 2)[1] == untimed


def test_natives_are_those_that_were_timed():
    rows = [row("native", SLOW), row("auto", FAST), row("native", [], size=8)]
    assert natives(rows) == {CALL: rows[0]}


def test_a_peer_is_beside_native_and_not_paired():
    native = row("native", [200.0, 202.0, 201.0, 199.0, 203.0, 198.0])
    peer = beside(native, "gloo", Measured([100.0, 101.0, 99.0, 102.0, 98.0, 100.0], True))
    assert (peer["algorithm"], peer["paired"], peer["valid"], peer["engine"]) == ("gloo", False, True, None)
    assert (peer["median_us"], peer["of_limit"], peer["busbw"]) == (100.0, 0.5, round(1500 / 100e-6))
    assert peer["ratio"] == pytest.approx(2.0, abs=0.03) and peer["verdict"] == "faster"
    low, high = peer["ratio_interval"]
    assert 1.9 < low < peer["ratio"] < high < 2.1
    assert native["algorithm"] == "native" and native["ratio"] is None


def test_the_verdict_on_a_peer_is_that_of_the_mann_whitney_test():
    theirs = [100.0, 101.0, 102.0, 103.0, 104.0, 120.0]
    for ours, verdict in (([110.0, 111.0, 112.0, 113.0, 114.0, 125.0], "faster"),  # 5 of 36 pairs against it
                          ([103.5, 111.0, 112.0, 113.0, 114.0, 125.0], "no difference")):  # and 6
        peer = beside(row("native", ours), "gloo", Measured(theirs, True))
        assert peer["verdict"] == verdict
        low, high = peer["ratio_interval"]
        assert (low <= 1 <= high) is (verdict == "no difference")


def test_few_rounds_of_a_peer_allow_no_verdict_and_equal_ones_no_difference():
    native = row("native", [200.0, 202.0, 201.0, 199.0, 203.0, 198.0])
    few = beside(native, "IMB", Measured([100.0]))
    assert (few["verdict"], few["ratio_interval"], few["valid"]) == ("too few", None, None)
    assert beside(native, "IMB", Measured(list(native["samples_us"])))["verdict"] == "no difference"


def test_a_peer_that_cannot_has_a_note_and_no_times():
    peer = beside(row("native", SLOW), "gloo", Measured([], note="Gloo has no scan"))
    assert (peer["note"], peer["median_us"], peer["of_limit"], peer["rounds"]) == ("Gloo has no scan", None, None, 0)
    assert peer["samples_us"] == [] and peer["limit_us"] == 50.0 and peer["verdict"] is None


def test_launches_of_a_peer_are_put_together():
    assert together([Measured([1.0], True), Measured([2.0], True)]) == Measured([1.0, 2.0], True)
    assert together([Measured([1.0], True), Measured([2.0], False)]).valid is False
    assert together([Measured([1.0], None), Measured([2.0], True)]).valid is None
    assert together([Measured([], note="no")]) == Measured([], note="no")
