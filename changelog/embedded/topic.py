"""Topics, and the catalog: their durable list."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
import pyarrow as pa

from strandline.changelog.config import (
    MAX_PARTITIONS,
    check_partitions,
    check_topic_name,
    topic_settings,
)
from strandline.changelog.embedded import document
from strandline.changelog.embedded.context import LogContext
from strandline.changelog.embedded.folder import ClosedSizes, save_log_config
from strandline.changelog.embedded.manifest import Manifest
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.embedded.recovery import open_partition
from strandline.changelog.errors import (
    REPAIR,
    CorruptLog,
    FutureFormat,
    InvalidConfig,
    SchemaMismatch,
    StorageFailed,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.layout import (
    CATALOG,
    SYSTEM_TOPICS,
    TOPIC_ID,
    TOPICS,
    is_topic_id,
    partition_folder,
    segment_of,
    topic_copy,
    topic_folder,
)
from strandline.changelog.log_config import LogConfig
from strandline.changelog.records import TopicInfo
from strandline.changelog.schema import BYTES, ValueSchemas, decode_schemas, encode_schemas
from strandline.changelog.storage import Storage

KIND = "topics"
COPY_KIND = "topic"
TopicId = Annotated[str, msgspec.Meta(pattern=f"^{TOPIC_ID}$")]
"""Identifier of a topic. The pattern is checked, because it becomes part of a path."""


class TopicMeta(msgspec.Struct, kw_only=True):
    """A topic's entry in the catalog."""

    name: str
    topic_id: TopicId
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]
    config: dict[str, str]
    schemas: list[bytes] = []
    internal: bool = False

    def save_copy(self, storage: Storage) -> None:
        """Write a copy into the topic's folder, durably, so that a lost catalog can be rebuilt."""
        storage.make_dir(topic_folder(self.topic_id))
        document.save(storage, topic_copy(self.topic_id), COPY_KIND, self)

    @staticmethod
    def load_copy(storage: Storage, topic_id: str) -> TopicMeta:
        """Load the copy in the topic's folder.

        Raises FileNotFoundError, CorruptLog, FutureFormat.
        """
        return document.load(storage, topic_copy(topic_id), COPY_KIND, TopicMeta)


class OpenTopic:
    """A topic of the open log, with its partitions."""

    def __init__(self, context: LogContext, meta: TopicMeta, closed: ClosedSizes | None) -> None:
        self._context = context
        self.meta = meta
        try:
            self.config = context.config.topic(meta.config)
        except InvalidConfig as error:
            raise CorruptLog(f"{CATALOG}, topic {meta.name}: {error}; {REPAIR}") from error
        self.schemas = decode_schemas(meta.schemas, f"{CATALOG}, topic {meta.name}")
        self.partitions: list[Partition] = []
        self.open_partitions(closed)

    def open_partitions(self, closed: ClosedSizes | None) -> None:
        """Open the partitions that are not open yet, in parallel."""

        def open_one(number: int) -> Partition:
            folder = partition_folder(self.meta.topic_id, number)
            fresh = Manifest(topic=self.meta.name, topic_id=self.meta.topic_id, partition=number)
            size = None if closed is None else closed.get(folder, 0)
            partition = open_partition(self._context, folder, self.config, fresh, size)
            partition.schemas = self.schemas
            return partition

        missing = range(len(self.partitions), self.meta.partitions)
        self.partitions += self._context.in_parallel(open_one, missing)

    def partition(self, number: int) -> Partition:
        """Return a partition by its number. Raises UnknownPartition."""
        if not 0 <= number < len(self.partitions):
            raise UnknownPartition(
                f"topic {self.meta.name!r} has partitions 0 to {len(self.partitions) - 1}, "
                f"got {number}"
            )
        return self.partitions[number]

    def apply(self, meta: TopicMeta) -> None:
        """Apply a changed entry of the catalog, for everything written from now on."""
        self.meta = meta
        self.schemas = decode_schemas(meta.schemas, f"{CATALOG}, topic {meta.name}")
        for partition in self.partitions:
            partition.schemas = self.schemas
        self.apply_config()
        self.open_partitions({})

    def apply_config(self) -> None:
        """Apply the settings of the topic and of the log, for everything done from now on."""
        was_compacted = self.config.compact
        self.config = self._context.config.topic(self.meta.config)
        for partition in self.partitions:
            partition.config = self.config
        if was_compacted and not self.config.compact:
            self.wait_for_cleaning()

    def wait_for_cleaning(self) -> None:
        """Return when the cleaner is rewriting no partition of the topic.

        The cleaner ends a pass at its next step once the topic is not compacted any more, or is
        deleted.
        """
        for partition in self.partitions:
            with partition.cleaning:
                pass

    def info(self) -> TopicInfo:
        """Return the topic's description for clients."""
        return TopicInfo(
            self.meta.name,
            self.meta.topic_id,
            self.meta.partitions,
            dict(self.meta.config),
            self.schemas.latest,
            self.schemas.latest_id,
            self.meta.internal,
            dict(self._context.config.topic_defaults),
        )


