"""The topic that a write appends to: found, created on request, extended on request."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig, SchemaMismatch, TopicExists, UnknownTopic
from strandline.changelog.records import TopicInfo
from strandline.changelog.schema import nullable
from strandline.framework.spark.writing.options import SinkOptions
from strandline.framework.spark.writing.rows import BYTES_COLUMNS, PLACES, RowLayout
from strandline.framework.table_types import check_distinct


def prepare(
    broker: Broker, options: SinkOptions, frame: pa.Schema, *, overwrite: bool
) -> TopicInfo | None:
    """Return the topic that `options` name, ready for rows of `frame`; None if rows name theirs.

    Raises:
        UnknownTopic: It does not exist, and its creation was not requested.
        SchemaMismatch: Its columns and those of the frame do not fit.
        InvalidConfig: The options do not fit the topic, or no topic is named.
    """
    if options.topic is None:
        _check_named_by_rows(frame, overwrite=overwrite)
        return None
    topic = _found_or_created(broker, options, frame)
    if options.merge_schema and topic.schema is not None:
        topic = _extended(broker, topic, options, frame)
    if overwrite and not topic.effective.compact:
        raise InvalidConfig(
            f"topic {topic.name!r} is not compacted, so it has no rows that could be replaced: "
            "append to it (mode or output mode 'append'), or set its cleanup.policy to compact"
        )
    _check_columns(topic, options, frame)
    return topic


def _check_columns(topic: TopicInfo, options: SinkOptions, frame: pa.Schema) -> None:
    """Raise SchemaMismatch, with a way out, if rows of the frame do not fit the topic."""
    try:
        RowLayout(topic, options).check(frame)
    except SchemaMismatch as error:
        if topic.schema is None and "value" not in frame.names:
            fix = (
                "make the column `value`, for example by selectExpr('to_json(struct(*)) AS value')"
            )
            raise SchemaMismatch(f"{error}; the values of this topic are bytes: {fix}") from None
        new = set() if topic.schema is None else {*frame.names} - {*topic.schema.names, *PLACES}
        if topic.schema is not None and (alike := _same_but_for_case(new, topic.schema.names)):
            name, own = alike
            raise SchemaMismatch(
                f"{error}. Topics distinguish case, other than Spark: .withColumnRenamed({name!r}, {own!r})"
            ) from None
        if new:
            fix = ".option('mergeSchema', 'true') adds columns to the topic"
            raise SchemaMismatch(f"{error}; {fix}") from None
        raise


def _same_but_for_case(new: Iterable[str], known: Iterable[str]) -> tuple[str, str] | None:
    """Return a new name and the known one that differs from it only in case; None if none does."""
    lower = {name.lower(): name for name in known}
    return next(((name, lower[name.lower()]) for name in new if name.lower() in lower), None)


def _check_named_by_rows(frame: pa.Schema, *, overwrite: bool) -> None:
    if "topic" not in frame.names:
        raise InvalidConfig(
            "say what to write: .option('topic', 'name'), or a column `topic` with the topic of "
            f"each row; the frame has {', '.join(frame.names)}"
        )
    if overwrite:
        raise InvalidConfig("to replace the rows of a topic, name it by .option('topic', …)")


def _found_or_created(broker: Broker, options: SinkOptions, frame: pa.Schema) -> TopicInfo:
    name = options.topic or ""
    try:
        return broker.topic(name)
    except UnknownTopic as error:
        if options.partitions is None:
            raise UnknownTopic(
                f"{error}; to create it, say with how many partitions: .option('partitions', '4')"
            ) from None
    try:
        schema = _schema_of_new(options, frame) if broker.holds_columns else None
        return broker.create_topic(name, options.partitions, config=options.config, schema=schema)
    except TopicExists:
        return broker.topic(name)


def _schema_of_new(options: SinkOptions, frame: pa.Schema) -> pa.Schema | None:
    """Return the columns of a topic for such a frame; None if it is one of keys and values.

    Raises SchemaMismatch for columns that Spark could not tell apart.
    """
    if "value" in frame.names and BYTES_COLUMNS.issuperset(frame.names):
        return None
    beside = _beside(options, frame)
    found = pa.schema([_column(field) for field in frame if field.name not in beside])
    _check_cases(found.names, options)
    return found


def _column(field: pa.Field) -> pa.Field:
    """Return a column of a topic. It is nullable, because Spark only knows that for one frame."""
    return nullable(field).remove_metadata()


def _beside(options: SinkOptions, frame: pa.Schema) -> set[str]:
    """Return the columns of a frame that are not part of a value.

    They are `key` and `timestamp`, unless an option names another column for that.
    """
    named = {"key": options.key, "timestamp": options.timestamp}
    return {name for name, other in named.items() if other is None and name in frame.names}


def _extended(
    broker: Broker, topic: TopicInfo, options: SinkOptions, frame: pa.Schema
) -> TopicInfo:
    """Return the topic with the columns of the frame that it lacks.

    Raises SchemaMismatch for a new column that Spark could not tell from another one.
    """
    assert topic.schema is not None
    known = {*topic.schema.names, *PLACES, *_beside(options, frame)}
    new = [_column(field) for field in frame if field.name not in known]
    if not new:
        return topic
    added = {field.name.lower() for field in new}
    alike = [name for name in topic.schema.names if name.lower() in added]
    _check_cases([*alike, *(field.name for field in new)], options)
    return broker.alter_topic(topic.name, schema=pa.schema([*topic.schema, *new]))


def _check_cases(names: list[str], options: SinkOptions) -> None:
    """Raise SchemaMismatch for names that differ only in case, because Spark could not read them."""
    check_distinct(names, "Spark", f"leave it out of the rows for topic {options.topic!r}")
