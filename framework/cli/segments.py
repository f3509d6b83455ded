"""`strandline segments`: the files of a topic, their frames and records.

It reads the folder directly and needs no owner. It therefore works beside an owner, and on a log
that cannot be opened any more. A frame that is being written is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from strandline.changelog.embedded import document
from strandline.changelog.embedded.batches import batch_of
from strandline.changelog.embedded.format import (
    HEADER_SIZE,
    Attributes,
    FrameHeader,
    FrameKind,
    unpack_header,
    unpack_marker,
)
from strandline.changelog.embedded.manifest import STILL_OPEN, Manifest, SegmentEntry
from strandline.changelog.embedded.segment import LocatedFrame
from strandline.changelog.embedded.topic import KIND as CATALOG_KIND
from strandline.changelog.embedded.topic import TopicMeta
from strandline.changelog.errors import UnknownPartition, UnknownTopic
from strandline.changelog.layout import CATALOG, partition_folder, place_of
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.records import TopicPartition
from strandline.changelog.schema import ValueSchemas, decode_schemas
from strandline.changelog.storage import File
from strandline.framework.cli import output
from strandline.framework.cli.consume import as_json
from strandline.framework.cli.json_values import json_line
from strandline.framework.cli.loading import folder
from strandline.framework.cli.options import JsonOption, LogOption, PartitionOption


class LocatedSegment(NamedTuple):
    """A segment file of a partition."""

    partition: int
    entry: SegmentEntry
    path: str
    """Path within the log folder."""


def segments(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic whose files to read.")],
    partition: PartitionOption = None,
    frames: Annotated[
        bool, typer.Option("--frames", help="Show the header of every frame.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Show frames and their records, aborted ones too.")
    ] = False,
    start: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="Skip rows that end before it.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after N rows.")
    ] = None,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Show the segments of a topic, one row each; with --frames one row per frame."""
    storage = LocalStorage(folder(log))
    meta = _topic_meta(storage, topic)
    found = [
        located
        for located in _segments(storage, meta, partition)
        if located.entry.end_offset == STILL_OPEN or located.entry.end_offset > start
    ]
    if records:
        _print_records(storage, found, _schemas(meta), start, limit, json=json)
    elif frames:
        rows = (row for row, *_ in _frames(storage, found, start))
        _print_rows(islice(rows, limit), json=json)
    else:
        rows = (_segment_row(storage, located) for located in found)
        _print_rows(islice(rows, limit), json=json)


def _print_rows(rows: Iterable[dict[str, Any]], *, json: bool) -> None:
    if json:
        for row in rows:
            output.document(row)
        return
    shown = [{name: _readable(name, value) for name, value in row.items()} for row in rows]
    names = list(shown[0]) if shown else []
    output.listing(shown, names, json=False, empty="nothing there yet")


def _print_records(
    storage: LocalStorage,
    found: Iterable[LocatedSegment],
    schemas: ValueSchemas,
    start: int,
    limit: int | None,
    *,
    json: bool,
) -> None:
    for row, located, file, position, header in islice(_frames(storage, found, start), limit):
        shown = _records(file, located, position, header, schemas)
        if json:
            output.document(row | {"records": shown})
            continue
        parts = (f"{name}={_readable(name, value)}" for name, value in row.items() if value != "")
        output.line("  ".join(parts))
        for record in shown:
            output.line("    " + json_line(record))


# Topics and files ----------------------------------------------------------------------


def _topic_meta(storage: LocalStorage, topic: str) -> TopicMeta:
    metas = document.load(storage, CATALOG, CATALOG_KIND, list[TopicMeta])
    for meta in metas:
        if meta.name == topic:
            return meta
    names = ", ".join(sorted(meta.name for meta in metas)) or "none"
    raise UnknownTopic(f"there is no topic {topic!r} (topics: {names})")


def _schemas(meta: TopicMeta) -> ValueSchemas:
    return decode_schemas(meta.schemas, f"{CATALOG}, topic {meta.name}")


