"""The site's settings for Sphinx: `make site`."""

from __future__ import annotations

import sys
from pathlib import Path

import mpicoll
from mpicoll.cli import main
from mpicoll.cli.group import Later

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

project = "mpicoll"
author = "the mpicoll developers"
version = release = mpicoll.__version__

# The checkout is the source, so that links between pages are the same here as where the files are read one by one.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_external_toc",
    "complete",
    "docstrings",
    "explore",
    "files",
]
include_patterns = ["*.md", "docs/*.md", "docs/design/*.md", "docs/api/*.rst"]
external_toc_path = str(HERE / "navigation.yml")
suppress_warnings = ["etoc.toctree"]  # autosummary itself adds the pages of the API below it
templates_path = [str(HERE / "templates")]

myst_heading_anchors = 4  # links to headings, as hosts of repositories name them

autosummary_ignore_module_all = False  # what a module exports is what its page has
autosummary_imported_members = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # MPI.SUM, and not what Python makes of it
autodoc_default_options = {"members": True}
add_module_names = False
highlight_language = "none"  # of blocks that do not say what they are, as commands and tables
smartquotes = False  # docstrings have code with quotes in plain text
default_role = "code"  # docstrings mark code with single backquotes, as the pages do

html_theme = "furo"
html_title = f"mpicoll {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = html_show_copyright = False
copybutton_prompt_text = "$ "

# Commands that are imported when they are used are wanted now.
for name, command in main.commands.items():
    if isinstance(command, Later):
        main.commands[name] = command.load()
