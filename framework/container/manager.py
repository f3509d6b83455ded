"""The task instances of a worker's partitions: restored, running, closed.

    open     begin to open and restore instances (`opening.py`)
    ready    add the restored instances to the running ones
    close    checkpoint and close instances, so that the next owner has little to replay
    drop     close all instances at once; uncommitted work is lost

Named after the TaskManager of Kafka Streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.errors import Retriable, StorageFailed
from strandline.changelog.records import (
    CommittedOffset,
    TopicPartition,
)
from strandline.framework.container.async_instance import AsyncInstance
from strandline.framework.container.batch_instance import BatchInstance
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.container.event_loop import EventLoop
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.growth import PartitionGrowth, input_partitions
from strandline.framework.container.instance import InstanceParts, TaskInstance, release_all
from strandline.framework.container.opening import (
    NO_PARTITIONS,
    Committed,
    Openings,
    Partitions,
    changelogs_of,
)
from strandline.framework.container.restore import OnRestore
from strandline.framework.container.standbys import Standbys
from strandline.framework.placing import Placed
from strandline.framework.positions import (
    placed_of,
    waiting_of,
)
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.store_declarations import StoreDeclarations
from strandline.framework.trial import Trial

_log = logging.getLogger("strandline")


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
        self._by_place: dict[tuple[str, int], TaskInstance] = {}
        """The same, by the name of the task and the partition; other threads read it too."""
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
        self._copartition_groups = CopartitionGroups(
            [topic.name for topic in task.inputs] for task in self._tasks
        )
        self._standbys = Standbys(context.broker, context.clock, folders)
        self._openings = Openings(
            context,
            folders,
            declarations,
            self._standbys,
            in_background=in_background,
            on_restore=on_restore,
        )
        self.counters = context.counters
        """Counters of the worker and its tasks."""
        self.trial = Trial()
        """Limits how many steps the next commit may cover."""
        self.memory = folders.memory
        """Memory of the stores and of records."""
        self.loop = EventLoop()
        """Event loop in which async handlers run."""
        self._queries = queries

    @property
    def names(self) -> list[str]:
        """Names of all tasks of the app, in the order of their declaration."""
        return [task.name for task in self._tasks]

    @property
    def owned(self) -> Partitions:
        """Input partitions of the running instances and of those being restored."""
        at_work = (s.partition for i in self.instances for s in i.inputs)
        return self._openings.partitions.union(at_work)

    @property
    def in_background(self) -> bool:
        """True if restores run on other threads; if not, `open` returns after they have ended."""
        return self._openings.in_background

    @property
    def is_opening(self) -> bool:
        return bool(self._openings)

    @property
    def remaining(self) -> int:
        """Number of changelog offsets that the running restores still have to replay."""
        return self._openings.remaining

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
        self._openings.begin(self._copartition_groups.split(partitions))

    def follow(self, partitions: Partitions) -> None:
        """Keep copies of the stores of these partitions, which other workers own."""
        if partitions != self.standby_partitions:
            self.standby_partitions = partitions
            self._standbys.follow(changelogs_of(self._context, partitions))

    @property
    def standby_offsets(self) -> dict[TopicPartition, int]:
        """Changelog offset up to which each standby copy is restored, by changelog partition."""
        return self._standbys.positions()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until all restores have ended, or must be looked at."""
        self._openings.wait(seconds)

    def ready(self) -> None:
        """Add the restored instances to the running ones: of each opening all or none.

        If openings have failed, the error of one is raised after all others were added. Their
        partitions are not owned then, so that the next `open` tries them again.
        """
        errors: list[Exception] = []
        for opening in self._openings.ended():
            try:
                opening.result.result()
                self._add_instances(opening.parts, opening.committed)
            except Exception as error:
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Retriable))

    def _add_instances(self, parts: Sequence[InstanceParts], committed: Committed) -> None:
        arrived: list[TaskInstance] = []
        try:
            for part in parts:
                arrived.append(self._instance(part, committed))
                is_pending = self._window_is_pending(part, committed)
                arrived[-1].restored(window_pending=is_pending)
        except BaseException:
            release_all(parts)
            raise
        self.committed.update(committed)
        self.instances = sorted([*self.instances, *arrived], key=self._order)
        self._by_place |= {_place_of(instance): instance for instance in arrived}

    def running(self, task: str, partition: int) -> TaskInstance | None:
        """Return the running instance of a task for a partition; None if there is none.

        Thread-safe.
        """
        return self._by_place.get((task, partition))

    def _order(self, instance: TaskInstance) -> tuple[int, int]:
        return self._tasks.index(instance.spec), instance.partition

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Close the instances of these partitions, after a checkpoint of what they committed."""
        self.counters.rebalances["revoked"].add()
        self._log_partitions("app %s gives up %s", partitions)
        self._openings.abandon(partitions)
        leaving = [i for i in self.instances if not inputs_of(i).isdisjoint(partitions)]
        self.checkpoint(leaving)
        for instance in leaving:
            self.instances.remove(instance)
            del self._by_place[_place_of(instance)]
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
        self._openings.shut_down()

    def _stop_queries(self) -> None:
        if self._queries is not None:
            self._queries.close()

    def _end_all(self, end: Callable[[TaskInstance], None]) -> None:
        self._openings.abandon()
        instances, self.instances = self.instances, []
        self._by_place.clear()
        self.committed.clear()
        for instance in instances:
            end(instance)

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
        kind = BatchInstance if parts.spec.batch else TaskInstance
        return kind(self._context, parts, placed_stores, self.trial)

    def _window_is_pending(self, parts: InstanceParts, committed: Committed) -> bool:
        """Return True if the last commit says that a call of the task's `window` is pending.

        A pending call of a task that there is no more may be that of this task by another name. One
        call too many does no harm.
        """
        waiting = (waiting_of(committed.get(source.partition)) for source in parts.inputs)
        others = self._context.declared.tasks.keys() - {parts.spec.name}
        return any(not others.issuperset(of_partition.windows) for of_partition in waiting)


def _place_of(instance: TaskInstance) -> tuple[str, int]:
    return instance.spec.name, instance.partition


def inputs_of(instance: TaskInstance) -> Partitions:
    return frozenset(source.partition for source in instance.inputs)