def _segments(
    storage: LocalStorage, meta: TopicMeta, chosen: list[int] | None
) -> Iterator[LocatedSegment]:
    for number in chosen or range(meta.partitions):
        if number >= meta.partitions:
            raise UnknownPartition(
                f"topic {meta.name!r} has partitions 0 to {meta.partitions - 1}, got {number}"
            )
        where = partition_folder(meta.topic_id, number)
        try:
            manifest = Manifest.load(storage, where)
        except FileNotFoundError:
            continue  # the partition was never written to
        for entry in manifest.segments:
            yield LocatedSegment(number, entry, f"{where}/{entry.name.log_file}")


# Segments ------------------------------------------------------------------------------


def _segment_row(storage: LocalStorage, located: LocatedSegment) -> dict[str, Any]:
    entry = located.entry
    row: dict[str, Any] = {"partition": located.partition, "base_offset": entry.base_offset}
    if entry.end_offset == STILL_OPEN:
        row |= _measured(storage, located) | {"active": True}
    else:
        row["end_offset"] = entry.end_offset
        row |= {"size": entry.size, "max_timestamp": entry.max_timestamp, "active": False}
    return row | {"created": entry.created_ms, "file": located.path}


def _measured(storage: LocalStorage, located: LocatedSegment) -> dict[str, Any]:
    end, size, newest = located.entry.base_offset, 0, -1
    file = storage.open(located.path)
    try:
        for position, header in _headers(file, located.path):
            end, size = header.last_offset + 1, position + header.length
            newest = max(newest, header.max_timestamp)
    finally:
        file.close()
    return {"end_offset": end, "size": size, "max_timestamp": newest}


# Frames --------------------------------------------------------------------------------


def _frames(
    storage: LocalStorage, found: Iterable[LocatedSegment], start: int
) -> Iterator[tuple[dict[str, Any], LocatedSegment, File, int, FrameHeader]]:
    for located in found:
        file = storage.open(located.path)
        try:
            for position, header in _headers(file, located.path):
                if header.last_offset >= start:
                    row = {"partition": located.partition, "file": located.path}
                    row |= {"position": position}
                    yield row | _header_fields(header), located, file, position, header
        finally:
            file.close()


def _headers(file: File, path: str) -> Iterator[tuple[int, FrameHeader]]:
    position, end = 0, file.size()
    while position + HEADER_SIZE <= end:
        where = f"{path} at byte {position}"
        header = unpack_header(file.read(position, HEADER_SIZE), 0, where)
        if position + header.length > end:
            return
        yield position, header
        position += header.length


def _header_fields(header: FrameHeader) -> dict[str, Any]:
    fields = header._asdict()
    fields["kind"] = FrameKind(header.kind).name
    fields["attributes"] = " ".join(Attributes.names(header.attributes))
    fields["payload_crc"] = f"{header.payload_crc:08x}"
    del fields["version"], fields["payload_start"]
    return fields


def _records(
    file: File, located: LocatedSegment, position: int, header: FrameHeader, schemas: ValueSchemas
) -> list[dict[str, Any]]:
    where = f"{located.path} at byte {position}"
    data = memoryview(file.read(position, header.length))
    frame = LocatedFrame(header, data, 0, where, place_of(located.path))
    if header.kind == FrameKind.CONTROL:
        marker = unpack_marker(frame.payload, where)
        return [{"marker": "commit" if marker.type else "abort"}]
    if header.record_count == 0:
        return []
    batch = batch_of(frame, TopicPartition("", located.partition), schemas)
    return [as_json(record) for record in batch.records()]


def _readable(name: str, value: Any) -> Any:
    if name in ("base_timestamp", "max_timestamp", "created", "delete_horizon"):
        return output.moment(value)
    if name in ("size", "length", "payload_size"):
        return output.size(value)
    if name in ("producer_id", "producer_epoch", "base_sequence") and value == -1:
        return None
    return Path(value).name if name == "file" else value
