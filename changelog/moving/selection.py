"""What is moved: topics of the source, and the groups that read them."""

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
"""The metadata of a committed offset with the positions that it holds, if any, translated by the function."""


@dataclass(frozen=True)
class Conversion:
    """Values of a topic in another form."""

    schema: pa.Schema | None
    """What they become: columns, or None for bytes."""
    convert: Callable[[pa.Array], pa.Array]
    """A column of values, with nulls where there are tombstones. Raises InvalidRecord."""


Conversions = Callable[[TopicInfo, bool], Conversion | None]
"""Of a topic, to a target that has columns or not; None where values stay as they are."""


@dataclass(frozen=True)
class MovedLog:
    """A log that is moved from, or to."""

    url: str
    """A folder, or a URL."""
    broker: Broker

    @property
    def name(self) -> str:
        """The URL without its properties, some of which are secret: for messages."""
        return parse_url(self.url).name if is_kafka(self.url) else self.url.partition("?")[0]

    @property
    def has_columns(self) -> bool:
        """Whether its topics may be typed."""
        return bool(getattr(self.broker, "holds_columns", True))

    def groups(self) -> list[str]:
        """Its consumer groups."""
        return self.broker.groups()

    def topics(self) -> list[TopicInfo]:
        """Its topics, without those in which the system keeps its own."""
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
    """What is chosen of a log; None: all there is."""

    topics: Collection[str] | None = None
    groups: Collection[str] | None = None
    """Of these groups what they have committed in the topics."""
    metadata: Metadata = lambda metadata, _: metadata
    conversions: Conversions = lambda _topic, _columns: None

    def topics_in(self, source: MovedLog) -> list[TopicInfo]:
        """The topics, by name. Raises UnknownTopic, InvalidRequest if there are none."""
        present = {info.name: info for info in source.topics()}
        wanted = sorted(present if self.topics is None else set(self.topics))
        if unknown := [name for name in wanted if name not in present]:
            known = ", ".join(present) or "none"
            raise UnknownTopic(
                f"{source.name} has no topic {', '.join(unknown)} to move; there are: {known}"
            )
        if not wanted:
            raise InvalidRequest(f"{source.name} has no topics, so there is nothing to move")
        return [present[name] for name in wanted]

    def groups_in(self, source: MovedLog) -> list[str]:
        """The groups."""
        return sorted(source.groups() if self.groups is None else set(self.groups))


def check_at_rest(place: MovedLog, groups: Iterable[str]) -> None:
    """Raise InvalidRequest if one of the groups has members."""
    for group in groups:
        members = place.broker.describe_group(group).members
        if members:
            who = ", ".join(sorted(member.client or member.member_id for member in members))
            raise InvalidRequest(
                f"group {group!r} is at work in {place.name} ({who}); stop it, then move. A member "
                f"that was killed is gone at once in a folder, on Kafka after its session timeout"
            )
