"""The log's assignment of partitions, as Faust's assignor knows it.

The log assigns the partitions, so that a worker that lost one cannot commit for it. Faust's
assignor is told the result: active and standby partitions, copartition groups, and at which URL
each worker serves its tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from faust.assignor.client_assignment import ClientAssignment, ClientMetadata

from strandline.changelog.broker import Broker
from strandline.changelog.groups import Subscription
from strandline.changelog.records import TopicPartition
from strandline.framework.faust.log_link import FaustLink

ByTopic = dict[str, list[int]]


def subscription(app: Any, link: FaustLink, topics: Iterable[str], session_ms: int) -> Subscription:
    """Return the subscription of a worker: equal partitions of all topics are assigned together.

    So each number of a partition belongs to one worker, whatever topics the others read. A worker
    reads more topics than another one for a moment whenever topics are added while they run.
    """
    present = sorted(topic for topic in topics if link.info(topic) is not None)
    return Subscription(
        present,
        session_timeout_ms=session_ms,
        client=_client(str(app.conf.canonical_url)),
        together=[present],
        standby_replicas=app.conf.table_standby_replicas,
        topics_differ=True,
    )


def tell_assignor(
    app: Any,
    link: FaustLink,
    actives: Iterable[TopicPartition],
    standbys: Iterable[TopicPartition],
    workers: Mapping[str, ByTopic],
) -> None:
    """Give Faust's assignor the assignment of this worker.

    Args:
        app: The Faust app.
        link: Its log.
        actives: Partitions that this worker owns.
        standbys: Partitions that it keeps copies of.
        workers: Partitions of each worker, by its URL.
    """
    changelogs = app.tables.changelog_topics
    copies = (tp for tp in standbys if tp.topic in changelogs)
    assignment = ClientAssignment(actives=_by_topic(actives), standbys=_by_topic(copies))
    url = str(app.conf.canonical_url)
    everyone = {**workers, url: _by_topic(actives)}
    topics = {topic for of in everyone.values() for topic in of}
    metadata = ClientMetadata(
        assignment=assignment,
        url=url,
        changelog_distribution=_only(everyone, topics & changelogs),
        external_topic_distribution=_only(everyone, topics - changelogs),
        topic_groups={topic: _partitions(link, topic) for topic in topics},
    )
    assignor = app.assignor
    assignor.on_assignment(
        ConsumerProtocolMemberAssignment(
            assignor.version,
            sorted(assignment.kafka_protocol_assignment(app.tables)),
            assignor._compress(metadata.dumps()),
        )
    )


def workers_of(broker: Broker, group: str) -> dict[str, ByTopic]:
    """Return the partitions of each worker of a group, by its URL."""
    return {
        _url(member.client): _by_topic(member.held)
        for member in broker.describe_group(group).members
        if _url(member.client)
    }


def _client(url: str) -> str:
    """Return the name of a worker in its group, which tells the others its URL."""
    return f"faust {url}"


def _url(client: str) -> str:
    found = re.fullmatch(r"faust (\S+)", client)
    return found[1] if found else ""


def _by_topic(partitions: Iterable[TopicPartition]) -> ByTopic:
    found: ByTopic = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


def _only(everyone: Mapping[str, ByTopic], topics: set[str]) -> dict[str, ByTopic]:
    return {url: {t: n for t, n in of.items() if t in topics} for url, of in everyone.items()}


def _partitions(link: FaustLink, topic: str) -> int:
    info = link.info(topic)
    return 0 if info is None else info.partitions
