"""A stage with all that its tasks need: readers, stores, operators, and lags."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from strandline.changelog.records import TopicInfo
from strandline.changelog.settings import LONG_MAX
from strandline.framework.session import Session
from strandline.framework.store import Store
from strandline.framework.streams.closings import Closings
from strandline.framework.streams.fingerprints import fingerprint
from strandline.framework.streams.group_store import GroupStore
from strandline.framework.streams.lateness import late_rows
from strandline.framework.streams.nodes import Emit, Node, StreamOptions, TopicSource
from strandline.framework.streams.operators.count_groups import CountOperator
from strandline.framework.streams.operators.duplicates import DuplicatesOperator, duplicate_keys
from strandline.framework.streams.operators.group_keys import GroupKeys, state_keys
from strandline.framework.streams.operators.groups import (
    GroupOperator,
    kept_aggregates,
    state_inputs,
)
from strandline.framework.streams.operators.open_sessions import OpenSessions, deadline_keys
from strandline.framework.streams.operators.operator import LateRows, StageOperator
from strandline.framework.streams.operators.panes import (
    HoppingOperator,
    SlidingOperator,
    TumblingOperator,
)
from strandline.framework.streams.operators.session_groups import SessionOperator
from strandline.framework.streams.plan import Plan
from strandline.framework.streams.stage_rows import InternalTopic, TopicRows
from strandline.framework.streams.stages import Stage, topic_of
from strandline.framework.streams.stateful import (
    DropDuplicates,
    GroupAggregate,
    OutputNode,
    Repartition,
    StatefulNode,
    Through,
    window_fields,
)
from strandline.framework.streams.stored_groups import StoredGroups, closed_of, typed_figures
from strandline.framework.streams.windows import (
    CountWindow,
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
    TumblingWindow,
)
from strandline.framework.topic import Topic
from strandline.statestore.aggregates import counter_spec
from strandline.statestore.internal_names import REPARTITION
from strandline.statestore.spec import AnySpec, StoreLimits, StoreSpec

if TYPE_CHECKING:
    import polars as pl

OF_WATERMARKS = StoreLimits(cache_bytes=1 << 20, overlay_bytes=1 << 20)
"""Limits of a store of watermarks, so that it leaves its share of the memory to the operators."""
BY_MEMORY = StoreLimits(cache_bytes=LONG_MAX, dirty_bytes=LONG_MAX, overlay_bytes=LONG_MAX)
"""Limits of an operator's store: only the app's memory, because users cannot declare others."""
DAY_MS = 24 * 3_600_000


def source_name(topic: str, partition: int) -> str:
    """Return the name of a source that is a partition of a topic."""
    return f"{topic}-{partition}"


def writer_name(topic: str, partition: int) -> str:
    """Return the name of a source that is a partition of the stage that writes an internal topic.

    It does not have the name of that stage, which other operators may change.
    """
    return source_name(f"writer of {topic}", partition)


class StagePlan:
    """One stage of a plan, with the topics and stores that its tasks use."""

    def __init__(
        self,
        plan: Plan,
        stage: Stage,
        session: Session,
        internal: Mapping[Repartition, InternalTopic],
    ) -> None:
        """Declare the stores of the stage.

        Args:
            plan: Plan of all streams of the app.
            stage: The stage.
            session: Session of the app.
            internal: Internal topics of the plan.

        Raises:
            InvalidConfig: A column has a type that state or an internal topic cannot have.
        """
        self.stage = stage
        self.options = _options(stage)
        self._plan = plan
        self._nodes = {node.name: node for node in stage.nodes if isinstance(node, StatefulNode)}
        self.internal: Mapping[Repartition, InternalTopic] = {
            node: internal[node] for node in stage.stored
        }
        """Internal topics that the stage reads or writes."""
        self.stores: dict[str, Store[Any, Any]] = {
            store.name: store for node in self._nodes.values() for store in _stores(session, node)
        }
        """Stores of the operators, by name."""
        self.times: tuple[Store[str, int], ...] = tuple(
            Store(
                session, StoreSpec(f"{name}-watermarks", key=str, value=int, limits=OF_WATERMARKS)
            )
            for name in _names_of_times(stage)
        )
        """Stores of the watermarks, which have the same contents."""
        self._readers = {topic_of(source): self._reader(source) for source in stage.sources}

    # Reading and writing -----------------------------------------------------------------------

    @property
    def topics(self) -> tuple[Topic[Any, Any], ...]:
        """Topics that the stage reads."""
        return tuple(reader.topic for reader in self._readers.values())

    @cached_property
    def written(self) -> tuple[Topic[Any, Any], ...]:
        """Topics that the stage writes, those of late records included."""
        found = [sink.topic for sink in self.stage.sinks if isinstance(sink, OutputNode)]
        found += [self.internal[s].topic for s in self.stage.sinks if isinstance(s, Repartition)]
        found += [late for topic in self.topics if (late := self.late_topic(topic.name))]
        return tuple(dict.fromkeys(found))

    def reader(self, topic: str) -> TopicRows | InternalTopic:
        """Return the reader of a topic."""
        return self._readers[topic]

    def delay_ms(self, topic: str) -> int:
        """Return the milliseconds by which records of a topic may be out of order."""
        found = [s for s in self.stage.sources if topic_of(s) == topic]
        return found[0].options.delay_ms if isinstance(found[0], TopicSource) else 0

    def late_topic(self, topic: str) -> Topic[Any, Any] | None:
        """Return the topic for late records of a topic; None if they are only counted."""
        found = [s for s in self.stage.sources if topic_of(s) == topic]
        return found[0].options.late if isinstance(found[0], TopicSource) else None

    def sources(self, partition: int, infos: Mapping[str, TopicInfo]) -> list[str]:
        """Return the sources of a partition: its topics, and the stages before internal topics.

        Args:
            partition: Number of the partition.
            infos: Descriptions of the app's topics.
        """
        found = []
        for name, reader in self._readers.items():
            if isinstance(reader, TopicRows):
                found.append(source_name(name, partition))
            else:
                count = infos[self._writer(reader.node).topics[0]].partitions
                found += [writer_name(name, number) for number in range(count)]
        return found

    def is_topic(self, source: str) -> bool:
        """Return True if a source is a partition of a topic that the stage reads itself."""
        return source.rpartition("-")[0] in self._readers

    def is_writer(self, source: str, topic: str) -> bool:
        """Return True if a source is a partition of the stage that writes an internal topic."""
        return source.rpartition("-")[0] == writer_name(topic, 0).rpartition("-")[0]

    def _writer(self, node: Repartition) -> Stage:
        return next(stage for stage in self._plan.stages if node in stage.nodes)

    def _reader(self, source: Node) -> TopicRows | InternalTopic:
        if isinstance(source, Repartition):
            return self.internal[source]
        assert isinstance(source, TopicSource | Through)
        # A topic that several sources of the stage read is decoded once, for all of them.
        alike = [one for one in self.stage.sources if topic_of(one) == source.topic.name]
        used = set().union(*(self._plan.used_columns[one] for one in alike))
        return TopicRows(source.topic, _fields_read(source), source.schema, used)

    # Operators ---------------------------------------------------------------------------------

    def operators(self, late: LateRows) -> dict[str, StageOperator]:
        """Return the operators of one partition, each after those before it.

        Args:
            late: Function that gets the late rows of an operator, except those that the stage
                before an internal topic has found (`late_before`).
        """
        return {
            name: self._operator(node, _not_found_before(node, late))
            for name, node in self._nodes.items()
        }

    def late_before(self, sink: Repartition, rows: pl.DataFrame) -> list[pl.Series]:
        """Return which rows for an internal topic are late for each operator that reads it."""
        readers = self._plan.consumers[sink]
        return [late_rows(node, rows) for node in readers if isinstance(node, StatefulNode)]

    def is_aggregate(self, name: str) -> bool:
        """Return True if an operator aggregates."""
        return isinstance(self._nodes[name], GroupAggregate)

    def final_of(self, name: str) -> Emit | None:
        """Return the kind of the results that an operator gives when time advances."""
        return "final" if self.is_aggregate(name) else None

    def result_key(self, name: str) -> list[str]:
        """Return the columns that identify a result of an operator."""
        node = self._nodes[name]
        assert isinstance(node, GroupAggregate)
        return [*node.keys, *window_fields(node.window)]

    def lag_ms(self, name: str) -> int:
        """Return the milliseconds by which an operator's rows may be before the watermark."""
        return self.lag_before_ms(self._nodes[name])

    def lag_before_ms(self, node: Node) -> int:
        """Return the milliseconds by which the rows that a node gets may be before the watermark."""
        return max((self._lag_after(source) for source in node.inputs), default=0)

    def closes(self, sink: Repartition, before: int, watermark: int) -> bool:
        """Return True if windows after an internal topic may be closed by a watermark in ms.

        Args:
            sink: Internal topic.
            before: Watermark in ms of the last mark.
            watermark: Watermark in ms.
        """
        return any(closings.between(before, watermark) for closings in self._closings[sink])

    @property
    def keeps_late(self) -> bool:
        """True if a topic that the stage reads has a topic for its late records."""
        return any(self.late_topic(topic.name) is not None for topic in self.topics)

    @cached_property
    def _closings(self) -> Mapping[Repartition, Collection[Closings]]:
        """Times of closing of the windows after each internal topic, by the topic's watermark."""
        return {sink: self._closings_after(sink) for sink in self.internal}

    def _closings_after(self, sink: Repartition) -> set[Closings]:
        found = set[Closings]()
        waiting = [(node, 0) for node in self._plan.consumers[sink]]
        while waiting:
            node, lag = waiting.pop()
            if isinstance(node, GroupAggregate) and isinstance(node.window, TimeWindow):
                found.add(node.window.closings.later(lag))
                lag += node.window.grace_ms
            waiting += [(consumer, lag) for consumer in self._plan.consumers[node]]
        return found or {Closings(DAY_MS, 0)}

    def _lag_after(self, node: Node) -> int:
        if node in self.stage.sources:
            return 0
        own = 0
        if isinstance(node, GroupAggregate) and isinstance(node.window, TimeWindow):
            own = node.window.grace_ms
        return own + self.lag_before_ms(node)

    def _operator(self, node: StatefulNode, late: LateRows) -> StageOperator:
        store = self.stores[node.name]
        if isinstance(node, DropDuplicates):
            return DuplicatesOperator(node, store, late)
        assert isinstance(node, GroupAggregate)
        window = node.window
        if isinstance(window, TumblingWindow):
            return TumblingOperator(node, window, store, late)
        if isinstance(window, HoppingWindow):
            return HoppingOperator(node, window, store, late, self.stores[closed_of(node.name)])
        if isinstance(window, SlidingWindow):
            return SlidingOperator(node, window, store, late, self.stores[closed_of(node.name)])
        if isinstance(window, SessionWindow):
            sessions = OpenSessions(node, store, self.stores[_deadlines_of(node)])
            return SessionOperator(node, window, sessions, late)
        if isinstance(window, CountWindow):
            return CountOperator(node, window, store, self.stores[_counts_of(node)])
        assert window is None
        return GroupOperator(node, store, GroupKeys(node.keys, node.inputs[0].schema, node.name))

    @cached_property
    def window_ms(self) -> int:
        """Milliseconds between looks for idle sources; a day if there is nothing to look for."""
        options = self.options
        readers = [*self._readers.values()]
        # A topic that is alone needs no look, unless another stage is told.
        alone = len(readers) == 1 and isinstance(readers[0], TopicRows)
        writes = any(node in self.stage.nodes for node in self.internal)
        given = [options.close_idle_ms]
        if options.idle_ms is not None and (writes or not alone):
            given.append(options.idle_ms)
        waits = [ms for ms in given if ms is not None]
        return max(1, min(waits) // 3) if waits else DAY_MS


def _names_of_times(stage: Stage) -> list[str]:
    """Return the names under which a stage keeps its watermarks.

    They are those of the operators that need them, because the stage's own name changes when an
    operator is added to it.
    """
    timed = [node.name for node in stage.nodes if _needs_time(node)]
    timed += [f"{node.name}{REPARTITION}" for node in stage.nodes if isinstance(node, Repartition)]
    return timed or list(stage.stores[:1])


def _needs_time(node: Node) -> TypeGuard[StatefulNode]:
    """Return True if a watermark decides what an operator does."""
    if isinstance(node, GroupAggregate):
        return isinstance(node.window, TimeWindow)
    return isinstance(node, DropDuplicates)


def _not_found_before(node: StatefulNode, late: LateRows) -> LateRows:
    """Return the function for late rows that leaves out those that were late before the topic."""
    if not isinstance(node.inputs[0], Repartition):
        return late

    def found_here(rows: pl.DataFrame, /) -> None:
        late(rows.filter(~late_rows(node, rows)))

    return found_here


def _stores(session: Session, node: StatefulNode) -> list[Store[Any, Any]]:
    """Return the stores of an operator.

    A commit applies to them in this order. The last closed window comes before the panes, because
    readers look at the panes first, and must know of every window whose panes are deleted.
    """
    definition = _definition(node)
    if isinstance(node, DropDuplicates):
        key = duplicate_keys(node).declared
        once: AnySpec = StoreSpec(
            node.name, key=key, value=int, definition=definition, limits=BY_MEMORY
        )
        return [Store(session, once)]
    assert isinstance(node, GroupAggregate)
    aggregates = kept_aggregates(node)
    spec = aggregates.spec(
        node.name,
        state_keys(node).declared,
        rows=state_inputs(node),
        definition=definition,
        limits=BY_MEMORY,
    )
    kept = GroupStore(session, spec, StoredGroups.of_node(node), aggregates)
    if kept.groups.is_merged:
        closed: AnySpec = StoreSpec(closed_of(node.name), key=str, value=int, limits=BY_MEMORY)
        return [Store(session, closed), kept]
    if isinstance(node.window, CountWindow):
        keys = GroupKeys(node.keys, node.inputs[0].schema, node.name)
        return [kept, Store(session, counter_spec(_counts_of(node), keys.declared))]
    if isinstance(node.window, SessionWindow):
        due = deadline_keys(node).declared
        deadlines: AnySpec = StoreSpec(_deadlines_of(node), key=due, value=int, limits=BY_MEMORY)
        return [kept, Store(session, deadlines)]
    return [kept]


def _definition(node: StatefulNode) -> str:
    """Return what defines the state of an operator, as JSON.

    The aggregates are left out, because a store's declaration has them already. The types of state
    and results are there, so that the declaration is enough to read the state.
    """
    found = {k: v for k, v in fingerprint(node).definition.items() if k != "aggregates"}
    if isinstance(node, GroupAggregate):
        found |= typed_figures(node)
    return msgspec.json.encode(found, order="sorted").decode()


def _counts_of(node: GroupAggregate) -> str:
    return f"{node.name}-counts"


def _deadlines_of(node: GroupAggregate) -> str:
    return f"{node.name}-deadlines"


def _fields_read(source: TopicSource | Through) -> Mapping[str, str]:
    if isinstance(source, TopicSource):
        return source.fields
    from strandline.framework.streams.sources import topic_rows

    return topic_rows(source.topic, "through")[0]


def _options(stage: Stage) -> StreamOptions:
    """Return the settings of the topics that a stage's rows come from; of several, the first."""
    waiting: list[Node] = list(stage.sources)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, TopicSource):
            return node.options
        waiting += node.inputs
    return StreamOptions()
