"""What the members of a group share among themselves, in units of one partition of Kafka's.

Kafka's assignors deal out the partitions of the topics that a member subscribes to, one by one; topics
that are to be shared out as one (`Subscription.together`) mean nothing to them. So there are two ways:

    nothing is together    members subscribe to the topics themselves, as any consumer of Kafka's
    something is           members subscribe to one topic, `<group>-members`, which has a partition for
                           each unit; whoever is given it has all partitions that the unit stands for

Unit u of L leads (`changelog.together`) is number u // L of lead u % L. So a topic that
gets more partitions moves none of the units that there were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.groups import Subscription
from strandline.changelog.records import TopicPartition

SUFFIX = "-members"
Unit = tuple[str, int]
"""A partition of a topic that Kafka's assignor deals out."""
Count = Callable[[str], int]
"""How many partitions a topic has, 0 if there is none."""


def members_topic(group: str) -> str:
    """The topic whose partitions are the units of a group that has some."""
    return f"{group}{SUFFIX}"


@dataclass(frozen=True)
class CopartitionedSubscription:
    """How a subscription is put to Kafka.

    >>> units = CopartitionedSubscription("app", ("a", "b", "c"), (("a", "b"), ("c",)))
    >>> units.needed({"a": 2, "b": 2, "c": 1}.get)
    4
    >>> sorted(units.partitions([("app-members", 0), ("app-members", 1)], {"a": 2, "b": 2, "c": 1}.get))
    [TopicPartition(topic='a', partition=0), TopicPartition(topic='b', partition=0), TopicPartition(topic='c', partition=0)]
    """

    group: str
    topics: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    _leads: CopartitionGroups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_leads", CopartitionGroups(self.together))

    @classmethod
    def of(cls, group: str, subscription: Subscription) -> CopartitionedSubscription:
        """Those of a member."""
        return cls(group, tuple(subscription.topics), tuple(map(tuple, subscription.together)))

    @property
    def are_partitions(self) -> bool:
        """Whether a unit is just a partition."""
        return not self.together

    @property
    def subscribed(self) -> list[str]:
        """What a member subscribes to."""
        return list(self.topics) if self.are_partitions else [members_topic(self.group)]

    def needed(self, count: Count) -> int:
        """How many units there are."""
        leads = self._leads.counts(_counts(self.topics, count))
        return len(leads) * max(leads.values(), default=0)

    def partitions(self, units: Iterable[Unit], count: Count) -> frozenset[TopicPartition]:
        """What these units stand for."""
        if self.are_partitions:
            return frozenset(TopicPartition(*unit) for unit in units)
        leads = self._leads.of(self.topics)
        share = [
            TopicPartition(leads[number % len(leads)], number // len(leads))
            for topic, number in units
            if topic == members_topic(self.group)
        ]
        return self._leads.expand(share, self.topics, _counts(self.topics, count))


def _counts(topics: Collection[str], count: Count) -> Mapping[str, int]:
    return {topic: count(topic) for topic in topics}
