"""Register of an app's topics, stores and tasks, and the checks of them."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, TypeVar

from strandline.changelog.broker import Broker
from strandline.changelog.clock import SystemClock
from strandline.changelog.config import check_topic_name
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRequest,
    NotAuthorized,
    SchemaMismatch,
    TopicExists,
    Unauthenticated,
    UnknownTopic,
)
from strandline.changelog.records import TopicInfo, TopicPartition
from strandline.changelog.settings import LONG_MAX
from strandline.framework.moved_topics import check_moved
from strandline.framework.options import Options
from strandline.framework.store import Store
from strandline.framework.stream_columns import DerivedTopic
from strandline.framework.task import TaskSpec, dead_letter_topic, timer_store
from strandline.framework.topic import Topic
from strandline.framework.topic_creation import (
    check_changelog,
    copartitioned,
    created_or_checked,
    dead_letter_config,
)
from strandline.statestore.internal_names import CHANGELOG, REPARTITION, TIMERS
from strandline.statestore.lost_topics import check_recorded
from strandline.statestore.recorded import declarations_topic
from strandline.statestore.spec import StoreSpec

_log = logging.getLogger("strandline")

TopicT = TypeVar("TopicT", bound=Topic[Any, Any])
StoreT = TypeVar("StoreT", bound=Store[Any, Any])

INTERNAL_SUFFIXES = (CHANGELOG, REPARTITION, TIMERS)
"""Endings that names of stores may not have, because internal topics use them."""
CHANGELOG_CONFIG = {"cleanup.policy": "compact"}
"""Settings of the changelog of a store without a time to live."""
TTL_MARGIN_MS = 24 * 60 * 60 * 1000
"""Milliseconds by which a changelog keeps values longer than their store does.

