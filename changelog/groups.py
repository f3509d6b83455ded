"""Consumer groups: members that share the partitions of their topics among themselves.

The owner of the log decides who has which partition (as Kafka's brokers do since KIP-848). A
member tells which partitions it *holds*; the owner answers which it *may* hold. One that it may
no longer hold goes to another member only after it was given up, so at no time do two members
hold the same partition, and those that do not move are never interrupted. Offsets are
committed in a member's name, and only for partitions that it holds.

Who is in a group is not on the disk: members join again when the log gets another owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from strandline.changelog.records import TopicPartition

Assignor = Literal["cooperative-sticky", "range", "roundrobin"]

MAX_STANDBY_REPLICAS = 100
MAX_SUBSCRIBED = 10_000
"""Names of topics in one subscription: in `topics`, and in `together`."""
MAX_MEMBERS = 1_000
"""Members of one group."""
MAX_SERVERS = 100
"""URLs at which one member answers queries."""
MAX_SERVER_CHARACTERS = 2_000
"""Characters of one of these."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants of its group."""

    topics: Sequence[str]
    assignor: Assignor = "cooperative-sticky"
    """How partitions are shared out; all members of a group say the same."""
    session_timeout_ms: int = 10_000
    """A member that is not heard of for so long is out of the group."""
    client: str = ""
    """Who it is, for those who look at the group: a program and its process id."""
    instance: str | None = None
    """Of a static member (KIP-345): one that comes back under this name within the session
    timeout has the partitions that it had, and nobody else's move."""
    together: Sequence[Sequence[str]] = ()
    """Topics that are shared out as one: whoever has partition n of one has it of the others."""
    standby_replicas: int = 0
    """Of how many other members each partition is kept a copy by; the most that any member says."""
    servers: Sequence[str] = ()
    """Where it answers queries, as Kafka Streams' `application.server`: URLs, the nearest first."""


class GroupMember(NamedTuple):
    """In whose name offsets are committed."""

    group: str
    member_id: str
    slot: int = 0
    """The lowest number that no other member has: it names what must not be there twice, as a
    transactional id. One that takes the place of a dead member has its number too."""


class Assignment(NamedTuple):
    """The partitions that a member may hold."""

    number: int
    """Grows with each answer that says something else."""
    partitions: Sequence[TopicPartition]
    standbys: Sequence[TopicPartition] = ()
    """Those of others that it is to keep copies of: it is the first to get them."""


class MemberInfo(NamedTuple):
    """A member, as others see it."""

    member_id: str
    client: str
    instance: str | None
    topics: Sequence[str]
    held: Sequence[TopicPartition]
    """What it holds, or is giving up."""
    standbys: Sequence[TopicPartition] = ()
    """What it keeps copies of."""
    servers: Sequence[str] = ()
    """Where it answers queries."""


class GroupInfo(NamedTuple):
    """A group as it is described."""

    name: str
    generation: int
    """Grows whenever partitions are shared out anew."""
    assignor: str
    members: Sequence[MemberInfo]
