"""Asking the coordinators of groups, without being a member.

Consumers read and write their groups' offsets ([why](asking.py)), and the old call that lists groups
tells who is in one.
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
    """A member of a group, as the coordinator knows it."""

    member_id: str
    client: str
    units: frozenset[Unit]
    """The partitions that it was assigned."""


class CoordinatorGroup(NamedTuple):
    """A group that somebody is in, or has been."""

    state: str
    """Kafka's name for it: Stable, PreparingRebalance, …"""
    assignor: str
    members: Sequence[CoordinatorMember]


class Coordinators:
    """Those of one cluster. Thread-safe."""

    def __init__(self, connection: KafkaConnection, asking: MetadataConsumers) -> None:
        self._connection = connection
        self._asking = asking

    def committed(
        self, group: str, partitions: Sequence[KafkaPartition], *, stable: bool
    ) -> list[KafkaPartition]:
        """Offsets of a group; where `stable`, RequestTimedOut may also be an open transaction's fault."""
        doing = f"asking for the offsets of group {group!r}"
        isolation: Isolation = "read_committed" if stable else "read_uncommitted"
        with (
            self._asking.consumer(isolation, group) as consumer,
            self._connection.translated(doing),
        ):
            return self._checked(consumer.committed(list(partitions), ATTEMPT_S), doing)

    def commit(self, group: str, positions: Sequence[KafkaPartition]) -> None:
        """Commit offsets in nobody's name. Raises MemberFenced if the group has members."""
        doing = f"committing offsets of group {group!r}"
        with (
            self._asking.consumer("read_committed", group) as consumer,
            self._connection.translated(doing),
        ):
            answers = consumer.commit(offsets=list(positions), asynchronous=False)
            self._checked(answers, doing)

    def group(self, name: str) -> CoordinatorGroup | None:
        """What the cluster tells of a group; None if it knows nothing of it.

        Raises Retriable also if some broker does not answer: it may be the one that knows.
        """
        with self._connection.translated(f"describing group {name!r}"), _undisturbed():
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
        """The answers. Raises what is wrong with any of them, and RequestTimedOut if there is none."""
        if answers is None:
            raise RequestTimedOut(f"{self._connection.where(doing)}: no answer")
        for one in answers:
            if one.error is not None:
                where = f"{doing} in {one.topic}-{one.partition}"
                raise self._connection.failure(one.error, where)
        return list(answers)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The old call warns of its age, and fails in an odd way where warnings are errors."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


_WARNINGS = threading.Lock()


def assigned(data: bytes) -> frozenset[Unit]:
    """The partitions in an assignment, as consumers of Kafka's write it (ConsumerProtocolAssignment).

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

    number(2)  # its version: later ones have more at the end
    found: set[Unit] = set()
    for _ in range(number(4)):
        topic = text()
        found.update((topic, number(4)) for _ in range(number(4)))
    return frozenset(found)
