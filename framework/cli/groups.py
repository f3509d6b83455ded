"""`strandline groups`: committed offsets, lag and members of consumer groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.records import TopicPartition
from strandline.framework.cli import output
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import JsonOption, LogOption

commands = typer.Typer(
    help="Consumer groups: committed offsets, lag, members.", no_args_is_help=True
)

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="A consumer group; an app's is its name.")
]


@commands.command("list")
def list_groups(log: LogOption = None, json: JsonOption = False) -> None:
    """List the groups that have committed offsets."""
    with opened(log) as where:
        rows = [_total(group, positions(where.broker, group)) for group in where.broker.groups()]
    names = ("group", "topics", "partitions", "lag")
    output.listing(rows, names, json=json, empty="no group has committed offsets yet")


@commands.command("offsets")
def group_offsets(group: GroupArgument, log: LogOption = None, json: JsonOption = False) -> None:
    """Show a group's committed offset in each partition, and its lag."""
    with opened(log) as where:
        rows = _known(where.broker, group)
    output.listing(rows, ("topic", "partition", "offset", "end", "lag"), json=json)


@commands.command("lag")
def group_lag(group: GroupArgument, log: LogOption = None, json: JsonOption = False) -> None:
    """Show the lag of a group in offsets, by topic."""
    with opened(log) as where:
        rows = _known(where.broker, group)
    lags: dict[str, int] = {}
    for row in rows:
        lags[row["topic"]] = lags.get(row["topic"], 0) + row["lag"]
    if json:
        output.document({"group": group, "lag": sum(lags.values()), "topics": lags})
    else:
        output.table("", ("topic", "lag"), lags.items())


@commands.command("members")
def group_members(group: GroupArgument, log: LogOption = None, json: JsonOption = False) -> None:
    """Show the current members of a group and the partitions that each one owns."""
    with opened(log) as where:
        info = where.broker.describe_group(group)
    rows: list[dict[str, Any]] = [
        {
            "member": member.member_id,
            "client": member.client,
            "static": member.instance,
            "holds": list(map(str, member.held)),
        }
        for member in info.members
    ]
    if json:
        output.document(rows)
    elif rows:
        shown = ([row["client"], row["static"], ", ".join(row["holds"])] for row in rows)
        output.table("", ("client", "static", "holds"), shown)
    else:
        output.note(f"group {group!r} has no members now")


def positions(broker: Broker, group: str) -> list[dict[str, Any]]:
    """Return committed offset, end and lag of every partition of the topics that a group reads.

    The end is the last stable offset. A partition without a committed offset is read from its
    start.
    """
    committed = broker.committed(group, require_stable=False)
    existing = {info.name: info.partitions for info in broker.topics()}
    read = {tp.topic for tp in committed} & existing.keys()
    partitions = [
        TopicPartition(topic, p) for topic in sorted(read) for p in range(existing[topic])
    ]
    rows = []
    for tp, ends in sorted(broker.offsets(partitions).items()):
        offset = committed[tp].offset if tp in committed else None
        at = ends.log_start if offset is None else offset
        row = {"topic": tp.topic, "partition": tp.partition, "offset": offset}
        lag = max(0, ends.last_stable_offset - at)
        rows.append(row | {"end": ends.last_stable_offset, "lag": lag})
    return rows


def _known(broker: Broker, group: str) -> list[dict[str, Any]]:
    groups = broker.groups()
    if group not in groups:
        raise InvalidRequest(
            f"no group {group!r} has committed offsets; groups: {', '.join(groups) or 'none'}"
        )
    return positions(broker, group)


def _total(group: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "group": group,
        "topics": len({row["topic"] for row in rows}),
        "partitions": len(rows),
        "lag": sum(row["lag"] for row in rows),
    }
