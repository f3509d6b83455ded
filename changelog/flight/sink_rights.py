"""Rights of a sink over TCP: what a token may do with the topics that sinks have of their own.

A token is that of a sink if it has a right `transaction:strandline-sink-…`. It may then do
everything with the staging topics of its sinks for topics that it may produce to. In the topic of
committed batches it may read all, and append records whose keys are the ids of its sinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strandline.changelog.broker import Broker
from strandline.changelog.errors import InvalidRecord, UnknownTopic
from strandline.changelog.flight.requests import CreateTopic
from strandline.changelog.flight.rights import AuthorizedToken, Rights
from strandline.changelog.records import Append
from strandline.changelog.sinks import (
    JOB_STAGING,
    SINKS,
    SINKS_CONFIG,
    STAGING,
    TRANSACTIONS,
    digest_of,
    staging_prefix,
)


class StagingTargets:
    """Finds the topics for which staging topics hold rows. Thread-safe.

    Args:
        broker: The log.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._found: dict[str, str] = {}
        """Names of topics, by the digests of their ids."""

    def of(self, staging: str) -> str | None:
        """Return the name of the topic that a staging topic is for; None if it does not exist."""
        wanted = staging.rpartition("-")[2]
        known = self._found.get(wanted)
        if known is not None and self._is(known, wanted):
            return known
        found = {digest_of(topic.topic_id): topic.name for topic in self._broker.topics()}
        self._found = found
        return found.get(wanted)

    def _is(self, name: str, wanted: str) -> bool:
        """Return True if the topic of this name still has the id: it may have been created again."""
        try:
            return digest_of(self._broker.topic(name).topic_id) == wanted
        except UnknownTopic:
            return False


class SinkRights:
    """Rights of one token for topics of sinks.

    Args:
        token: The token.
        targets: Finds the targets of staging topics.
    """

    def __init__(self, token: AuthorizedToken, targets: StagingTargets) -> None:
        self._token = token
        self._targets = targets

    @property
    def is_sink(self) -> bool:
        """True if the token is that of a sink."""
        return any(_sinks(self._token.rights))

    def owns(self, topic: str) -> bool:
        """Return True for a staging topic of the token's sinks, for a topic it may produce to."""
        if not any(_may_stage(sink, topic) for sink in _sinks(self._token.rights)):
            return False
        target = self._targets.of(topic)
        return target is not None and self._token.rights.may_on_topic("produce", target)

    def may_use(self, topic: str) -> bool:
        """Return True if the token may read a topic of sinks, and append to it."""
        return (topic == SINKS and self.is_sink) or self.owns(topic)

    def may_create(self, request: CreateTopic) -> bool:
        """Return True if the token may create a topic of sinks as it must be."""
        if request.name != SINKS:
            return self.owns(request.name)
        as_it_must_be = (1, dict(SINKS_CONFIG), None)
        return (
            self.is_sink and (request.partitions, request.config, request.schema) == as_it_must_be
        )

    def check_records(self, appends: Iterable[Append]) -> None:
        """Raise NotAuthorized for a committed batch of a sink that is not one of the token's."""
        if self._token.rights.may_on_topic("produce", SINKS):
            return
        for append in appends:
            if append.topic != SINKS:
                continue
            for key in append.columns.column("key").to_pylist():
                self._token.need("transaction", TRANSACTIONS + _sink_of(key))


def _sink_of(key: bytes | None) -> str:
    """Return the id of a sink in a record's key. Raises InvalidRecord."""
    try:
        return (key or b"").decode()
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"the key {key!r:.100} is not the id of a sink: {error}") from error


def _sinks(rights: Rights) -> Iterator[str]:
    """Yield the ids of sinks, or beginnings of them with `*`, for which a token has a right."""
    for pattern in rights.transaction:
        if pattern.startswith(TRANSACTIONS):
            yield pattern.removeprefix(TRANSACTIONS)


def _may_stage(sink: str, topic: str) -> bool:
    """Return True for the name of a staging topic that a sink may have.

    >>> _may_stage("orders", staging_prefix("orders") + "0"), _may_stage("orders", staging_prefix("x"))
    (True, False)
    """
    if sink.endswith("*"):
        return topic.startswith(sink[:-1] if sink.startswith(STAGING) else STAGING)
    return topic.startswith((staging_prefix(sink), JOB_STAGING))
