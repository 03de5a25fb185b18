"""One page with everything in it: data once, each kind of chart once, and the program that draws them.

The page asks nothing of any network: Vega, its styles and its data are inside, so it opens from a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from mpicoll import __version__

from .charts import AXES, MEASURES, curves, dots
from .groups import Group, gather
from .look import DARK, LIGHT, Look, contenders, looks
from .maps import best, glance, price
from .model import Run
from .points import Record, cells, records
from .scaling import families

VEGA = "window.vegaEmbed = vegaEmbed;"  # what the bundle is to hold


def build(runs: Sequence[Run], title: str) -> str:
    """Return the page as HTML. Nothing in its data or programs can end the script element around it."""
    runs = [replace(run, name=PurePath(run.name).name) for run in runs]
    here = files(__package__ or __name__)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((here / "page.html.j2").read_text(encoding="utf-8"))
    content = data(gather(runs))
    return template.render(
        title=title,
        version=__version__,
        collectives=[collective["name"] for collective in content["collectives"]],
        runs=runs,
        headlines=[headline(run) for run in runs],
        facts=facts(runs),
        settings=[(run, words) for run in runs if (words := _table(run.settings))],
        data=Markup(json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")),
        vega=Markup(re.sub("</(?=script)", r"<\\/", vl_convert.javascript_bundle(VEGA), flags=re.IGNORECASE)),
        script=Markup((here / "page.js").read_text(encoding="utf-8")),
        style=Markup((here / "page.css").read_text(encoding="utf-8")),
    )


def data(groups: Sequence[Group]) -> Record:
    """Return all that the page draws from."""
    look = looks(groups)
    names = dict.fromkeys(group.setting.collective for group in groups)
    return {
        "looks": {contender: list(look[contender]) for contender in contenders(look)},
        "themes": {"light": LIGHT, "dark": DARK},
        "measures": {name: what.title for name, what in MEASURES.items()},
        "specs": specs(look),
        "collectives": [
            {"name": name, "settings": _settings([g for g in groups if g.setting.collective == name])} for name in names
        ],
    }


def specs(look: Mapping[str, Look]) -> Record:
    """Return each kind of chart once, to be given its data on the page."""
    return {
        "curves": {m: {x: curves(m, x, look).to_dict() for x in AXES} for m in MEASURES},
        "dots": {m: dots(m, look).to_dict() for m in MEASURES},
        "best": best(look).to_dict(),
        "glance": glance().to_dict(),
        "price": price().to_dict(),
    }


def _settings(groups: Sequence[Group]) -> list[Record]:
    entries = []
    for setting in dict.fromkeys(group.setting for group in groups):
        same = [group for group in groups if group.setting == setting]
        places = {id(group): at for at, group in enumerate(same)}
        entries.append(
            {
                "title": setting.title,
                "variant": setting.variant,
                "places": [_place(group) for group in same],
                "families": [
                    {"title": family.title, "x": family.x, "places": [places[id(g)] for g in family.groups]}
                    for family in families(same)
                ],
            }
        )
    return entries


def _place(group: Group) -> Record:
    return {"title": group.place.title, "sizes": group.sizes, "rows": records(group), "cells": cells(group)}


def headline(run: Run) -> str:
    """Return what was read of a file, and on what it was measured."""
    words = [run.environment.get(key) for key in ("mpi", "placement", "cpu", "time")]
    return " · ".join([run.description, *(str(word) for word in words if word)])


def facts(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return a line for each fact of the environments, with each run's word for it."""
    tables = [_table(run.environment) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    return [(name, [table.get(name, "–") for table in tables]) for name in names]


def _table(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return names and words for people; what is nested gets a line for each entry, what is empty none."""
    entries: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', ' ')}" if not prefix else f"{prefix}{key}"
        if isinstance(value, Mapping):
            entries |= _table(value, f"{name}: ")
        elif isinstance(value, list | tuple):
            entries |= {name: ", ".join(map(str, value))} if value else {}
        elif value not in (None, ""):
            entries[name] = str(value)
    return entries
