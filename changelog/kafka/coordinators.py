"""Queries to the coordinators of groups, without being a member.

Consumers read and write the groups' offsets (metadata_consumer.py gives the reason). The members of
a group are read with the old call that lists groups.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import TopicPartition as KafkaPartition

from strandline.changelog.errors import CorruptLog, RequestTimedOut
from strandline.changelog.kafka.connection import ATTEMPT_S, KafkaConnection
from strandline.changelog.kafka.copartitioning import Unit
from strandline.changelog.kafka.metadata_consumer import MetadataConsumers
from strandline.changelog.records import Isolation


class CoordinatorMember(NamedTuple):
    """Description of a member by the group's coordinator."""

    member_id: str
    client: str
    units: frozenset[Unit]
    """Assigned partitions."""


class CoordinatorGroup(NamedTuple):
    """Description of a group that has or had members."""

    state: str
    """Kafka's name of the state: Stable, PreparingRebalance, …"""
    assignor: str
    members: Sequence[CoordinatorMember]


class Coordinators:
    """The coordinators of one cluster. Thread-safe."""

    def __init__(self, connection: KafkaConnection, metadata_consumers: MetadataConsumers) -> None:
        self._connection = connection
        self._metadata_consumers = metadata_consumers

    def committed(
        self, group: str, partitions: Sequence[KafkaPartition], *, stable: bool
    ) -> list[KafkaPartition]:
        """Return the committed offsets of a group.

        With `stable`, an open transaction with such offsets also causes RequestTimedOut.
        """
        doing = f"asking for the offsets of group {group!r}"
        isolation: Isolation = "read_committed" if stable else "read_uncommitted"
        with (
            self._metadata_consumers.consumer(isolation, group) as consumer,
            self._connection.translated(doing),
        ):
            return self._checked(consumer.committed(list(partitions), ATTEMPT_S), doing)

    def commit(self, group: str, positions: Sequence[KafkaPartition]) -> None:
        """Commit offsets without a member. Raises MemberFenced if the group has members."""
        doing = f"committing offsets of group {group!r}"
        with (
            self._metadata_consumers.consumer("read_committed", group) as consumer,
            self._connection.translated(doing),
        ):
            answers = consumer.commit(offsets=list(positions), asynchronous=False)
            self._checked(answers, doing)

    def group(self, name: str) -> CoordinatorGroup | None:
        """Return the description of a group; None if the cluster does not know it.

        Raises Retriable if any broker does not answer, because it may be the group's coordinator.
        """
        with self._connection.translated(f"describing group {name!r}"), _without_warnings():
            found = self._connection.admin.list_groups(name, ATTEMPT_S)
        for one in found:
            if one.error is not None:
                raise self._connection.failure(one.error, f"describing group {name!r}")
            if one.state != "Dead":
                members = [
                    CoordinatorMember(m.id, m.client_id, assigned(m.assignment))
                    for m in one.members
                ]
                return CoordinatorGroup(one.state, one.protocol, members)
        return None

    def _checked(
        self, answers: Sequence[KafkaPartition] | None, doing: str
    ) -> list[KafkaPartition]:
        """Return the answers. Raises the first error in them, RequestTimedOut if there are none."""
        if answers is None:
            raise RequestTimedOut(f"{self._connection.where(doing)}: no answer")
        for one in answers:
            if one.error is not None:
                where = f"{doing} in {one.topic}-{one.partition}"
                raise self._connection.failure(one.error, where)
        return list(answers)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress the deprecation warning of the old call: it would fail if warnings are errors."""
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


_WARNINGS_LOCK = threading.Lock()
"""Lock around `warnings.catch_warnings`, which changes global state and is not thread-safe."""


def assigned(data: bytes) -> frozenset[Unit]:
    """Return the partitions of an assignment in Kafka's format (ConsumerProtocolAssignment).

    >>> data = bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000003 ffffffff")
    >>> sorted(assigned(data)), assigned(b"")
    ([('t', 0), ('t', 3)], frozenset())
    """
    if not data:
        return frozenset()
    rest = memoryview(data)

    def number(size: int) -> int:
        nonlocal rest
        if len(rest) < size:
            raise CorruptLog(f"the assignment of a group's member is cut off: {data[:40]!r}")
        value, rest = int.from_bytes(rest[:size], signed=True), rest[size:]
        return value

    def text() -> str:
        nonlocal rest
        size = number(2)
        value, rest = bytes(rest[:size]).decode(errors="replace"), rest[size:]
        return value

    number(2)  # version; later versions only add fields at the end
    found: set[Unit] = set()
    for _ in range(number(4)):
        topic = text()
        found.update((topic, number(4)) for _ in range(number(4)))
    return frozenset(found)
