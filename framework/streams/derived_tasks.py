"""Tasks that run the streams of an app: one batch task for each stage of the plan."""

from __future__ import annotations

from typing import Any

from strandline.framework.declarations import Declarations
from strandline.framework.store import Store
from strandline.framework.streams.functions import FunctionNode
from strandline.framework.streams.graph import StreamGraph
from strandline.framework.streams.stage_plan import StagePlan
from strandline.framework.streams.stage_rows import InternalTopic
from strandline.framework.streams.stage_task import StageTask
from strandline.framework.task import TaskSpec
from strandline.framework.topic import Topic


class DerivedTasks:
    """The tasks, topics and stores that were derived from the streams declared so far."""

    def __init__(self, graph: StreamGraph) -> None:
        self._graph = graph
        self._ends = 0
        """Number of ends of the plan that the tasks were derived from."""
        self._topics: list[Topic[Any, Any]] = []
        self._stores: list[Store[Any, Any]] = []
        self._tasks: list[TaskSpec] = []

    def update(self, declared: Declarations) -> None:
        """Derive the tasks again if streams were declared since. Raises InvalidConfig."""
        if len(self._graph.ends) == self._ends:
            return
        self._remove(declared)
        self._ends = len(self._graph.ends)
        plan = self._graph.plan()
        session = self._graph.session
        internal = {
            node: InternalTopic(session, node, columns)
            for stage in plan.stages
            for node, columns in stage.stored.items()
        }
        self._topics = [declared.add_topic(one.topic) for one in internal.values()]
        for stage in plan.stages:
            self._add(declared, StagePlan(plan, stage, session, internal))

    def _add(self, declared: Declarations, stage: StagePlan) -> None:
        calls_functions = any(isinstance(node, FunctionNode) for node in stage.stage.nodes)
        stores = [*stage.stores.values(), *stage.times]
        self._stores += [declared.add_store(store) for store in stores]
        inputs = tuple(declared.topics[topic.name] for topic in stage.topics)
        spec = TaskSpec(
            stage.stage.name,
            inputs,
            tuple(stores),
            _handler(stage),
            on_error=stage.options.on_error,
            window_ms=stage.window_ms,
            batch=True,
            # A function may take any time for a row, and a batch that takes longer than
            # max_poll_interval_ms would be repeated for ever.
            first_batch=1 if calls_functions else None,
        )
        spec.where = stage.stage.nodes[-1].where
        declared.add_task(spec)
        self._tasks.append(spec)

    def _remove(self, declared: Declarations) -> None:
        for spec in self._tasks:
            declared.remove_task(spec)
        for store in self._stores:
            del declared.stores[store.name]
        for topic in self._topics:
            declared.topics.pop(topic.name, None)
        self._tasks, self._stores, self._topics = [], [], []


def _handler(stage: StagePlan) -> type[StageTask]:
    """Return the class whose objects run a stage, one for each partition."""
    return type("Stage", (StageTask,), {"plan": stage})
