"""Keep an earlier measurement while a new one agrees, so that runs choose alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll.cost.network import Level, Network
from mpicoll.runtime.network_cache import NAME, agree, cached_network
from mpicoll.schedules.grouping import by_blocks

NODES = by_blocks(4, 2)
NODE, LINKS = Level(1.0, 3.0, 0.5, 3000.0, 9000.0), Level(20.0, 30.0, 2.0, 100.0, 1000.0)
MEASURED = Network("now", NODE, LINKS, 16384.0, 5000.0, 6000.0, 4, 0.0, rough=True)


@pytest.fixture
def directory(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mpicoll" / "networks"


def with_links(**changed) -> Network:
    return replace(MEASURED, links=replace(LINKS, **changed))


def test_the_first_stands_while_others_agree(directory):
    assert cached_network(MEASURED, "MPICH 5", NODES) is MEASURED
    again = cached_network(with_links(latency=26.0), "MPICH 5", NODES)
    assert again == replace(MEASURED, name=NAME)
    other = with_links(latency=33.0)
    assert cached_network(other, "MPICH 5", NODES) is other
    assert cached_network(other, "MPICH 5", NODES) == replace(other, name=NAME)
    assert len(list(directory.iterdir())) == 1


@pytest.mark.parametrize(
    ("library", "nodes"), [("MPICH 6", NODES), ("MPICH 5", by_blocks(4, 4)), ("MPICH 5", by_blocks(6, 2))]
)
def test_other_libraries_and_placements_have_their_own(directory, library, nodes):
    cached_network(MEASURED, "MPICH 5", NODES)
    other = with_links(latency=21.0)
    assert cached_network(other, library, nodes) is other
    assert cached_network(MEASURED, "MPICH 5", NODES).links.latency == 20.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node": 1}', "\0\1"])
def test_a_damaged_file_is_replaced(directory, text):
    cached_network(MEASURED, "MPICH 5", NODES)
    (file,) = directory.iterdir()
    file.write_text(text)
    assert cached_network(MEASURED, "MPICH 5", NODES) is MEASURED
    assert cached_network(MEASURED, "MPICH 5", NODES).name == NAME


def test_without_a_directory_nothing_is_kept(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_network(MEASURED, "MPICH 5", NODES) is MEASURED
    assert cached_network(MEASURED, "MPICH 5", NODES) is MEASURED
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cached_network(MEASURED, "MPICH 5", NODES) is MEASURED


@pytest.mark.parametrize(
    ("changed", "agrees"),
    [
        ({}, True),
        ({"latency": 29.0}, True),
        ({"latency": 31.0}, False),
        ({"rate": 690.0}, True),
        ({"rate": 400.0}, False),
        ({"short_rate": 70.0}, True),
        ({"short_rate": 40.0}, False),
        ({"gap": 50.0}, True),
    ],
)
def test_networks_agree_where_messages_take_alike(changed, agrees):
    assert agree(MEASURED, with_links(**changed), 2) == agrees == agree(with_links(**changed), MEASURED, 2)


def test_other_processors_and_turns_are_another_network():
    assert not agree(MEASURED, replace(MEASURED, cores=8), 2)
    turns = replace(MEASURED, turn=10.0)
    assert agree(MEASURED, turns, 4) and not agree(MEASURED, turns, 8)
