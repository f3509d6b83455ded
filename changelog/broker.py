"""The one interface behind which a log lives.

`changelog.embedded.owner.Owner` implements it on a folder, `changelog.flight` over a socket to the
owner; producers, consumers, stores and the framework know nothing else. Calls are
thread-safe and block until they are answered. They raise the types of `changelog.errors`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus
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
        """Create a topic, durably. Raises TopicExists, InvalidTopic, InvalidConfig.

        `internal` allows a reserved name (one that begins with two underscores).
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
        """Change settings (None takes one back), raise the number of partitions, or extend the schema.

        A schema may only gain nullable fields. Raises SchemaMismatch otherwise, InvalidConfig
        for fewer partitions.
        """
        ...

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        ...

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises UnknownTopic."""
        ...

    def describe_config(self) -> dict[str, str]:
        """What is set for the log as a whole, by the names of `changelog.log_config`."""
        ...

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Change that, durably (None takes a setting back); what is set then.

        It counts at once, in every topic on which nothing else is set. Raises InvalidConfig, also
        if a topic's settings would contradict the log's; nothing has changed then.
        """
        ...

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        """Append batches, in order; return once all are acknowledged.

        Plain appends are durable then (mode "fsync"). Transactional ones join their
        producer's transaction, which begins with the first of them, and are durable when
        it commits. If one is refused, those before it stand, and the error is raised.
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
        """Read on from `positions`, about `max_bytes` a partition, at least one batch if any.

        With nothing new in any partition it waits up to `timeout` seconds. Every partition
        asked for is in the answer. Raises OffsetOutOfRange, UnknownTopic.
        """
        ...

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        """The ends of partitions."""
        ...

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        """Offset of the first record whose timestamp is at least `timestamp` (ms); None if there is none."""
        ...

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        """Move the log's start up to offset `before` (-1: the high watermark); return the new start."""
        ...

    def clean(self, topics: Collection[str] | None = None) -> None:
        """Ask for compacted topics (None: all of them) to be cleaned soon, however little is dirty.

        Active segments are closed for it. `cleaning` tells how it goes. Raises UnknownTopic,
        InvalidTopic for one that is not compacted.
        """
        ...

    def cleaning(self) -> list[CleaningStatus]:
        """How things stand with the partitions of compacted topics that have anything in them."""
        ...

    @property
    def pins(self) -> Pins | None:
        """Ranges of offsets that can be read again, the same; None where no log can promise that."""
        ...

    @property
    def snapshots(self) -> Snapshots | None:
        """All files at one moment, for backups; None where the log has no folder of its own."""
        ...

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        """An identity for a producer.

        With a `transactional_id`: finishes or aborts what a predecessor left, and fences it.
        `timeout_ms` is how long each transaction may stay open.
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
        """Make committing `offsets` for `group` a part of the producer's transaction.

        In the name of a member if the group has some: raises MemberFenced, here or when the
        transaction is to be committed, if it does not hold one of the partitions any more.
        Without offsets it is only required that it is still a member; who asks for the committed offsets
        of what it holds waits for the transaction's end all the same.
        """
        ...

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Commit or abort, and return the identity for the next transaction (KIP-890).

        A retry after a lost answer is answered the same. Raises ProducerFenced,
        TransactionAborted (it had timed out, or the owner was lost), InvalidTxnState.
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
        """Commit `offsets` for `group` at once, outside a transaction; None deletes.

        In the name of a member if the group has some. Raises MemberFenced.
        """
        ...

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        """What `group` has committed (all, or of `partitions`; those without are left out).

        With `require_stable` an offset that an open transaction is about to change raises
        CoordinatorLoading: ask again when it has ended.
        """
        ...

    def groups(self) -> list[str]:
        """The groups that have committed offsets, or members."""
        ...

    def describe_group(self, group: str) -> GroupInfo:
        """The members of a group, and what each holds."""
        ...

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        """Become a member, which holds nothing yet. Raises InvalidConfig."""
        ...

    def beat_group(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        """A member is alive and holds these partitions; answers which it may hold.

        `call` numbers the member's calls, `seen` is the number of the latest answer it has. It is
        answered as soon as there is a later one, at the latest after `timeout` seconds. What it
        may not hold (any more) goes to others once a later call of the member's, with that
        answer seen, leaves it out. Raises MemberFenced if it is no member any more.
        """
        ...

    def leave_group(self, member: GroupMember) -> None:
        """Give up membership and all that is held; harmless when repeated."""
        ...

    def close(self) -> None:
        """Let go of the log; harmless when repeated."""
        ...
