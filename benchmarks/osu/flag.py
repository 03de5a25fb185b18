"""`mpicoll bench` is two commands: with --osu among its words, the rest of them are read as OMB reads them."""

from __future__ import annotations

from typing import Any

import click

from ..command.spmd import SpmdCommand

FLAG = "--osu"


class OrOSU(SpmdCommand):
    """A command that hands over to the one in OMB's words where it reads --osu."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the command that is meant, which is then what runs."""
        if FLAG not in args:
            return super().make_context(info_name, args, parent, **extra)
        from .cli import osu

        return osu.make_context(info_name, [word for word in args if word != FLAG], parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)
