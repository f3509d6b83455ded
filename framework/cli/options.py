"""Options that many commands share, and the parsing of their values."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from typing import Annotated

import pyarrow as pa
import typer

from strandline.changelog.printable import printable

LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        envvar="STRANDLINE_LOG",
        metavar="DIR|URL",
        help="The log: a folder, or the URL of a served one. Default: ./data if it exists.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
CreateOption = Annotated[
    bool, typer.Option("--create", help="Make the log if the folder holds none.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
PartitionOption = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting by Kafka's name, as cleanup.policy=compact; may be repeated.",
    ),
]


def settings(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping.

    >>> settings(["cleanup.policy=compact"])
    {'cleanup.policy': 'compact'}
    """
    parsed = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"expected NAME=VALUE, got {pair!r}")
        parsed[name.strip()] = value.strip()
    return parsed


def columns(texts: Sequence[str] | None) -> list[pa.Field]:
    """Return NAME:TYPE texts as Arrow fields; a type with `!` at its end may not be null.

    >>> columns(["carrier:string!", "at:timestamp[us]"])
    [pyarrow.Field<carrier: string not null>, pyarrow.Field<at: timestamp[us, tz=UTC]>]
    """
    return [_column(text) for text in texts or ()]


def confirmed(question: str, *, yes: bool) -> bool:
    """Return True with `--yes`, or if the user at the terminal agrees."""
    if yes:
        return True
    if not sys.stdin.isatty():
        return False
    return typer.confirm(printable(question))


def to_ms(text: str) -> int | None:
    """Return a time in ISO 8601 as ms since the epoch; None if the text is not one.

    It is UTC unless it has a zone.

    >>> to_ms("2013-01-01T10:00"), to_ms("tomorrow")
    (1357034400000, None)
    """
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return int(aware.timestamp() * 1000)


_ZONED = {f"timestamp[{unit}]": pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")}
_ZONED["timestamp"] = pa.timestamp("us", "UTC")
_PYTHON = {"int": pa.int64(), "str": pa.string(), "bytes": pa.binary()}
"""Python's names of types for which Arrow has another name."""


def _column(text: str) -> pa.Field:
    name, colon, kind = text.partition(":")
    if not (name and colon):
        raise typer.BadParameter(f"expected NAME:TYPE, got {text!r}")
    plain = kind.removesuffix("!").strip()
    try:
        arrow = _ZONED.get(plain) or _PYTHON.get(plain) or pa.type_for_alias(plain)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: no type is called {plain!r}; there are string, int64, double, bool, "
            "binary, date32, timestamp and Arrow's other names"
        ) from None
    try:
        return pa.field(name.strip(), arrow, nullable=not kind.endswith("!"))
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{text!r}: the name is not UTF-8") from None
