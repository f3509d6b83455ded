"""Answers of a worker: the committed state of the partitions that it owns.

Named after Kafka Streams' StateStoreProvider. It is called on many threads, concurrently with the
worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from strandline.changelog.errors import InvalidRequest
from strandline.framework.container.instance import TaskInstance
from strandline.framework.querying.declared import described
from strandline.framework.querying.messages import (
    Answer,
    CountKeys,
    FoundKeys,
    GetKeys,
    KeyCounts,
    KeyValues,
    ReflectedPosition,
    Request,
    Scanned,
    ScanRange,
)
from strandline.framework.store import Store
from strandline.framework.task import TaskSpec
from strandline.statestore.engine import StorePosition
from strandline.statestore.reader import PAGE_BYTES, CommittedReader, KeyRange

NO_POSITION = ReflectedPosition("", 0)
KEYS_AT_ONCE = 16
"""Number of keys that are read before their values' size is checked.

It is the same for each step, because small values say nothing about the next ones. One request at a
time does so (`_several`), and none of a store that is known to have a value of LARGE_BYTES.
"""
LARGE_BYTES = PAGE_BYTES // KEYS_AT_ONCE
"""Size in bytes of a value from which a store's values are read one at a time."""
VALUE_OVERHEAD_BYTES = 8
"""Approximate number of bytes of a message for each value, in addition to the value's bytes."""

_ALONE = nullcontext()
"""Stands for `_several` where one value is read, for which requests do not wait for each other."""


class _StoreOfTask(NamedTuple):
    """A store and the task that has it."""

    task: TaskSpec
    declared: Store[Any, Any]
    position: int
    """Its index among the stores of an instance of the task."""


class StoreProvider:
    """Answers requests about the stores of one app. Thread-safe."""

    def __init__(
        self,
        app: str,
        tasks: Sequence[TaskSpec],
        running: Callable[[str, int], TaskInstance | None],
        is_certain: Callable[[], bool],
    ) -> None:
        """Answer for the stores of these tasks.

        Args:
            app: Name of the app, for errors.
            tasks: Tasks of the app.
            running: Returns the running instance of a task, by the task's name and the number of
                the partition; None if this worker has none. Called on any thread.
            is_certain: Returns True if no other worker can own the partitions of this one.
        """
        self._app = app
        self._stores = {
            store.name: _StoreOfTask(task, store, index)
            for task in tasks
            for index, store in enumerate(task.stores)
        }
        self._running = running
        self._is_certain = is_certain
        self._large: set[str] = set()
        """Names of the stores in which a large value was found."""
        self._several = threading.Lock()
        """Held while several values are read, because all of them may be as large as a record."""

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request.

        Raises InvalidRequest for an unknown store, and the errors of reading the store.
        """
        try:
            store = self._stores[request.store]
        except KeyError:
            known = ", ".join(sorted(self._stores)) or "none"
            raise InvalidRequest(
                f"app {self._app!r} has no store {request.store!r}; its stores: {known}"
            ) from None
        if isinstance(request, GetKeys):
            return self._get(store, request)
        if isinstance(request, ScanRange):
            return self._scan(store, request)
        if isinstance(request, CountKeys):
            return self._count(store, request)
        return described(store.task, store.declared)

    def _get(self, store: _StoreOfTask, request: GetKeys) -> FoundKeys:
        parts: list[KeyValues] = []
        room = PAGE_BYTES
        for number in dict.fromkeys(request.partitions):
            reader = self._reader(store, number, request.at_least.get(number))
            if (
                reader is None
                or (found := self._get_some(reader, request.store, request.keys, room)) is None
            ):
                continue
            values, position, size = found
            parts.append(KeyValues(number, values, _at(position)))
            room -= size
            if room <= 0:
                break
        # Checked after reading: if no other worker can own these partitions now, none could when
        # they were read, so what was read was the latest committed state.
        if not self._is_certain():
            return FoundKeys([])
        return FoundKeys(parts, full=room <= 0)

    def _get_some(
        self, reader: CommittedReader, store: str, keys: Sequence[bytes], room: int
    ) -> tuple[list[bytes | None], StorePosition | None, int] | None:
        """Return the values of the first keys, their position, and their size in a message.

        None if the reader is closed. They end with the value that fills `room` bytes.
        """
        values: list[bytes | None] = []
        position: StorePosition | None = None
        size, begin = 0, 0
        # At least one step, because a request without keys gets a position.
        while begin == 0 or begin < len(keys):
            step = 1 if store in self._large else KEYS_AT_ONCE
            some = keys[begin : begin + step]
            with self._several if len(some) > 1 else _ALONE:
                found = reader.get_many(some)
                if found is None:
                    return None
                position = position or found.position  # the first step's; later steps reflect it
                read, found = found.values, None
                for index, value in enumerate(read):
                    values.append(value)
                    length = len(value) if value else 0
                    size += VALUE_OVERHEAD_BYTES + length
                    if length >= LARGE_BYTES:
                        self._large.add(store)
                    if size >= room:
                        del read[index + 1 :]  # before another request reads several values
                        return values, position, size
            begin += step
        return values, position, size

    def _scan(self, store: _StoreOfTask, request: ScanRange) -> Scanned:
        reader = self._reader(store, request.partition, request.at_least)
        bounds = KeyRange(request.lower, request.upper, request.reverse)
        page = None if reader is None else reader.page(bounds, max(1, request.limit))
        # Checked after reading, for the same reason as in `_get`.
        if page is None or not self._is_certain():
            return Scanned(False, [], None, NO_POSITION)  # noqa: FBT003
        rest = None if page.rest is None else (page.rest.lower, page.rest.upper)
        return Scanned(True, page.entries, rest, _at(page.position))  # noqa: FBT003

    def _count(self, store: _StoreOfTask, request: CountKeys) -> KeyCounts:
        counts: dict[int, int] = {}
        for number in dict.fromkeys(request.partitions):
            reader = self._reader(store, number, None)
            count = None if reader is None else reader.approximate_num_entries()
            if count is not None:
                counts[number] = count
        return KeyCounts(counts if self._is_certain() else {})

    def _reader(
        self, store: _StoreOfTask, number: int, at_least: ReflectedPosition | None
    ) -> CommittedReader | None:
        """Return a reader of one partition of a store.

        None if this worker does not serve the partition, or has not reached `at_least`.
        """
        instance = self._running(store.task.name, number)
        if instance is None:
            return None
        reader = instance.stores[store.position].reader
        return reader if _reaches(reader.position, at_least) else None


def _at(position: StorePosition | None) -> ReflectedPosition:
    if position is None:
        return NO_POSITION
    return ReflectedPosition(
        position.topic_id, position.offset, position.leader_epoch, position.incarnation
    )


def _reaches(position: StorePosition | None, at_least: ReflectedPosition | None) -> bool:
    """Return True if a state reflects the position that a client has seen.

    A position in another topic is ignored. A position in another history of the log is not
    detected here: the client notices that, and repeats its request without the position.
    """
    if at_least is None:
        return True
    at = position or NO_POSITION
    return at.topic_id != at_least.topic_id or at.offset >= at_least.offset
