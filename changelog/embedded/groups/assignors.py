"""How the partitions of topics are shared out among the members of a group.

    range               topic by topic, a stretch of neighbours for each (Kafka's RangeAssignor)
    roundrobin          all partitions in turn (Kafka's RoundRobinAssignor)
    cooperative-sticky  evenly, moving as few as possible (KIP-54, KIP-429)

Each gives every partition to exactly one of the members that want its topic, and the same
for the same arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush
from itertools import cycle

from strandline.changelog.records import TopicPartition

Wanted = Mapping[str, Collection[str]]
"""By member, the topics it wants. Sets, where there may be many: each is asked for every partition."""
Counts = Mapping[str, int]
"""By topic, how many partitions it has."""
Shares = dict[str, set[TopicPartition]]
"""By member, what it gets."""


def by_range(wanted: Wanted, counts: Counts, _before: Shares) -> Shares:
    """A stretch of neighbours for each; the same numbers of all topics to the same member.

    >>> by_range({"a": ["t"], "b": ["t"]}, {"t": 3}, {})["a"] == {("t", 0), ("t", 1)}
    True
    """
    shares: Shares = {member: set() for member in wanted}
    for topic, count in counts.items():
        members = sorted(member for member in wanted if topic in wanted[member])
        for index, member in enumerate(members):
            each, more = divmod(count, len(members))  # the first ones get one more
            first = each * index + min(index, more)
            last = first + each + (index < more)
            shares[member] |= {TopicPartition(topic, n) for n in range(first, last)}
    return shares


def in_turn(wanted: Wanted, counts: Counts, _before: Shares) -> Shares:
    """All partitions, one after another, to the members in turn."""
    shares: Shares = {member: set() for member in wanted}
    turn = cycle(sorted(wanted))
    wished = set().union(*wanted.values())
    for tp in _partitions(counts):
        if tp.topic in wished:
            taker = next(member for member in turn if tp.topic in wanted[member])
            shares[taker].add(tp)
    return shares


def sticky(wanted: Wanted, counts: Counts, before: Shares) -> Shares:
    """What each had before, as far as it is even: to the one with the fewest what is left over.

    Among equals it goes by topic, so that each gets its part of the heavy ones and of the light.
    """
    shares: Shares = {
        member: {tp for tp in before.get(member, ()) if _fits(tp, wanted[member], counts)}
        for member in sorted(wanted)
    }
    _drop_twins(shares)
    taken = set().union(*shares.values())
    scale = _Scale(shares, wanted)
    for tp in _partitions(counts):
        if tp not in taken and (taker := scale.lightest(tp.topic)) is not None:
            scale.give(taker, tp)
    while scale.even_out():
        pass
    return shares


class _Scale:
    """Shares, and how much each member has: in all, and of each topic."""

    def __init__(self, shares: Shares, wanted: Wanted) -> None:
        self.shares = shares
        self._of_topic = {member: _by_topic(share) for member, share in shares.items()}
        self._takers: dict[str, list[str]] = defaultdict(list)
        for member in shares:
            for topic in wanted[member]:
                self._takers[topic].append(member)

    def lightest(self, topic: str) -> str | None:
        """Who has the fewest of those that want the topic; None if nobody does."""
        shares, of_topic = self.shares, self._of_topic
        takers = self._takers.get(topic, ())
        return min(takers, key=lambda m: (len(shares[m]), len(of_topic[m][topic])), default=None)

    def even_out(self) -> bool:
        """Move partitions to members that have two fewer than their holders; False if there are none.

        The holder with the most gives, one at a time, of the topic that it has the most of. A topic
        of which it can give nothing is passed over until the next round: so a round takes time in
        proportion to topics and moves, not to their product.
        """
        moved = False
        givers = [(-len(share), member) for member, share in self.shares.items()]
        topics = {member: self._most_frequent_topics(member) for member in self.shares}
        heapify(givers)
        while givers:
            size, giver = heappop(givers)
            if size != -len(self.shares[giver]):  # it has got some meanwhile
                heappush(givers, (-len(self.shares[giver]), giver))
            elif self._gave_one(giver, topics[giver]):
                moved = True
                heappush(givers, (size + 1, giver))
        return moved

    def _gave_one(self, giver: str, topics: list[tuple[int, str]]) -> bool:
        """Move a partition of the first of these topics of which one can go; forget those before."""
        while topics:
            _, topic = heappop(topics)
            numbers, taker = self._of_topic[giver][topic], self.lightest(topic)
            if numbers and taker and len(self.shares[giver]) - len(self.shares[taker]) >= 2:
                tp = TopicPartition(topic, min(numbers))
                self._take(giver, tp)
                self.give(taker, tp)
                heappush(topics, (-len(numbers), topic))
                return True
        return False

    def give(self, member: str, tp: TopicPartition) -> None:
        self.shares[member].add(tp)
        self._of_topic[member][tp.topic].add(tp.partition)

    def _take(self, member: str, tp: TopicPartition) -> None:
        self.shares[member].remove(tp)
        self._of_topic[member][tp.topic].remove(tp.partition)

    def _most_frequent_topics(self, member: str) -> list[tuple[int, str]]:
        """A heap of the topics that a member has, the one it has the most of first."""
        topics = [(-len(numbers), topic) for topic, numbers in self._of_topic[member].items()]
        heapify(topics)
        return topics


def _by_topic(share: set[TopicPartition]) -> dict[str, set[int]]:
    numbers: dict[str, set[int]] = defaultdict(set)
    for topic, number in share:
        numbers[topic].add(number)
    return numbers


def spread_copies(shares: Shares, wanted: Wanted, replicas: int, before: Shares) -> Shares:
    """For each partition `replicas` others that keep a copy: who has one, then who has the fewest.

    >>> t0 = TopicPartition("t", 0)
    >>> spread_copies({"a": {t0}, "b": set()}, {"a": ["t"], "b": ["t"]}, 1, {})["b"] == {t0}
    True
    """
    copies: Shares = {member: set() for member in shares}
    every = sorted(set().union(*shares.values())) if replicas else []
    each = -(-len(every) * replicas // max(1, len(shares)))
    for tp in every:

        def burden(member: str, tp: TopicPartition = tp) -> tuple[bool, int, str]:
            number = len(copies[member])
            stays = tp in before.get(member, ()) and number < each
            return not stays, number, member

        others = [m for m in shares if tp.topic in wanted[m] and tp not in shares[m]]
        for member in sorted(others, key=burden)[:replicas]:
            copies[member].add(tp)
    return copies


def _drop_twins(shares: Shares) -> None:
    """One that two say they had belongs to the first of them."""
    seen: set[TopicPartition] = set()
    for mine in shares.values():
        mine -= seen
        seen |= mine


def _fits(tp: TopicPartition, topics: Collection[str], counts: Counts) -> bool:
    return tp.topic in topics and tp.partition < counts.get(tp.topic, 0)


def _partitions(counts: Counts) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in sorted(counts) for n in range(counts[topic])]


ASSIGNORS: Mapping[str, Callable[[Wanted, Counts, Shares], Shares]] = {
    "range": by_range,
    "roundrobin": in_turn,
    "cooperative-sticky": sticky,
}
