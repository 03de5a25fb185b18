"""Several hosts on one machine: what can be seen of them without root."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading

import pytest

from mpicoll.benchmarks import hosts
from mpicoll.benchmarks.hosts import LaunchError, __main__, format_rate, network, parse_rate, rates, sandbox, testbed


@pytest.mark.parametrize(("text", "rate"), [
    ("50Mbit", 50_000_000), ("1gbit", 10**9), ("2.5 Gbit/s", 2_500_000_000), ("1000kbit", 10**6),
    ("1000000bit", 10**6), ("100Gbit", 10**11),
])
def test_rates(text, rate):
    assert parse_rate(text) == rate
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize("text", ["", "0Mbit", "fast", "-5Mbit", "1e3Mbit", "5 Mbit per s"])
def test_invalid_rates(text):
    with pytest.raises(LaunchError, match="write 50Mbit"):
        parse_rate(text)


@pytest.mark.parametrize("rate", [0, -1, 10**6 - 1, 10**11 + 1, float("nan"), float("inf")])
def test_rates_that_no_link_has(rate):
    with pytest.raises(LaunchError, match="give one from 1Mbit to 100Gbit"):
        rates.check_rate(rate)


@pytest.mark.parametrize("count", [0, -1, network.MOST + 1])
def test_numbers_of_hosts_that_cannot_be(count):
    with pytest.raises(LaunchError, match=f"{count} hosts cannot be made; give a number from 1 to 500"):
        hosts.Hosts(count, 50e6)


def test_every_host_has_a_name_and_an_address():
    hosts = network.Network(network.MOST, 10**6)
    assert len({hosts.here, *hosts.addresses.values()}) == network.MOST + 1
    assert hosts.names[:2] == ("host0", "host1") and f"{hosts.addresses['host1']} host1\n" in hosts.etc_hosts()
    assert len(network.link(hosts.names[-1])) < 16  # what Linux allows


def test_a_rate_the_kernel_did_not_take(monkeypatch):
    def shows(text: str) -> None:
        monkeypatch.setattr(network.subprocess, "run", lambda *_, **__: type("Done", (), {"stdout": text}))

    shows('[{"kind": "tbf", "options": {"rate": 6250000}}]')
    network.check_shape("x", 50_000_000)
    with pytest.raises(LaunchError, match="made a link of 50Mbit instead of 51Mbit"):
        network.check_shape("x", 51_000_000)
    shows('[{"kind": "noqueue", "options": {}}]')
    with pytest.raises(LaunchError, match="made a link of 0bit"):
        network.check_shape("x", 50_000_000)


@pytest.mark.parametrize("message", ["Error: Specified qdisc kind is unknown.\nCommand failed -:1",
                                  "RTNETLINK answers: No such file or directory"])
def test_a_kernel_without_the_filter(message):
    assert network.refusal("tc refused", message).startswith("this kernel has no token bucket filter")


def test_a_refusal_is_one_line():
    message = "RTNETLINK answers: Operation not permitted\nCommand failed -:1\n"
    assert network.refusal("ip refused", message) == "ip refused: RTNETLINK answers: Operation not permitted"


@pytest.mark.parametrize(("how", "says"), [
    ({"ranks": 5}, "5 ranks do not fit on 2 hosts with 2 each; give from 1 to 4"),
    ({"ranks": 0}, "0 ranks do not fit"),
    ({"ranks_per_host": 0}, "0 ranks per host cannot be"),
    ({"placement": "random"}, "no placement is called 'random'; there is block and cyclic"),
    ({"arguments": []}, "nothing to run"),
    ({}, "not up: launch inside"),
])
def test_launches_that_cannot_be(how, says):
    with pytest.raises(LaunchError, match=says):
        hosts.Hosts(2, 50e6).launch(**{"arguments": ["true"], "ranks_per_host": 2, **how})


def test_hosts_are_made_inside_only():
    with pytest.raises(LaunchError, match=r"call hosts.enter\(\) first"), hosts.Hosts(2, 50e6):
        pass


@pytest.mark.parametrize(("of", "name", "value", "says"), [
    (os, "geteuid", lambda: 1000, "need root"),
    (sys, "platform", "darwin", "need Linux; this is darwin"),
    (shutil, "which", lambda name: None if name in ("ip", "tc", "nsenter") else name,
     r"^ip, tc, nsenter missing; .* apt-get install iproute2 util-linux$"),
], ids=["without root", "another system", "missing tools, named with their packages"])
def test_machines_that_cannot_have_hosts(monkeypatch, of, name, value, says):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(of, name, value)
    with pytest.raises(LaunchError, match=says):
        hosts.enter()


def test_threads_do_not_come_along(monkeypatch):
    monkeypatch.setattr(sandbox, "check_machine", lambda: None)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(LaunchError, match="before any thread"):
            hosts.enter()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (7, 7), (None, 124), (-signal.SIGKILL, 137)])
def test_exit_statuses(status, expected):
    assert __main__.as_in_a_shell(status) == expected


@pytest.mark.parametrize(("words", "says"), [
    ([], "Missing argument 'COMMAND...'"),
    (["--rate", "fast", "true"], "'fast' is not a rate"),
    (["--rate", "1bit", "true"], "a rate of 1bit cannot be made"),
    (["--placement", "x", "true"], "is not one of 'block', 'cyclic'"),
    (["--timeout", "0", "true"], "0.0 is not in the range"),
    (["--python", "/no/python", "true"], "--python /no/python: no such file"),
    (["--bogus", "true"], "No such option"),
])
def test_bad_words_get_one_line(capsys, monkeypatch, words, says):
    monkeypatch.setattr(__main__, "flavour", lambda python: "mpich")
    assert __main__.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("mpicoll.benchmarks.hosts: ") and says in err


def test_options_after_the_command_are_the_commands(monkeypatch):
    seen = {}

    class Fake:
        def __init__(self, count: int, rate: float) -> None:
            seen.update(count=count, rate=rate)

        __enter__ = lambda self: self
        __exit__ = lambda self, *_: None

        def launch(self, command, **how):
            seen.update(how, command=command)
            return testbed.Done(3, "", False)

    monkeypatch.setattr(__main__, "flavour", lambda python: "mpich")
    monkeypatch.setattr(__main__, "enter", lambda: None)
    monkeypatch.setattr(__main__, "Hosts", Fake)
    words = ["--hosts", "3", "-n", "2", "--rate", "1Gbit", "prog", "-n", "5", "--", "--rate", "x", "--help"]
    assert __main__.main(words) == 3
    assert seen["command"] == ("prog", "-n", "5", "--", "--rate", "x", "--help")
    assert (seen["count"], seen["ranks"], seen["rate"]) == (3, 2, 10**9)
