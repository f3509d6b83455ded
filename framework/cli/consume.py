"""`strandline consume`: a topic's records as JSON lines."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import typer

from strandline.changelog import signals
from strandline.changelog.records import ConsumerRecord, Isolation
from strandline.framework.cli import output
from strandline.framework.cli.forms import KeyForm, ValueForm, show_key, show_value
from strandline.framework.cli.json_values import json_line, plain
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import LogOption, PartitionOption
from strandline.framework.cli.reading import partitions_of, read, starting_positions


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to read.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, -N for the last N of each partition, or a time "
            "(ISO 8601): the first record at or after it.",
        ),
    ] = "earliest",
    limit: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new records, until Ctrl-C.")
    ] = False,
    partition: PartitionOption = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Show or hide open transactions.")
    ] = "read_committed",
    key_format: Annotated[
        KeyForm, typer.Option("--key-format", help="Format of the bytes of keys.")
    ] = "auto",
    value_format: Annotated[
        ValueForm, typer.Option("--value-format", help="Format of the bytes of values.")
    ] = "auto",
    log: LogOption = None,
) -> None:
    """Print records as JSON lines, in order within each partition, up to the topic's current end.

    The lines can be piped into `strandline produce`. Bytes that are not MessagePack are shown as
    {"utf8": "…"} or {"base64": "…"}; --value-format names another format.
    """
    # A command that never ends by itself must watch for Ctrl-C, or it may be lost (see signals).
    with opened(log, lasts=follow) as where, signals.awaited(*[signal.SIGINT] * follow) as came:
        chosen = partitions_of(where.broker, topic, partition)
        positions = starting_positions(where.broker, chosen, start, isolation, option="--from")
        printed = 0
        stopped = came.qsize if follow else None
        for batch in read(where.broker, positions, isolation=isolation, follow=stopped):
            for record in batch.records():
                output.line(json_line(as_json(record, key_format, value_format)))
                printed += 1
                if printed == limit:
                    return
            if follow:
                sys.stdout.flush()
        if came.qsize():
            raise KeyboardInterrupt


def as_json(
    record: ConsumerRecord, key_form: KeyForm = "auto", value_form: ValueForm = "auto"
) -> dict[str, Any]:
    """Return a record in its printed form, which `produce` accepts."""
    shown: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": show_key(record.key, key_form),
        "value": show_value(record.value, value_form),
    }
    if record.headers:
        shown["headers"] = [[name, _header(value)] for name, value in record.headers]
    return shown


def _header(value: bytes | None) -> Any:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return plain(value)
