"""Copartition groups: topics whose partitions of equal number go to the same member.

The first topic of a group, by name, is its lead. Only leads are assigned to members; the other
topics follow them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from strandline.changelog.records import TopicPartition


class CopartitionGroups:
    """The copartition groups of some topics. Groups that share a topic are merged.

    >>> leads = CopartitionGroups([("clicks", "users"), ("users", "bills")])
    >>> leads.of(["bills", "clicks", "other"])
    ['bills', 'other']
    """

    def __init__(self, together: Iterable[Sequence[str]]) -> None:
        # A union-find forest whose roots are the leads. Paths are shortened as they are walked,
        # so the time is nearly linear in the number of names, in any order.
        above: dict[str, str] = {}
        for topics in together:
            roots = {_root(above, topic) for topic in topics}
            above.update(dict.fromkeys(roots, min(roots, default="")))
        self._lead = {topic: _root(above, topic) for topic in above}

    def of(self, topics: Iterable[str]) -> list[str]:
        """Return the leads of these topics, sorted. A topic without a group is its own lead."""
        return sorted({self._lead.get(topic, topic) for topic in topics})

    def split(self, partitions: Iterable[TopicPartition]) -> list[frozenset[TopicPartition]]:
        """Return the partitions grouped into units that are assigned together, by number.

        >>> one, two = TopicPartition("clicks", 0), TopicPartition("users", 0)
        >>> groups = CopartitionGroups([("clicks", "users")])
        >>> [len(unit) for unit in groups.split([one, two, ("clicks", 1)])]
        [2, 1]
        """
        units: dict[tuple[int, str], set[TopicPartition]] = {}
        for topic, number in partitions:
            unit = number, self._lead.get(topic, topic)
            units.setdefault(unit, set()).add(TopicPartition(topic, number))
        return [frozenset(units[unit]) for unit in sorted(units)]

    def counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return the number of units of each lead, given the number of partitions of each topic.

        A lead has as many units as the largest topic of its group has partitions.
        """
        most: dict[str, int] = {}
        for topic, count in counts.items():
            lead = self._lead.get(topic, topic)
            most[lead] = max(count, most.get(lead, 0))
        return most

    def expand(
        self, share: Iterable[TopicPartition], topics: Collection[str], counts: Mapping[str, int]
    ) -> frozenset[TopicPartition]:
        """Return the partitions of `topics` that go with the partitions of leads in `share`.

        `counts` is the number of partitions of each topic.
        """
        numbers: dict[str, list[int]] = {}
        for lead, number in share:
            numbers.setdefault(lead, []).append(number)
        return frozenset(
            TopicPartition(topic, number)
            for topic in topics
            for number in numbers.get(self._lead.get(topic, topic), ())
            if number < counts.get(topic, 0)
        )


def _root(above: dict[str, str], topic: str) -> str:
    """Return the root of a topic, and shorten the path to it."""
    while (parent := above.setdefault(topic, topic)) != topic:
        above[topic] = topic = above[parent]
    return topic
