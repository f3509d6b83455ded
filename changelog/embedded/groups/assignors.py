"""Assign the partitions of topics to the members of a group.

    range               per topic, a contiguous range for each member (Kafka's RangeAssignor)
    roundrobin          all partitions in turn (Kafka's RoundRobinAssignor)
    cooperative-sticky  evenly, moving as few as possible (KIP-54, KIP-429)

Each assignor assigns every partition to exactly one of the members subscribed to its topic. The
result depends on the arguments only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush
from itertools import cycle

from strandline.changelog.records import TopicPartition

TopicsByMember = Mapping[str, Collection[str]]
"""Subscribed topics by member; use sets, because each is searched for every partition."""
PartitionCounts = Mapping[str, int]
"""Number of partitions by topic."""
PartitionsByMember = dict[str, set[TopicPartition]]
"""Assigned partitions by member."""


def by_range(
    wanted: TopicsByMember, counts: PartitionCounts, _before: PartitionsByMember
) -> PartitionsByMember:
    """Assign a contiguous range of each topic's partitions to each member.

    With equal subscriptions and counts a member gets the same partition numbers of all topics.

    >>> by_range({"a": ["t"], "b": ["t"]}, {"t": 3}, {})["a"] == {("t", 0), ("t", 1)}
    True
    """
    shares: PartitionsByMember = {member: set() for member in wanted}
    for topic, count in counts.items():
        members = sorted(member for member in wanted if topic in wanted[member])
        for index, member in enumerate(members):
            each, more = divmod(count, len(members))  # the first `more` members get one more
            first = each * index + min(index, more)
            last = first + each + (index < more)
            shares[member] |= {TopicPartition(topic, n) for n in range(first, last)}
    return shares


def by_turn(
    wanted: TopicsByMember, counts: PartitionCounts, _before: PartitionsByMember
) -> PartitionsByMember:
    """Assign all partitions, one after another, to the members in turn."""
    shares: PartitionsByMember = {member: set() for member in wanted}
    turn = cycle(sorted(wanted))
    subscribed = set().union(*wanted.values())
    for tp in _partitions(counts):
        if tp.topic in subscribed:
            receiver = next(member for member in turn if tp.topic in wanted[member])
            shares[receiver].add(tp)
    return shares


def sticky(
    wanted: TopicsByMember, counts: PartitionCounts, before: PartitionsByMember
) -> PartitionsByMember:
    """Assign evenly and keep as many partitions as possible where they were before.

    Free partitions go to the member with the fewest. Among equals it is the member with the fewest
    of the topic, so that busy topics are spread over all members.
    """
    shares: PartitionsByMember = {
        member: {tp for tp in before.get(member, ()) if _is_valid(tp, wanted[member], counts)}
        for member in sorted(wanted)
    }
    _drop_duplicate_claims(shares)
    taken = set().union(*shares.values())
    balance = _Balance(shares, wanted)
    for tp in _partitions(counts):
        if tp not in taken and (receiver := balance.least_loaded(tp.topic)) is not None:
            balance.assign(receiver, tp)
    while balance.move_some():
        pass
    return shares


class _Balance:
    """An assignment, with the number of partitions of each member, in total and by topic."""

    def __init__(self, shares: PartitionsByMember, wanted: TopicsByMember) -> None:
        self.shares = shares
        self._of_topic = {member: _by_topic(share) for member, share in shares.items()}
        """Heap of the numbers of its partitions, by member and topic."""
        self._subscribers: dict[str, list[str]] = defaultdict(list)
        for member in shares:
            for topic in wanted[member]:
                self._subscribers[topic].append(member)

    def least_loaded(self, topic: str) -> str | None:
        """Return the subscriber of a topic with the fewest partitions; None without subscribers."""
        shares, of_topic = self.shares, self._of_topic
        subscribers = self._subscribers.get(topic, ())
        return min(
            subscribers, key=lambda m: (len(shares[m]), len(of_topic[m][topic])), default=None
        )

    def move_some(self) -> bool:
        """Move partitions to members that have at least two fewer; False if none could be moved.

        The member with the most partitions gives one at a time, of the topic of which it has the
        most. A topic of which nothing can be moved is skipped until the next round. The time of a
        round is therefore proportional to topics plus moves, not to their product.
        """
        moved = False
        donors = [(-len(share), member) for member, share in self.shares.items()]
        topics = {member: self._most_frequent_topics(member) for member in self.shares}
        heapify(donors)
        while donors:
            size, donor = heappop(donors)
            if size != -len(self.shares[donor]):  # stale: it received partitions since
                heappush(donors, (-len(self.shares[donor]), donor))
            elif self._move_one(donor, topics[donor]):
                moved = True
                heappush(donors, (size + 1, donor))
        return moved

    def _move_one(self, donor: str, topics: list[tuple[int, str]]) -> bool:
        """Move one partition of the first of `topics` where possible; drop the topics before it."""
        while topics:
            _, topic = heappop(topics)
            numbers, receiver = self._of_topic[donor][topic], self.least_loaded(topic)
            if numbers and receiver and len(self.shares[donor]) - len(self.shares[receiver]) >= 2:
                tp = TopicPartition(topic, heappop(numbers))
                self.shares[donor].remove(tp)
                self.assign(receiver, tp)
                heappush(topics, (-len(numbers), topic))
                return True
        return False

    def assign(self, member: str, tp: TopicPartition) -> None:
        """Assign a free partition to a member."""
        self.shares[member].add(tp)
        heappush(self._of_topic[member][tp.topic], tp.partition)

    def _most_frequent_topics(self, member: str) -> list[tuple[int, str]]:
        """Return a heap of a member's topics, those with the most partitions first."""
        topics = [(-len(numbers), topic) for topic, numbers in self._of_topic[member].items()]
        heapify(topics)
        return topics


