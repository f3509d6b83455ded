"""FlightBroker: the Broker of another process, over one connection.

After the connection is lost, `lost` is True and every call raises OwnerUnavailable; failover.py
then connects again. A call also raises OwnerUnavailable if the owner does not answer in time
(stopped, swapping, blocked). In that case the connection stays, and the owner may still execute the
call, so only calls that may be repeated should be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from strandline.changelog.cleaning import CleaningStatus
from strandline.changelog.clock import Clock, SystemClock
from strandline.changelog.closing import CloseOnce
from strandline.changelog.errors import StorageFailed
from strandline.changelog.flight import requests
from strandline.changelog.flight.connection import ConnectionTarget, FlightConnection
from strandline.changelog.flight.files import FileReader
from strandline.changelog.flight.fork import keep_in_child
from strandline.changelog.flight.grants import Grants
from strandline.changelog.flight.messages import FetchRequest
from strandline.changelog.flight.pins import FlightPins
from strandline.changelog.flight.requests import Request
from strandline.changelog.flight.snapshots import FlightSnapshots
from strandline.changelog.groups import Assignment, GroupInfo, GroupMember, Subscription
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
from strandline.changelog.storage import LocalStorage

DEADLINE = 30.0
"""Default seconds that a call may take, in addition to the timeout of a fetch."""


class FlightBroker:
    """Broker of the log that the owner at `target` serves.

    Args:
        target: The log.
        deadline: Seconds that a call may take.
        connect_within: Seconds that connecting may take; by default `deadline`.
        clock: Measures the timeouts of fetches.
        grants: Grants that earlier connections to the same log over TCP have received.

    Raises:
        OwnerUnavailable: There is no owner, or it does not answer in time.
        Unauthenticated: The token is missing or wrong.
        InvalidRequest: The owner speaks another version of the protocol.
    """

    def __init__(
        self,
        target: ConnectionTarget,
        *,
        deadline: float = DEADLINE,
        connect_within: float | None = None,
        clock: Clock | None = None,
        grants: Grants | None = None,
    ) -> None:
        within = deadline if connect_within is None else connect_within
        self._connection = FlightConnection(
            target, deadline=deadline, connect_within=within, grants=grants
        )
        self._reader: FileReader | FlightConnection = self._connection
        storage = None
        if target.folder is not None and self._connection.session.welcome.locates:
            storage = _same_folder(target)
        if storage is not None:
            self._reader = FileReader(storage, self._connection)
        self.pins = FlightPins(self._connection, storage)
        self.snapshots = FlightSnapshots(self._connection)
        self._clock = clock or SystemClock()
        keep_in_child(self, self._connection)
        self._closing = CloseOnce(self, self._connection.close)

    @property
    def lost(self) -> bool:
        """True once the connection is permanently lost."""
        return self._connection.session.lost

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
        given = None if config is None else dict(config)
        created: TopicInfo = self._ask(
            requests.CreateTopic(name, partitions, given, schema, internal)
        )
        return created

    def delete_topic(self, name: str) -> None:
        self._ask(requests.DeleteTopic(name))

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, str | None] | None = None,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
    ) -> TopicInfo:
        given = None if config is None else dict(config)
        altered: TopicInfo = self._ask(requests.AlterTopic(name, given, partitions, schema))
        return altered

    def topics(self) -> list[TopicInfo]:
        found: list[TopicInfo] = self._ask(requests.ListTopics())
        return found

    def topic(self, name: str) -> TopicInfo:
        found: TopicInfo = self._ask(requests.DescribeTopic(name))
        return found

    def describe_config(self) -> dict[str, str]:
        given: dict[str, str] = self._ask(requests.DescribeConfig())
        return given

    def alter_config(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        given: dict[str, str] = self._ask(requests.AlterConfig(dict(changes)))
        return given

    # The log --------------------------------------------------------------------------

    def append(self, appends: Sequence[Append]) -> list[Appended]:
        return self._connection.append(appends) if appends else []

    def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 8 << 20,
        isolation: Isolation = "read_committed",
        timeout: float = 0.0,
    ) -> dict[TopicPartition, Fetched]:
        until = self._clock.monotonic() + timeout
        at = dict(positions)
        fetched = self._reader.fetch(FetchRequest(at, max_bytes, isolation, timeout))
        # A fetch may return only markers and aborted records, which the caller does not see. Then
        # it continues after them for the rest of the timeout.
        while not any(one.batches for one in fetched.values()):
            following = {tp: one.next_offset for tp, one in fetched.items()}
            if following == at:
                break
            left = max(0.0, until - self._clock.monotonic())
            later = self._reader.fetch(FetchRequest(following, max_bytes, isolation, left))
            if not all(fetched[tp].is_continued_by(one) for tp, one in later.items()):
                break  # the log was replaced in between, which the caller's next fetch shows
            at, fetched = following, {tp: fetched[tp].joined(one) for tp, one in later.items()}
        return fetched

    def offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, PartitionOffsets]:
        found: dict[TopicPartition, PartitionOffsets] = self._ask(
            requests.ListOffsets(list(partitions))
        )
        return found

    def offset_for_time(
        self,
        partition: TopicPartition,
        timestamp: int,
        *,
        isolation: Isolation = "read_committed",
    ) -> int | None:
        found: int | None = self._ask(requests.OffsetForTime(partition, timestamp, isolation))
        return found

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        start: int = self._ask(requests.DeleteRecords(partition, before))
        return start

    def clean(self, topics: Collection[str] | None = None) -> None:
        self._ask(requests.CleanTopics(None if topics is None else list(topics)))

    def cleaning(self) -> list[CleaningStatus]:
        statuses: list[CleaningStatus] = self._ask(requests.Cleaning())
        return statuses

    # Producers and transactions -------------------------------------------------------

    def init_producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 10_000
    ) -> ProducerIdentity:
        identity: ProducerIdentity = self._ask(requests.InitProducer(transactional_id, timeout_ms))
        return identity

    def add_offsets(
        self,
        producer: ProducerIdentity,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
    ) -> None:
        self._ask(requests.AddOffsets(producer, group, dict(offsets), member_id))

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        identity: ProducerIdentity = self._ask(requests.EndTransaction(producer, commit))
        return identity

    # Consumer groups ------------------------------------------------------------------

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset | None],
        *,
        member_id: str = "",
    ) -> None:
        self._ask(requests.CommitOffsets(group, dict(offsets), member_id))

    def committed(
        self,
        group: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = True,
    ) -> dict[TopicPartition, CommittedOffset]:
        asked = None if partitions is None else list(partitions)
        found: dict[TopicPartition, CommittedOffset] = self._ask(
            requests.FetchOffsets(group, asked, require_stable)
        )
        return found

    def groups(self) -> list[str]:
        found: list[str] = self._ask(requests.ListGroups())
        return found

    def describe_group(self, group: str) -> GroupInfo:
        found: GroupInfo = self._ask(requests.DescribeGroup(group))
        return found

    def join_group(self, group: str, subscription: Subscription) -> GroupMember:
        member: GroupMember = self._ask(requests.JoinGroup(group, subscription))
        return member

    def heartbeat(
        self,
        member: GroupMember,
        call: int,
        seen: int,
        holds: Collection[TopicPartition],
        *,
        timeout: float = 0.0,
    ) -> Assignment:
        assignment: Assignment = self._connection.ask(
            requests.Heartbeat(member, call, seen, list(holds), timeout), extra_s=timeout
        )
        return assignment

    def leave_group(self, member: GroupMember) -> None:
        self._ask(requests.LeaveGroup(member))

    def close(self) -> None:
        self._closing()

    def _ask(self, request: Request) -> Any:
        return self._connection.ask(request)


def _same_folder(target: ConnectionTarget) -> LocalStorage | None:
    """Open the folder at the target's path; return None if it is not the owner's any more."""
    assert target.folder is not None
    storage = LocalStorage(target.folder)
    known = target.endpoint.folder if target.endpoint is not None else None
    with contextlib.suppress(StorageFailed):
        return storage if known in (None, storage.identity()) else None
    return None
