"""Committed offsets of groups.

Kafka stores them by the topic's name and deletes them with the topic. A client that does not know
that the topic was deleted and created again can still commit an offset of the old one afterwards.
Therefore the offset's metadata begins with the ids of its topic and cluster, in a form that is also
JSON, and an offset of another topic of the same name counts for nothing:

    metadata of the caller      stored
    ""                          {"topic_id":"<32 digits>@<cluster id>"}
    {"tasks":{"a":5}}           {"topic_id":"<32 digits>@<cluster id>","tasks":{"a":5}}
    other text                  the text alone, without an id
    too long for the id         the metadata of the caller alone

An offset without an id is believed to be of the current topic, whose id is filled in. So is one with
the id of another cluster, from which a program like MirrorMaker has translated it.

A single offset cannot be deleted, because confluent-kafka lacks Kafka's call OffsetDelete. A group
without members can be deleted as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import TopicPartition as KafkaPartition

from strandline.changelog.config import check_client_name
from strandline.changelog.errors import (
    CoordinatorLoading,
    InvalidRequest,
    OwnerUnavailable,
    RequestTimedOut,
    UnknownTopic,
)
from strandline.changelog.groups import check_commit
from strandline.changelog.kafka.connection import DEADLINE_S, KafkaConnection
from strandline.changelog.kafka.coordinators import Coordinators
from strandline.changelog.kafka.member import KafkaMember
from strandline.changelog.kafka.topics import KafkaTopics
from strandline.changelog.records import CommittedOffset, TopicPartition

OUTAGES = (OwnerUnavailable, RequestTimedOut)


def position_of(
    partition: TopicPartition, committed: CommittedOffset, connection: KafkaConnection
) -> KafkaPartition:
    """Return a committed offset in librdkafka's type."""
    metadata, topic_id = committed.metadata, committed.topic_id
    if stored := with_topic_id(metadata, topic_id, connection.cluster_id):
        # Without an id the offset is believed, as those of earlier versions are.
        metadata = stored if len(stored.encode()) < connection.metadata_limit_bytes() else metadata
    if metadata:
        return KafkaPartition(*partition, committed.offset, metadata)
    return KafkaPartition(*partition, committed.offset)


def with_topic_id(metadata: str, topic_id: str, cluster_id: str) -> str:
    """Return the metadata to store for an offset of a topic.

    >>> with_topic_id('{"tasks":{"a":5}}', "", "here")
    '{"tasks":{"a":5}}'
    >>> stored = with_topic_id('{"tasks":{"a":5}}', "0f" * 16, "here")
    >>> without_topic_id(stored, "here")
    ('{"tasks":{"a":5}}', '0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f')
    >>> without_topic_id(stored, "elsewhere")
    ('{"tasks":{"a":5}}', '')
    """
    if not topic_id or not (metadata == "" or metadata.startswith('{"')):
        return metadata
    rest = f",{metadata[1:]}" if metadata else "}"
    stored = f'{{"topic_id":"{topic_id}@{cluster_id}"{rest}'
    # The cluster's id may have unusual characters.
    return metadata if _TOPIC_ID.match(stored) is None else stored


def without_topic_id(stored: str, cluster_id: str) -> tuple[str, str]:
    """Return the caller's metadata and the topic id of stored metadata; "" for what is missing.

    The topic id of another cluster than `cluster_id` is left out.
    """
    found = _TOPIC_ID.match(stored)
    if found is None:
        return stored, ""
    topic_id, cluster, end = found.groups()
    metadata = "" if end == "}" else "{" + stored[found.end() :]
    return metadata, topic_id if cluster == cluster_id else ""


_TOPIC_ID = re.compile(r'\{"topic_id":"([0-9a-f]{32})@([A-Za-z0-9_.=+/-]{0,128})"(,(?=")|\}$)')


