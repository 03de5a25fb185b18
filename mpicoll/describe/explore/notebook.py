"""Show a schedule in a notebook: the page with this schedule alone, in a frame of its own."""

from __future__ import annotations

import html

from ...schedules.schedule import Schedule
from .choose import MOST_RANKS
from .faults import key
from .page import build

HEIGHT = 760  # pixels


def frame(schedule: Schedule) -> str | None:
    """Return an HTML frame with the page; None for more ranks than a page shows."""
    if schedule.p > MOST_RANKS:
        return None
    page = html.escape(build([(key(schedule), schedule)], schedule.title), quote=True)
    style = f"width: 100%; height: {HEIGHT}px; border: 0"
    return f'<iframe srcdoc="{page}" style="{style}" title="{html.escape(schedule.title, quote=True)}"></iframe>'
