"""Topics that are shared out as one: the first of them, by name, stands for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from strandline.changelog.records import TopicPartition


class CopartitionGroups:
    """For each topic the one that stands for it, itself if it goes alone.

    >>> leads = CopartitionGroups([("clicks", "users"), ("users", "bills")])
    >>> leads.of(["bills", "clicks", "other"])
    ['bills', 'other']
    """

    def __init__(self, together: Iterable[Sequence[str]]) -> None:
        # A forest: its roots are the leads. Paths are halved as they are walked, so the time is
        # nearly linear in the names, in whatever order they come.
        above: dict[str, str] = {}
        for topics in together:
            roots = {_root(above, topic) for topic in topics}
            above.update(dict.fromkeys(roots, min(roots, default="")))
        self._lead = {topic: _root(above, topic) for topic in above}

    def of(self, topics: Iterable[str]) -> list[str]:
        """Those that stand for these topics."""
        return sorted({self._lead.get(topic, topic) for topic in topics})

    def split(self, partitions: Iterable[TopicPartition]) -> list[frozenset[TopicPartition]]:
        """Those of the partitions that go together, lowest numbers first.

        >>> one, two = TopicPartition("clicks", 0), TopicPartition("users", 0)
        >>> [len(unit) for unit in CopartitionGroups([("clicks", "users")]).split([one, two, ("clicks", 1)])]
        [2, 1]
        """
        units: dict[tuple[int, str], set[TopicPartition]] = {}
        for topic, number in partitions:
            unit = number, self._lead.get(topic, topic)
            units.setdefault(unit, set()).add(TopicPartition(topic, number))
        return [frozenset(units[unit]) for unit in sorted(units)]

    def counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        """By lead, how many partitions there are to share out; given those of each topic."""
        most: dict[str, int] = {}
        for topic, count in counts.items():
            lead = self._lead.get(topic, topic)
            most[lead] = max(count, most.get(lead, 0))
        return most

    def expand(
        self, share: Iterable[TopicPartition], topics: Collection[str], counts: Mapping[str, int]
    ) -> frozenset[TopicPartition]:
        """The partitions of all topics that a share of the leads stands for."""
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
    while (parent := above.setdefault(topic, topic)) != topic:
        above[topic] = topic = above[parent]
    return topic
