"""Limits of tables and of the libraries that write them, checked before a table is touched.

The libraries take a path for a URL: they decode `%20`, cut off `#…` and `?…`, and would then use
another folder or another database than the one that is locked. They also make entries of a table
that no reader can read afterwards, for times that have no date with four digits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.changelog.errors import InvalidConfig, InvalidRecord, SchemaMismatch
from strandline.framework.offload.target import DataFile

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Begin of the year 1 and end of the year 9999, in milliseconds since the epoch."""

_MISREAD: Mapping[str, re.Pattern[str]] = {
    "delta": re.compile(r"%[0-9A-Fa-f]{2}|\\"),
    "iceberg": re.compile(r"%[0-9A-Fa-f]{2}|[#?]"),
}
"""Parts of a path that the library of a format reads as something else."""

_COLOUR = re.compile("\x1b\\[[0-9;]*m")
"""Codes that colour a terminal's text."""


def check_path(path: Path, form: str) -> None:
    """Raise InvalidConfig for a path that the library of a table format would misread."""
    if form not in _MISREAD:
        return
    text = str(path)
    misread = [found[0] for found in _MISREAD[form].finditer(text)]
    misread += [char for char in text if unicodedata.category(char) in ("Cc", "Cs")]
    if misread:
        raise InvalidConfig(
            f"the path {text!r} has {misread[0]!r}, which the library for {form} reads as something else, "
            "so that the table would be in another place; give a folder of another name"
        )


def check_table(name: str, *, nested: bool) -> None:
    """Raise InvalidConfig for a name of an Iceberg table that is not a namespace and a name.

    `nested` says that the catalog may have namespaces in others, which one in a folder has not.

    >>> check_table("sales.trips", nested=False)
    """
    parts = name.split(".")
    if not all(part.strip() for part in parts) or len(parts) < 2 or (len(parts) > 2 and not nested):
        deeper = "" if nested else ", and namespaces in others need a catalog (--catalog)"
        raise InvalidConfig(
            "table (--table) is the namespace and the name of an Iceberg table, as 'default.trips'"
            f"{deeper}; got {name!r}"
        )


def check_times(files: Iterable[DataFile], column: str, form: str) -> None:
    """Raise InvalidRecord if a record's time is not in the years 1 to 9999."""
    for file in files:
        if file.first_ms < FIRST_MS or file.last_ms > LAST_MS:
            ms = file.last_ms if file.last_ms > LAST_MS else file.first_ms
            raise InvalidRecord(
                f"partition {file.partition} has a record between the offsets {file.first_offset} and "
                f"{file.last_offset} whose {column} is {np.datetime64(ms, 'ms')} ({ms} ms): {form} takes the "
                "years 1 to 9999. Nothing was added; load the topic as Parquet"
            )


def check_parquet(columns: Iterable[pa.Field]) -> None:
    """Raise SchemaMismatch for a column that Parquet files cannot have."""
    for field in columns:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowException, OSError) as error:
            raise SchemaMismatch(
                f"column {field.name!r} is {field.type}, which Parquet does not have ({error}); leave it out"
            ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message; the kind of its error if it has none.

    delta-rs gives each cause a line of its own, after an arrow in colour. They are added.

    >>> first_line(OSError("refused\\n  \\x1b[31m↳\\x1b[0m disk full\\nmore"))
    'refused: disk full'
    """
    first, *others = _COLOUR.sub("", str(error)).splitlines() or [type(error).__name__]
    causes = [line.strip() for line in others if line.strip().startswith("↳")]
    return ": ".join([first, *(cause.removeprefix("↳").strip() for cause in causes)])
