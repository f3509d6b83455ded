"""How the partitions of topics are shared out among the members of a group.

    range               topic by topic, a stretch of neighbours for each (Kafka's RangeAssignor)
    roundrobin          all partitions in turn (Kafka's RoundRobinAssignor)
    cooperative-sticky  evenly, moving as few as possible (KIP-54, KIP-429)

Each gives every partition to exactly one of the members that want its topic, and the same
for the same arguments.
"""

from __future__ import annotations

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
    """What each had before, as far as it is even: to the one with the fewest what is left over."""
    shares: Shares = {
        member: {tp for tp in before.get(member, ()) if _fits(tp, wanted[member], counts)}
        for member in sorted(wanted)
    }
    _drop_twins(shares)
    taken = set().union(*shares.values())
    for tp in _partitions(counts):
        if tp not in taken and (takers := [m for m in shares if tp.topic in wanted[m]]):
            shares[min(takers, key=lambda member: len(shares[member]))].add(tp)
    _level(shares, wanted)
    return shares


def _level(shares: Shares, wanted: Wanted) -> None:
    """Move single partitions from those with the most to those with the fewest, while that helps."""
    while any(_moved(shares, wanted, giver) for giver in sorted(shares, key=_most_first(shares))):
        pass


def _moved(shares: Shares, wanted: Wanted, giver: str) -> bool:
    """Whether one partition of `giver` could go to somebody who has two fewer, and does now."""
    for tp in sorted(shares[giver]):
        takers = [member for member in shares if tp.topic in wanted[member]]
        taker = min(takers, key=lambda member: len(shares[member]))
        if len(shares[giver]) - len(shares[taker]) >= 2:
            shares[giver].remove(tp)
            shares[taker].add(tp)
            return True
    return False


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
