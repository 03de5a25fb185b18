"""Room for words in this process's history of calls, which tests that ran before may have used up."""

from __future__ import annotations

from mpicoll.diagnostics.flight import RECORD
from mpicoll.diagnostics.history import WORDS_END
from mpicoll.fastpath.sites import KNOWN


def make_room():
    """Forget all words and lines; communicators that were made before have wrong ones from now on."""
    words = RECORD.history
    if words.memory is not None:
        words.ids.clear()
        words.end_of_words = words.lines = words.words[WORDS_END] = 0
        KNOWN.table[:] = 0
        KNOWN.codes.clear()
