"""`strandline groups`: committed offsets, lag and members of consumer groups, and new offsets."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.cli import output
from strandline.framework.cli.loading import opened
from strandline.framework.cli.options import (
    JsonOption,
    LogOption,
    PartitionOption,
    YesOption,
    confirmed,
)
from strandline.framework.cli.reading import partitions_of, starting_positions
from strandline.framework.container.reset import check_at_rest
from strandline.statestore.internal_names import CHANGELOG
from strandline.statestore.ownership import InternalTopics

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


@commands.command("reset")
def reset_group(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, -N for the last N records of each partition, or a "
            "time (ISO 8601): the first record at or after it.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Only this topic; may be repeated. Default: all that the group reads."
        ),
    ] = None,
    partition: PartitionOption = None,
    yes: YesOption = False,
    log: LogOption = None,
    json: JsonOption = False,
) -> None:
    """Set the committed offsets of a group that has no members.

    Shows the offsets and asks before it changes them.
    """
    with opened(log) as where:
        broker = where.broker
        names = topic or sorted({row["topic"] for row in _known(broker, group)})
        chosen = [tp for name in names for tp in partitions_of(broker, name, partition)]
        now = broker.offsets(chosen)
        new = starting_positions(broker, chosen, to, option="--to")
        committed = broker.committed(group, chosen)
        rows = [
            {"topic": tp.topic, "partition": tp.partition}
            | {"offset": committed[tp].offset if tp in committed else None, "new": at}
            for tp, at in sorted(new.items())
        ]
        check_at_rest(broker, group, "group")
        if not json:
            output.table(
                "", ("topic", "partition", "offset", "new"), [list(row.values()) for row in rows]
            )
            _note_state(broker, group)
        agreed = confirmed("Set them?", yes=yes)
        if agreed:
            check_at_rest(broker, group, "group")  # a member may have joined before the answer
            offsets = {tp: CommittedOffset(at, topic_id=now[tp].topic_id) for tp, at in new.items()}
            broker.commit_offsets(group, offsets)
    if json:
        output.document({"group": group, "done": agreed, "offsets": rows})
    elif not agreed:
        output.note("nothing was changed; --yes does it")
    if not agreed:
        raise typer.Exit(1)


def _note_state(broker: Broker, group: str) -> None:
    """Print a note if the group is that of an app with stores."""
    if any(name.endswith(CHANGELOG) for name in InternalTopics(broker, SystemClock()).of(group)):
        output.note(
            f"note: app {group!r} keeps its state, so records that are read again count a second "
            "time, and records that are left out never count"
        )


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
