"""Partitions that are added to input topics while the app runs.

The group assigns new partitions as soon as a topic has them, so a worker learns of them by its
assignment, and an idle app sends no requests. A task without state reads them from their first
record. A task with stores or timers cannot: its changelogs have the former number of partitions,
and a change of that number moves keys to other partitions. The new partitions are then not read.
An error is logged, a metric counts them, and the next start of the app is refused
(`Declarations.prepare`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from strandline.changelog.records import TopicInfo, TopicPartition
from strandline.framework.container.container_context import ContainerContext
from strandline.framework.task import TaskSpec

_log = logging.getLogger("strandline")

Partitions = frozenset[TopicPartition]


def input_partitions(context: ContainerContext) -> Partitions:
    """Return all partitions of all inputs of the app's tasks."""
    return frozenset(
        TopicPartition(topic.name, number)
        for task in context.tasks
        for topic in task.inputs
        for number in range(context.infos[topic.name].partitions)
    )


class PartitionGrowth:
    """Decides whether one app reads the new partitions of its inputs. Not thread-safe."""

    def __init__(self, context: ContainerContext) -> None:
        self._app = context.app
        self._tasks = context.tasks
        self._infos = context.infos
        self._broker = context.broker
        self._checked: Partitions = frozenset()
        self.unread: dict[str, int] = {}
        """Number of partitions that the app does not read, by topic."""

    def check_new(self, unknown: Partitions) -> bool:
        """Decide about newly assigned partitions that are not known yet.

        The descriptions of topics whose new partitions are read are replaced in `infos`.

        Returns:
            True if some of the partitions are read from now on.
        """
        if unknown == self._checked:
            return False
        taken = False
        for topics, tasks in self._components({tp.topic for tp in unknown}):
            found = {name: self._broker.topic(name) for name in topics}
            stateful = [task for task in tasks if task.all_stores]
            if stateful:
                self._refuse(found, stateful)
            else:
                taken |= self._read_new(found)
        self._checked = unknown  # set last, so that an error of the log leads to another attempt
        return taken

    def _components(
        self, topics: Collection[str]
    ) -> Iterable[tuple[frozenset[str], list[TaskSpec]]]:
        """Return each set of topics read together, directly or not, with the tasks that read it."""
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

    def _read_new(self, found: dict[str, TopicInfo]) -> bool:
        """Read as many partitions as every one of these topics has; return True if that is more."""
        count = min(info.partitions for info in found.values())
        if any(info.partitions != count for info in found.values()):
            counts = {name: info.partitions for name, info in sorted(found.items())}
            _log.warning(
                "app %s reads %d partitions of topics that are read together, because they now "
                "have different numbers of partitions: %s; give them all the same",
                *(self._app, count, counts),
                extra={"app": self._app, "partitions": counts},
            )
        taken = count > min(self._infos[name].partitions for name in found)
        for name, info in found.items():
            self._count_unread(name, info.partitions - count)
            if info.partitions == count:
                self._infos[name] = info
        if taken:
            fields = {"app": self._app, "topics": sorted(found), "partitions": count}
            _log.info("app %s reads new partitions: %s have %d now", *fields.values(), extra=fields)
        return taken

    def _refuse(self, found: dict[str, TopicInfo], stateful: Sequence[TaskSpec]) -> None:
        """Log an error for each of these topics that has new partitions, and count them."""
        for name, info in sorted(found.items()):
            known = self._infos[name].partitions
            self._count_unread(name, info.partitions - known)
            if info.partitions == known:
                continue
            tasks = ", ".join(repr(task.name) for task in stateful)
            _log.error(
                "app %s does not read partitions %d to %d of topic %r, which were added while it "
                "ran: task %s keeps state by key for %d partitions, and keys are in other "
                "partitions now. Stop the app and run `strandline reset`, which rebuilds the "
                "state, or let it read a new topic",
                *(self._app, known, info.partitions - 1, name, tasks, known),
                extra={"app": self._app, "topic": name, "partitions": info.partitions},
            )

    def _count_unread(self, topic: str, count: int) -> None:
        if count:
            self.unread = {**self.unread, topic: count}
        elif topic in self.unread:
            self.unread = {name: n for name, n in self.unread.items() if name != topic}
