"""A group of commands that imports a command's module when the command runs.

`strandline --version` and `strandline --help` then import no Arrow and no log.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class LazyCommand(NamedTuple):
    """A command that is imported when it is needed."""

    module: str
    """Name of the module in this package."""
    attribute: str
    """Name of a function, or of a `typer.Typer` with a group of commands."""
    summary: str
    """Text for the list of commands: the first paragraph of the command's help."""
    hidden: bool = False

    def loaded(self, name: str) -> Any:
        """Import the command, and return it as click runs it."""
        found = getattr(importlib.import_module(f"{__package__}.{self.module}"), self.attribute)
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
            command.name = name
            return command
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name, hidden=self.hidden)(found)
        return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """Group of the commands in `lazy`."""

    lazy: Mapping[str, LazyCommand] = {}
    _is_listing = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, known in self.lazy.items():  # for the list of commands, and for suggestions
            self.commands[name] = TyperCommand(name, help=known.summary, hidden=known.hidden)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self._is_listing or cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        return self.lazy[cmd_name].loaded(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False