def _by_topic(share: set[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in sorted(share):  # a sorted list is a heap
        numbers[topic].append(number)
    return numbers


def spread_copies(
    shares: PartitionsByMember, wanted: TopicsByMember, replicas: int, before: PartitionsByMember
) -> PartitionsByMember:
    """Choose `replicas` standby members for each partition.

    Members that were a standby of the partition before come first, then those with the fewest.

    >>> t0 = TopicPartition("t", 0)
    >>> spread_copies({"a": {t0}, "b": set()}, {"a": ["t"], "b": ["t"]}, 1, {})["b"] == {t0}
    True
    """
    copies: PartitionsByMember = {member: set() for member in shares}
    partitions = sorted(set().union(*shares.values())) if replicas else []
    each = -(-len(partitions) * replicas // max(1, len(shares)))
    for tp in partitions:

        def rank(member: str, tp: TopicPartition = tp) -> tuple[bool, int, str]:
            number = len(copies[member])
            kept = tp in before.get(member, ()) and number < each
            return not kept, number, member

        candidates = [m for m in shares if tp.topic in wanted[m] and tp not in shares[m]]
        for member in sorted(candidates, key=rank)[:replicas]:
            copies[member].add(tp)
    return copies


def _drop_duplicate_claims(shares: PartitionsByMember) -> None:
    """Keep a partition that several members claim for the first of them only."""
    seen: set[TopicPartition] = set()
    for claimed in shares.values():
        claimed -= seen
        seen |= claimed


def _is_valid(tp: TopicPartition, topics: Collection[str], counts: PartitionCounts) -> bool:
    return tp.topic in topics and tp.partition < counts.get(tp.topic, 0)


def _partitions(counts: PartitionCounts) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in sorted(counts) for n in range(counts[topic])]


ASSIGNORS: Mapping[
    str, Callable[[TopicsByMember, PartitionCounts, PartitionsByMember], PartitionsByMember]
] = {
    "range": by_range,
    "roundrobin": by_turn,
    "cooperative-sticky": sticky,
}
