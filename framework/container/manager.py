"""The task instances of a worker's partitions: restored, running, closed.

    open     read the committed offsets · open the stores · restore them. This runs on other
             threads, so that running instances continue and no restore waits for another
    ready    add the restored instances to the running ones
    close    checkpoint and close instances, so that the next owner has little to replay
    drop     close all instances at once; uncommitted work is lost

Named after the TaskManager of Kafka Streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.errors import Retriable, StorageFailed
from strandline.changelog.records import (
    CommittedOffset,
    PartitionOffsets,
    TopicPartition,
)
from strandline.framework.container.async_instance import AsyncInstance
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.event_loop import EventLoop
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.growth import PartitionGrowth, input_partitions
from strandline.framework.container.inputs import Input
from strandline.framework.container.instance import InstanceParts, TaskInstance, release_all
from strandline.framework.container.outage import patiently
from strandline.framework.container.restore import OnRestore, RestoreMonitor
from strandline.framework.container.standbys import Standbys
from strandline.framework.placing import Placed
from strandline.framework.positions import (
    check_history,
    placed_of,
    starting_offset,
    waiting_of,
)
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.store_declarations import StoreDeclarations
from strandline.framework.task import TaskSpec
from strandline.framework.trial import Trial
from strandline.statestore.restore import ReplayProgress
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore
from strandline.statestore.values import Expiry

_log = logging.getLogger("strandline")

Partitions = frozenset[TopicPartition]
Committed = Mapping[TopicPartition, CommittedOffset]
Ends = Mapping[TopicPartition, PartitionOffsets]
NO_PARTITIONS: Partitions = frozenset()
LOCK_TIMEOUT_S = 2.0
"""Seconds to wait for the locks of stores, counted from the assignment of their partitions.

