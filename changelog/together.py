"""Topics that are shared out as one: the first of them, by name, stands for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from changelog.records import TopicPartition


class Leads:
    """For each topic the one that stands for it, itself if it goes alone.

    >>> leads = Leads([("clicks", "users"), ("users", "bills")])
    >>> leads.of(["bills", "clicks", "other"])
    ['bills', 'other']
    """

    def __init__(self, together: Iterable[Sequence[str]]) -> None:
        self._lead: dict[str, str] = {}
        for topics in together:
            merged = {self._lead.get(topic, topic) for topic in topics}
            lead = min(merged, default="")
            known = [topic for topic, old in self._lead.items() if old in merged]
            self._lead.update(dict.fromkeys([*topics, *merged, *known], lead))

    def of(self, topics: Iterable[str]) -> list[str]:
        """Those that stand for these topics."""
        return sorted({self._lead.get(topic, topic) for topic in topics})

    def split(self, partitions: Iterable[TopicPartition]) -> list[frozenset[TopicPartition]]:
        """Those of the partitions that go together, lowest numbers first.

        >>> one, two = TopicPartition("clicks", 0), TopicPartition("users", 0)
        >>> [len(unit) for unit in Leads([("clicks", "users")]).split([one, two, ("clicks", 1)])]
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