class KafkaGroups:
    """The committed offsets of all groups of one cluster. Thread-safe."""

    def __init__(
        self, connection: KafkaConnection, topics: KafkaTopics, coordinators: Coordinators
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._coordinators = coordinators

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | None]) -> None:
        """Commit offsets without a member; see Broker.commit_offsets."""
        given = {tp: one for tp, one in offsets.items() if one is not None}
        self.check(group, given)
        dropped = set(offsets) - set(given)
        if dropped:
            self._drop(group, dropped, others=bool(given))
        given = self.of_present(given, is_member=False)
        if given:
            positions = [self._position_of(tp, one) for tp, one in given.items()]
            doing = f"committing offsets of group {group!r}"

            def committed() -> bool:
                self._coordinators.commit(group, positions)
                return True

            self._connection.until(committed, doing)

    def commit_as(
        self, member: KafkaMember, offsets: Mapping[TopicPartition, CommittedOffset | None]
    ) -> None:
        """Commit offsets as a member; see Broker.commit_offsets."""
        given = {tp: one for tp, one in offsets.items() if one is not None}
        self.check(member.group, given)
        member.metadata_for(offsets)
        if dropped := set(offsets) - set(given):
            raise InvalidRequest(
                f"group {member.group!r}: on a Kafka cluster a member cannot delete the offsets of "
                f"{', '.join(map(str, sorted(dropped)))}; commit others instead"
            )
        if given := self.of_present(given, is_member=True):
            member.commit({tp: self._position_of(tp, one) for tp, one in given.items()})

    def check(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Raise unless the group may commit these offsets.

        Raises InvalidConfig, UnknownTopic or InvalidRequest.
        """
        check_client_name("a group", group)
        check_commit(group, offsets)
        for tp in offsets:
            self._topics.check(tp)

    def of_present(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, is_member: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets without those of topics that were created again since.

        Such an offset must not replace one of the new topic. The ids that are known here may be
        some seconds old. A member owns its partitions, so no other client has committed an offset
        of a newer topic meanwhile, and the id of its own offset tells readers what it is. For an
        offset without a member, the cluster is asked for the id.
        """
        named = {tp.topic for tp, at in offsets.items() if at.topic_id}
        unlike = {tp.topic for tp, at in offsets.items() if not self._may_be_of(tp, at)}
        if not (doubtful := unlike if is_member else named):
            return dict(offsets)
        self._topics.refresh(doubtful)
        return {tp: at for tp, at in offsets.items() if self._may_be_of(tp, at)}

    def _may_be_of(self, tp: TopicPartition, committed: CommittedOffset) -> bool:
        return committed.topic_id in ("", self._topics.shape(tp.topic).topic_id)

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None,
        *,
        require_stable: bool,
    ) -> dict[TopicPartition, CommittedOffset]:
        """See Broker.committed."""
        if not group or (partitions is not None and not partitions):
            return {}
        if partitions is None:
            partitions = self._topics.partitions()
        wanted = [KafkaPartition(*tp) for tp in partitions]
        doing = f"asking for the offsets of group {group!r}"

        def answers() -> list[Any]:
            return self._coordinators.committed(group, wanted, stable=False)

        def stable_answers() -> list[Any]:
            try:
                return self._coordinators.committed(group, wanted, stable=True)
            except RequestTimedOut as error:
                answers()
                raise CoordinatorLoading(
                    f"{self._connection.where(doing)}: a transaction with offsets of these partitions "
                    f"is open; ask again in a moment"
                ) from error

        # Retry only outages. CoordinatorLoading, for an open transaction, is the caller's to retry.
        answered = self._connection.until(
            stable_answers if require_stable else answers, doing, again=OUTAGES
        )
        present = [one for one in answered if one.offset >= 0]
        self._topics.refresh({one.topic for one in present})
        found = {}
        for one in present:
            tp = TopicPartition(one.topic, one.partition)
            metadata, recorded = without_topic_id(one.metadata or "", self._connection.cluster_id)
            topic_id = self._topic_id(tp, recorded)
            if topic_id is not None:
                found[tp] = CommittedOffset(one.offset, metadata, topic_id)
        return found

    def names(self) -> list[str]:
        """See Broker.groups."""
        futures = self._connection.admin.list_consumer_groups(request_timeout=DEADLINE_S)
        listed = self._connection.result(futures, "listing groups")
        return sorted(group.group_id for group in listed.valid)

    def _drop(self, group: str, dropped: Collection[TopicPartition], *, others: bool) -> None:
        present = self.committed(group, None, require_stable=False)
        if not dropped & present.keys():
            return
        if others or not present.keys() <= set(dropped):
            raise InvalidRequest(
                f"group {group!r}: on a Kafka cluster all offsets of a group can be deleted, or "
                f"none; it has others than {', '.join(map(str, sorted(dropped)))}. Commit another "
                f"offset instead, or delete single ones with kafka-consumer-groups.sh"
            )
        futures = self._connection.admin.delete_consumer_groups([group], request_timeout=DEADLINE_S)
        self._connection.results(futures, "deleting the offsets of group")

    def _position_of(self, partition: TopicPartition, committed: CommittedOffset) -> KafkaPartition:
        return position_of(partition, committed, self._connection)

    def _topic_id(self, tp: TopicPartition, recorded: str) -> str | None:
        """Return the id of a partition's topic; None if that is not the recorded one, or gone."""
        try:
            topic_id = self._topics.shape(tp.topic).topic_id
        except UnknownTopic:
            return None
        return topic_id if recorded in ("", topic_id) else None
