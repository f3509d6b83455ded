"""Where each task goes on in each input partition, as committed offsets say it.

The consumer group of an app is its name, and several tasks may read the same topic. Normally
they are at the same offset. When they are not, because one has stopped at a record that it
cannot handle, the committed offset is the smallest, and its metadata names each task's own:
`{"tasks": {"tally": 120, "audit": 97}}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from changelog.errors import UNREADABLE
from changelog.records import CommittedOffset, TopicPartition


class _Metadata(msgspec.Struct):
    tasks: dict[str, int]


def to_commit(
    positions: Iterable[tuple[str, TopicPartition, int]],
) -> dict[TopicPartition, CommittedOffset]:
    """The offsets to commit for (task, partition, position) of every task at work.

    >>> views = TopicPartition("views", 0)
    >>> to_commit([("a", views, 5), ("b", views, 7)])[views].metadata
    '{"tasks":{"a":5,"b":7}}'
    """
    by_partition: dict[TopicPartition, dict[str, int]] = {}
    for task, partition, position in positions:
        by_partition.setdefault(partition, {})[task] = position
    return {partition: _offset(tasks) for partition, tasks in by_partition.items()}


def position_of(
    task: str, partition: TopicPartition, committed: Mapping[TopicPartition, CommittedOffset]
) -> int | None:
    """Where `task` goes on; None if nothing was committed."""
    offset = committed.get(partition)
    if offset is None:
        return None
    if not offset.metadata:
        return offset.offset
    try:
        metadata = msgspec.json.decode(offset.metadata, type=_Metadata)
    except UNREADABLE:
        return offset.offset
    return metadata.tasks.get(task, offset.offset)


def _offset(tasks: dict[str, int]) -> CommittedOffset:
    smallest = min(tasks.values())
    if len(set(tasks.values())) == 1:
        return CommittedOffset(smallest)
    return CommittedOffset(smallest, msgspec.json.encode(_Metadata(tasks)).decode())
