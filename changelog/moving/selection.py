"""The topics and groups that are moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRequest, UnknownTopic
from strandline.changelog.kafka.address import parse_url
from strandline.changelog.kafka.copartitioning import members_topic
from strandline.changelog.location import is_kafka
from strandline.changelog.records import TopicInfo

Metadata = Callable[[str, Callable[[int], int]], str]
"""Translates the positions in the metadata of a committed offset, given the metadata and the
translation of one position."""


@dataclass(frozen=True)
class Conversion:
    """The conversion of a topic's values to another format."""

    schema: pa.Schema | None
    """Schema of the converted values; None for bytes."""
    convert: Callable[[pa.Array], pa.Array]
    """Converts a column of values, in which tombstones are null. Raises InvalidRecord."""


Conversions = Callable[[TopicInfo, bool], Conversion | None]
"""Returns the conversion for a topic, given whether the target has columns; None for none."""


@dataclass(frozen=True)
class MovedLog:
    """The source or target of a move."""

    url: str
    """Path of a folder, or URL."""
    broker: Broker
    """Open connection to the log."""

    @property
    def name(self) -> str:
        """URL for messages: without properties, because some of them are secret."""
        return parse_url(self.url).name if is_kafka(self.url) else self.url.partition("?")[0]

    @property
    def has_columns(self) -> bool:
        """True if the log supports typed topics."""
        return self.broker.holds_columns

    def groups(self) -> list[str]:
        """Return the names of the log's consumer groups."""
        return self.broker.groups()

    def topics(self) -> list[TopicInfo]:
        """Return the log's topics, without internal ones."""
        of_members = (
            {members_topic(group) for group in self.groups()} if is_kafka(self.url) else set()
        )
        return [
            info
            for info in self.broker.topics()
            if not info.internal and info.name not in of_members
        ]


@dataclass(frozen=True)
class Selection:
    """The topics and groups to move, and how."""

    topics: Collection[str] | None = None
    """Names of topics; None for all."""
    groups: Collection[str] | None = None
    """Groups whose committed offsets in these topics are moved; None for all."""
    metadata: Metadata = lambda metadata, _: metadata
    """Translation of the metadata of committed offsets; unchanged by default."""
    conversions: Conversions = lambda _topic, _columns: None
    """Conversion of the values of each topic; none by default."""

    def topics_in(self, source: MovedLog) -> list[TopicInfo]:
        """Return the selected topics, sorted by name.

        Args:
            source: The log to move from.

        Raises:
            UnknownTopic: The log does not have a selected topic.
            InvalidRequest: No topic is selected.
        """
        present = {info.name: info for info in source.topics()}
        wanted = sorted(present if self.topics is None else set(self.topics))
        if unknown := [name for name in wanted if name not in present]:
            known = ", ".join(present) or "none"
            raise UnknownTopic(
                f"{source.name} has no topic {', '.join(unknown)} to move; there are: {known}"
            )
        if not wanted:
            raise InvalidRequest(f"{source.name} has no topics: there is nothing to move")
        return [present[name] for name in wanted]

    def groups_in(self, source: MovedLog) -> list[str]:
        """Return the names of the selected groups, sorted."""
        return sorted(source.groups() if self.groups is None else set(self.groups))


def check_at_rest(place: MovedLog, groups: Iterable[str]) -> None:
    """Raise InvalidRequest if one of the groups has members."""
    for group in groups:
        members = place.broker.describe_group(group).members
        if members:
            who = ", ".join(sorted(member.client or member.member_id for member in members))
            raise InvalidRequest(
                f"group {group!r} has members in {place.name} ({who}); stop it, then move. A member "
                f"that was killed is removed at once in a folder, on Kafka after its session timeout"
            )
