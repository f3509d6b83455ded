"""`strandline config`: show, set and unset the settings of a log as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from strandline.changelog.log_config import LogConfig
from strandline.changelog.settings import Setting
from strandline.framework.cli import output
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import CreateOption, JsonOption, LogOption, settings

commands = typer.Typer(
    help="Show and change the settings of a log as a whole: defaults for topics, and the cleaner.",
    no_args_is_help=True,
)


@commands.command("show")
def show(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Show this topic's effective settings.")
    ] = None,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Show every setting and the source of its value: topic, log or default."""
    with opened(log) as where:
        if topic is None:
            shown = LogConfig(where.broker.describe_config()).settings()
        else:
            shown = where.broker.topic(topic).settings()
    if json:
        output.document([setting._asdict() for setting in shown])
    else:
        settings_table(shown)


@commands.command("set")
def set_(
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE…", help="Settings by Kafka's names, as log.retention.hours=24."
        ),
    ],
    log: LogOption = None,
    create: CreateOption = False,
    json: JsonOption = False,
) -> None:
    """Change settings, effective at once and kept in the log."""
    _alter(settings(pairs), log, json=json, create=create)


@commands.command("unset")
def unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Settings to remove.")],
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Remove settings, so that the built-in values apply again."""
    _alter(dict.fromkeys(names), log, json=json)


def settings_table(shown: Iterable[Setting]) -> None:
    """Print settings: first those of the topic, then those of the log, then defaults."""
    order = ("topic", "log", "default")
    rows = sorted(shown, key=lambda setting: (order.index(setting.source), setting.name))
    output.table("settings", ("setting", "value", "from"), rows)


def _alter(
    changes: Mapping[str, str | None], log: str | None, *, json: bool, create: bool = False
) -> None:
    with opened(log, create=create) as where:
        given = where.broker.alter_config(changes)
    if json:
        output.document(given)
    else:
        said = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
        output.note(f"set for the log: {said or 'nothing'}")
