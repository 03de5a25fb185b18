"""Put the page of `mpicoll explore` on the site, and show it on the page that describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from mpicoll.describe.explore import choose
from mpicoll.describe.explore.page import build

SHOWN_ON, FILE = "docs/SEEING", "explore.html"
FRAME = (
    '<iframe src="{src}" title="Algorithms, step by step" loading="lazy" '
    'style="width: 100%; height: 860px; border: 1px solid var(--color-background-border); border-radius: 8px">'
    '</iframe><p><a href="{src}">The page alone</a></p>'
)


def show(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Put the frame at the end of the page's text."""
    if page == SHOWN_ON:
        depth = page.count("/")
        context["body"] += FRAME.format(src="../" * depth + FILE)


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the page beside the others."""
    if error is None:
        pages = build(choose.with_tours(choose.wanted(), choose.RANKS))
        (Path(app.outdir) / FILE).write_text(pages, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("html-page-context", show)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
