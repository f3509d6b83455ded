"""The interface that every log implements.

    changelog.embedded.owner     a folder, in the process that owns it
    changelog.flight             a socket to the owner
    changelog.kafka.broker       an Apache Kafka cluster

Producers, consumers, stores and the framework use a log through this interface only. Calls are
thread-safe and block until they are answered. They raise the types of `changelog.errors`; besides
the errors listed for each call, they may raise OwnerUnavailable, RequestTimedOut and
StorageFailed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.extents import Extent, OffsetSpan
from strandline.changelog.groups import Assignment, GroupInfo, GroupMember, Subscription
from strandline.changelog.pins import Pins
from strandline.changelog.records import (
    Append,
    Appended,
    CommittedOffset,
    Fetched,
    Isolation,
    PartitionOffsets,
    ProducerIdentity,
    TopicInfo,
    TopicPartition,
)
from strandline.changelog.snapshots import Snapshots


class Broker(Protocol):
    """Topics, appends and fetches, producers and transactions, committed offsets."""

    # Kind of log ----------------------------------------------------------------------

    @property
    def holds_columns(self) -> bool:
        """True if typed topics store a column per field; False if all values are bytes (Kafka)."""
        ...

    @property
    def earliest_ms(self) -> int:
        """Earliest timestamp of a record, in milliseconds since the epoch."""
        ...

    # Topics ---------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
        internal: bool = False,
    ) -> TopicInfo:
        """Create a topic, durably, and return its description.

        Args:
            name: Name of the topic.
            partitions: Number of partitions.
            config: Topic settings by Kafka's names; unset ones follow the log's settings.
            schema: Arrow schema of the values of a typed topic; without one, values are bytes.
            internal: True: allow a reserved name (one that begins with two underscores).

        Raises:
            TopicExists: A topic of this name exists.
            InvalidTopic: The name is not allowed.
            InvalidConfig: A setting or the number of partitions is invalid.
        """
        ...

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and committed offsets. Raises UnknownTopic."""
        ...

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        """Change settings, raise the number of partitions, or extend the schema.

        Args:
            name: Name of the topic.
            config: Settings to change; None as a value resets one to its default.
            partitions: New number of partitions, at least the current one.
            schema: New schema: the current one with nullable fields added at its end.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidConfig: A setting is invalid, or `partitions` is less than the current number.
            SchemaMismatch: The schema does not extend the current one.
        """
        ...

    def topics(self) -> list[TopicInfo]:
        """Return the descriptions of all topics, sorted by name, internal ones included."""
        ...

    def topic(self, name: str) -> TopicInfo:
        """Return the description of a topic. Raises UnknownTopic."""
        ...

    def describe_config(self) -> dict[str, str]:
        """Return the explicit settings of the whole log, by the names of `changelog.log_config`."""
        ...

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Change settings of the whole log, durably, and return the explicit settings afterwards.

        A change takes effect at once in every topic that does not override the setting.

        Args:
            changes: New values by name; None resets a setting to its built-in default.

        Raises:
            InvalidConfig: A value is invalid, or contradicts a topic's settings. Nothing was
                changed.
        """
        ...

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        """Append batches in order, and return once all of them are acknowledged.

        An acknowledged plain append is durable (with durability "fsync"). A transactional append
        joins the open transaction of its producer, or begins one; it becomes durable when the
        transaction commits. If a batch is rejected, the batches before it remain appended and
        the error is raised.

        A producer may retry with the same sequence numbers: a batch that the log already has is
        not written again, and its `Appended.duplicate` is True.
        """
        ...

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 8 << 20,
        isolation: Isolation = "read_committed",
        timeout: float = 0.0,
    ) -> dict[TopicPartition, Fetched]:
        """Read records from the given positions on. Every requested partition is in the result.

        Args:
            positions: First offset to read, by partition.
            max_bytes: Approximate maximum per partition, in bytes. At least one batch is
                returned if there is one, however large.
            isolation: "read_committed" reads up to the last stable offset and leaves out aborted
                records; "read_uncommitted" reads up to the high watermark.
            timeout: Seconds to wait for new records if no partition has any.

        Raises:
            OffsetOutOfRange: A position is before the log start or after the log's end.
            UnknownTopic: A topic does not exist.
        """
        ...

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        """Return the log start, high watermark and other bounds of partitions."""
        ...

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        """Return the offset of the first record at or after `timestamp` (ms since the epoch).

        None if all records are older.
        """
        ...

    def extents(
        self, spans: Mapping[TopicPartition, OffsetSpan], *, extent_bytes: int
    ) -> dict[TopicPartition, list[Extent]]:
        """Return how many bytes of the log lie between offsets, to divide a read by size.

        Every requested partition is in the result; its list is empty if the log does not know
        (Kafka), or has none of the offsets. Extents are in order and cover the offsets.

        Args:
            spans: Offsets by partition.
            extent_bytes: Approximate number of bytes of an extent; at least 64 KiB are used.

        Raises:
            UnknownTopic: A topic does not exist.
        """
        ...

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        """Delete the records before an offset, and return the new log start.

        Args:
            partition: Partition to delete from.
            before: New log start; -1 is the high watermark.

        Raises:
            InvalidTopic: The topic is only compacted.
            OffsetOutOfRange: `before` is beyond the high watermark.
        """
        ...

    def clean(self, topics: Collection[str] | None = None) -> None:
        """Request cleaning of compacted topics soon, whatever their dirty ratio.

        Active segments are closed first, so that their records can be cleaned too. Returns
        without waiting; `cleaning` reports the progress.

        Args:
            topics: Names of compacted topics; None: all compacted topics.

        Raises:
            UnknownTopic: A topic does not exist.
            InvalidTopic: A topic is not compacted.
        """
        ...

    def cleaning(self) -> list[CleaningStatus]:
        """Return the cleaning status of all non-empty partitions of compacted topics."""
        ...

    @property
    def pins(self) -> Pins | None:
        """Pins, which keep ranges of offsets unchanged for repeated reads; None on Kafka."""
        ...

    @property
    def snapshots(self) -> Snapshots | None:
        """Snapshots of all files at one moment, for backups; None if the log has no folder."""
        ...

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        """Return a new identity for a producer.

        With a `transactional_id`, first complete or abort the transaction that an earlier
        producer with this id left open, and fence that producer.

        Args:
            transactional_id: Id of the transactional producer; None for a plain one.
            timeout_ms: Milliseconds that a transaction may stay open before the log aborts it.
        """
        ...

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        """Commit `offsets` for `group` as part of the producer's transaction.

        The offsets become the group's committed offsets when the transaction commits. Until it
        ends, `committed` raises CoordinatorLoading for these partitions.

        Args:
            producer: Identity of the transactional producer.
            group: Name of the consumer group.
            offsets: Next offset to read, by partition. Empty: only require that the member is
                still in the group; its owned partitions count as pending all the same.
            member_id: Id of the member that commits; required if the group has members.

        Raises:
            MemberFenced: The member no longer owns one of the partitions. Raised here or by
                `end_transaction`.
        """
        ...

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Commit or abort, and return the identity for the next transaction (KIP-890).

        A call that is retried because its answer was lost returns the same result.

        Raises:
            ProducerFenced: A newer producer has the same transactional id.
            TransactionAborted: The transaction timed out, or was lost with the owner.
            InvalidTxnState: An abort is requested, but the transaction was committed.
        """
        ...

    # Consumer groups ------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        *,
        member_id: str = "",
    ) -> None:
        """Commit `offsets` for `group` at once, outside a transaction.

        Args:
            group: Name of the consumer group.
            offsets: Next offset to read, by partition; None deletes a committed offset.
            member_id: Id of the member that commits; required if the group has members.

        Raises:
            MemberFenced: The member does not own one of the partitions.
        """
        ...

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of `group`. Partitions without one are left out.

        Args:
            group: Name of the consumer group.
            partitions: Partitions of interest; None: all that have a committed offset.
            require_stable: True (default): raise CoordinatorLoading if an open transaction is
                going to change one of these offsets. Retry after it has ended.
        """
        ...

    def groups(self) -> list[str]:
        """Return the names of all groups with committed offsets or members."""
        ...

    def describe_group(self, group: str) -> GroupInfo:
        """Return the members of a group, and the partitions that each of them owns."""
        ...

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        """Join a group as a new member that owns no partition yet. Raises InvalidConfig."""
        ...

    def heartbeat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        """Send a heartbeat: report the partitions that a member owns, return its assignment.

        The call returns as soon as there is an assignment with a higher number than `seen`, and
        at the latest after `timeout` seconds. A revoked partition is assigned to another member
        only after a later heartbeat, sent with that assignment seen, no longer lists it as owned.

        Args:
            member: The member.
            call: Number of this heartbeat, one more than that of the member's previous one.
            seen: Number of the latest assignment that the member has received.
            holds: Partitions that the member owns.
            timeout: Seconds to wait for a new assignment.

        Raises:
            MemberFenced: The member is no longer in the group.
        """
        ...

    def leave_group(self, *members: GroupMember) -> None:
        """Leave the groups and release all owned partitions. Repeated calls have no effect.

        Members that leave a group together cause one new assignment.
        """
        ...

    def close(self) -> None:
        """Close the log. Repeated calls have no effect."""
        ...
