"""A worker: one thread that takes records, lets task instances handle them, and commits.

    start    fence the worker before · read offsets · open and restore stores · init
    cycle    feed · handle a slice of each partition · timers and windows · commit when due
    rewind   after an aborted commit: everything back to the last one, then on from there
    wait     while the disk is full: a pause, back to the last commit, once more

A slice is as many records as take about 20 ms, so that the clock is read rarely and commits
are punctual whether a handler takes a microsecond or a second. Only `cycle` and what it
calls touch task instances; `stop` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from changelog.broker import Broker
from changelog.client.producer import Producer
from changelog.client.standing import State
from changelog.clock import Clock
from changelog.errors import (
    DiskFull,
    InvalidTxnState,
    Retriable,
    StorageFailed,
    TransactionAborted,
)
from changelog.records import CommittedOffset, TopicInfo, TopicPartition
from framework.container.commit import COMMITS, Committing, checkpoint_if_due, offsets_of
from framework.container.folders import StoreFolders
from framework.container.inputs import Input, groups
from framework.container.instance import Steps, TaskInstance
from framework.container.outage import Outage, patiently
from framework.container.outbox import UnencodableSend
from framework.container.positions import position_of
from framework.container.restore import OnRestore, restore_stores
from framework.options import Options
from framework.task import TaskSpec
from framework.topic import Topic

_log = logging.getLogger("strandline")

SLICE_SECONDS = 0.02
SLICE_RECORDS = 8_192
SLICE_FIRST = 256
FRAME_BYTES = 16 << 20
GIVE_UP = 10
"""Commits aborted one after another before the worker stops."""


class Worker:
    """Runs all partitions of some tasks."""

    def __init__(
        self,
        app: str,
        tasks: Sequence[TaskSpec],
        topics: Sequence[Topic[Any, Any]],
        infos: Mapping[str, TopicInfo],
        broker: Broker,
        clock: Clock,
        options: Options,
        folders: StoreFolders,
        *,
        index: int = 0,
        on_restore: OnRestore | None = None,
    ) -> None:
        self.app = app
        self.options = options
        self.instances: list[TaskInstance] = []
        self._tasks = tasks
        self._topics = topics
        self._infos = infos
        self._broker = broker
        self._clock = clock
        self._folders = folders
        self._on_restore = on_restore
        self._transactional_id = f"{app}-{index}"
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._outage = Outage(clock)
        self._intact = False
        """Whether stores can be written, so that rewinding is enough after a failure."""
        self._slice = SLICE_FIRST
        self._since_commit = 0
        self._next_commit = 0.0
        self._aborted_in_a_row = 0
        self.handled = 0
        """Records handled since the worker was made, those rewound not counted."""

    # Life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Take over from a worker before, and bring the state back."""
        self._intact = False
        self._producer = Producer(
            self._broker,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self.options.transaction_timeout_ms,
            batch_bytes=FRAME_BYTES,
            clock=self._clock,
        )
        self._commit_work = Committing(
            self._broker, self._producer, self.app, self._topics, self._infos, self._clock.now_ms
        )
        self._committed = self._read_committed()
        starts = self._starts()
        for spec in self._tasks:
            for partition in range(self._infos[spec.inputs[0].name].partitions):
                self.instances.append(self._instance(spec, partition, starts))
        restore_stores(
            self.app,
            self.instances,
            self._broker,
            threads=self.options.restore_threads,
            on_restore=self._on_restore,
        )
        for instance in self.instances:
            instance.restored()
            self._drive(instance, instance.start())
        self._intact = True
        self._commit_is_later()

    def cycle(self, *, limit: int | None = None, wait: float = 0.0) -> int:
        """One round; how many records it handled. Waits up to `wait` seconds for new ones."""
        self._feed(wait)
        handled = self._handle(limit)
        self._tick()
        self.handled += handled
        self._since_commit += handled
        if self.commit_is_due:
            self.commit()
        return handled

    def commit(self) -> None:
        """Commit what has been done, or rewind to the last commit if that is refused.

        Raises DiskFull: what is not committed must be rewound then.
        """
        if self.has_uncommitted:
            try:
                COMMITS[self.options.processing_guarantee](self._commit_work, self.instances)
                self._committed.update(offsets_of(self.instances))
                self._aborted_in_a_row = self._since_commit = 0
                self._checkpoint()
                self._outage.over()
            except UnencodableSend as error:
                self._rewind_in_place(check=error.topic)
            except (TransactionAborted, Retriable) as error:
                self._recover(error)
        self._commit_is_later()

    def _checkpoint(self) -> None:
        self._intact = False  # an engine that could not write takes nothing until it is reopened
        checkpoint_if_due(self.instances)
        self._intact = True

    def rest(self) -> None:
        """Let the engines have all that is committed, so that the next start has nothing to restore."""
        try:
            for instance in self.instances:
                for store in instance.all_stores:
                    store.checkpoint()
        except StorageFailed as error:
            self._intact = False
            _log.warning(
                "stores are behind their changelogs, and catch up at the next start: %s", error
            )

    def run(
        self,
        *,
        until_idle: bool = False,
        count: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Cycles until told to stop; how many records they handled.

        Ends when it is idle, after `count` records, or after `timeout` seconds, whatever is
        asked for and comes first, or when every task instance has failed. While the disk is
        full it waits; if it is to end then, it raises DiskFull.
        """
        begun, before = self._clock.monotonic(), self.handled

        def seconds_left() -> float | None:
            return None if timeout is None else timeout - (self._clock.monotonic() - begun)

        def ended() -> bool:
            return self._stopping or ((left := seconds_left()) is not None and left <= 0)

        while True:
            try:
                self._work(until_idle, None if count is None else before + count, seconds_left)
                return self.handled - before
            except DiskFull as error:
                self._outlast(error, ended)

    def _work(
        self, until_idle: bool, until_handled: int | None, seconds_left: Callable[[], float | None]
    ) -> None:
        while not self._stopping:
            left = None if until_handled is None else until_handled - self.handled
            seconds = seconds_left()
            if left == 0 or (seconds is not None and seconds <= 0) or self._all_failed:
                break
            wait = self._wait(seconds, until_idle)
            handled = patiently(partial(self.cycle, limit=left, wait=wait))
            if until_idle and not handled:
                if self.has_uncommitted:
                    self.commit()
                elif self.is_idle:
                    break
        self.commit()

    def stop(self) -> None:
        """Let `run` end after a last commit; may be called from any thread or signal handler."""
        self._stopping = True

    def close(self) -> None:
        """Let go of stores and producer; what is not committed is forgotten."""
        for instance in self.instances:
            instance.close()
        self.instances = []
        if self._producer is not None:
            self._producer.close()
        self._close_loop()

    def abandon(self) -> None:
        """Let go as a crash would: no commit, no farewell; only the files are closed."""
        for instance in self.instances:
            instance.release()
        self.instances = []
        self._close_loop()

    # Looking at it --------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def waits_for(self) -> DiskFull | None:
        """Why it stands still; None if it does not."""
        return self._outage.reason

    @property
    def commit_is_due(self) -> bool:
        """Whether time, records or memory ask for a commit."""
        if self._since_commit >= self.options.commit_records:
            return True
        if self._clock.monotonic() >= self._next_commit:
            return True
        return any(store.needs_commit for i in self.instances for store in i.all_stores)

    @property
    def has_uncommitted(self) -> bool:
        """Whether a commit would write anything."""
        return any(
            instance.changed or source.position != self._last(instance, source)
            for instance in self.instances
            for source in instance.inputs
        )

    @property
    def is_idle(self) -> bool:
        """Whether all there is has been handled and committed, and no timer is due."""
        running = [instance for instance in self.instances if instance.failure is None]
        now = self._clock.now_ms()
        return (
            not self.has_uncommitted
            and not any(instance.has_input for instance in running)
            and all(source.stable for instance in running for source in instance.inputs)
            and not any((due := i.due_at()) is not None and due <= now for i in running)
        )

    @property
    def failures(self) -> list[Exception]:
        """Why task instances have stopped."""
        return [instance.failure for instance in self.instances if instance.failure is not None]

    @property
    def _all_failed(self) -> bool:
        return bool(self.instances) and all(i.failure is not None for i in self.instances)

    def _wait(self, seconds: float | None, until_idle: bool) -> float:
        """How long a fetch may wait: not past the next commit, timer, or end of the run."""
        waits = [self.options.poll_ms / 1000]
        if seconds is not None:
            waits.append(seconds)
        if self.has_uncommitted:
            waits.append(self._next_commit - self._clock.monotonic())
        now = self._clock.now_ms()
        waits += [(due - now) / 1000 for i in self.instances if (due := i.due_at()) is not None]
        if until_idle and all(s.stable for i in self.instances for s in i.inputs):
            return 0.0
        return max(0.0, min(waits))

    # Feeding and handling -------------------------------------------------------------

    def _feed(self, wait: float) -> None:
        """Fetch for the inputs that have run dry; wait only if there is nothing else to do."""
        running = [instance for instance in self.instances if instance.failure is None]
        hungry = [s for instance in running for s in instance.inputs if not s.pending]
        together = groups(hungry)
        if len(together) != 1 or any(instance.has_input for instance in running):
            wait = 0.0
        for group in together:
            positions = {tp: sources[0].ahead for tp, sources in group.items()}
            fetched = self._broker.fetch(
                positions, max_bytes=self.options.fetch_bytes, timeout=wait
            )
            for tp, sources in group.items():
                for source in sources:
                    source.feed(fetched[tp])

    def _handle(self, limit: int | None) -> int:
        """Let every instance with input handle a slice."""
        ready = [instance for instance in self.instances if instance.has_input]
        if not ready:
            return 0
        begun, handled = time.perf_counter(), 0
        for instance in ready:
            size = self._slice if limit is None else min(self._slice, limit - handled)
            if size > 0 and not instance.spec.is_async:
                handled += instance.run(size)
        handled += self._handle_async([i for i in ready if i.spec.is_async], limit, handled)
        self._adapt(time.perf_counter() - begun, handled, len(ready))
        return handled

    def _handle_async(self, ready: Sequence[TaskInstance], limit: int | None, before: int) -> int:
        """All partitions at once; of each, one record at a time."""
        left = None if limit is None else limit - before
        sizes = _shares(len(ready), self._slice, left)
        steps = [i.drive_async(i.steps(n)) for i, n in zip(ready, sizes, strict=True) if n]
        return sum(self._run_async(steps)) if steps else 0

    def _adapt(self, seconds: float, handled: int, instances: int) -> None:
        """Choose the next slice so that a round takes about SLICE_SECONDS."""
        if handled:
            fitting = int(SLICE_SECONDS * handled / max(seconds, 1e-9)) // instances
            self._slice = max(1, min(fitting, 4 * self._slice, SLICE_RECORDS))

    def _tick(self) -> None:
        now = self._clock.now_ms()
        for instance in self.instances:
            due = instance.due_at()
            if instance.failure is None and due is not None and due <= now:
                self._drive(instance, instance.ticks())

    def _drive(self, instance: TaskInstance, steps: Steps) -> None:
        if instance.spec.is_async:
            self._run_async([instance.drive_async(steps)])
        else:
            instance.drive(steps)

    def _run_async(self, work: Sequence[Coroutine[Any, Any, int]]) -> list[int]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()

        async def together() -> list[int]:
            return await asyncio.gather(*work)

        return self._loop.run_until_complete(together())

    # Starting and going back ----------------------------------------------------------

    def _instance(
        self, spec: TaskSpec, partition: int, starts: Mapping[TopicPartition, int]
    ) -> TaskInstance:
        inputs = []
        for topic in spec.inputs:
            tp = TopicPartition(topic.name, partition)
            inputs.append(Input(topic, tp, self._start(spec.name, tp, starts)))
        return TaskInstance(
            self.app,
            spec,
            partition,
            inputs,
            [self._folders.open(store.spec, partition) for store in spec.stores],
            self._folders.open(spec.timer_store, partition) if spec.has_timers else None,
            self._topics,
            self._clock,
        )

    def _starts(self) -> dict[TopicPartition, int]:
        """Where the log of every input partition begins."""
        partitions = [
            TopicPartition(topic.name, partition)
            for topic in {topic for spec in self._tasks for topic in spec.inputs}
            for partition in range(self._infos[topic.name].partitions)
        ]
        return {tp: ends.log_start for tp, ends in self._broker.offsets(partitions).items()}

    def _start(self, task: str, tp: TopicPartition, starts: Mapping[TopicPartition, int]) -> int:
        position = position_of(task, tp, self._committed)
        if position is None:
            return starts[tp]
        if position < starts[tp]:
            _log.warning(
                "task %s: %s begins at offset %d, records from %d on are gone (retention)",
                *(task, tp, starts[tp], position),
            )
        return max(position, starts[tp])

    def _read_committed(self) -> dict[TopicPartition, CommittedOffset]:
        return patiently(lambda: self._broker.committed(self.app))

    def _recover(self, error: TransactionAborted | Retriable) -> None:
        """After a commit that failed: back to the last one that did not."""
        assert self._producer is not None
        self._aborted_in_a_row += 1
        if self._aborted_in_a_row > GIVE_UP:
            raise error
        _log.warning("a commit was aborted, going back to the last one: %s", error)
        self._go_back()

    def _go_back(self) -> None:
        """To the last commit: in place, or from the log if what it holds must be found out."""
        assert self._producer is not None
        exactly_once = self.options.processing_guarantee == "exactly_once"
        if exactly_once and self._intact and _is_aborted(self._producer):
            self._rewind_in_place()
        else:
            self._forget_handled()
            self.close()
            self.start()

    def _outlast(self, error: DiskFull, ended: Callable[[], bool]) -> None:
        """Wait, and go back to the last commit; raise the error if the run is to end before."""
        while True:
            self._outage.met(error)
            if not self._outage.pause(ended):
                raise error
            try:
                return self._go_back()
            except DiskFull as again:
                error = again

    def _forget_handled(self) -> None:
        self.handled -= self._since_commit
        self._since_commit = 0

    def _rewind_in_place(self, check: str | None = None) -> None:
        """Forget what is not committed. `check` names a topic to which sends are checked."""
        self._forget_handled()
        for instance in self.instances:
            instance.rewind(
                {source.partition: self._last(instance, source) for source in instance.inputs}
            )
            for topic, box in instance.outboxes.items():
                box.checked = box.checked or topic.name == check

    def _last(self, instance: TaskInstance, source: Input) -> int:
        """The position of the last commit, or where the worker started."""
        position = position_of(instance.spec.name, source.partition, self._committed)
        return source.origin if position is None else max(position, source.origin)

    def _close_loop(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _commit_is_later(self) -> None:
        self._since_commit = 0
        self._next_commit = self._clock.monotonic() + self.options.commit_interval_ms / 1000


def _is_aborted(producer: Producer) -> bool:
    """Abort what is open; False if it cannot be known that it is aborted, or it is committed."""
    try:
        if producer.state is State.ABORTABLE:
            producer.abort_transaction()
        return producer.state is State.READY
    except (InvalidTxnState, Retriable):
        return False


def _shares(count: int, size: int, left: int | None) -> list[int]:
    """How many records each of `count` instances may handle, `left` together at most."""
    if left is None:
        return [size] * count
    shares = []
    for _ in range(count):
        shares.append(min(size, max(left, 0)))
        left -= shares[-1]
    return shares
