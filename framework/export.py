"""Export of a topic as a data frame."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from strandline.changelog.broker import Broker
from strandline.changelog.client.tables import PLACE, record_frame, topic_table
from strandline.changelog.errors import InvalidRecord
from strandline.changelog.records import Batch
from strandline.changelog.scan import scan_batches
from strandline.framework.formats.codecs import UNENCODABLE, Codec, TypedCodec
from strandline.framework.topic_declaration import TopicDeclaration

if TYPE_CHECKING:
    import polars as pl


_LONG_INTS = pa.decimal128(38, 0)
"""Type of ints that have more than 64 bits."""

_log = logging.getLogger("strandline")


def topic_to_polars(
    topic: TopicDeclaration, *, tombstones: bool, errors: Literal["raise", "skip"]
) -> pl.DataFrame:
    """Return the committed records of a topic as a Polars DataFrame; see `Topic.to_polars`."""
    topic.session.prepare_topic(topic.name)
    broker = topic.session.broker()
    stored = topic_table(broker, broker.topic(topic.name), topic.values.arrow)
    if errors == "skip":
        stored = _readable(topic, stored)
    shown = {name: stored[name] for name in PLACE}
    shown["key"] = _shown(topic, topic.keys, stored, "key")
    shown["value"] = _shown(topic, topic.values, stored, "value")
    return record_frame(pa.table(shown), has_fields=topic.schema is not None, tombstones=tombstones)


def committed_batches(broker: Broker, topic: str) -> list[Batch]:
    """Return all batches that a read_committed reader sees, partition by partition."""
    partitions = broker.topic(topic).topic_partitions
    now = broker.offsets(partitions)
    starts = {tp: ends.log_start for tp, ends in now.items()}
    stable = {tp: ends.last_stable_offset for tp, ends in now.items()}
    return list(scan_batches(broker, starts, stable))


def _shown(topic: TopicDeclaration, codec: Codec, stored: pa.Table, part: str) -> pa.ChunkedArray:
    """Return stored keys or values decoded; their bytes if the decoded values differ in type."""
    column = stored[part]
    call = _decoder(codec)
    made = []
    begin = 0
    for chunk in column.chunks:
        try:
            made.append(call(chunk))
        except InvalidRecord as error:
            at = stored.slice(begin + first_refused(call, chunk), 1).to_pylist()[0]
            raise InvalidRecord(
                f"the {part} at {topic.name}[{at['partition']}]@{at['offset']} cannot be read: {error};"
                ' errors="skip" leaves such records out'
            ) from error
        begin += len(chunk)
    if codec.rows is not None:
        return pa.chunked_array(made, codec.rows.arrow)
    values = [value for each in made for value in each]
    if codec.exact is int:
        return pa.chunked_array([_ints(values, f"topic {topic.name!r}: a {part}")])
    try:
        return pa.chunked_array([pa.array(values)])
    except UNENCODABLE:
        return column


def _ints(values: list[int | None], what: str) -> pa.Array:
    """Return ints in the first type that has them all. Raises InvalidRecord if there is none."""
    for kind in (pa.int64(), pa.uint64(), _LONG_INTS):
        with contextlib.suppress(OverflowError, pa.ArrowInvalid):
            return pa.array(values, kind)
    raise InvalidRecord(
        f"{what} is an int of more than {_LONG_INTS.precision} digits, which a data frame cannot "
        "hold; read the topic in a task"
    )


def _decoder(codec: Codec) -> Callable[[pa.Array], Any]:
    return codec.decode if codec.rows is None else cast("TypedCodec", codec).to_columns


def _readable(topic: TopicDeclaration, stored: pa.Table) -> pa.Table:
    """Return the records whose key and value can be decoded, and log how many cannot."""
    parts = (("key", topic.keys), ("value", topic.values))
    kept = [
        [is_read for chunk in stored[part].chunks for is_read in _are_read(_decoder(codec), chunk)]
        for part, codec in parts
    ]
    mask = pa.array([key and value for key, value in zip(*kept, strict=True)], pa.bool_())
    left_out = stored.filter(pc.invert(mask))
    if len(left_out):
        first = left_out.select(["partition", "offset"]).slice(0, 1).to_pylist()[0]
        _log.warning(
            "topic %r: %d records cannot be read and are left out, the first at offset %d of "
            "partition %d",
            *(topic.name, len(left_out), first["offset"], first["partition"]),
            extra={"topic": topic.name, "records": len(left_out)},
        )
    return stored.filter(mask)


def _are_read(call: Callable[[pa.Array], Any], chunk: pa.Array) -> list[bool]:
    """Return True for each value for which `call` does not raise InvalidRecord, by halving."""
    try:
        call(chunk)
    except InvalidRecord:
        if len(chunk) == 1:
            return [False]
        half = len(chunk) // 2
        return [*_are_read(call, chunk.slice(0, half)), *_are_read(call, chunk.slice(half))]
    return [True] * len(chunk)


def first_refused(call: Callable[[pa.Array], Any], chunk: pa.Array) -> int:
    """Return the index of the first value for which `call` raises InvalidRecord, by bisection."""
    start, end = 0, len(chunk)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            call(chunk.slice(start, middle - start))
            start = middle
        except InvalidRecord:
            end = middle
    return start