Retention goes by another clock than a store's time to live, so it must be later. Kafka Streams has
the same margin: `windowstore.changelog.additional.retention.ms`.
"""
TTL_SEGMENTS = 4
"""Minimum number of segments per time to live, because only whole segments are deleted."""
TTL_SEGMENT_MIN_MS = 10 * 60 * 1000
"""Minimum milliseconds until a segment of a changelog is closed, so that they do not become many."""


def check_app_name(app: str) -> None:
    """Raise InvalidConfig unless `app` is a valid name for an app and the folder of its stores.

    >>> check_app_name("..")
    Traceback (most recent call last):
    strandline.changelog.errors.InvalidConfig: '..' cannot be an app's name; use 1 to 100 of A-Z a-z 0-9 . _ -, not beginning with two underscores, nor . or ..
    """
    plain = re.fullmatch(r"[A-Za-z0-9._-]{1,100}", app)
    if not plain or app.startswith("__") or app in (".", ".."):
        raise InvalidConfig(
            f"{app[:200]!r} cannot be an app's name; use 1 to 100 of A-Z a-z 0-9 . _ -, not"
            " beginning with two underscores, nor . or .."
        )


class Declarations:
    """The topics, stores and tasks of one app."""

    def __init__(self, app: str) -> None:
        check_app_name(app)
        self.app = app
        self.topics: dict[str, Topic[Any, Any]] = {}
        self.stores: dict[str, Store[Any, Any]] = {}
        self._tasks: dict[str, TaskSpec] = {}
        self.dropped: set[str] = set()
        """Names of tasks of earlier versions that are none of these tasks by another name."""
        self.is_running: Callable[[], bool] = bool
        """Function that returns True while a worker of the app runs in this process."""
        self.derive: Callable[[Declarations], None] = _nothing
        """Function that adds the tasks of streams that were declared since its last call."""

    @property
    def tasks(self) -> dict[str, TaskSpec]:
        """Tasks by name: the declared ones, and those that run the app's streams."""
        if not self.is_running():
            self.derive(self)
        return self._tasks

    @property
    def all_topics(self) -> dict[str, Topic[Any, Any]]:
        """Topics by name: `topics`, and those that were declared by streams since the last call."""
        _ = self.tasks  # this derives the tasks of streams, which declare their topics
        return self.topics

    def add_topic(self, topic: TopicT) -> TopicT:
        """Register a topic. A second declaration of the name must be the same."""
        known = self.topics.get(topic.name)
        if known is not None:
            if known.same_as(topic):
                return known  # type: ignore[return-value]
            raise InvalidConfig(
                f"topic {topic.name!r} is declared twice with different types or settings;"
                " declare it once and use that handle"
            )
        check_topic_name(topic.name)
        if topic.partitions is not None and topic.partitions < 1:
            raise InvalidConfig(f"topic {topic.name!r}: partitions must be positive")
        self.topics[topic.name] = topic
        return topic

    def add_store(self, store: StoreT) -> StoreT:
        """Register a store under a name that no other store has."""
        if store.name in self.stores:
            raise InvalidConfig(f"store {store.name!r} is declared twice; use the first handle")
        if store.name.endswith(INTERNAL_SUFFIXES):
            raise InvalidConfig(f"store {store.name!r}: names with this ending are reserved")
        self.stores[store.name] = store
        return store

    def store(self, name: str | Store[Any, Any]) -> Store[Any, Any]:
        """Return the store of a name, also that of a stream. Raises InvalidRequest.

        Args:
            name: Name of the store; a store is returned as it is.
        """
        if isinstance(name, Store):
            return name
        _ = self.tasks  # this derives the tasks of streams, which declare their stores
        if name in self.stores:
            return self.stores[name]
        near = get_close_matches(name, self.stores, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its stores: {[*self.stores]}"
        raise InvalidRequest(f"app {self.app!r} has no store {name!r}; {hint}")

    def add_task(self, spec: TaskSpec, *, by_key: bool = False) -> None:
        """Register a task, and its stores as belonging to it.

        Args:
            spec: The task.
            by_key: Whether stores have their keys from the keys of the inputs, as those of streams
                do not: the definition of each operator says what those are of.
        """
        if spec.name in self._tasks:
            raise InvalidConfig(
                f"there are two tasks called {spec.name!r} ({self._tasks[spec.name].where} and"
                f" {spec.where}); give one of them a name="
            )
        self._check_inputs(spec)
        for store in spec.stores:
            if self.stores.get(store.name) is not store:
                raise InvalidConfig(
                    f"task {spec.name!r}: store {store.name!r} belongs to app {store.session.app!r}, and "
                    f"a task of app {self.app!r} has stores of its own app; declare it with "
                    f"app.store here, or read the other one with sl.connect(log).store(…)"
                )
        if self.is_running():
            raise InvalidConfig(
                f"task {spec.name!r} is declared while app {self.app!r} is running, which would not "
                "take it up; declare all tasks before app.run, or stop the app first"
            )
        if spec.on_error == "dead_letter":
            spec.dead_letter = self.add_topic(dead_letter_topic(spec))
        keyed_by = _key_columns(spec.inputs) if by_key else ()
        for store in spec.stores:
            store.task = spec.name
            store.spec = replace(store.spec, keyed_by=keyed_by)
        self._tasks[spec.name] = spec

    def remove_task(self, spec: TaskSpec) -> None:
        """Remove a derived task, with its topic of dead letters."""
        del self._tasks[spec.name]
        if spec.dead_letter is not None:
            self.topics.pop(spec.dead_letter.name, None)

    def drop_task(self, name: str) -> None:
        """Record that a task of an earlier version is not needed any more; see `App.drop_task`."""
        if name in self.tasks and self.tasks[name].has_timers:
            raise InvalidConfig(
                f"task {name!r} is declared and has timers, so it cannot be dropped; leave out"
                f" drop_task({name!r}), or the task's on_timer"
            )
        self.dropped.add(name)

    def check_tasks(self) -> None:
        """Raise InvalidConfig if there is nothing to run."""
        if not self.tasks:
            raise InvalidConfig(
                f"app {self.app!r} has no tasks to run; decorate a handler with @app.task(topic)"
            )

    def task_of(self, task: Callable[..., Any] | str) -> TaskSpec:
        """Return the task with this handler or name. Raise InvalidConfig if there is none."""
        for spec in self.tasks.values():
            if task in (spec.name, spec.handler):
                return spec
        raise InvalidConfig(f"{task!r} is not a task of app {self.app!r}; decorate it first")

    def prepare(self, broker: Broker) -> dict[str, TopicInfo]:
        """Create the topics that do not exist, check those that do, and return all of them.

        Raises InvalidConfig, SchemaMismatch, InternalTopicLost, MoveUnfinished.
        """
        self._check_not_internal()
        check_moved([*self.topics, *self.internal_topics()], broker, SystemClock())
        self._check_not_lost(broker)
        letters = {spec.dead_letter.name: spec for spec in self.tasks.values() if spec.dead_letter}
        infos: dict[str, TopicInfo] = {}
        for name, topic in self.topics.items():
            if name not in letters:
                infos[name] = created_or_checked(broker, topic, topic.config, infos)
        for name, spec in letters.items():
            topic, stored = self.topics[name], spec.inputs[0].stored_schema
            if topic.is_derived and stored is not None:
                topic.follow(stored)  # records are copied as they are
            config = dead_letter_config(infos[source.name] for source in spec.inputs)
            try:
                infos[name] = created_or_checked(broker, topic, config, infos)
            except SchemaMismatch as error:
                raise SchemaMismatch(
                    f"{error}. It has letters from when task {spec.name!r} read records of another "
                    f"form: handle them, then delete it (`strandline topics delete {name}`), or "
                    "give the task another name"
                ) from error
        for spec in self.tasks.values():
            partitions = copartitioned(
                spec.name, {topic.name: infos[topic.name].partitions for topic in spec.inputs}
            )
            stores = [store.spec for store in spec.stores]
            for store in [*stores, spec.timer_store] if spec.has_timers else stores:
                name = store.changelog_topic(self.app)
                infos[name] = self._changelog(broker, name, partitions, spec, store)
        with contextlib.suppress(NotAuthorized, Unauthenticated):  # it may only append
            self._warn_if_offsets_lost(broker, infos)
        return infos

    def _warn_if_offsets_lost(self, broker: Broker, infos: Mapping[str, TopicInfo]) -> None:
        """Warn if a task has state, but nothing says how far its inputs were read.

        A cluster forgets the offsets of a group that is deleted, or that has had no member for
        `offsets.retention.minutes`.
        """
        tasks = [spec for spec in self.tasks.values() if spec.stores]
        inputs = {spec.name: _partitions_of(spec.inputs, infos) for spec in tasks}
        asked = [tp for partitions in inputs.values() for tp in partitions]
        committed = broker.committed(self.app, asked, require_stable=False) if asked else {}
        for spec in tasks:
            if committed.keys() & set(inputs[spec.name]):
                continue
            stores = [infos[store.spec.changelog_topic(self.app)] for store in spec.stores]
            if _any_records(broker, stores) and _any_records(
                broker, [infos[topic.name] for topic in spec.inputs]
            ):
                _log.warning(
                    "task %r has state, but app %r has no committed offsets of its inputs: all their "
                    "records are handled on top of that state. That is right if an input was deleted "
                    "and created again. If its records were handled before (the group was deleted, "
                    "or its offsets have expired), stop the app; `strandline reset` lets it start "
                    "over without the state",
                    *(spec.name, self.app),
                    extra={"task": spec.name, "app": self.app},
                )

    def _check_not_lost(self, broker: Broker) -> None:
        """Raise InternalTopicLost if an internal topic that a task needs was deleted.

        Call it before any of them is created again, empty, or compared with its declaration.
        """
        stores = [store for spec in self.tasks.values() for store in spec.all_stores]
        needed = [store.changelog_topic(self.app) for store in stores] + self.repartition_topics()
        if needed:
            check_recorded(self.app, broker, SystemClock(), needed)

    def prepare_topic(self, broker: Broker, name: str) -> None:
        """Check a topic that exists, or create all topics. Raises InvalidConfig, SchemaMismatch."""
        try:
            broker.topic(name)
        except UnknownTopic:
            self.prepare(broker)
        else:
            created_or_checked(broker, self.topics[name], {}, {})

    def _check_not_internal(self) -> None:
        """Refuse a declared topic that is an internal one of the app: its records would be state."""
        internal = {name for name in self.internal_topics() if name in self.topics}
        for name in internal.difference(self.derived_topics()):
            raise InvalidConfig(
                f"topic {name!r} is internal to app {self.app!r}, which keeps the state of its stores "
                "there; give the topic another name. To read a store, use app.query or sl.connect"
            )

    def internal_topics(self) -> list[str]:
        """Return the topics that `reset` deletes: changelogs, repartition topics, recorded
        declarations.
        """
        timers = [spec.timer_store for spec in self.tasks.values() if spec.has_timers]
        timers += [timer_store(name) for name in sorted(self.dropped)]
        specs = [*(store.spec for store in self.stores.values()), *timers]
        changelogs = [spec.changelog_topic(self.app) for spec in specs]
        recorded = [declarations_topic(self.app)] if changelogs or self.derived_topics() else []
        return [*changelogs, *self.repartition_topics(), *recorded]

    def derived_topics(self) -> dict[str, DerivedTopic]:
        """Return the internal topics that are no changelogs: for repartitioning, and dead letters.

        Their names begin with that of the app, so another app could arrive at the same name.
        """
        letters = [spec.dead_letter.name for spec in self.tasks.values() if spec.dead_letter]
        return dict.fromkeys(letters, DerivedTopic(has_rows=False)) | {
            name: DerivedTopic(has_rows=True, columns=self.topics[name].stream_columns)
            for name in self.repartition_topics()
        }

    def repartition_topics(self) -> list[str]:
        """Return the topics that have rows between two tasks of the app."""
        return [name for name, topic in self.topics.items() if topic.is_internal]

    def described(self, options: Options) -> dict[str, Any]:
        """Return the declarations as plain data."""
        return {
            "app": self.app,
            "processing_guarantee": options.processing_guarantee,
            "commit_interval_ms": options.commit_interval_ms,
            "tasks": [_task(spec) for spec in self.tasks.values()],
            "topics": [_topic(topic) for topic in self.topics.values()],
            "internal_topics": self.internal_topics(),
        }

    def _check_inputs(self, spec: TaskSpec) -> None:
        for topic in spec.inputs:
            if not isinstance(topic, Topic):
                raise InvalidConfig(
                    f"task {spec.name!r}: @app.task takes topics as app.topic(name, …) gives them, "
                    f"got {topic!r}"
                )
            if self.topics.get(topic.name) is not topic:
                raise InvalidConfig(
                    f"task {spec.name!r}: topic {topic.name!r} belongs to another app"
                )
        if len(set(spec.inputs)) != len(spec.inputs):
            raise InvalidConfig(f"task {spec.name!r} names an input twice")

    def _changelog(
        self, broker: Broker, name: str, partitions: int, spec: TaskSpec, store: StoreSpec[Any, Any]
    ) -> TopicInfo:
        try:
            info = broker.topic(name)
        except UnknownTopic:
            self._warn_if_state_lost(broker, name, spec, store)
            try:
                return broker.create_topic(name, partitions, config=changelog_config(store))
            except TopicExists:  # another worker of the app created it after the look-up
                info = broker.topic(name)
        check_changelog(info, spec.name, partitions)
        changes = _keeping_more(info.config, changelog_config(store))
        info = broker.alter_topic(name, config=changes) if changes else info
        return _accepting_every_time(broker, info)

    def _warn_if_state_lost(
        self, broker: Broker, name: str, spec: TaskSpec, store: StoreSpec[Any, Any]
    ) -> None:
        """Warn if a store has no changelog but its task has committed offsets.

        The store is new, was reset, or the recorded declarations were deleted together with it.
        """
        inputs = {topic.name for topic in spec.inputs}
        if any(tp.topic in inputs for tp in broker.committed(self.app, require_stable=False)):
            _log.warning(
                "store %r begins empty, but task %r continues at its committed offsets: there was no changelog %r. "
                "If the store is not a new one, that topic was deleted; `strandline reset` lets "
                "the app start again from the first record",
                store.name,
                spec.name,
                name,
                extra={"store": store.name, "task": spec.name, "topic": name},
            )


def _nothing(_declared: Declarations) -> None:
    """Derive no tasks, for an app without streams."""


def changelog_config(store: StoreSpec[Any, Any]) -> dict[str, str]:
    """Return the settings of a store's changelog: compacted, and with a time to live also deleted
    by time.

    >>> changelog_config(StoreSpec("seen", key=str, value=int))
    {'cleanup.policy': 'compact'}
    >>> changelog_config(StoreSpec("seen", key=str, value=int, ttl_ms=3_600_000))["retention.ms"]
    '90000000'
    """
    if store.ttl_ms is None:
        return CHANGELOG_CONFIG
    return {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(store.ttl_ms + TTL_MARGIN_MS),
        "segment.ms": str(max(TTL_SEGMENT_MIN_MS, store.ttl_ms // TTL_SEGMENTS)),
    }


def _keeping_more(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that make a changelog keep everything that its store needs now.

    A changelog is never made to keep less, because values from before there was a time to live do
    not expire.
    """
    if "delete" not in found.get("cleanup.policy", ""):
        return {}
    if "retention.ms" not in wanted:
        return {**wanted, "retention.ms": None, "segment.ms": None}
    kept = int(found.get("retention.ms", "-1"))
    return dict(wanted) if 0 <= kept < int(wanted["retention.ms"]) else {}


def _accepting_every_time(broker: Broker, info: TopicInfo) -> TopicInfo:
    """Return a changelog that takes the times of every worker's clock; alter it if necessary.

    Kafka refuses by default times more than an hour ahead, and topics can be created by others.
    """
    if info.effective.message_timestamp_after_max_ms == LONG_MAX:
        return info
    try:
        return broker.alter_topic(info.name, {"message.timestamp.after.max.ms": str(LONG_MAX)})
    except Unauthenticated as error:
        _log.warning(
            "changelog %r refuses times far ahead, and may not be altered: a worker whose clock is ahead could "
            "not commit; set its message.timestamp.after.max.ms to %d: %s",
            *(info.name, LONG_MAX, error),
            extra={"topic": info.name, "error": error},
        )
        return info


def _key_columns(inputs: Iterable[Topic[Any, Any]]) -> tuple[tuple[str, str], ...]:
    """Return the inputs whose key is a column, with its name."""
    return tuple((topic.name, topic.key_column) for topic in inputs if topic.key_column is not None)


def _partitions_of(
    topics: Iterable[Topic[Any, Any]], infos: Mapping[str, TopicInfo]
) -> list[TopicPartition]:
    return [tp for topic in topics for tp in infos[topic.name].topic_partitions]


def _any_records(broker: Broker, topics: Iterable[TopicInfo]) -> bool:
    """Return True if one of the topics has records."""
    asked = [tp for info in topics for tp in info.topic_partitions]
    return any(end.high_watermark > end.log_start for end in broker.offsets(asked).values())


def _task(spec: TaskSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "inputs": [topic.name for topic in spec.inputs],
        "stores": [store.name for store in spec.stores],
        "on_error": spec.on_error,
        "timers": spec.has_timers,
        "handler": spec.where,
    }


def _topic(topic: Topic[Any, Any]) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": topic.partitions,
        "key": topic.key_column,
        "columns": None if topic.schema is None else topic.schema.names,
        "config": topic.config,
    }
