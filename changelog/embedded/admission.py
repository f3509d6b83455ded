"""Validation of append requests: checks and encoding between a request and the log."""

from __future__ import annotations

import pyarrow as pa

from strandline.changelog.arrays import as_numpy, repeated
from strandline.changelog.embedded.frame import FramePayload, encode
from strandline.changelog.embedded.topic import OpenTopic
from strandline.changelog.errors import InvalidRecord, RecordTooLarge, SchemaMismatch
from strandline.changelog.producer_state import SEQUENCES
from strandline.changelog.records import Append, ProducerIdentity
from strandline.changelog.schema import BYTES


def admitted(topic: OpenTopic, request: Append, now_ms: int) -> FramePayload:
    """Check a request, and return its encoded batch.

    Raises InvalidRecord, SchemaMismatch or RecordTooLarge; nothing has been written then.
    """
    name, columns = topic.meta.name, request.columns
    _check_producer(topic, request)
    _check_value_type(topic, request)
    if topic.config.compact and columns.column(1).null_count:
        raise InvalidRecord(
            f"topic {name!r} is compacted, so every record needs a key; "
            f"{columns.column(1).null_count} of {columns.num_rows} have none"
        )
    log_append_time = topic.config.message_timestamp_type == "LogAppendTime"
    if log_append_time:
        columns = _stamped(columns, now_ms)
    payload = encode(
        columns,
        schema_id=request.schema_id,
        compression=topic.config.compression_type,
        log_append_time=log_append_time,
    )
    if not log_append_time:
        earliest = int(as_numpy(columns.column(0)).min())
        _check_times(topic, earliest, payload.max_timestamp, now_ms)
    if payload.size > topic.config.max_message_bytes:
        raise RecordTooLarge(
            f"topic {name!r}: a batch of {payload.size} bytes is over max.message.bytes = "
            f"{topic.config.max_message_bytes}; send smaller batches or raise it"
        )
    return payload


def _check_producer(topic: OpenTopic, request: Append) -> None:
    if request.producer is None or not 0 <= request.base_sequence < SEQUENCES:
        raise InvalidRecord(
            f"topic {topic.meta.name!r}: every batch carries its producer and a sequence from 0 to "
            f"{SEQUENCES - 1}; got {request.producer}, {request.base_sequence}"
        )


def _check_value_type(topic: OpenTopic, request: Append) -> None:
    name, schemas = topic.meta.name, topic.schemas
    known = range(1, schemas.latest_id + 1) if schemas.latest_id else [BYTES]
    if request.schema_id not in known:
        raise SchemaMismatch(
            f"topic {name!r} has schema ids {list(known)}, got {request.schema_id}"
        )
    columns = request.columns.schema
    if columns.get_field_index("value") != 2:
        raise InvalidRecord(f"a batch has the columns timestamp, key, value; got {columns.names}")
    got, expected = columns.field(2).type, schemas.type_of(request.schema_id, name)
    if got != expected:
        raise SchemaMismatch(f"topic {name!r} has values of type {expected}, got {got}")


def _stamped(columns: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    times = repeated(now_ms, columns.num_rows)
    return columns.set_column(0, columns.schema.field(0), times)


def _check_times(topic: OpenTopic, low: int, high: int, now_ms: int) -> None:
    config = topic.config
    if low < 0:
        raise InvalidRecord(
            f"topic {topic.meta.name!r}: timestamps are milliseconds since 1970, got {low}"
        )
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if now_ms - low > before or high - now_ms > after:
        raise InvalidRecord(
            f"topic {topic.meta.name!r}: timestamps {low} to {high} are outside of "
            f"message.timestamp.before.max.ms = {before} and after.max.ms = {after} around {now_ms}"
        )


def identity_of(producer: ProducerIdentity | None) -> ProducerIdentity:
    """Return the producer of a transactional append. Raises InvalidRecord if there is none."""
    if producer is None:
        raise InvalidRecord("a transactional append needs a producer; call init_producer first")
    return producer