The previous owner has released them, is dead, or is stalled. After a change of the log's owner it
may need a moment to release them.
"""


class RestoreAbandoned(Exception):
    """The partitions being restored are no longer assigned to this worker."""


class RestoredInstances(NamedTuple):
    """Parts of the restored instances, and the committed offsets of their inputs."""

    parts: list[InstanceParts]
    committed: Committed


@dataclass(eq=False)
class OpeningInstances:
    """Restore of the instances of partitions that start together, as one task on the pool."""

    partitions: Partitions
    deadline: float
    """Time of the monotonic clock, in seconds, until which locks of stores are waited for."""
    result: Future[RestoredInstances] = field(default_factory=Future)
    abandoned: bool = False


class TaskManager:
    """The instances of one worker. Not thread-safe, except for the methods that say so."""

    def __init__(
        self,
        context: ContainerContext,
        folders: StoreFolders,
        declarations: StoreDeclarations,
        *,
        in_background: bool,
        queries: QueryEndpoint | None = None,
        on_restore: OnRestore | None = None,
    ) -> None:
        self.instances: list[TaskInstance] = []
        """Running instances: their stores are restored."""
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        """Offsets of the running instances' inputs as of the last commit."""
        self.input_partitions: Partitions = input_partitions(context)
        """All input partitions of the app, except those that it cannot read (see `growth`)."""
        self.growth = PartitionGrowth(context)
        self.standby_partitions: Partitions = NO_PARTITIONS
        """Input partitions of other workers of whose stores this worker keeps copies."""
        self._context = context
        self._app = context.app
        self._tasks = context.tasks
        self._folders = folders
        self._restoring = RestoreMonitor(context.clock, on_restore)
        self._openings: list[OpeningInstances] = []
        self._copartition_groups = CopartitionGroups(
            [topic.name for topic in task.inputs] for task in self._tasks
        )
        threads = context.options.restore_threads
        self._pool = ThreadPoolExecutor(threads, "strandline-restore") if in_background else None
        self._standbys = Standbys(context.broker, context.clock, folders)
        self.counters = context.counters
        """Counters of the worker and its tasks."""
        self.trial = Trial()
        """Limits how many steps the next commit may cover."""
        self.loop = EventLoop()
        """Event loop in which async handlers run."""
        self._queries = queries
        self._declarations = declarations

    @property
    def names(self) -> list[str]:
        """Names of all tasks of the app, in the order of their declaration."""
        return [task.name for task in self._tasks]

    @property
    def owned(self) -> Partitions:
        """Input partitions of the running instances and of those being restored."""
        at_work = (s.partition for i in self.instances for s in i.inputs)
        return NO_PARTITIONS.union(at_work, *(opening.partitions for opening in self._openings))

    @property
    def in_background(self) -> bool:
        """True if restores run on other threads; if not, `open` returns after they have ended."""
        return self._pool is not None

    @property
    def is_opening(self) -> bool:
        return bool(self._openings)

    @property
    def remaining(self) -> int:
        """Number of changelog offsets that the running restores still have to replay."""
        return self._restoring.remaining

    def readable(self, allowed: Partitions) -> Partitions:
        """Return the assigned partitions that the app can read.

        A partition unknown so far is examined once, when it is first assigned (`growth`).
        """
        unknown = allowed - self.input_partitions
        if unknown and self.growth.check_new(unknown):
            self.input_partitions = input_partitions(self._context)
        return allowed & self.input_partitions if unknown else allowed

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to restore the tasks of these partitions; each partition number is one restore."""
        self.counters.rebalances["assigned"].add()
        self._log_partitions("app %s takes up %s", partitions)
        deadline = self._context.clock.monotonic() + LOCK_TIMEOUT_S
        openings = [
            OpeningInstances(unit, deadline) for unit in self._copartition_groups.split(partitions)
        ]
        self._openings += openings
        for opening in openings:
            self._restoring.add(len(self._changelogs(opening.partitions)))
        for opening in openings:
            if self._pool is not None:
                opening.result = self._pool.submit(self._open_and_restore, opening)
                continue
            try:
                opening.result.set_result(self._open_and_restore(opening))
            except BaseException as error:
                opening.result.set_exception(error)

    def follow(self, partitions: Partitions) -> None:
        """Keep copies of the stores of these partitions, which other workers own."""
        if partitions != self.standby_partitions:
            self.standby_partitions = partitions
            self._standbys.follow(self._changelogs(partitions))

    @property
    def standby_offsets(self) -> dict[TopicPartition, int]:
        """Changelog offset up to which each standby copy is restored, by changelog partition."""
        return self._standbys.positions()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until all restores have ended."""
        wait([opening.result for opening in self._openings], seconds)

    def ready(self) -> None:
        """Add the restored instances to the running ones: of each opening all or none.

        If openings have failed, the error of one is raised after all others were added. Their
        partitions are not owned then, so that the next `open` tries them again.
        """
        errors: list[Exception] = []
        for opening in [opening for opening in self._openings if opening.result.done()]:
            self._openings.remove(opening)
            try:
                self._add_instances(*opening.result.result())
            except Exception as error:
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Retriable))

    def _add_instances(self, parts: Sequence[InstanceParts], committed: Committed) -> None:
        arrived: list[TaskInstance] = []
        try:
            for part in parts:
                arrived.append(self._instance(part, committed))
                arrived[-1].restored(window_pending=_window_is_pending(part, committed))
        except BaseException:
            release_all(parts)
            raise
        self.committed.update(committed)
        # A new list replaces the old one, because other threads may be iterating over that.
        self.instances = sorted([*self.instances, *arrived], key=self._order)

    def _order(self, instance: TaskInstance) -> tuple[int, int]:
        return self._tasks.index(instance.spec), instance.partition

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Close the instances of these partitions, after a checkpoint of what they committed."""
        self.counters.rebalances["revoked"].add()
        self._log_partitions("app %s gives up %s", partitions)
        self._abandon([o for o in self._openings if not o.partitions.isdisjoint(partitions)])
        leaving = [i for i in self.instances if not inputs_of(i).isdisjoint(partitions)]
        self.checkpoint(leaving)
        for instance in leaving:
            self.instances.remove(instance)
            instance.close(self.loop)
        for tp in partitions:
            self.committed.pop(tp, None)

    def checkpoint(self, instances: Sequence[TaskInstance]) -> bool:
        """Checkpoint all stores of these instances.

        Returns:
            True if the engines have all committed changes; False if one could not write.
        """
        try:
            for instance in instances:
                for store in instance.all_stores:
                    store.checkpoint()
        except StorageFailed as error:
            _log.warning(
                "stores lag their changelogs, and catch up when they are opened again: %s",
                error,
                extra={"app": self._app, "error": error},
            )
            return False
        return True

    def drop(self) -> None:
        """Close all instances and abandon all restores; uncommitted work is lost."""
        self._end_all(lambda instance: instance.close(self.loop))

    def release(self) -> None:
        """Close all files without calling the tasks' `close`, as a crash would."""
        self._stop_queries()
        self._standbys.close()
        self._end_all(lambda instance: instance.release())

    def shut_down(self) -> None:
        """Drop everything, stop answering queries, and end the threads."""
        self._stop_queries()
        self.drop()
        self._standbys.close()
        if self._pool is not None:
            self._pool.shutdown()

    def _stop_queries(self) -> None:
        if self._queries is not None:
            self._queries.close()

    def _end_all(self, end: Callable[[TaskInstance], None]) -> None:
        self._abandon(list(self._openings))
        instances, self.instances = self.instances, []
        self.committed.clear()
        for instance in instances:
            end(instance)

    # On other threads -----------------------------------------------------------------

    def _open_and_restore(self, opening: OpeningInstances) -> RestoredInstances:
        """Open and restore the stores of an opening; close them all if one fails."""
        parts: list[InstanceParts] = []
        is_restored = False
        try:
            try:
                committed = self._make(opening, parts)
                self._restore(opening, parts)
                is_restored = True
            finally:
                self._report_end(opening, is_restored)
        except BaseException:
            release_all(parts)
            raise
        return RestoredInstances(parts, committed)

    def _make(self, opening: OpeningInstances, parts: list[InstanceParts]) -> Committed:
        """Open the stores and add each instance to `parts`; return the committed offsets."""
        self._standbys.release(self._changelogs(opening.partitions))
        # The last owner may have a transaction with offsets of these partitions open. The broker
        # raises Retriable until it has ended, so that no offset is read that is replaced at once.
        committed = patiently(
            lambda: self._context.broker.committed(self._app, opening.partitions),
            lambda: opening.abandoned,
        )
        ends = self._context.broker.offsets(opening.partitions)
        check_history(committed, ends)
        changelogs = self._changelogs(opening.partitions)
        # Only after that: the last owner can no longer change what it recorded and wrote.
        expiry = self._declarations.confirm({changelog.topic for changelog in changelogs})
        for spec, number in self._tasks_of(opening.partitions):
            parts.append(self._parts(spec, number, committed, ends, opening.deadline, expiry))
        return committed

    def _tasks_of(self, partitions: Partitions) -> list[tuple[TaskSpec, int]]:
        """Return each task with inputs among these partitions, with the partition number."""
        numbers = sorted({tp.partition for tp in partitions})
        return [
            (spec, number)
            for spec in self._tasks
            for number in numbers
            if TopicPartition(spec.inputs[0].name, number) in partitions
        ]

    def _changelogs(self, partitions: Partitions) -> dict[TopicPartition, AnySpec]:
        """Return the changelog partitions of the stores of these inputs, with their specs."""
        return {
            TopicPartition(store.changelog_topic(self._app), number): store
            for spec, number in self._tasks_of(partitions)
            for store in spec.all_stores
        }

    def _parts(
        self,
        spec: TaskSpec,
        number: int,
        committed: Committed,
        ends: Ends,
        deadline: float,
        expiry: Mapping[str, Expiry],
    ) -> InstanceParts:
        def opened(store: AnySpec) -> AnyStore:
            left = max(0.0, deadline - self._context.clock.monotonic())
            has_expiry = expiry[store.changelog_topic(self._app)]
            return self._folders.open(store, number, left, has_expiry)

        inputs = []
        for topic in spec.inputs:
            tp = TopicPartition(topic.name, number)
            start = starting_offset(spec.name, tp, committed, ends[tp].log_start)
            inputs.append(Input(topic, tp, start))
        parts = InstanceParts(spec, number, inputs, [], None)
        try:
            for store in spec.stores:
                parts.stores.append(opened(store.spec))
            if spec.has_timers:
                parts.timer_store = opened(spec.timer_store)
        except BaseException:
            parts.release()
            raise
        return parts

    def _restore(self, opening: OpeningInstances, parts: Sequence[InstanceParts]) -> None:
        def report(progress: ReplayProgress) -> None:
            if opening.abandoned:
                raise RestoreAbandoned
            self._restoring.report(progress)

        for part in parts:
            for store in part.all_stores:
                changelog = TopicPartition(store.spec.changelog_topic(self._app), part.number)
                with self.counters.restores.timed():
                    done = store.restore(self._context.broker, changelog, report)
                    self._declarations.finish(store, changelog)
                self.counters.restored.add(done.records)

    def _report_end(self, opening: OpeningInstances, is_restored: bool) -> None:
        done = self._restoring.ended(() if is_restored else self._changelogs(opening.partitions))
        if done is None:
            return
        _log.info(
            "app %s has %d store partitions back: %d records replayed in %.3f s",
            *(self._app, done.partitions, done.records, done.seconds),
            extra={
                "app": self._app,
                "stores": done.partitions,
                "records": done.records,
                "seconds": round(done.seconds, 3),
            },
        )

    def _abandon(self, openings: Sequence[OpeningInstances]) -> None:
        """Cancel these restores, wait for those that have begun, and close their stores."""
        for opening in openings:
            opening.abandoned = True
            self._openings.remove(opening)
        begun = [opening for opening in openings if not opening.result.cancel()]
        wait([opening.result for opening in begun])
        for opening in openings:
            if opening in begun and opening.result.exception() is None:
                release_all(opening.result.result().parts)
        for opening in openings:
            if opening not in begun:
                self._report_unbegun_end(opening)

    def _report_unbegun_end(self, opening: OpeningInstances) -> None:
        try:
            self._report_end(opening, is_restored=False)
        except Exception as error:
            # The user's progress function raised. The other stores must still be closed.
            fields = {"app": self._app, "error": error}
            _log.warning("a progress function raised: %s", error, extra=fields)

    def _log_partitions(self, what: str, partitions: Collection[TopicPartition]) -> None:
        names = list(map(str, sorted(partitions)))
        fields = {"app": self._app, "partitions": names}
        _log.info(what, self._app, ", ".join(names), extra=fields)

    def _instance(self, parts: InstanceParts, committed: Committed) -> TaskInstance:
        first = parts.inputs[0].partition
        placed = placed_of(committed[first].metadata) if first in committed else {}
        count = self._context.infos[first.topic].partitions
        placed_stores = Placed(parts.number, count, parts.stores, placed)
        if parts.spec.is_async:
            return AsyncInstance(self._context, parts, placed_stores, self.trial, self.loop)
        return TaskInstance(self._context, parts, placed_stores, self.trial)


def _window_is_pending(parts: InstanceParts, committed: Committed) -> bool:
    """Return True if the last commit says that a call of the task's `window` is pending."""
    waiting = (waiting_of(committed.get(source.partition)) for source in parts.inputs)
    return any(parts.spec.name in of_partition.windows for of_partition in waiting)


def inputs_of(instance: TaskInstance) -> Partitions:
    return frozenset(source.partition for source in instance.inputs)