class TopicCatalog:
    """All topics of a log. A change is durable when its method returns."""

    def __init__(self, context: LogContext, closed: ClosedSizes | None) -> None:
        self._context = context
        storage = context.storage
        try:
            metas = document.load(storage, CATALOG, KIND, list[TopicMeta])
        except FileNotFoundError:
            if storage.list_dir(TOPICS):
                raise CorruptLog(
                    f"{CATALOG} is missing though there are topics; {REPAIR}"
                ) from None
            metas = []
            self._save(metas)  # before any topic has a folder, so that its loss is noticed
        known = {meta.topic_id for meta in metas}
        if forgotten := forgotten_topics(storage, known):
            raise CorruptLog(
                f"{CATALOG} does not list the topic in {forgotten[0]}, which has records: it is of another "
                f"log or from an earlier time; put back this log's own if you can; {REPAIR}"
            )
        if closed is None and (lost := lost_topics(storage, metas)):
            raise CorruptLog(
                f"{topic_folder(lost[0].topic_id)} is missing, the folder of topic "
                f"{lost[0].name!r}, and its records with it; put it back if you can; {REPAIR}"
            )
        for topic_id in storage.list_dir(TOPICS):
            # A crash interrupted the creation of this topic, or its deletion.
            if topic_id not in known and is_topic_id(topic_id):
                storage.remove_tree(topic_folder(topic_id))
        for meta in metas:
            if _copy_of(storage, meta.topic_id) != meta:
                meta.save_copy(storage)
        self._topics = {meta.name: OpenTopic(context, meta, closed) for meta in metas}

    def __iter__(self) -> Iterator[OpenTopic]:
        return iter(list(self._topics.values()))

    def get(self, name: str) -> OpenTopic:
        """Return a topic by its name. Raises UnknownTopic."""
        try:
            return self._topics[name]
        except KeyError:
            raise UnknownTopic(
                f"there is no topic {name!r}; check the spelling, or create it if there shall be one "
                "(`strandline topics list` shows all)"
            ) from None

    def has(self, name: str) -> bool:
        """Return True if a topic of that name exists."""
        return name in self._topics

    def partition_by_id(self, topic_id: str, number: int) -> Partition | None:
        """Return a partition by its topic's id; None if that topic does not exist."""
        for topic in self:
            if topic.meta.topic_id == topic_id:
                return topic.partition(number)
        return None

    def has_id(self, topic_id: str) -> bool:
        """Return True if a topic with that id exists."""
        return any(topic.meta.topic_id == topic_id for topic in self)

    def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        schema: pa.Schema | None,
        *,
        internal: bool,
    ) -> OpenTopic:
        """Create a topic. Raises TopicExists, InvalidTopic, InvalidConfig, SchemaMismatch."""
        check_topic_name(name, internal)
        if name in self._topics:
            raise TopicExists(f"there is a topic {name!r} already")
        check_partitions(name, partitions)
        _check_config(name, config, self._context.config, given=config)
        schemas = ValueSchemas() if schema is None else ValueSchemas().extended(schema, name)
        meta = TopicMeta(
            name=name,
            topic_id=self._context.clock.new_id(),
            partitions=partitions,
            config=dict(config),
            schemas=encode_schemas(schemas.versions),
            internal=internal,
        )
        topic = OpenTopic(self._context, meta, {})
        meta.save_copy(self._context.storage)
        self._save([*(other.meta for other in self), meta])
        self._topics[name] = topic
        return topic

    def alter(
        self,
        name: str,
        config: Mapping[str, str | None] | None,
        partitions: int | None,
        schema: pa.Schema | None,
    ) -> OpenTopic:
        """Change a topic. Raises UnknownTopic, InvalidConfig, SchemaMismatch."""
        topic = self.get(name)
        merged = {**topic.meta.config, **(config or {})}
        settings = {key: value for key, value in merged.items() if value is not None}
        given = {key: value for key, value in settings.items() if key in (config or {})}
        _check_config(name, settings, self._context.config, given)
        if partitions is not None:
            check_partitions(name, partitions, topic.meta.partitions)
        schemas = topic.schemas
        if schema is not None:
            if schemas.latest_id == BYTES:
                raise SchemaMismatch(
                    f"topic {name!r} holds bytes and cannot get a schema; create a typed topic"
                )
            schemas = schemas.extended(schema, name)
        changed = msgspec.structs.replace(
            topic.meta,
            config=settings,
            partitions=partitions or topic.meta.partitions,
            schemas=encode_schemas(schemas.versions),
        )
        changed.save_copy(self._context.storage)
        self._save([changed if other is topic else other.meta for other in self])
        topic.apply(changed)
        return topic

    def alter_log(self, changes: Mapping[str, str | None]) -> LogConfig:
        """Change the settings of the log as a whole, and apply them to all topics.

        Raises InvalidConfig.
        """
        config = self._context.config.altered(changes)
        for topic in self:
            _check_config(topic.meta.name, topic.meta.config, config, given={})
        save_log_config(self._context.storage, config)
        self._context.config = config
        for topic in self:
            topic.apply_config()
        return config

    def delete(self, name: str) -> OpenTopic:
        """Remove a topic from the catalog, then delete its files. Raises UnknownTopic."""
        topic = self.get(name)
        storage, folder = self._context.storage, topic_folder(topic.meta.topic_id)
        # The copy goes first, durably: a folder with records and a copy, which the catalog does not
        # list, is not that of a deleted topic (`forgotten_topics`), and `repair` restores topics
        # from their copies. If the catalog cannot be written, the topic stays, with its copy.
        storage.unlink(topic_copy(topic.meta.topic_id))
        storage.sync_dir(folder)
        try:
            self._save([other.meta for other in self if other is not topic])
        except StorageFailed:
            with contextlib.suppress(StorageFailed):  # the next opening writes it
                topic.meta.save_copy(storage)
            raise
        del self._topics[name]
        for partition in topic.partitions:
            partition.retire()
        topic.wait_for_cleaning()
        storage.remove_tree(folder)
        return topic

    def _save(self, metas: list[TopicMeta]) -> None:
        document.save(self._context.storage, CATALOG, KIND, metas)


