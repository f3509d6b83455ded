"""Where each task goes on in each input partition, as committed offsets say it.

The consumer group of an app is its name, and several tasks may read the same topic. Normally
they are at the same offset. When they are not, because one has stopped at a record that it
cannot handle, the committed offset is the smallest, and its metadata names each task's own:
`{"tasks": {"tally": 120, "audit": 97}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from changelog.depth import check_json
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
    return _tasks(offset.metadata).get(task, offset.offset)


def translated(metadata: str, offset_of: Callable[[int], int]) -> str:
    """The metadata of a committed offset with other positions; what is none of ours stays as it is.

    >>> translated('{"tasks":{"a":5,"b":7}}', lambda position: position + 100)
    '{"tasks":{"a":105,"b":107}}'
    >>> translated("a note of another consumer", lambda position: position + 100)
    'a note of another consumer'
    """
    tasks = _tasks(metadata)
    return _encoded({task: offset_of(at) for task, at in tasks.items()}) if tasks else metadata


def _offset(tasks: dict[str, int]) -> CommittedOffset:
    smallest = min(tasks.values())
    if len(set(tasks.values())) == 1:
        return CommittedOffset(smallest)
    return CommittedOffset(smallest, _encoded(tasks))


def _tasks(metadata: str) -> dict[str, int]:
    if not metadata:
        return {}
    try:
        check_json(metadata)
        return msgspec.json.decode(metadata, type=_Metadata).tasks
    except UNREADABLE:
        return {}


def _encoded(tasks: dict[str, int]) -> str:
    return msgspec.json.encode(_Metadata(tasks)).decode()
