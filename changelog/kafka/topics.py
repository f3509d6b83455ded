"""Topics of a cluster: creation, changes, deletion, descriptions.

Kafka answers a change when its controller has decided, and brokers receive it a moment later.
Therefore each change waits until a description shows it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import TopicCollection, Uuid
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from strandline.changelog.config import check_partitions, check_topic_name, topic_settings
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidTopic,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.kafka import settings
from strandline.changelog.kafka.connection import ATTEMPT_S, DEADLINE_S, KafkaConnection
from strandline.changelog.records import TopicInfo, TopicPartition

SHAPE_MAX_AGE_S = 5.0
"""Seconds for which a topic's shape is cached for appends and fetches."""
SYSTEM_TOPICS = ("__consumer_offsets", "__transaction_state")


class TopicShape(NamedTuple):
    """Properties of a topic that appends and fetches need."""

    topic_id: str
    partitions: int


class KafkaTopics:
    """The topics of one cluster. Thread-safe."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._known: dict[str, tuple[TopicShape, float]] = {}

    # Changing -------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        schema: pa.Schema | None,
        *,
        internal: bool,
    ) -> TopicInfo:
        """See Broker.create_topic."""
        check_topic_name(name, internal)
        _refuse_schema(name, schema)
        check_partitions(name, partitions)
        factor = self._connection.cluster.replication_factor
        wanted = settings.to_kafka({**settings.CREATED_WITH, **config})
        topic = NewTopic(name, partitions, factor, config=wanted)
        doing = f"creating topic {name!r}"
        try:
            self._one(
                self._connection.admin.create_topics([topic], request_timeout=DEADLINE_S), doing
            )
        except TopicExists:
            self._shown(name, 1, doing)  # another process may be creating it at this moment
            raise
        return self._shown(name, partitions, doing)

    def delete(self, name: str) -> None:
        """See Broker.delete_topic."""
        refuse_system(name, "delete")
        doing = f"deleting topic {name!r}"
        self._one(self._connection.admin.delete_topics([name], request_timeout=DEADLINE_S), doing)
        self._connection.until(lambda: None if self._exists(name) else True, doing)

    def alter(
        self,
        name: str,
        config: Mapping[str, str | None],
        partitions: int | None,
        schema: pa.Schema | None,
    ) -> TopicInfo:
        """See Broker.alter_topic.

        Settings are changed first, and remain changed if adding partitions fails.
        """
        _refuse_schema(name, schema)
        present = self.describe(name)
        if partitions is not None:
            check_partitions(name, partitions, present.partitions)
        if config:
            self._set(present, config)
        if partitions is not None and partitions > present.partitions:
            self._add_partitions(name, partitions)
        return self._shown(name, partitions or present.partitions, f"altering topic {name!r}")

    def _set(self, present: TopicInfo, config: Mapping[str, str | None]) -> None:
        defaults = settings.CREATED_WITH
        config = {
            key: defaults.get(key) if value is None else value for key, value in config.items()
        }
        merged = {**present.defaults, **present.config, **config}
        settings.to_kafka({key: value for key, value in merged.items() if value is not None})
        given = settings.to_kafka({k: value for k, value in config.items() if value is not None})
        changes = [
            ConfigEntry(key, given[key], incremental_operation=AlterConfigOpType.SET)
            if value is not None
            else ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, present.name, incremental_configs=changes)
        doing = f"altering topic {present.name!r}"
        self._one(
            self._connection.admin.incremental_alter_configs(
                [resource], request_timeout=DEADLINE_S
            ),
            doing,
        )

        def is_shown() -> bool | None:
            entries = self._settings([present.name])[present.name]
            shown = all(_is_set(entries.set_to(key), key, value) for key, value in config.items())
            return shown or None

        self._connection.until(is_shown, doing)

    def _add_partitions(self, name: str, partitions: int) -> None:
        more = [NewPartitions(name, partitions)]
        try:
            self._one(
                self._connection.admin.create_partitions(more, request_timeout=DEADLINE_S),
                f"adding partitions to topic {name!r}",
            )
        except InvalidConfig:
            # Another process may have added them since the topic was described.
            if len(self._describe([name])[name].partitions) < partitions:
                raise

    def _shown(self, name: str, partitions: int, doing: str) -> TopicInfo:
        """Wait until each partition of a topic has a leader, and return its description."""

        def shown() -> TopicInfo | None:
            try:
                described = self._describe([name])[name]
                if len(described.partitions) < partitions:
                    return None
                if any(part.leader is None for part in described.partitions):
                    return None
                return self.describe(name)
            except UnknownTopic:
                return None

        return self._connection.until(shown, doing)

    def _exists(self, name: str) -> bool:
        try:
            self._describe([name])
        except UnknownTopic:
            return False
        return True

    def _one(self, futures: Mapping[Any, Any], doing: str) -> None:
        with self._lock:
            self._known.clear()
        for future in futures.values():
            self._connection.result(future, doing)

    # Descriptions ---------------------------------------------------------------------

    def all(self) -> list[TopicInfo]:
        """Return the descriptions of all topics, sorted by name."""
        return self._infos(sorted(self._listed()), gone_is_fine=True)

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of all topics."""
        return [
            TopicPartition(name, number)
            for name, topic in self._listed().items()
            for number in topic.partitions
        ]

    def _listed(self) -> dict[str, Any]:
        with self._connection.translated("listing topics"):
            return dict(self._connection.admin.list_topics(timeout=DEADLINE_S).topics)

    def describe(self, name: str) -> TopicInfo:
        """Return the description of a topic. Raises UnknownTopic."""
        check_known(name)
        return self._infos([name])[0]

    def _infos(self, names: list[str], *, gone_is_fine: bool = False) -> list[TopicInfo]:
        described = self._describe(names, gone_is_fine=gone_is_fine)
        found = self._settings(list(described), gone_is_fine=gone_is_fine)
        return [
            TopicInfo(
                name,
                hexadecimal(described[name].topic_id),
                len(described[name].partitions),
                of.own,
                internal=described[name].is_internal or name.startswith("__"),
                defaults=of.others,
                told=tuple(of.told),
            )
            for name, of in found.items()
        ]

    def shape(self, name: str) -> TopicShape:
        """Return id and number of partitions, at most SHAPE_MAX_AGE_S old. Raises UnknownTopic."""
        now = self._connection.clock.monotonic()
        with self._lock:
            known = self._known.get(name)
        if known is not None and now - known[1] < SHAPE_MAX_AGE_S:
            return known[0]
        check_known(name)
        return _shape_of(self._describe([name])[name])

    def refresh(self, names: Collection[str]) -> None:
        """Ask for the shapes of topics now, for answers that tell whose offsets they are.

        A topic that was deleted and created again has another id. Topics that do not exist are
        left out.
        """
        for name in names:
            check_known(name)
        self.forget(names)
        self._describe(sorted(names), gone_is_fine=True)

    def forget(self, names: Collection[str]) -> None:
        """Drop cached shapes, after an error that shows that they are outdated."""
        with self._lock:
            for name in names:
                self._known.pop(name, None)

    def check(self, partition: TopicPartition) -> TopicShape:
        """Return the shape of a partition's topic. Raises UnknownTopic, UnknownPartition."""
        shape = self.shape(partition.topic)
        if not 0 <= partition.partition < shape.partitions:
            self.forget([partition.topic])
            shape = self.shape(partition.topic)
        if not 0 <= partition.partition < shape.partitions:
            raise UnknownPartition(
                f"topic {partition.topic!r} has partitions 0 to {shape.partitions - 1}, got "
                f"{partition.partition}"
            )
        return shape

    def _describe(self, names: list[str], *, gone_is_fine: bool = False) -> dict[str, Any]:
        if not names:
            return {}
        doing, clock = "describing topic", self._connection.clock

        def described() -> tuple[float, dict[str, Any]]:
            # Not list_topics(topic=…), which creates the topic if auto.create.topics.enable is on.
            asked_at = clock.monotonic()
            futures = self._connection.admin.describe_topics(
                TopicCollection(names), request_timeout=ATTEMPT_S
            )
            return asked_at, self._each(futures, doing, gone_is_fine=gone_is_fine)

        asked_at, found = self._connection.until(described, f"{doing} {', '.join(names)}")
        self._note(found, asked_at)
        return found

    def _note(self, described: Mapping[str, Any], asked_at: float) -> None:
        """Keep the shapes of topics that were described in answer to a request at a time."""
        with self._lock:
            for name, topic in described.items():
                known = self._known.get(name)
                if known is None or known[1] <= asked_at:
                    self._known[name] = _shape_of(topic), asked_at

    def _settings(
        self, names: list[str], *, gone_is_fine: bool = False
    ) -> dict[str, settings.DescribedConfig]:
        """Return the settings of topics, by name."""
        if not names:
            return {}
        doing = "describing the settings of"

        def described() -> dict[str, Any]:
            futures = self._connection.admin.describe_configs(
                [ConfigResource(ResourceType.TOPIC, name) for name in names],
                request_timeout=ATTEMPT_S,
            )
            by_name = {resource.name: future for resource, future in futures.items()}
            return self._each(by_name, doing, gone_is_fine=gone_is_fine)

        found = self._connection.until(described, f"{doing} {', '.join(names)}")
        return {name: settings.from_kafka(entries) for name, entries in found.items()}

    def _each(
        self, futures: Mapping[str, Any], doing: str, *, gone_is_fine: bool
    ) -> dict[str, Any]:
        """Return results by topic. With `gone_is_fine`, deleted topics are left out."""
        found = {}
        for name, future in futures.items():
            try:
                found[name] = self._connection.result(future, f"{doing} {name}")
            except UnknownTopic:
                if not gone_is_fine:
                    raise
        return found


