"""The commit of a Faust worker: outputs, changelogs and offsets in one transaction.

The steps are those of a task's commit: changes and outputs are appended, the offsets are added
in the name of the group's member, and the log commits. Only then do the values reach the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from strandline.changelog.client.asking_again import commit_until_known
from strandline.changelog.client.columns import batch_of
from strandline.changelog.client.producer import BatchMetadata, Producer
from strandline.changelog.errors import RequestTimedOut, UnknownTopic
from strandline.changelog.groups import GroupMember
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.ledger import Sent
from strandline.framework.faust.log_link import FaustLink
from strandline.statestore.changelogged import ChangelogBatch
from strandline.statestore.engine import StorePosition
from strandline.statestore.lost_topics import check_same_changelogs

Appends = list[tuple[TopicPartition, pa.RecordBatch, int]]


class FaustCommit(NamedTuple):
    """Everything that one transaction contains."""

    offsets: Mapping[TopicPartition, int]
    sent: list[Sent]
    changes: Mapping[TopicPartition, ChangelogBatch]
    """Changes of each changelog partition."""
    positions: Mapping[TopicPartition, StorePosition | None]
    """Position of the state of each of these partitions."""


def commit(
    work: FaustCommit, link: FaustLink, producer: Producer, member: GroupMember
) -> dict[TopicPartition, BatchMetadata]:
    """Commit in one transaction; return the last batch of each partition.

    Raises the errors of the log; UnknownTopic if a topic was deleted to which an agent has sent;
    InternalTopicLost if a table's changelog was.
    """
    producer.begin_transaction()
    now = link.clock.now_ms()
    appends: Appends = [(tp, batch.columns(now), 0) for tp, batch in work.changes.items()]
    appends += _outputs(work.sent, link, producer)
    try:
        appended = producer.append_batches(appends) if appends else []
    except RequestTimedOut:
        # A cluster waits for a topic that was deleted, and names any partition of the commit.
        for topic in {one.topic for one in work.sent}:
            link.broker.topic(topic)
        raise
    by_partition = {TopicPartition(one.topic, one.partition): one for one in appended}
    check_same_changelogs(member.group, link.broker, by_partition, work.positions)
    offsets = {tp: link.histories.named(tp, offset) for tp, offset in work.offsets.items()}
    producer.send_offsets_to_transaction(offsets, member)
    commit_until_known(producer)
    return by_partition


def _outputs(
    sent: list[Sent], link: FaustLink, producer: Producer
) -> Iterator[tuple[TopicPartition, pa.RecordBatch, int]]:
    """Yield the sent records as batches, in their order within each partition."""
    groups: dict[tuple[str, int | None], list[Sent]] = {}
    for one in sent:
        groups.setdefault((one.topic, one.partition), []).append(one)
    for (topic, partition), records in groups.items():
        info = link.info(topic)
        if info is None:
            raise UnknownTopic(f"topic {topic!r}, to which an agent has sent, does not exist")
        columns = batch_of(
            info,
            [one.key for one in records],
            [one.value for one in records],
            [one.timestamp_ms for one in records],
            [one.headers for one in records],
        )
        if partition is None:
            for tp, part in producer.partitioned(topic, columns):
                yield tp, part, 0
        else:
            yield TopicPartition(topic, partition), columns, 0
