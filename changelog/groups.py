"""Consumer groups: members that divide the partitions of their topics among themselves.

The owner of the log assigns partitions to members, as Kafka's brokers do since KIP-848:

    member → owner    heartbeat with the partitions that the member owns
    owner → member    assignment: the partitions that it may own

A partition that is revoked from a member is assigned to another one only after the first has
reported that it no longer owns it. So no two members own a partition at the same time, and
reading of partitions that do not move is never interrupted. Offsets are committed by a member, and
only for partitions that it owns.

Membership is not stored on disk: members join again when another process takes over the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec

from strandline.changelog.config import check_client_name, is_text
from strandline.changelog.errors import InvalidConfig, InvalidRequest
from strandline.changelog.records import CommittedOffset, TopicPartition

Assignor = Literal["cooperative-sticky", "range", "roundrobin"]

MAX_METADATA_CHARS = 32_768
"""Maximum number of characters of the metadata of a committed offset."""
MAX_ID_CHARS = 256
"""Maximum number of characters of the topic id, and of the incarnation, of a committed offset."""
_MAX_OFFSET = 2**63 - 1
MAX_STANDBY_REPLICAS = 100
"""Maximum of `Subscription.standby_replicas`."""
MAX_SUBSCRIBED_TOPICS = 10_000
"""Maximum number of topic names in a subscription, separately in `topics` and `together`."""
MAX_MEMBERS = 1_000
"""Maximum number of members of a group."""
MAX_GROUP_NAMES = 200_000
"""Maximum number of names in the subscriptions of all members of a group (`names_in`).

Each assignment reads all of them, so this bounds its time: about two seconds.
"""
MAX_SERVERS = 100
"""Maximum number of query URLs of a member."""
MAX_SERVER_CHARACTERS = 2_000
"""Maximum length of a query URL, in characters."""
_BOUNDED = msgspec.Meta(max_length=10 * MAX_SUBSCRIBED_TOPICS)
"""Bound of each list in a message, before the list is decoded and its names are checked."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics and settings with which a member joins a group."""

    topics: Annotated[Sequence[str], _BOUNDED]
    assignor: Assignor = "cooperative-sticky"
    """Assignment strategy; it must be the same for all members of a group."""
    session_timeout_ms: int = 10_000
    """Milliseconds without a heartbeat after which the member is removed from the group."""
    client: str = ""
    """Name of the member in descriptions of the group: its program and process id."""
    instance: str | None = None
    """Name of a static member (KIP-345). If it rejoins within the session timeout, it gets its
    partitions back and no other partition moves."""
    together: Annotated[Sequence[Sequence[str]], _BOUNDED] = ()
    """Copartition groups: lists of topics whose partitions of equal number are assigned to the
    same member."""
    standby_replicas: int = 0
    """Number of other members that keep a copy of each partition. The highest number among the
    group's members applies."""
    servers: Annotated[Sequence[str], _BOUNDED] = ()
    """URLs at which the member answers queries (Kafka Streams' `application.server`), nearest
    first."""
    topics_differ: bool = False
    """True: other members may subscribe to other topics, if the topics of each member form one
    copartition group. A partition whose number belongs to a member without its topic is then
    assigned to none. Counts on Kafka only, where members with other topics are refused otherwise."""
    tasks: Annotated[Sequence[Sequence[str]], _BOUNDED] | None = None
    """Tasks of a worker: of each its name, then the topics that it reads; none for a consumer, which
    gives its records to the program. None if the member does not tell. See `check_tasks`."""


class GroupMember(NamedTuple):
    """Identity of a member, used to commit offsets."""

    group: str
    member_id: str
    slot: int = 0
    """Lowest number that no other member of the group has. Names of exclusive resources, such as
    transactional ids, contain it. A member that replaces a dead one gets its slot."""


class Assignment(NamedTuple):
    """The partitions assigned to a member."""

    number: int
    """Number of the assignment; it grows with each change."""
    partitions: Sequence[TopicPartition]
    standbys: Sequence[TopicPartition] = ()
    """Partitions of other members that it keeps copies of. If their owner leaves, they are
    preferably assigned to this member."""


