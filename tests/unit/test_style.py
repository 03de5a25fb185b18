"""The words, docstrings and names that `make lint` counts."""

import pytest
import style

SOURCE = '''
"""How nobody waits."""


def found(each, size):
    """What came of it."""
    made = [one for one in each]
    made[0].told = size
    return made


class Plain:
    """Do nothing."""

    def method(self):
        """Return whether a rank has entered."""

    @property
    def size(self):
        """The number of ranks."""

    def largest(self):
        """The largest rank."""


def first(ranks):
    """Which rank entered first."""
    import sys as found
'''


def test_every_rule_finds_what_it_rules_out():
    items = [(item.line, item.rule, item.text) for item in style.occurrences("a.py", SOURCE)]
    assert sorted(items) == [
        (1, "docstring", "How nobody waits."),
        (2, "word", "nobody"),
        (5, "docstring", "What came of it."),
        (5, "name", "each"),
        (5, "name", "found"),
        (7, "name", "made"),
        (7, "name", "one"),
        (8, "name", "told"),
        (12, "docstring", "Do nothing."),
        (22, "docstring", "The largest rank."),
        (26, "docstring", "Which rank entered first."),
        (28, "name", "found"),
    ]


def test_pages_have_words_alone():
    assert [item[1:] for item in style.occurrences("a.md", "A call that\nstands still. What found(each)?")] == [
        (2, "word", "stands still")
    ]


def test_a_count_that_rises_or_falls_is_told(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["style.py"])
    items = list(style.occurrences("a.py", SOURCE))
    monkeypatch.setattr(style, "every", lambda: items)
    for limits, status, text in (
        ({"word": 1, "docstring": 5, "name": 6}, 0, ""),
        ({"word": 0, "docstring": 5, "name": 6}, 1, "word: 1 occurrences, 0 allowed"),
        ({"word": 1, "docstring": 6, "name": 6}, 1, "docstring: 5 occurrences are left; set the limit"),
    ):
        monkeypatch.setattr(style, "LIMITS", limits)
        assert style.main() == status
        assert text in capsys.readouterr().out


def test_every_folder_is_checked_by_every_rule(monkeypatch, tmp_path):
    for folder in ("tests/unit", "tests/support", ".ci/steps"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_text(SOURCE)
    (tmp_path / "tests" / "style.py").write_text(SOURCE)  # quotes what it rules out
    monkeypatch.setattr(style, "ROOT", tmp_path)
    monkeypatch.setattr(style, "FOLDERS", ("tests", ".ci"))
    rules = {(item.file, item.rule) for item in style.every()}
    files = ("tests/unit/a.py", "tests/support/a.py", ".ci/steps/a.py")
    assert rules == {(file, rule) for file in files for rule in style.LIMITS}


@pytest.mark.parametrize(("file", "function", "checked"), [
    ("mpicoll/a.py", "ring(p)", True), ("mpicoll/a.py", "ring(p, rank)", True), ("mpicoll/a.py", "test_ring(p)", True),
    ("mpicoll/algorithms/a.py", "ring(p)", False), ("tests/a.py", "ring(p)", True),
    ("tests/a.py", "ring(p, rank)", False), ("tests/a.py", "test_ring(p)", False),
])  # fmt: skip
def test_docstrings_of_tests_and_algorithms_may_begin_with_a_noun(file, function, checked):
    items = style.occurrences(file, f'def {function}:\n    """A ring of p ranks."""\n')
    assert [(item.rule, item.line) for item in items] == [("docstring", 1)] * checked
