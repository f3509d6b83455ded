"""Positions of an app's tasks in its input partitions, as stored in committed offsets.

The consumer group has the name of the app, and several tasks may read the same topic. Normally all
of them are at the same offset. If one has stopped at a record that it cannot handle, the committed
offset is the smallest, and its metadata has the offset of each task, and numbers for its stores:
`{"tasks": {"tally": 120, "audit": 97}, "stores": {"tally": [3523407757], "audit": []}}`.

The metadata also lists the placed stores (`placing`), each with the number of partitions over which
its keys are hashed. For the end of a bounded run it lists the tasks with a pending call of
`window`, and the time of each task's next timer in stream time:
`{"placed": {"totals": 4}, "windows": ["tally"], "timers": {"audit": 1763857918000}}`.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from strandline.changelog.decoding import json_decoder
from strandline.changelog.errors import UNREADABLE, OffsetOutOfRange
from strandline.changelog.records import (
    CommittedOffset,
    PartitionOffsets,
    TopicInfo,
    TopicPartition,
)

_log = logging.getLogger("strandline")

MAX_PLACED_BYTES = 2_000
"""Maximum characters of all names of placed stores, because Kafka's metadata has 4,096 bytes.

If the names are longer, no store is recorded as placed.
"""

MAX_STORES_BYTES = 1_000
"""Maximum bytes of the stores of all tasks in it, for the same reason. If there are more, none is
recorded."""


class InputProgress(NamedTuple):
    """Position of one task in one input partition."""

    task: str
    partition: TopicPartition
    position: CommittedOffset
    """Next offset to handle, with the history that it belongs to."""
    window_pending: bool = False
    """True if a step ran after the last call of `window`."""
    next_timer: int | None = None
    """Time in ms of the next timer in stream time; None if none is set."""
    stores: tuple[str, ...] = ()
    """Names of the task's stores."""


class PendingAtEnd(NamedTuple):
    """Windows and timers of one partition that are pending for the end of a bounded run."""

    windows: tuple[str, ...] = ()
    """Names of the tasks with a pending call of `window`."""
    timers: Mapping[str, int] = {}
    """Time in ms of the next stream timer, by task name."""


class KnownTasks(NamedTuple):
    """Offsets and stores of tasks that read a partition, from a commit at which they differed."""

    offsets: Mapping[str, int]
    """Next offset by task; empty if all were at the committed one."""
    stores: Mapping[str, Collection[int]] | None
    """Numbers of the stores by task; None if they were not recorded."""

    def owners_of(self, stores: Collection[str]) -> set[str]:
        """Return the tasks that had one of these stores."""
        wanted = set(map(store_number, stores))
        return {task for task, had in (self.stores or {}).items() if not wanted.isdisjoint(had)}

    def has(self, task: str, stores: Collection[str]) -> bool:
        """Return True if the position of a task is known, by its name or by its stores."""
        return task in self.offsets or bool(self.owners_of(stores))


class _Metadata(msgspec.Struct, omit_defaults=True):
    tasks: dict[str, int] = {}
    placed: dict[str, int] = {}
    windows: list[str] = []
    timers: dict[str, int] = {}
    stores: dict[str, list[int]] | None = None


_decode = json_decoder(_Metadata).decode


