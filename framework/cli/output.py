"""Output of commands: tables for people, JSON for machines, notes on stderr.

All of it goes through `printable`, because keys, values, names and errors are data and must not act
on the terminal. On a terminal, a table fits the window and large numbers have separators. In a
pipe, a table is as wide as its content, so that nothing is cut off, and numbers have no separators.
"""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strandline.changelog.printable import printable
from strandline.framework.cli import logs
from strandline.framework.cli.json_values import json_line

PIPE_WIDTH_CHARS = 10_000
"""Width of a table in a pipe, in characters."""


def console(*, stderr: bool = False) -> Console:
    """Return a console for the current stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH_CHARS
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; columns of numbers are aligned to the right."""
    cells = [list(row) for row in rows]
    heading = Text(printable(title)) if title else None
    grid = Table(box=SIMPLE_HEAD, title=heading, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        numeric = bool(cells) and all(isinstance(row[index], int | float) for row in cells)
        grid.add_column(
            Text(printable(column)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in cells:
        grid.add_row(*(Text(printable(cell(item))) for item in row))
    console().print(grid)


def listing(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, json: bool, empty: str = "none"
) -> None:
    """Print rows: all of them as one JSON document, or some columns as a table."""
    if json:
        document(rows)
    elif rows:
        table("", columns, ([row[name] for name in columns] for row in rows))
    else:
        note(empty)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print pairs of name and value, one per line."""
    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(Text(printable(name), style="bold"), Text(printable(cell(value))))
    console().print(grid)


def document(value: Any) -> None:
    """Print one JSON document on one line."""
    line(json_line(value))


def line(text: str) -> None:
    """Print a line unchanged, except for characters that a terminal would act on."""
    sys.stdout.write(printable(text) + "\n")


def note(text: str, **fields: object) -> None:
    """Print a message beside the output; as JSON it has `fields` for programs."""
    if logs.are_json():
        logs.say(text, **fields)
    else:
        console(stderr=True).print(Text(printable(text)))


def cell(value: Any) -> str:
    """Return a value as the text of a table cell."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return number(value)
    if isinstance(value, dt.date):  # also a datetime
        return json_line(value)[1:-1]
    return value if isinstance(value, str) else json_line(value)


def number(value: float, digits: int = 0) -> str:
    """Return a number as text: with separators on a terminal, without them in a pipe."""
    return f"{value:,.{digits}f}" if sys.stdout.isatty() else str(value)


def rounded(value: Any) -> Any:
    """Return a float with three digits after the point, and any other value as it is."""
    if isinstance(value, float) and math.isfinite(value):
        return number(value, 3)
    return value


def moment(ms: int) -> str | None:
    """Return a time in ms since the epoch as text; None for a negative one, which means none.

    >>> moment(1_357_034_400_000)
    '2013-01-01 10:00:00.000Z'
    """
    if ms < 0:
        return None
    try:
        at = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"


def size(count: int) -> str:
    """Return a number of bytes as text with a binary unit.

    >>> size(512), size(3 << 20)
    ('512 B', '3.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
