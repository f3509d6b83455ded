"""Partitions that inputs get while the app runs: taken up, or refused, and never passed over in silence.

The group shares out new partitions as soon as a topic has them, so a worker learns of them with what
it may hold, and an idle app asks for nothing. A task without state takes them up: it reads them from
their first record on. A task with stores or timers cannot: its changelogs have the number of
partitions that its input had, and keys go to other partitions when that number changes. Then nothing
of the new partitions is read, which is said in an error and a metric, and the next start of the app
is refused (`Declarations.prepare`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, MutableMapping, Sequence

from strandline.changelog.broker import Broker
from strandline.changelog.records import TopicInfo, TopicPartition
from strandline.framework.task import TaskSpec

_log = logging.getLogger("strandline")

Partitions = frozenset[TopicPartition]


def input_partitions(
    tasks: Sequence[TaskSpec], infos: MutableMapping[str, TopicInfo]
) -> Partitions:
    """Return all partitions of all inputs of these tasks."""
    return frozenset(
        TopicPartition(topic.name, number)
        for task in tasks
        for topic in task.inputs
        for number in range(infos[topic.name].partitions)
    )


class PartitionGrowth:
    """Decides about the new partitions of one app's inputs. Belongs to the worker's thread."""

    def __init__(
        self,
        app: str,
        tasks: Sequence[TaskSpec],
        infos: MutableMapping[str, TopicInfo],
        broker: Broker,
    ) -> None:
        self._app = app
        self._tasks = tasks
        self._infos = infos
        self._broker = broker
        self._seen: Partitions = frozenset()
        self.unread: dict[str, int] = {}
        """By topic, how many of its partitions the app does not read."""

    def meet(self, unknown: Partitions) -> bool:
        """Decide about partitions that are not known yet; whether some are to be read from now on.

        The descriptions of topics that are read further are replaced in the app's own.
        """
        if unknown == self._seen:
            return False
        taken = False
        for topics, tasks in self._components({tp.topic for tp in unknown}):
            found = {name: self._broker.topic(name) for name in topics}
            stateful = [task for task in tasks if task.all_stores]
            if stateful:
                self._refuse(found, stateful)
            else:
                taken |= self._take(found)
        self._seen = unknown  # only now: a log that does not answer is asked again
        return taken

    def _components(
        self, topics: Collection[str]
    ) -> Iterable[tuple[frozenset[str], list[TaskSpec]]]:
        """Topics that are read together, directly or by a third one, and the tasks that read them."""
        found: dict[frozenset[str], list[TaskSpec]] = {}
        for topic in topics:
            names, before = {topic}, set[str]()
            tasks: list[TaskSpec] = []
            while names != before:
                before = set(names)
                tasks = [t for t in self._tasks if names & {each.name for each in t.inputs}]
                names |= {each.name for task in tasks for each in task.inputs}
            found[frozenset(names)] = tasks
        return found.items()

    def _take(self, found: dict[str, TopicInfo]) -> bool:
        """Read on as many partitions as all of these topics have."""
        count = min(info.partitions for info in found.values())
        if any(info.partitions != count for info in found.values()):
            counts = {name: info.partitions for name, info in sorted(found.items())}
            _log.warning(
                "app %s reads %d partitions of topics that are read together, because they have different "
                "numbers by now: %s; give them all the same",
                *(self._app, count, counts),
                extra={"app": self._app, "partitions": counts},
            )
        taken = count > min(self._infos[name].partitions for name in found)
        for name, info in found.items():
            self._count_unread(name, info.partitions - count)
            if info.partitions == count:
                self._infos[name] = info
        if taken:
            said = {"app": self._app, "topics": sorted(found), "partitions": count}
            _log.info("app %s reads new partitions: %s have %d now", *said.values(), extra=said)
        return taken

    def _refuse(self, found: dict[str, TopicInfo], stateful: Sequence[TaskSpec]) -> None:
        for name, info in sorted(found.items()):
            known = self._infos[name].partitions
            self._count_unread(name, info.partitions - known)
            if info.partitions == known:
                continue
            tasks = ", ".join(repr(task.name) for task in stateful)
            _log.error(
                "app %s does not read partitions %d to %d of topic %r, which it has got meanwhile: task %s "
                "keeps state by key, for %d partitions, and keys are in others now. Stop the app and `strandline "
                "reset` it, which builds the state anew, or let it read a new topic",
                *(self._app, known, info.partitions - 1, name, tasks, known),
                extra={"app": self._app, "topic": name, "partitions": info.partitions},
            )

    def _count_unread(self, topic: str, count: int) -> None:
        if count:
            self.unread = {**self.unread, topic: count}
        elif topic in self.unread:
            self.unread = {name: n for name, n in self.unread.items() if name != topic}
