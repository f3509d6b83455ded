"""Facts that all parts of one worker share; named after the ContainerContext of Samza."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.records import TopicInfo
from strandline.framework.container.metrics import WorkerCounters
from strandline.framework.declarations import Declarations
from strandline.framework.options import Options
from strandline.framework.task import TaskSpec
from strandline.framework.topic import Topic


@dataclass(frozen=True)
class ContainerContext:
    """The app that a worker runs, its log, and the worker's counters."""

    declared: Declarations
    infos: MutableMapping[str, TopicInfo]
    """The log's description of each topic, by name. Partitions added later are entered here."""
    broker: Broker
    clock: Clock
    options: Options
    counters: WorkerCounters

    @property
    def app(self) -> str:
        """Name of the app, which is also that of its consumer group."""
        return self.declared.app

    @property
    def tasks(self) -> list[TaskSpec]:
        """Tasks of the app, in the order of their declaration."""
        return list(self.declared.tasks.values())

    @property
    def topics(self) -> list[Topic[Any, Any]]:
        """Topics of the app, in the order of their declaration."""
        return list(self.declared.topics.values())
