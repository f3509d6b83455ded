"""Units of assignment: how copartition groups are assigned with Kafka's assignors.

Kafka's assignors assign the partitions of the topics that a member subscribes to, each one
separately. They do not support copartition groups (`Subscription.together`). So there are two ways:

    no copartition groups   members subscribe to the topics themselves, as any Kafka consumer; each
                            partition is a unit
    copartition groups      members subscribe to one topic, `<group>-members`, with a partition for
                            each unit; its owner owns all partitions that the unit represents

With L leads (`changelog.copartition`), unit u represents partition u // L of lead u % L and of the
topics that follow it. So adding partitions to a topic does not change existing units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from strandline.changelog.copartition import CopartitionGroups
from strandline.changelog.groups import Subscription
from strandline.changelog.records import TopicPartition

SUFFIX = "-members"
Unit = tuple[str, int]
"""Topic and partition that Kafka's assignor assigns."""
Count = Callable[[str], int]
"""Function that returns the number of partitions of a topic; 0 if it does not exist."""


def members_topic(group: str) -> str:
    """Return the topic whose partitions are the units of a group with copartition groups."""
    return f"{group}{SUFFIX}"


@dataclass(frozen=True)
class CopartitionedSubscription:
    """Mapping of a subscription to the units that Kafka assigns.

    >>> units = CopartitionedSubscription("app", ("a", "b", "c"), (("a", "b"), ("c",)))
    >>> units.needed({"a": 2, "b": 2, "c": 1}.get)
    4
    >>> owned = [("app-members", 0), ("app-members", 1)]
    >>> [str(tp) for tp in sorted(units.partitions(owned, {"a": 2, "b": 2, "c": 1}.get))]
    ['a-0', 'b-0', 'c-0']
    """

    group: str
    topics: tuple[str, ...]
    together: tuple[tuple[str, ...], ...]
    _leads: CopartitionGroups = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_leads", CopartitionGroups(self.together))

    @classmethod
    def of(cls, group: str, subscription: Subscription) -> CopartitionedSubscription:
        """Return the mapping for a member's subscription."""
        return cls(group, tuple(subscription.topics), tuple(map(tuple, subscription.together)))

    @property
    def are_partitions(self) -> bool:
        """True if each unit is a partition of a subscribed topic."""
        return not self.together

    @property
    def are_numbers(self) -> bool:
        """True if each unit is the number of a partition, of whatever topics."""
        return len(self.together) == 1 and set(self.topics) <= set(self.together[0])

    @property
    def subscribed(self) -> list[str]:
        """Topics that a member subscribes to on Kafka."""
        return list(self.topics) if self.are_partitions else [members_topic(self.group)]

    def needed(self, count: Count) -> int:
        """Return the number of units."""
        leads = self._leads.counts(_counts(self.topics, count))
        return len(leads) * max(leads.values(), default=0)

    def partitions(self, units: Iterable[Unit], count: Count) -> frozenset[TopicPartition]:
        """Return the partitions that these units represent."""
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