class MemberInfo(NamedTuple):
    """Description of a member."""

    member_id: str
    client: str
    instance: str | None
    topics: Sequence[str]
    held: Sequence[TopicPartition]
    """Partitions that it owns, including revoked ones that it has not released yet."""
    standbys: Sequence[TopicPartition] = ()
    """Partitions that it keeps copies of."""
    servers: Sequence[str] = ()
    """URLs at which it answers queries."""


class GroupInfo(NamedTuple):
    """Description of a group."""

    name: str
    generation: int
    """Number of the current assignment; it grows with each rebalance."""
    assignor: str
    members: Sequence[MemberInfo]


def names_in(subscription: Subscription) -> int:
    """Return the number of names of topics and tasks in a subscription.

    >>> names_in(Subscription(["a", "b"], together=[["a", "b"]], tasks=[["count", "a"]]))
    6
    """
    lists = (subscription.topics, *subscription.together, *(subscription.tasks or ()))
    return sum(map(len, lists))


def check_tasks(group: str, mine: Subscription, others: Iterable[tuple[str, Subscription]]) -> None:
    """Refuse a member whose tasks are those of another program than another member's.

    The records of a partition are handled by one member, with its tasks alone. If two programs with
    the name of one app ran at the same time, each would handle a part of the records.

    Members of two versions of a program may run together if one has all tasks of the other, of those
    that read common topics, so that tasks can be added and removed in a rolling upgrade.

    Args:
        group: Name of the group.
        mine: Subscription of the member that joins.
        others: Names and subscriptions of the other members.

    Raises:
        InvalidConfig: Each of two members has a task that the other one lacks, or one is a worker
            and the other a consumer, and both read the same topic.
    """
    for name, other in others:
        common = set(mine.topics).intersection(other.topics)
        if mine.tasks is None or other.tasks is None or not common:
            continue
        here, there = (_tasks_of(one.tasks or (), common) for one in (mine, other))
        both_differ = bool(here - there and there - here)
        if both_differ or bool(mine.tasks) != bool(other.tasks):
            raise InvalidConfig(
                f"group {group!r} has another program as a member: {name} is {_shown(other)}, this one "
                f"{_shown(mine)}, and both read {', '.join(sorted(common)[:5])}. Each partition belongs "
                f"to one member, so each program would handle a part of the records. Stop the other "
                f"one first, or use another name for the app or group"
            )


def _tasks_of(tasks: Iterable[Sequence[str]], topics: AbstractSet[str]) -> set[str]:
    """Return the names of the tasks that read one of these topics."""
    return {task[0] for task in tasks if not topics.isdisjoint(task[1:])}


def _shown(member: Subscription) -> str:
    names = ", ".join(task[0] for task in member.tasks or () if task)
    return f"a worker with the tasks {names:.200}" if names else "a consumer"


def check_commit(group: str, offsets: Mapping[TopicPartition, CommittedOffset | None]) -> None:
    """Raise InvalidConfig or InvalidRequest unless the group may commit these offsets.

    None deletes an offset.
    """
    given = {tp: offset for tp, offset in offsets.items() if offset is not None}
    if given:
        check_client_name("a group", group)
    for tp, offset in given.items():
        if not 0 <= offset.offset <= _MAX_OFFSET:
            raise InvalidRequest(
                f"an offset to commit is a number from 0 to {_MAX_OFFSET}, got {offset.offset} for {tp}"
            )
        if len(offset.metadata) > MAX_METADATA_CHARS or not is_text(offset.metadata):
            raise InvalidRequest(
                f"the metadata of an offset is text of at most {MAX_METADATA_CHARS} characters, got "
                f"{offset.metadata[:40]!r}… ({len(offset.metadata)} characters) for {tp}"
            )
        for what, given_id in (("topic id", offset.topic_id), ("incarnation", offset.incarnation)):
            if len(given_id) > MAX_ID_CHARS or not is_text(given_id):
                raise InvalidRequest(
                    f"the {what} of an offset is text of at most {MAX_ID_CHARS} characters, got "
                    f"{given_id[:40]!r}… ({len(given_id)} characters) for {tp}"
                )
