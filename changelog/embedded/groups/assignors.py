"""How the partitions of topics are shared out among the members of a group.

    range               topic by topic, a stretch of neighbours for each (Kafka's RangeAssignor)
    roundrobin          all partitions in turn (Kafka's RoundRobinAssignor)
    cooperative-sticky  evenly, moving as few as possible (KIP-54, KIP-429)

Each gives every partition to exactly one of the members that want its topic, and the same
for the same arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

from changelog.records import TopicPartition

Wanted = Mapping[str, Sequence[str]]
"""By member, the topics it wants."""
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
    for tp in _partitions(counts):
        if any(tp.topic in topics for topics in wanted.values()):
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
    while any(_moved(scale, giver) for giver in sorted(shares, key=_most_first(shares))):
        pass
    return shares


class _Scale:
    """Shares, and how much each member has: in all, and of each topic."""

    def __init__(self, shares: Shares, wanted: Wanted) -> None:
        self.shares = shares
        self._of_topic = {m: Counter(tp.topic for tp in share) for m, share in shares.items()}
        self._takers = {
            topic: [member for member in shares if topic in wanted[member]]
            for topic in {topic for topics in wanted.values() for topic in topics}
        }

    def lightest(self, topic: str) -> str | None:
        """Who has the fewest of those that want the topic; None if nobody does."""
        shares, of_topic = self.shares, self._of_topic
        takers = self._takers.get(topic, ())
        return min(takers, key=lambda m: (len(shares[m]), of_topic[m][topic]), default=None)

    def of_most_frequent_topics(self, member: str) -> list[TopicPartition]:
        """What it has, beginning with the topic that it has the most of."""
        of_topic = self._of_topic[member]
        return sorted(self.shares[member], key=lambda tp: (-of_topic[tp.topic], tp))

    def give(self, member: str, tp: TopicPartition) -> None:
        self.shares[member].add(tp)
        self._of_topic[member][tp.topic] += 1

    def take(self, member: str, tp: TopicPartition) -> None:
        self.shares[member].remove(tp)
        self._of_topic[member][tp.topic] -= 1


def _moved(scale: _Scale, giver: str) -> bool:
    """Whether one partition of `giver` could go to somebody who has two fewer, and does now."""
    for tp in scale.of_most_frequent_topics(giver):
        taker = scale.lightest(tp.topic)
        if taker and len(scale.shares[giver]) - len(scale.shares[taker]) >= 2:
            scale.take(giver, tp)
            scale.give(taker, tp)
            return True
    return False


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


def _most_first(shares: Shares) -> Callable[[str], int]:
    return lambda member: -len(shares[member])


def _drop_twins(shares: Shares) -> None:
    """One that two say they had belongs to the first of them."""
    seen: set[TopicPartition] = set()
    for mine in shares.values():
        mine -= seen
        seen |= mine


def _fits(tp: TopicPartition, topics: Sequence[str], counts: Counts) -> bool:
    return tp.topic in topics and tp.partition < counts.get(tp.topic, 0)


def _partitions(counts: Counts) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in sorted(counts) for n in range(counts[topic])]


ASSIGNORS: Mapping[str, Callable[[Wanted, Counts, Shares], Shares]] = {
    "range": by_range,
    "roundrobin": in_turn,
    "cooperative-sticky": sticky,
}
