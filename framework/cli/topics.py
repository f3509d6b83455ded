"""`strandline topics`: list, describe, create, alter, delete, add partitions."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import typer

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidConfig, SchemaMismatch
from strandline.changelog.records import PartitionOffsets, TopicInfo, TopicPartition
from strandline.framework.cli import output
from strandline.framework.cli.config import settings_table
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import (
    ConfigOption,
    JsonOption,
    LogOption,
    YesOption,
    columns,
    confirmed,
    settings,
)
from strandline.framework.cli.reading import partitions_of
from strandline.framework.topic_creation import KEYS_MOVED

commands = typer.Typer(
    help="List, describe, create, alter and delete topics.", no_args_is_help=True
)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME:TYPE",
        help="A column of a typed topic, as delay:double; '!' after the type: never null.",
    ),
]


@commands.command("list")
def list_topics(
    log: LogOption = None,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    json: JsonOption = False,
) -> None:
    """List the topics."""
    with opened(log) as where:
        shown = [info for info in where.broker.topics() if internal or not info.internal]
        rows = [_summary(where.broker, info) for info in shown]
    names = ("topic", "partitions", "offsets", "cleanup", "values")
    empty = "no topics yet; `strandline topics create` makes one"
    output.listing(rows, names, json=json, empty=empty)


@commands.command("describe")
def describe_topic(topic: TopicArgument, log: LogOption = None, json: JsonOption = False) -> None:
    """Show a topic's settings, columns and partitions."""
    with opened(log) as where:
        info = where.broker.topic(topic)
        ends = where.broker.offsets(partitions_of(where.broker, topic))
    if json:
        output.document(_described(info, ends))
        return
    output.facts([("topic", info.name), ("topic id", info.topic_id), ("values", _values(info))])
    if info.schema is not None:
        columns = [[field.name, str(field.type), field.nullable] for field in info.schema]
        output.table("columns", ("column", "type", "may be null"), columns)
    names = ("partition", "start", "end", "stable end", "leader epoch")
    output.table("partitions", names, [_ends_row(tp, end) for tp, end in sorted(ends.items())])
    settings_table(info.settings())


@commands.command("create")
def create_topic(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Their number.")] = 1,
    config: ConfigOption = None,
    column: ColumnOption = None,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Create a topic of bytes, or a typed one if it has columns. Makes the log if there is none."""
    fields = columns(column)
    schema = pa.schema(fields) if fields else None
    with opened(log, create=True) as where:
        info = where.broker.create_topic(topic, partitions, config=settings(config), schema=schema)
    _report(info, f"created {info.name} with {_count(info.partitions, 'partition')}", json=json)


@commands.command("alter")
def alter_topic(
    topic: TopicArgument,
    config: ConfigOption = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Restore the default.")
    ] = None,
    column: ColumnOption = None,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Change settings, or add columns to a typed topic."""
    changed: dict[str, str | None] = {**settings(config), **dict.fromkeys(unset or ())}
    added = columns(column)
    if not changed and not added:
        raise typer.BadParameter("nothing to change: give --config, --unset or --column")
    with opened(log) as where:
        schema = _extended(where.broker.topic(topic), added)
        info = where.broker.alter_topic(topic, config=changed, schema=schema)
    _report(info, f"altered {info.name}", json=json)


@commands.command("add-partitions")
def add_partitions(
    topic: TopicArgument,
    total: Annotated[int, typer.Argument(metavar="TOTAL", min=1, help="New number of partitions.")],
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Raise the number of partitions to TOTAL. From then on keys are spread over all of them."""
    with opened(log) as where:
        before = where.broker.topic(topic).partitions
        if before == total:
            raise InvalidConfig(f"topic {topic!r} has {total} partitions already")
        info = where.broker.alter_topic(topic, partitions=total)
    message = (
        f"{info.name} has {info.partitions} partitions now, not {before}; the same key may go to "
        f"another partition than before, so for apps with stores of its records: {KEYS_MOVED}"
    )
    _report(info, message, json=json)


@commands.command("delete")
def delete_topic(topic: TopicArgument, yes: YesOption = False, log: LogOption = None) -> None:
    """Delete a topic with all its records and committed offsets."""
    with opened(log) as where:
        offsets = _summary(where.broker, where.broker.topic(topic))["offsets"]
        if not confirmed(f"Delete {topic} with {_count(offsets, 'offset')}?", yes=yes):
            output.note(f"{topic} is as it was; --yes deletes it")
            raise typer.Exit(1)
        where.broker.delete_topic(topic)
    output.note(f"deleted {topic}")


def _report(info: TopicInfo, message: str, *, json: bool) -> None:
    if json:
        output.document(_plain(info))
    else:
        output.note(message)


def _summary(broker: Broker, info: TopicInfo) -> dict[str, Any]:
    ends = broker.offsets(info.topic_partitions)
    return {
        "topic": info.name,
        "partitions": info.partitions,
        "offsets": sum(end.high_watermark - end.log_start for end in ends.values()),
        "cleanup": info.effective.cleanup_policy,
        "values": _values(info),
        "internal": info.internal,
    }


def _described(info: TopicInfo, ends: dict[TopicPartition, PartitionOffsets]) -> dict[str, Any]:
    names = ("partition", "log_start", "high_watermark", "last_stable_offset", "leader_epoch")
    rows = [_ends_row(tp, end) for tp, end in sorted(ends.items())]
    shown = info.settings()
    return _plain(info) | {
        "log_defaults": _log_defaults(info),
        "effective_config": {name: value for name, value, _ in shown},
        "partition_offsets": [dict(zip(names, row, strict=True)) for row in rows],
    }


def _log_defaults(info: TopicInfo) -> dict[str, str]:
    """Return the settings of the whole log; of a cluster, those not overridden by the topic."""
    if info.told:
        return {name: value for name, value, source in info.told if source == "log"}
    return dict(info.defaults)


def _plain(info: TopicInfo) -> dict[str, Any]:
    fields = [] if info.schema is None else list(info.schema)
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "partitions": info.partitions,
        "config": dict(info.config),
        "schema_id": info.schema_id,
        "columns": [
            {"name": f.name, "type": str(f.type), "nullable": bool(f.nullable)} for f in fields
        ],
        "internal": info.internal,
    }


def _ends_row(tp: TopicPartition, end: PartitionOffsets) -> list[int]:
    return [
        tp.partition,
        end.log_start,
        end.high_watermark,
        end.last_stable_offset,
        end.leader_epoch,
    ]


def _values(info: TopicInfo) -> str:
    if info.schema is None:
        return "bytes"
    return f"typed, {_count(len(info.schema), 'column')}"


def _extended(info: TopicInfo, added: list[pa.Field]) -> pa.Schema | None:
    if not added:
        return None
    if info.schema is None:
        raise SchemaMismatch(
            f"topic {info.name!r} holds bytes and cannot get columns; create a typed topic"
        )
    return pa.schema([*info.schema, *added])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