def forgotten_topics(storage: Storage, known: set[str]) -> list[str]:
    """Return the folders of topics with records that a catalog does not list.

    No crash leaves one: a topic has no records before the catalog lists it, and no copy of its
    entry when the catalog no longer does. The catalog is another log's, or an earlier one.

    Args:
        storage: The log folder.
        known: Ids of the topics in the catalog.
    """
    return [
        topic_folder(topic_id)
        for topic_id in storage.list_dir(TOPICS)
        if topic_id not in known and is_topic_id(topic_id) and _has_records(storage, topic_id)
    ]


def lost_topics(storage: Storage, metas: Iterable[TopicMeta]) -> list[TopicMeta]:
    """Return the topics of a catalog whose folder is missing.

    No crash leaves one: a topic's folder is durable before the catalog lists the topic, and is
    removed when the catalog no longer does. Such a topic may have had records, and must not begin
    again at offset 0. (After an orderly close the sizes of its partitions show whether it had any.)

    Args:
        storage: The log folder.
        metas: The topics in the catalog.
    """
    return [meta for meta in metas if not storage.exists(topic_folder(meta.topic_id))]


def _has_records(storage: Storage, topic_id: str) -> bool:
    """Return True if a topic's folder has a copy of its entry, and a segment that is not empty."""
    if not storage.exists(topic_copy(topic_id)):
        return False
    for number in storage.list_dir(topic_folder(topic_id)):
        if number.isdecimal() and _holds_bytes(storage, f"{topic_folder(topic_id)}/{number}"):
            return True
    return False


def _holds_bytes(storage: Storage, folder: str) -> bool:
    """Return True if a partition's folder has a segment that is not empty.

    No log makes symbolic links, so a link is no folder and no segment of a topic.
    """
    with _ignoring_links():
        for name in storage.list_dir(folder):
            segment = segment_of(name)
            if segment is None or name != segment.log_file:
                continue
            with _ignoring_links(), contextlib.closing(storage.open(f"{folder}/{name}")) as file:
                if file.size():
                    return True
    return False


@contextlib.contextmanager
def _ignoring_links() -> Iterator[None]:
    """End the block at a symbolic link."""
    try:
        yield
    except StorageFailed as error:
        if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ELOOP):
            raise


def _copy_of(storage: Storage, topic_id: str) -> TopicMeta | None:
    """Return the copy in the topic's folder; None if it is missing or damaged."""
    try:
        return TopicMeta.load_copy(storage, topic_id)
    except FutureFormat:
        raise
    except (FileNotFoundError, CorruptLog):
        return None


def _check_config(
    name: str, settings: Mapping[str, str], log: LogConfig, given: Mapping[str, str]
) -> None:
    """Raise InvalidConfig unless a topic may have `settings`, of which `given` are new."""
    try:
        config = log.topic(settings)
        for setting, text in given.items():
            topic_settings.check_given(setting, text, setting)
    except InvalidConfig as error:
        raise InvalidConfig(f"topic {name!r}: {error}") from error
    if name in SYSTEM_TOPICS and config.cleanup_policy != "compact":
        raise InvalidConfig(
            f"topic {name!r} belongs to the log itself and is always compacted; set its "
            f"cleanup.policy to compact"
        )