def _shape_of(described: Any) -> TopicShape:
    return TopicShape(hexadecimal(described.topic_id), len(described.partitions))


def hexadecimal(topic_id: Uuid) -> str:
    """Return a topic's id as 32 hexadecimal digits, the format of this package."""
    high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return f"{high & _WORD:016x}{low & _WORD:016x}"


_WORD = (1 << 64) - 1


def check_known(name: str) -> None:
    """Raise UnknownTopic for an invalid name, for which Kafka would raise another error."""
    try:
        check_topic_name(name, internal=True)
    except InvalidTopic as error:
        raise UnknownTopic(f"there is no topic {name!r}: {error}") from error


def refuse_system(name: str, doing: str) -> None:
    """Raise InvalidTopic for the topics in which the cluster keeps its own state."""
    if name in SYSTEM_TOPICS:
        raise InvalidTopic(f"cannot {doing} {name!r}: it belongs to the cluster itself")


def _refuse_schema(name: str, schema: pa.Schema | None) -> None:
    if schema is not None:
        raise InvalidTopic(
            f"topic {name!r}: topics of columns are not available on a Kafka cluster; leave the "
            f"schema out and encode values as bytes (an app does, by its serde), or keep the topic "
            f"in a log folder"
        )


def _is_set(shown: str | None, name: str, value: str | None) -> bool:
    """Return True if Kafka shows that a setting has this value, in whatever form."""
    if name not in topic_settings.names:
        return True  # its form is not known
    if shown is None or value is None:
        return shown is value
    return topic_settings.are_same(name, shown, value)
