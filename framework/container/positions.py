"""Where each task goes on in each input partition, as committed offsets say it.

The consumer group of an app is its name, and several tasks may read the same topic. Normally
they are at the same offset. When they are not, because one has stopped at a record that it
cannot handle, the committed offset is the smallest, and its metadata names each task's own:
`{"tasks": {"tally": 120, "audit": 97}}`. It names the stores that are placed (`placing`) too, each with
the number of partitions for which it is: `{"placed": {"totals": 4}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from changelog.errors import UNREADABLE
from changelog.records import CommittedOffset, TopicPartition

MAX_PLACED_BYTES = 2_000
"""Names of placed stores beyond this are left out: on Kafka metadata has at most 4,096 bytes."""


class _Metadata(msgspec.Struct, omit_defaults=True):
    tasks: dict[str, int] = {}
    placed: dict[str, int] = {}


def to_commit(
    positions: Iterable[tuple[str, TopicPartition, int]],
    placed: Mapping[TopicPartition, Mapping[str, int]] | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """The offsets to commit for (task, partition, position) of every task at work.

    `placed` has the stores that are placed, and for how many partitions.

    >>> views = TopicPartition("views", 0)
    >>> to_commit([("a", views, 5), ("b", views, 7)])[views].metadata
    '{"tasks":{"a":5,"b":7}}'
    """
    by_partition: dict[TopicPartition, dict[str, int]] = {}
    for task, partition, position in positions:
        by_partition.setdefault(partition, {})[task] = position
    stores = placed or {}
    return {tp: _offset(tasks, stores.get(tp, {})) for tp, tasks in by_partition.items()}


def position_of(
    task: str, partition: TopicPartition, committed: Mapping[TopicPartition, CommittedOffset]
) -> int | None:
    """Where `task` goes on; None if nothing was committed."""
    offset = committed.get(partition)
    if offset is None:
        return None
    return _read(offset.metadata).tasks.get(task, offset.offset)


def placed_of(metadata: str) -> Mapping[str, int]:
    """The stores that the metadata of a committed offset says are placed, and for how many partitions."""
    return _read(metadata).placed


def translated(metadata: str, offset_of: Callable[[int], int]) -> str:
    """The metadata of a committed offset with other positions; what is none of ours stays as it is.

    >>> translated('{"tasks":{"a":5,"b":7}}', lambda position: position + 100)
    '{"tasks":{"a":105,"b":107}}'
    >>> translated("a note of another consumer", lambda position: position + 100)
    'a note of another consumer'
    """
    found = _read(metadata)
    if not found.tasks:
        return metadata
    found.tasks = {task: offset_of(at) for task, at in found.tasks.items()}
    return _encoded(found)


def _offset(tasks: dict[str, int], placed: Mapping[str, int]) -> CommittedOffset:
    smallest = min(tasks.values())
    alike = len(set(tasks.values())) == 1
    fits = sum(map(len, placed)) <= MAX_PLACED_BYTES
    found = _Metadata({} if alike else tasks, dict(placed) if fits else {})
    if not found.tasks and not found.placed:
        return CommittedOffset(smallest)
    return CommittedOffset(smallest, _encoded(found))


def _read(metadata: str) -> _Metadata:
    """What metadata says; nothing if it is none of ours."""
    if not metadata:
        return _Metadata()
    try:
        return _DECODER.decode(metadata)
    except UNREADABLE:
        return _Metadata()


def _encoded(metadata: _Metadata) -> str:
    return _ENCODER.encode(metadata).decode()


_DECODER = msgspec.json.Decoder(_Metadata)
_ENCODER = msgspec.json.Encoder()
