"""The model's rules are read from the file that an earlier run wrote, if nothing that they depend on has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpicoll.cost.network import network
from mpicoll.schedules.grouping import by_blocks
from mpicoll.selection import kept_rules
from mpicoll.selection.modelled import modelled_rules
from mpicoll.selection.rules import RULES

NET = network("infiniband")
CASE = NET, "allreduce", 12, True, by_blocks(12, 4)
OTHERS = {
    "network": (replace(NET, fold_rate=NET.fold_rate * 2), *CASE[1:]),
    "a network measured in passing": (replace(NET, rough=True), *CASE[1:]),
    "collective": (NET, "bcast", *CASE[2:]),
    "ranks": (NET, "allreduce", 8, True, by_blocks(8, 4)),
    "order": (NET, "allreduce", 12, False, CASE[4]),
    "placement": (*CASE[:4], by_blocks(12, 3)),
    "no placement": (*CASE[:4], None),
    "a forced algorithm": (*CASE, "double_tree"),
}


@pytest.fixture(autouse=True)
def directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_rules.kept_rules.cache_clear()
    return tmp_path / "mpicoll" / "rules"


def in_a_later_run(case=CASE):
    kept_rules.kept_rules.cache_clear()
    return kept_rules.kept_rules(*case)


def not_again(*case):
    raise AssertionError("the model is evaluated again")


@pytest.mark.parametrize("collective", ["bcast", "allreduce", "alltoall", "barrier"])
def test_a_later_run_reads_what_the_model_gave(monkeypatch, collective):
    case = NET, collective, *CASE[2:]
    rules = kept_rules.kept_rules(*case)
    assert rules == modelled_rules(*case)
    monkeypatch.setattr(kept_rules, "modelled_rules", not_again)
    assert in_a_later_run(case) == rules


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_each_case_has_its_own_file(directory, case):
    kept_rules.kept_rules(*CASE)
    assert kept_rules.kept_rules(*case) == modelled_rules(*case)
    assert len(list(directory.iterdir())) == 2


@pytest.mark.parametrize("text", ["", "[]", "00000000\n[]", "\0\1", '[[0, "ring", null, "damaged"]]'])
def test_a_damaged_file_is_replaced(directory, text):
    rules = kept_rules.kept_rules(*CASE)
    (file,) = directory.iterdir()
    content = file.read_text()
    file.write_text(text)
    assert in_a_later_run() == rules and file.read_text() == content


def test_a_changed_source_makes_another_file(monkeypatch, directory):
    kept_rules.kept_rules(*CASE)
    monkeypatch.setattr(kept_rules, "_sources", lambda: "changed")
    in_a_later_run()
    assert len(list(directory.iterdir())) == 2


def test_sources_are_told_by_size_and_time(monkeypatch, tmp_path):
    for name in kept_rules.SOURCES:
        (tmp_path / name).mkdir()
    (tmp_path / "cost" / "model.py").write_text("a")
    monkeypatch.setattr(kept_rules, "__file__", str(tmp_path / "selection" / "kept_rules.py"))
    texts = [kept_rules._sources.__wrapped__()]
    (tmp_path / "cost" / "model.py").write_text("ab")
    texts.append(kept_rules._sources.__wrapped__())
    (tmp_path / "cost").rename(tmp_path / "elsewhere")
    texts.append(kept_rules._sources.__wrapped__())
    assert texts[0] != texts[1] and texts[2] == ""


@pytest.mark.parametrize("obstacle", ["a file in its place", "no home", "no sources"])
def test_without_a_writable_cache(monkeypatch, tmp_path, obstacle):
    if obstacle == "a file in its place":
        (tmp_path / "mpicoll").write_text("")
    elif obstacle == "no home":
        monkeypatch.setattr(kept_rules.user_cache, "directory", lambda name: None)
    else:
        monkeypatch.setattr(kept_rules, "_sources", lambda: "")
    assert kept_rules.kept_rules(*CASE) == in_a_later_run() == modelled_rules(*CASE)


def test_the_newest_files_are_kept(monkeypatch, directory):
    monkeypatch.setattr(kept_rules, "FILES", 3)
    for p in range(2, 8):
        kept_rules.kept_rules(NET, "barrier", p, True, None)
    assert len(list(directory.iterdir())) == 3


def test_fixed_rules_serve_if_ranks_know_only_their_own_counts(directory):
    """They are not kept, but what the model chose as chunks is."""
    assert kept_rules.kept_rules(replace(NET, rough=True), "alltoallv", 12, True, None) == RULES["alltoallv"]
    assert not directory.exists()
    case = NET, "alltoallv", 12, True, by_blocks(12, 4)
    assert kept_rules.kept_rules(*case) == modelled_rules(*case)
    assert len(list(directory.iterdir())) == 1
