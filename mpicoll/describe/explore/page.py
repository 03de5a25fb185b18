"""Write the page: one HTML file with the schedules, the style and the program that shows them.

The schedules are compressed JSON in base64, which has no special characters of HTML. Every other text from outside of
the package is escaped, or is inside that JSON.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from ...cost.placement import in_words
from ...schedules.collectives import COLLECTIVES
from ...schedules.registry import Algorithm
from ...schedules.schedule import Schedule
from ..formulas import pretty
from .choose import Key
from .presets import PRESETS
from .record import Record, Words, record
from .sources import sources
from .timing import SIZES, Clock

if TYPE_CHECKING:
    from .measured import Measured

SCRIPTS = ("data.js", "board.js", "spacetime.js", "panels.js", "cost.js", "measured.js")
TRAINING = "training.js"  # on pages with training steps
MAIN = "page.js"
STYLES = ("page.css", "training.css")
TRAINING_LEAD = (
    "Play a training step of a real run: which collective runs when, and what each rank holds. Click a collective to "
    "see its algorithm. "
)
MOST_BYTES = 5_000_000
TITLE = "Collectives, step by step"


def build(
    schedules: Iterable[tuple[Key, Schedule]], title: str = TITLE, *, broken: bool = False, clock: Clock | None = None,
    measured: Measured | None = None,
) -> str:  # fmt: skip
    """Return the page as HTML. Raises ValueError if there is no schedule to show.

    broken: begin with the fault of the first schedule; clock: show times on a network too; measured: recorded calls,
    which need a clock.
    """
    content = data(schedules, clock, measured)
    if not content["schedules"]:
        raise ValueError("no schedule fits these algorithms and numbers of ranks")
    return render({**content, "broken": broken}, title)


def data(
    schedules: Iterable[tuple[Key, Schedule]], clock: Clock | None = None, measured: Measured | None = None
) -> Record:
    """Return the content of the page, which json.dumps takes."""
    words, entries, algorithms, code = Words(), {}, {}, {}
    for key, schedule in schedules:
        entries[str(key)] = {
            "collective": key.collective,
            "spec": key.spec,
            "root": key.root,
            "ordered": key.ordered,
            **record(schedule, words, clock, measured.recordings.get(str(key), ()) if measured else ()),
        }
        if clock is not None and not (key.root or key.ordered or "fault" in entries[str(key)]):
            entries[str(key)]["curve"] = clock.curve(schedule)
        entry = schedule.algorithm
        if (name := f"{key.collective}/{entry.name}") not in algorithms:
            functions = sources(entry)
            code.update(functions)
            algorithms[name] = {**_facts(entry), "code": list(functions)}
    return {
        "version": __version__,
        "collectives": {name: _meaning(name) for name in COLLECTIVES},
        "algorithms": algorithms,
        "code": code,
        "words": words.texts,
        "schedules": entries,
        "clock": clock and _clock(clock),
        "measured": measured and measured.facts(),
        "presets": [preset._asdict() for preset in PRESETS if {preset.left, preset.right} <= {*entries, ""}],
    }


def _clock(clock: Clock) -> Record:
    return {
        "network": clock.network.name,
        "nbytes": clock.nbytes,
        "nodes": {p: in_words(nodes, clock.placement) for p, nodes in clock.nodes.items()},
        "sizes": list(SIZES),
    }


def _meaning(name: str) -> dict[str, Any]:
    collective = COLLECTIVES[name]
    return {"naming": collective.naming, "rooted": collective.rooted, "reduces": collective.reduces}


def _facts(entry: Algorithm) -> dict[str, Any]:
    """Return the claims of the docstring, with formulas in mathematical notation."""
    claims = entry.claims
    return {
        "name": entry.name,
        "idea": claims.idea,
        "steps": pretty(claims.steps),
        "bytes_per_rank": pretty(claims.bytes_per_rank),
        "scratch": pretty(claims.scratch),
        "cost": claims.cost,
        "source": claims.source,
    }


def render(content: Record, title: str) -> str:
    """Return the HTML of the page's data; `trainings` in it are the steps of training.py."""
    here = files(__package__)
    trains = bool(content.get("trainings"))
    scripts = (*SCRIPTS, TRAINING, MAIN) if trains else (*SCRIPTS, MAIN)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    parts = {
        "title": html.escape(title),
        "lead": TRAINING_LEAD if trains else "",
        "command": "mpicoll train --explore" if trains else "mpicoll explore",
        "version": html.escape(__version__),
        "style": "\n".join((here / name).read_text(encoding="utf-8") for name in STYLES[: 1 + trains]),
        "script": "\n".join((here / name).read_text(encoding="utf-8") for name in scripts),
        "data": packed,
    }
    page = (here / "page.html").read_text(encoding="utf-8")
    before, *slots = page.split("{{")
    pieces = [before]
    for slot in slots:  # in one pass, so that braces within a part are not replaced
        name, _, after = slot.partition("}}")
        pieces += [parts[name.strip()], after]
    return "".join(pieces)
