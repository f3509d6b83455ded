"""Test driver for an app: one thread, in memory, with crashes at chosen records.

    driver = TestDriver(app)
    driver.run([("LHR", 1), ("JFK", 2), CRASH, ("LHR", 3)])
    assert driver.store(totals) == {"LHR": 4, "JFK": 2}

The clock stands still until `advance` moves it, so runs are deterministic: the driver commits when
`commit_records` is reached and at the end of `run`. A CRASH drops uncommitted work, as the death of
the process would, and starts a new worker on the rest. With `folder=` the same test runs on a real
folder with RocksDB.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from strandline.changelog.client.given import is_table, native
from strandline.changelog.client.producer import Producer
from strandline.changelog.clock import ManualClock
from strandline.changelog.closing import ClosedByWith
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InvalidRequest
from strandline.changelog.layout import STATE
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.storage import Lock
from strandline.changelog.times import to_ms
from strandline.framework.app import App
from strandline.framework.bulk_append import stored_columns
from strandline.framework.columns import one_record, outgoing
from strandline.framework.container.batch_instance import BatchInstance
from strandline.framework.container.completion import Bound
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.running import raise_failures, worker_on
from strandline.framework.decoding import decode
from strandline.framework.export import committed_batches
from strandline.framework.options import Until
from strandline.framework.parts import PartitionMerger
from strandline.framework.querying.client import connect
from strandline.framework.querying.read_only_store import ReadOnlyStore
from strandline.framework.record import Record
from strandline.framework.store import Store
from strandline.framework.topic import Topic
from strandline.statestore.keys import key_codec

K = TypeVar("K")
V = TypeVar("V")

__all__ = ["CRASH", "TestDriver"]


class Crash(Enum):
    """Type of CRASH."""

    CRASH = "CRASH"

    def __repr__(self) -> str:
        return self.value


CRASH: Final = Crash.CRASH
"""Item of the input of `TestDriver.run`: the process dies here without a commit and is restarted.
"""

MAX_CYCLES = 100_000
"""Maximum number of worker cycles for one batch of input, so that a feedback loop ends."""


class TestDriver(ClosedByWith):
    """Runs the tasks of an app on a log of its own, with a clock that the test moves.

    Args:
        app: The app to test. It needs at least one task. Its own log is not opened.
        now_ms: Time at which the clock starts, in milliseconds since the epoch. The default,
            1,000,000, is a fixed time, so that results are the same in every run.
        folder: Folder for the log and the stores. The default, None, keeps both in memory, which is
            faster.

    Raises:
        InvalidRequest: The app has no tasks.
        InvalidConfig: A declaration is not valid.
    """

    __test__ = False  # not a test case, although pytest would take the name for one

    def __init__(
        self, app: App, *, now_ms: int = 1_000_000, folder: str | Path | None = None
    ) -> None:
        if not app.declared.tasks:
            raise InvalidRequest(f"app {app.name!r} has no tasks to test")
        self.app = app
        self.clock = ManualClock(now_ms)
        self._folder = None if folder is None else Path(folder)
        self._storage: MemoryStorage | _CrashableFolder = (
            MemoryStorage() if self._folder is None else _CrashableFolder(self._folder / "log")
        )
        self._open()

    # Input ----------------------------------------------------------------------------

    def run(self, given: Iterable[Any] = (), *, until: Until | None = None) -> TestDriver:
        """Append records in order, then handle and commit everything.

        A record is `(key, value)`, `(key, value, timestamp)`, one of these with a topic handle as
        its first element, or a value alone. Without a topic it goes to the first input topic of the
        app's first task. Without a timestamp it has the time of the driver's clock. A DataFrame or
        an Arrow table, in a form that `Topic.append` takes, stands for one record for each row.

        Args:
            given: Records, and CRASH at each point where the process is to die; or one table. By
                default there is no new input.
            until: None, the default, is an app that keeps running: `window` and timers wait for
                their time. "idle" and "end" are an app that ends as `app.run(until=...)` does: both
                call `window`, and "end" also fires all timers in stream time.

        Returns:
            The driver itself.

        Raises:
            TaskFailed: A task instance has stopped at a record.
            InvalidRequest: An item is not a record.
            InvalidRecord: A record does not have the topic's types. None of the records after the
                last CRASH is appended then.
        """
        waiting: list[Any] = []
        for item in [given] if is_table(native(given)) else given:
            if item is CRASH:
                self._take(waiting)
                self.crash()
                waiting = []
            else:
                waiting.append(item)
        self._take(waiting)
        return self._run_until(until or "settled")

    def end(self) -> TestDriver:
        """End the input: fire all timers in stream time, then call the windows.

        Returns:
            The driver itself.

        Raises:
            TaskFailed: A task instance has stopped at a record.
        """
        return self._run_until("end")

    def advance(self, ms: int) -> TestDriver:
        """Move the clock and run what becomes due, such as windows and wall-clock timers.

        Args:
            ms: Milliseconds to add to the clock.

        Returns:
            The driver itself.

        Raises:
            TaskFailed: A task instance has stopped at a record.
        """
        self.clock.advance(ms)
        self.owner.tick()
        return self.settle()

    def advance_watermark(self, to: dt.datetime | int) -> TestDriver:
        """Let the event time of all inputs of the app's streams reach a time, without records.

            driver.run(frame).advance_watermark(dt.datetime(2025, 10, 9, 12))

        Pending input is handled first. Then the watermark of each partition of each topic that
        streams read becomes `to`, unless it is later already: it never goes back. That is what a
        record at `to` in each partition would do, but for these differences:

        - `to` is the watermark itself, so `delay=` of `app.stream` is not taken off.
        - No row is added to any window, and no topic gets a record.
        - An idle partition stays idle, and a partition that is not does not become so.

        So all windows are closed whose end plus `grace=` is at or before `to`, also those after
        `group_by` and of windows of windows, where the graces add up. Records that come afterwards
        are late if their windows are closed. Results and watermarks are committed when the call
        returns, so a crash after it undoes nothing. The driver's clock, and timers in stream time,
        are not affected.

        Args:
            to: Datetime (UTC if it has no zone), or milliseconds since the epoch.

        Returns:
            The driver itself.

        Raises:
            InvalidRequest: The app has no streams.
            InvalidRecord: `to` is not a time, or looks like seconds.
            TaskFailed: A task instance has stopped at a record.
        """
        watermark = to_ms(to, self.clock.now_ms())
        self.settle()
        stages = [i for i in self.worker.instances if isinstance(i, BatchInstance)]
        stages = [instance for instance in stages if instance.has_event_time]
        if not stages:
            raise InvalidRequest(
                f"app {self.app.name!r} has no streams, and only they have watermarks; stream time "
                "of tasks moves with the timestamps of records"
            )
        # A stage comes after those whose internal topics it reads.
        for task in self.app.declared.tasks:
            for instance in stages:
                if instance.spec.name == task:
                    instance.drive(instance.advance_watermark(watermark))
            self.settle()
        return self

    def crash(self) -> TestDriver:
        """Kill the process without a commit, and start it again.

        Returns:
            The driver itself.
        """
        self.worker.abandon()
        self._storage.crash()
        self._open()
        return self

    def settle(self) -> TestDriver:
        """Handle and commit all pending input.

        Returns:
            The driver itself.

        Raises:
            TaskFailed: A task instance has stopped at a record.
        """
        return self._run_until("settled")

    # Results --------------------------------------------------------------------------

    def output(self, topic: Topic[K, V]) -> list[Record[K, V]]:
        """Return the committed records of a topic, partition by partition, tombstones included.

        Args:
            topic: Topic of the app.

        Returns:
            The records, those of partition 0 first.

        Raises:
            InvalidRecord: A stored record cannot be decoded.
        """
        chunks = [
            chunk
            for batch in committed_batches(self.owner, topic.name)
            for chunk in decode(topic, batch, tombstones=True)
        ]
        for chunk in chunks:
            if chunk.error is not None:
                raise chunk.error
        return [record for chunk in chunks for record in chunk.records]

    def query(self, store: Store[K, V] | str) -> ReadOnlyStore[K, V]:
        """Return the committed state of a store, as `App.query` does.

            driver.query("late-by-hour").fetch(("JFK", "AA"))

        Args:
            store: Store of the app, or its name: that of a stream's aggregation.

        Returns:
            The store, to be read until the next `crash`.

        Raises:
            InvalidRequest: The app has no such store.
        """
        return connect(self.owner, clock=self.clock).store(self.app.declared.store(store))

    def store(self, store: Store[K, V]) -> dict[K, V]:
        """Return all entries of a store over all partitions, as `App.query` does.

        Uncommitted changes are included; after `run` there are none.

        Args:
            store: Store of the app.

        Returns:
            Values by key, in the order of keys.

        Raises:
            KeyInSeveralPartitions: Several partitions hold the same key, and their values cannot be
                merged. It is an InvalidRequest.
        """
        codec = key_codec(store.spec.key)
        encode = codec.encode
        streams = [
            [(encode(key), instance.partition, value) for key, value in part.all()]
            for instance in self.worker.instances
            for handle, part in zip(instance.spec.stores, instance.stores, strict=True)
            if handle is store
        ]
        whole: PartitionMerger[Any] = PartitionMerger(store.name, codec.decode, store.merge)
        return {codec.decode(key): store.shown(value) for key, value in whole.scan(streams)}

    def close(self) -> None:
        """Close the worker and the log."""
        self.worker.close()
        self.owner.close()

    # Helpers --------------------------------------------------------------------------

    def _run_until(self, bound: Bound) -> TestDriver:
        self.worker.run(until=bound)
        raise_failures(self.worker)
        return self

    def _open(self) -> None:
        self.owner = Owner(self._storage, clock=self.clock, background=False)
        try:
            self._start()
        except BaseException:
            self.owner.close()  # otherwise the lock of the folder would stay taken
            raise

    def _start(self) -> None:
        declared, folders = self.app.declared, StoreFolders(self._state_root(), self.clock)
        self._infos = declared.prepare(self.owner)
        self.worker = worker_on(
            self.owner, declared, self.clock, self.app.session.options, folders, alone=True
        )
        self.worker.start()

    def _state_root(self) -> Path | None:
        return None if self._folder is None else self._folder / "log" / STATE / self.app.name

    def _take(self, items: list[Any]) -> None:
        """Append records to their topics and handle them, without a commit at the end."""
        if not items:
            return
        # All of them, so that an item which is refused does not leave those before it in the log.
        found = [(topic, [*batches]) for topic, batches in map(self._columns, items)]
        producer = Producer(self.owner, clock=self.clock)
        for topic, batches in found:
            for columns in batches:
                producer.append_batches(outgoing(columns, self._infos[topic.name], producer))
        for _ in range(MAX_CYCLES):
            if not self.worker.cycle() and not self.worker.is_busy:
                return

    def _columns(self, item: Any) -> tuple[Topic[Any, Any], Iterable[pa.RecordBatch]]:
        """Return an item of the input as columns, and the topic that it goes to."""
        parts = item if isinstance(item, tuple) else (None, item)
        topic, parts = (
            (parts[0], parts[1:]) if isinstance(parts[0], Topic) else (self._first_input(), parts)
        )
        now = self.clock.now_ms()
        if is_table(native(parts[-1])):
            return topic, stored_columns(topic, parts[-1], now, topic.schema)
        return topic, [one_record(topic, *topic.checked_item(*self._record(item, parts), now))]

    def _record(self, item: Any, parts: tuple[Any, ...]) -> tuple[Any, Any, int | None]:
        if len(parts) == 1:
            parts = (None, *parts)
        if len(parts) not in (2, 3):
            raise InvalidRequest(
                f"a record is (key, value) or (key, value, timestamp), optionally after a topic;"
                f" got {item!r}"
            )
        key, value, *timestamp = parts
        return key, value, timestamp[0] if timestamp else None

    def _first_input(self) -> Topic[Any, Any]:
        return next(iter(self.app.declared.tasks.values())).inputs[0]


class _CrashableFolder(LocalStorage):
    """A real folder whose locks can be released as in a crash."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._locks: list[Lock] = []

    def lock(self, path: str, note: str, *, whole: bool = False) -> Lock:
        lock = super().lock(path, note, whole=whole)
        self._locks.append(lock)
        return lock

    def crash(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks = []
