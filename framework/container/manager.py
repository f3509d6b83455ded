"""The task instances of the partitions that a worker holds: brought back, at work, given up.

    open     read where the tasks go on · open their stores · restore them; on other threads, so
             that partitions which are there already go on meanwhile, and none waits for another
    ready    those that are brought back join those at work
    close    checkpoint and let go, so that the next holder finds everything
    drop     let go of all at once: whatever was not committed is void

Named after the TaskManager of Kafka Streams.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.errors import Retriable, StorageFailed
from strandline.changelog.metrics import MetricReading
from strandline.changelog.records import (
    CommittedOffset,
    PartitionOffsets,
    TopicInfo,
    TopicPartition,
)
from strandline.framework.container.event_loop import EventLoop
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.gauges import StableEnds, gauges
from strandline.framework.container.growth import PartitionGrowth, input_partitions
from strandline.framework.container.inputs import Input
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.metrics import WorkerCounters
from strandline.framework.container.outage import patiently
from strandline.framework.container.placing import Placed
from strandline.framework.container.positions import placed_of, waiting_of
from strandline.framework.container.restore import OnRestore, RestoreMonitor
from strandline.framework.container.standbys import Standbys
from strandline.framework.container.starting import check_history, starting_offset
from strandline.framework.container.trial import Trial
from strandline.framework.querying.endpoint import QueryEndpoint
from strandline.framework.store_declarations import StoreDeclarations
from strandline.framework.task import TaskSpec
from strandline.framework.topic import Topic
from strandline.statestore.restore import ReplayProgress
from strandline.statestore.spec import AnySpec
from strandline.statestore.store import AnyStore
from strandline.statestore.values import Expiry

_log = logging.getLogger("strandline")

Partitions = frozenset[TopicPartition]
Committed = Mapping[TopicPartition, CommittedOffset]
Ends = Mapping[TopicPartition, PartitionOffsets]
NONE: Partitions = frozenset()
LOCK_PATIENCE_S = 2.0
"""How long the locks of stores are waited for, from when their partitions were shared out. Whoever
held them has let go, is dead, or is stalled; after a change of the log's owner it may take him a moment."""


class RestoreAbandoned(Exception):
    """Nobody wants any more what is being restored."""


@dataclass
class InstanceParts:
    """What an instance will be made of. Its object, if it is of a class, is the worker's to make."""

    spec: TaskSpec
    number: int
    inputs: list[Input]
    stores: list[AnyStore]
    timer_store: AnyStore | None

    @property
    def all_stores(self) -> list[AnyStore]:
        return self.stores if self.timer_store is None else [*self.stores, self.timer_store]


class RestoredInstances(NamedTuple):
    """What an opening gives."""

    parts: list[InstanceParts]
    committed: Committed


@dataclass(eq=False)
class OpeningInstances:
    """Instances on their way: those of the partitions that have to begin together."""

    partitions: Partitions
    deadline: float
    """Until when locks of stores are waited for."""
    result: Future[RestoredInstances] = field(default_factory=Future)
    abandoned: bool = False


class TaskManager:
    """The instances of one worker. Belongs to its thread."""

    def __init__(
        self,
        app: str,
        tasks: Sequence[TaskSpec],
        topics: Sequence[Topic[Any, Any]],
        infos: MutableMapping[str, TopicInfo],
        broker: Broker,
        clock: Clock,
        folders: StoreFolders,
        counters: WorkerCounters,
        *,
        declarations: StoreDeclarations,
        restore_threads: int,
        in_background: bool,
        queries: QueryEndpoint | None = None,
        on_restore: OnRestore | None = None,
    ) -> None:
        self.instances: list[TaskInstance] = []
        """Those at work."""
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        """Where their inputs go on, as of the last commit."""
        self.every: Partitions = input_partitions(tasks, infos)
        """All input partitions of the app, but for those that it cannot read (`growth`)."""
        self.growth = PartitionGrowth(app, tasks, infos, broker)
        self.stands_by: Partitions = NONE
        """Input partitions that others hold, and of whose stores it keeps copies."""
        self._app = app
        self._tasks = tasks
        self._topics = topics
        self._infos = infos
        self._broker = broker
        self._clock = clock
        self._folders = folders
        self._restoring = RestoreMonitor(clock, on_restore)
        self._openings: list[OpeningInstances] = []
        self._together = CopartitionGroups([topic.name for topic in task.inputs] for task in tasks)
        self._pool = (
            ThreadPoolExecutor(restore_threads, "strandline-restore") if in_background else None
        )
        self._standbys = Standbys(broker, clock, folders)
        self.counters = counters
        """Of the worker."""
        self._ends = StableEnds(broker, clock)
        self.trial = Trial()
        """How much the next commit may cover."""
        self.loop = EventLoop()
        """Where async handlers run."""
        self._queries = queries
        self._declarations = declarations

    @property
    def names(self) -> list[str]:
        """Names of all tasks of the app, in the order of their declaration."""
        return [task.name for task in self._tasks]

    @property
    def held(self) -> Partitions:
        """The input partitions of those at work, and of those on their way."""
        at_work = (s.partition for i in self.instances for s in i.inputs)
        return NONE.union(at_work, *(opening.partitions for opening in self._openings))

    @property
    def in_background(self) -> bool:
        """Whether partitions come back on other threads; else they are back when `open` returns."""
        return self._pool is not None

    @property
    def is_opening(self) -> bool:
        return bool(self._openings)

    @property
    def remaining(self) -> int:
        """Offsets that restores have before them."""
        return self._restoring.remaining

    def readable(self, allowed: Partitions) -> Partitions:
        """Return those of the partitions that it may hold which the app reads.

        Inputs that have got partitions are looked at once, when they are allowed first.
        """
        unknown = allowed - self.every
        if unknown and self.growth.meet(unknown):
            self.every = input_partitions(self._tasks, self._infos)
        return allowed & self.every if unknown else allowed

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """Begin to bring back the tasks of these partitions, of each number by themselves."""
        self.counters.rebalances["assigned"].add()
        self._say("app %s takes up %s", partitions)
        deadline = self._clock.monotonic() + LOCK_PATIENCE_S
        openings = [OpeningInstances(unit, deadline) for unit in self._together.split(partitions)]
        self._openings += openings
        for opening in openings:
            self._restoring.add(len(self._changelogs(opening.partitions)))
        for opening in openings:
            if self._pool is not None:
                opening.result = self._pool.submit(self._bring_back, opening)
                continue
            try:
                opening.result.set_result(self._bring_back(opening))
            except BaseException as error:
                opening.result.set_exception(error)

    def follow(self, partitions: Partitions) -> None:
        """Keep copies of the stores of these, which others hold."""
        if partitions != self.stands_by:
            self.stands_by = partitions
            self._standbys.follow(self._changelogs(partitions))

    @property
    def copies(self) -> dict[TopicPartition, int]:
        """How far each copy that it keeps is in its changelog."""
        return self._standbys.positions()

    def metrics(self) -> list[MetricReading]:
        """What was counted, and how things stand; may be asked from any thread."""
        return [*self.counters.readings(), *gauges(self._app, self, self._ends)]

    def wait(self, seconds: float) -> None:
        """Wait for all openings to end."""
        wait([opening.result for opening in self._openings], seconds)

    def ready(self) -> None:
        """Those that were brought back join those at work: of one opening all of them, or none.

        Raises, after all others, why some could not be opened; their partitions are not held then.
        """
        errors: list[Exception] = []
        for opening in [opening for opening in self._openings if opening.result.done()]:
            self._openings.remove(opening)
            try:
                self._welcome(*opening.result.result())
            except Exception as error:
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Retriable))

    def _welcome(self, parts: Sequence[InstanceParts], committed: Committed) -> None:
        arrived: list[TaskInstance] = []
        try:
            for part in parts:
                arrived.append(self._instance(part, committed))
                arrived[-1].restored(owes_window=_owes_window(part, committed))
        except BaseException:
            _release(parts)
            raise
        self.committed.update(committed)
        # A list of its own: other threads look at it.
        self.instances = sorted([*self.instances, *arrived], key=self._order)

    def _order(self, instance: TaskInstance) -> tuple[int, int]:
        return self._tasks.index(instance.spec), instance.partition

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Give these partitions up: what is committed goes to the engines first."""
        self.counters.rebalances["revoked"].add()
        self._say("app %s gives up %s", partitions)
        self._abandon([o for o in self._openings if not o.partitions.isdisjoint(partitions)])
        leaving = [i for i in self.instances if not _inputs(i).isdisjoint(partitions)]
        self.rest(leaving)
        for instance in leaving:
            self.instances.remove(instance)
            instance.close(self.loop)
        for tp in partitions:
            self.committed.pop(tp, None)

    def rest(self, instances: Sequence[TaskInstance]) -> bool:
        """Let the engines have all that is committed; whether they could take it."""
        try:
            for instance in instances:
                for store in instance.all_stores:
                    store.checkpoint()
        except StorageFailed as error:
            _log.warning(
                "stores are behind their changelogs, and catch up when they are opened: %s",
                error,
                extra={"app": self._app, "error": error},
            )
            return False
        return True

    def drop(self) -> None:
        """Let go of everything; what is not committed is forgotten."""
        self._end(lambda instance: instance.close(self.loop))

    def release(self) -> None:
        """The same without telling the tasks, as a crash would."""
        self._answer_no_more()
        self._standbys.close()
        self._end(TaskInstance.release)

    def shut_down(self) -> None:
        """Drop everything, open nothing and answer no queries any more."""
        self._answer_no_more()
        self.drop()
        self._standbys.close()
        if self._pool is not None:
            self._pool.shutdown()

    def _answer_no_more(self) -> None:
        if self._queries is not None:
            self._queries.close()

    def _end(self, end: Callable[[TaskInstance], None]) -> None:
        self._abandon(list(self._openings))
        instances, self.instances = self.instances, []
        self.committed.clear()
        for instance in instances:
            end(instance)

    # On other threads -----------------------------------------------------------------

    def _bring_back(self, opening: OpeningInstances) -> RestoredInstances:
        parts: list[InstanceParts] = []
        is_back = False
        try:
            try:
                committed = self._make(opening, parts)
                self._restore(opening, parts)
                is_back = True
            finally:
                self._ended(opening, is_back)
        except BaseException:
            _release(parts)
            raise
        return RestoredInstances(parts, committed)

    def _make(self, opening: OpeningInstances, parts: list[InstanceParts]) -> Committed:
        """Add to `parts` what is to be restored; what is committed of its inputs."""
        self._standbys.let_go(self._changelogs(opening.partitions))
        # Waits for open transactions with offsets of these partitions: their last holder's.
        committed = patiently(
            lambda: self._broker.committed(self._app, opening.partitions), lambda: opening.abandoned
        )
        ends = self._broker.offsets(opening.partitions)
        check_history(committed, ends)
        changelogs = self._changelogs(opening.partitions)
        # Only now: what the last holder has recorded and written cannot change any more.
        expiry = self._declarations.confirm({changelog.topic for changelog in changelogs})
        for spec, number in self._wanted(opening.partitions):
            parts.append(self._parts(spec, number, committed, ends, opening.deadline, expiry))
        return committed

    def _wanted(self, partitions: Partitions) -> list[tuple[TaskSpec, int]]:
        """The tasks, and the number of the partition, that these partitions are the input of."""
        return [
            (spec, number)
            for spec in self._tasks
            for number in range(self._infos[spec.inputs[0].name].partitions)
            if TopicPartition(spec.inputs[0].name, number) in partitions
        ]

    def _changelogs(self, partitions: Partitions) -> dict[TopicPartition, AnySpec]:
        """The changelog partitions of the stores that belong to these inputs."""
        return {
            TopicPartition(store.changelog_topic(self._app), number): store
            for spec, number in self._wanted(partitions)
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
            left = max(0.0, deadline - self._clock.monotonic())
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
            _release([parts])
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
                    done = store.restore(self._broker, changelog, report)
                    self._declarations.finish(store, changelog)
                self.counters.restored.add(done.records)

    def _ended(self, opening: OpeningInstances, is_back: bool) -> None:
        done = self._restoring.ended(() if is_back else self._changelogs(opening.partitions))
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
        """Let go of what is on its way."""
        for opening in openings:
            opening.abandoned = True
            self._openings.remove(opening)
        begun = [opening for opening in openings if not opening.result.cancel()]
        wait([opening.result for opening in begun])
        for opening in openings:
            if opening in begun and opening.result.exception() is None:
                _release(opening.result.result().parts)
        for opening in openings:
            if opening not in begun:
                self._ended_unbegun(opening)

    def _ended_unbegun(self, opening: OpeningInstances) -> None:
        try:
            self._ended(opening, is_back=False)
        except Exception as error:  # of who is told of the restore; what is let go of must go
            said = {"app": self._app, "error": error}
            _log.warning("a progress function raised: %s", error, extra=said)

    def _say(self, what: str, partitions: Collection[TopicPartition]) -> None:
        names = list(map(str, sorted(partitions)))
        said = {"app": self._app, "partitions": names}
        _log.info(what, self._app, ", ".join(names), extra=said)

    def _instance(self, parts: InstanceParts, committed: Committed) -> TaskInstance:
        first = parts.inputs[0].partition
        placed = placed_of(committed[first].metadata) if first in committed else {}
        return TaskInstance(
            self._app,
            parts.spec,
            parts.number,
            parts.inputs,
            parts.stores,
            parts.timer_store,
            self._topics,
            self._clock,
            self.counters.task(parts.spec.name),
            Placed(parts.number, self._infos[first.topic].partitions, parts.stores, placed),
            self.trial,
        )


def _release(parts: Sequence[InstanceParts]) -> None:
    for part in parts:
        for store in part.all_stores:
            store.close()


def _owes_window(parts: InstanceParts, committed: Committed) -> bool:
    waiting = (waiting_of(committed.get(source.partition)) for source in parts.inputs)
    return any(parts.spec.name in of_partition.windows for of_partition in waiting)


def _inputs(instance: TaskInstance) -> Partitions:
    return frozenset(source.partition for source in instance.inputs)
