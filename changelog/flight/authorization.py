"""Rights that the calls of clients over TCP need. A call without an entry here is refused.

Processes on the log's own Unix socket need no rights, because they run as the owner of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from strandline.changelog.errors import NotAuthorized
from strandline.changelog.flight import requests as r
from strandline.changelog.flight.grants import Granting, Subject, opened_by, subjects_of
from strandline.changelog.flight.messages import FetchRequest, SmallAppend
from strandline.changelog.flight.rights import AuthorizedToken
from strandline.changelog.flight.sink_rights import SinkRights, StagingTargets
from strandline.changelog.pins import PinName
from strandline.changelog.records import Append

MAX_PARTITIONS_CREATED = 1_024
"""Maximum number of partitions of a topic that is created without the right `admin`.

Each takes 3 KiB of the owner's memory."""

Need = Callable[[AuthorizedToken, Any], None]


@dataclass(frozen=True, slots=True)
class Permit:
    """Rights of one call: the client's token and the grants that the call presents."""

    holder: AuthorizedToken
    granting: Granting
    presented: bytes = b""

    @classmethod
    def of(
        cls, holder: AuthorizedToken, granting: Granting, presented: bytes, targets: StagingTargets
    ) -> Permit:
        """Return the rights of a call, with those for the topics of the token's sinks."""
        own = None if holder.rights.admin else SinkRights(holder, targets)
        return cls(replace(holder, own=own), granting, presented)

    def check(self, message: Any) -> None:
        """Raise unless the client may make this call.

        Raises:
            NotAuthorized: Its token lacks a right, which the error names.
            ProducerFenced: It acts for a producer that it has not opened.
            MemberFenced: It acts for a group member that it has not opened.
        """
        need = NEEDED.get(type(message))
        if need is None:
            raise NotAuthorized(f"clients over TCP may not call {type(message).__name__}")
        need(self.holder, message)
        self.granting.check(self.holder.token_id, self.presented, subjects_of(message))

    def check_records(self, appends: Iterable[Append]) -> None:
        """Raise NotAuthorized for a record that says something of another client's sink."""
        if isinstance(self.holder.own, SinkRights):
            self.holder.own.check_records(appends)

    def visible(self, request: r.Request[Any], answer: Any) -> Any:
        """Return the part of an answer that the client may see."""
        select = VISIBLE.get(type(request))
        if select is None or self.holder.rights.admin:
            return answer
        return [one for one in answer if select(self.holder, one)]

    def grants(self, request: r.Request[Any], answer: Any) -> list[bytes]:
        """Return the grant for the producer or member that the request has opened, if any."""
        opened: Subject | None = opened_by(request, answer)
        return [] if opened is None else [self.granting.grant(self.holder.token_id, opened)]

    def own(self, message: Any) -> Any:
        """Return the message with its pin names mapped to those of the client's token.

        Each token has its own namespace of pins. A token with the right `admin` uses the names of
        the log, and so can name all pins.
        """
        if self.holder.rights.admin:
            return message
        if isinstance(message, r.HoldPin | r.UsePin):
            return msgspec.structs.replace(message, name=self._own_pin(message.name))
        if isinstance(message, r.ReleasePins):
            return msgspec.structs.replace(message, holder=self._own_holder(message.holder))
        if isinstance(message, FetchRequest) and message.pin is not None:
            return msgspec.structs.replace(message, pin=self._own_pin(message.pin))
        return message

    def _own_pin(self, name: PinName) -> PinName:
        return name._replace(holder=self._own_holder(name.holder))

    def _own_holder(self, holder: str) -> str:
        return self.granting.pin_holder(self.holder.token_id, holder)


def _topics(kind: str, names: Callable[[Any], Iterable[str]]) -> Need:
    def need(holder: AuthorizedToken, message: Any) -> None:
        for name in {*names(message)}:
            holder.need_topic(kind, name)

    return need


def _visible_topics(names: Callable[[Any], Iterable[str]]) -> Need:
    def need(holder: AuthorizedToken, message: Any) -> None:
        for name in {*names(message)}:
            holder.need_to_see(name)

    return need


def _admin(holder: AuthorizedToken, _message: Any) -> None:
    holder.need_admin()


def _no_right(_holder: AuthorizedToken, _message: Any) -> None:
    """Require no right: the answer is filtered (VISIBLE), or only the grant counts."""


def _topic_itself(topic: Callable[[Any], str]) -> Need:
    """Require `admin` for a topic that the token does not own."""

    def need(holder: AuthorizedToken, message: Any) -> None:
        if not holder.owns(topic(message)):
            holder.need_admin()

    return need


