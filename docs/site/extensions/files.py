"""Links to files that are no pages: pictures and plots open as they are, any other has a page that shows its text."""

from __future__ import annotations

import posixpath
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx

PICTURES = (".svg", ".png")
BEFORE_THE_COLLECTOR = 400  # of files to download, at 500


def turn_into_links(app: Sphinx, doctree: nodes.document) -> None:
    """Make a plain link of each link to a file, which Sphinx would offer to download."""
    page = app.env.docname
    for node in list(doctree.findall(download_reference)):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), node["reftarget"]))
        target = path if path.endswith(PICTURES) else f"{path}.html"
        app.env.metadata[page].setdefault("files", []).append(path)
        link = nodes.reference("", "", *node.children, internal=True)
        link["refuri"] = posixpath.relpath(target, posixpath.dirname(page) or ".")
        node.replace_self(link)


def linked(app: Sphinx) -> set[str]:
    """Return the files that pages link to."""
    return {path for known in app.env.metadata.values() for path in known.get("files", ())}


def show_text(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file that is no picture."""
    for path in sorted(path for path in linked(app) if not path.endswith(PICTURES)):
        text = (Path(app.srcdir) / path).read_text()
        shown = app.builder.highlighter.highlight_block(text, "python" if path.endswith(".py") else "text")
        yield path, {"title": path, "body": f"<h1>{escape(path)}</h1>{shown}"}, "page.html"


def copy_pictures(app: Sphinx, error: Exception | None) -> None:
    """Put pictures where they are in the checkout."""
    for path in sorted(path for path in linked(app) if path.endswith(PICTURES)):
        place = Path(app.outdir) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(app.srcdir) / path, place)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.connect("doctree-read", turn_into_links, priority=BEFORE_THE_COLLECTOR)
    app.connect("html-collect-pages", show_text)
    app.connect("build-finished", copy_pictures)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