def to_commit(
    progress: Iterable[InputProgress],
    placed: Mapping[TopicPartition, Mapping[str, int]] | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets to commit, by input partition.

    Args:
        progress: Positions of all running tasks.
        placed: For each partition the placed stores, with the number of partitions they hash over.

    >>> views = TopicPartition("views", 0)
    >>> five, seven = CommittedOffset(5), CommittedOffset(7)
    >>> to_commit([InputProgress("a", views, five), InputProgress("b", views, seven)])[views].metadata
    '{"tasks":{"a":5,"b":7},"stores":{"a":[],"b":[]}}'
    >>> late = InputProgress("b", views, five, window_pending=True)
    >>> to_commit([InputProgress("a", views, five), late])[views].metadata
    '{"windows":["b"]}'
    """
    by_partition: dict[TopicPartition, list[InputProgress]] = {}
    for one in progress:
        by_partition.setdefault(one.partition, []).append(one)
    stores = placed or {}
    return {tp: _offset(tasks, stores.get(tp, {})) for tp, tasks in by_partition.items()}


def known_tasks(metadata: str) -> KnownTasks:
    """Return the tasks in a committed offset's metadata; none if all are at the committed offset."""
    found = _read(metadata)
    return KnownTasks(found.tasks, found.stores)


def store_number(name: str) -> int:
    """Return the number by which metadata names a store, because names may be long."""
    return zlib.crc32(name.encode())


def placed_of(metadata: str) -> Mapping[str, int]:
    """Return the placed stores in a committed offset's metadata, with their partition counts."""
    return _read(metadata).placed


def waiting_of(offset: CommittedOffset | None) -> PendingAtEnd:
    """Return the windows and timers that a committed offset records as pending."""
    if offset is None or not offset.metadata:
        return PendingAtEnd()
    found = _read(offset.metadata)
    return PendingAtEnd(tuple(found.windows), found.timers)


def translated(metadata: str, offset_of: Callable[[int], int]) -> str:
    """Return the metadata of a committed offset with each position translated by `offset_of`.

    Metadata that another program wrote is returned unchanged.

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
    offsets = {one.task: one.position.offset for one in tasks}
    differ = len(set(offsets.values())) > 1
    metadata = _Metadata(
        offsets if differ else {},
        dict(placed) if sum(map(len, placed)) <= MAX_PLACED_BYTES else {},
        [one.task for one in tasks if one.window_pending],
        {one.task: one.next_timer for one in tasks if one.next_timer is not None},
        _numbered_stores(tasks) if differ else None,
    )
    first = min((one.position for one in tasks), key=lambda position: position.offset)
    return first._replace(metadata=_encoded(metadata))


def _numbered_stores(tasks: list[InputProgress]) -> dict[str, list[int]] | None:
    """Return the numbers of the stores by task; None if they are too many."""
    found = {one.task: [*map(store_number, one.stores)] for one in tasks}
    return found if len(_ENCODER.encode(found)) <= MAX_STORES_BYTES else None


def _read(metadata: str) -> _Metadata:
    """Decode metadata; empty if another program wrote it."""
    if not metadata:
        return _Metadata()
    try:
        return _decode(metadata)
    except UNREADABLE:
        return _Metadata()


def _encoded(metadata: _Metadata) -> str:
    return "" if metadata == _NOTHING else _ENCODER.encode(metadata).decode()


_NOTHING = _Metadata()
_ENCODER = msgspec.json.Encoder()


def of_present_topics(
    committed: Mapping[TopicPartition, CommittedOffset],
    present: Mapping[TopicPartition, PartitionOffsets | TopicInfo],
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets without those of deleted topics of the same names."""
    return {tp: at for tp, at in committed.items() if at.topic_id in ("", present[tp].topic_id)}


def check_history(
    committed: Mapping[TopicPartition, CommittedOffset],
    ends: Mapping[TopicPartition, PartitionOffsets],
) -> None:
    """Raise OffsetOutOfRange if a committed offset is of another history than its partition.

    Offsets and inputs are in one log, so their histories differ only if a part of the log's folder
    was replaced by a copy. It is unknown then which records are in the stores, so the app does not
    start.
    """
    for tp, at in committed.items():
        now = ends[tp]
        if (
            at.incarnation
            and at.topic_id == now.topic_id
            and (problem := now.reading_divergence(at))
        ):
            raise OffsetOutOfRange(
                f"{tp}: the app goes on at offset {at.offset}, but {problem}. Restore the whole "
                "log folder from one copy, or start over with `strandline reset`"
            )


def starting_offset(task: str, tp: TopicPartition, position: int | None, log_start: int) -> int:
    """Return the first offset that a task handles: its position, but at least `log_start`."""
    if position is None:
        return log_start
    if position < log_start:
        _log.warning(
            "task %s: %s begins at offset %d, records from %d on are gone (retention)",
            *(task, tp, log_start, position),
            extra={"task": task, "partition": str(tp), "offset": log_start},
        )
    return max(position, log_start)
