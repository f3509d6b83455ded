"""Where each task goes on in each input partition, as committed offsets say it.

The consumer group of an app is its name, and several tasks may read the same topic. Normally
they are at the same offset. When they are not, because one has stopped at a record that it
cannot handle, the committed offset is the smallest, and its metadata names each task's own:
`{"tasks": {"tally": 120, "audit": 97}}`. The metadata also names the stores that are placed
(`placing`), each with the number of partitions for which it is, and what waits for the end of a
run: the tasks whose `window` has not seen all records yet, and each task's next timer in stream
time: `{"placed": {"totals": 4}, "windows": ["tally"], "timers": {"audit": 1763857918000}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.depth import check_json
from strandline.changelog.errors import UNREADABLE
from strandline.changelog.records import CommittedOffset, TopicPartition

MAX_PLACED_BYTES = 2_000
"""Names of placed stores beyond this are left out: on Kafka metadata has at most 4,096 bytes."""


class InputProgress(NamedTuple):
    """How far one task is in one input partition."""

    task: str
    partition: TopicPartition
    offset: int
    """The next offset to handle."""
    owes_window: bool = False
    """True if records were handled that no call of `window` has followed."""
    next_timer: int | None = None
    """Time in ms of the next timer in stream time; None if none is set."""


class PendingAtEnd(NamedTuple):
    """What waits for the end of a run in one partition."""

    windows: tuple[str, ...] = ()
    """Names of the tasks whose `window` is to be called."""
    timers: Mapping[str, int] = {}
    """Time in ms of the next stream timer, by the task's name."""


class _Metadata(msgspec.Struct, omit_defaults=True):
    tasks: dict[str, int] = {}
    placed: dict[str, int] = {}
    windows: list[str] = []
    timers: dict[str, int] = {}


_decode = json_decoder(_Metadata).decode


def to_commit(
    progress: Iterable[InputProgress],
    placed: Mapping[TopicPartition, Mapping[str, int]] | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """The offsets to commit for every task at work.

    `placed` has the stores that are placed, and for how many partitions.

    >>> views = TopicPartition("views", 0)
    >>> to_commit([InputProgress("a", views, 5), InputProgress("b", views, 7)])[views].metadata
    '{"tasks":{"a":5,"b":7}}'
    >>> to_commit([InputProgress("a", views, 5), InputProgress("b", views, 5, owes_window=True)])[views].metadata
    '{"windows":["b"]}'
    """
    by_partition: dict[TopicPartition, list[InputProgress]] = {}
    for one in progress:
        by_partition.setdefault(one.partition, []).append(one)
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


def waiting_of(offset: CommittedOffset | None) -> PendingAtEnd:
    """What waits for the end of a run, by a committed offset."""
    if offset is None or not offset.metadata:
        return PendingAtEnd()
    found = _read(offset.metadata)
    return PendingAtEnd(tuple(found.windows), found.timers)


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


def _offset(tasks: list[InputProgress], placed: Mapping[str, int]) -> CommittedOffset:
    offsets = {one.task: one.offset for one in tasks}
    metadata = _Metadata(
        offsets if len(set(offsets.values())) > 1 else {},
        dict(placed) if sum(map(len, placed)) <= MAX_PLACED_BYTES else {},
        [one.task for one in tasks if one.owes_window],
        {one.task: one.next_timer for one in tasks if one.next_timer is not None},
    )
    return CommittedOffset(min(offsets.values()), _encoded(metadata))


def _read(metadata: str) -> _Metadata:
    """What metadata says; nothing if it is none of ours."""
    if not metadata:
        return _Metadata()
    try:
        check_json(metadata)
        return _decode(metadata)
    except UNREADABLE:
        return _Metadata()


def _encoded(metadata: _Metadata) -> str:
    return "" if metadata == _NOTHING else _ENCODER.encode(metadata).decode()


_NOTHING = _Metadata()
_ENCODER = msgspec.json.Encoder()