def _create_topic(holder: AuthorizedToken, message: r.CreateTopic) -> None:
    if message.partitions > MAX_PARTITIONS_CREATED:
        holder.need_admin()
    if isinstance(holder.own, SinkRights) and holder.own.may_create(message):
        return
    holder.need_named_topic(message.name)
    if message.internal:
        holder.need_admin()


def _alter_topic(holder: AuthorizedToken, message: r.AlterTopic) -> None:
    """Require `produce` to add nullable fields, and `admin` to change settings or partitions."""
    if holder.owns(message.name):
        return
    if message.config is not None or message.partitions is not None:
        holder.need_admin()
    holder.need_named_topic(message.name)


def _init_producer(holder: AuthorizedToken, message: r.InitProducer) -> None:
    holder.need_any("produce")
    if message.transactional_id is not None:
        holder.need("transaction", message.transactional_id)


def _offsets_of_group(holder: AuthorizedToken, message: r.AddOffsets | r.CommitOffsets) -> None:
    holder.need("group", message.group)
    for topic in {tp.topic for tp in message.offsets}:
        holder.need_topic("read", topic)


def _join_group(holder: AuthorizedToken, message: r.JoinGroup) -> None:
    holder.need("group", message.group)
    wanted = message.subscription
    for topic in {*wanted.topics, *(name for names in wanted.together for name in names)}:
        holder.need_topic("read", topic)


def _group(holder: AuthorizedToken, message: r.FetchOffsets | r.DescribeGroup) -> None:
    holder.need("group", message.group)


def _heartbeat(holder: AuthorizedToken, message: r.Heartbeat) -> None:
    holder.need("group", message.member.group)


def _leave_group(holder: AuthorizedToken, message: r.LeaveGroup) -> None:
    for group in {member.group for member in message.members}:
        holder.need("group", group)
    holder.need_any("group")  # also for no member


def _hold_pin(holder: AuthorizedToken, message: r.HoldPin) -> None:
    for topic in {tp.topic for tp in message.ranges}:
        holder.need_topic("read", topic)
    holder.need_any("read")  # also for no topic


def _pinned(holder: AuthorizedToken, _message: r.UsePin | r.ReleasePins) -> None:
    holder.need_any("read")


NEEDED: Mapping[type[Any], Need] = {
    FetchRequest: _topics("read", lambda m: (tp.topic for tp in m.positions)),
    SmallAppend: _topics("produce", lambda m: (header.topic for header, _ in m.batches)),
    r.CreateTopic: _create_topic,
    r.DeleteTopic: _topic_itself(lambda m: m.name),
    r.AlterTopic: _alter_topic,
    r.ListTopics: _no_right,
    r.DescribeTopic: _visible_topics(lambda m: [m.name]),
    r.ListOffsets: _visible_topics(lambda m: (tp.topic for tp in m.partitions)),
    r.OffsetForTime: _topics("read", lambda m: [m.partition.topic]),
    r.ListExtents: _topics("read", lambda m: (tp.topic for tp in m.spans)),
    r.DeleteRecords: _topic_itself(lambda m: m.partition.topic),
    r.CleanTopics: _admin,
    r.Cleaning: _no_right,
    r.HoldPin: _hold_pin,
    r.UsePin: _pinned,
    r.ReleasePins: _pinned,
    r.TakeSnapshot: _admin,
    r.ReleaseSnapshot: _admin,
    r.InitProducer: _init_producer,
    r.AddOffsets: _offsets_of_group,
    r.EndTransaction: _no_right,
    r.CommitOffsets: _offsets_of_group,
    r.FetchOffsets: _group,
    r.ListGroups: _no_right,
    r.DescribeGroup: _group,
    r.JoinGroup: _join_group,
    r.Heartbeat: _heartbeat,
    r.LeaveGroup: _leave_group,
    r.DescribeConfig: _admin,
    r.AlterConfig: _admin,
}
"""Checks by message type; each raises NotAuthorized if a right is missing."""

VISIBLE: Mapping[type[r.Request[Any]], Callable[[AuthorizedToken, Any], bool]] = {
    r.ListTopics: lambda holder, info: holder.sees(info.name),
    r.Cleaning: lambda holder, status: holder.sees(status.topic),
    r.ListGroups: lambda holder, group: holder.rights.may("group", group),
}
"""Filters by request type; each returns True for items of the answer that a token may see."""
