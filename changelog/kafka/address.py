"""URLs of Kafka clusters, `kafka://host:port[,host:port…][?property=value&…]`.

Properties are those of librdkafka (security.protocol, sasl.username, ssl.ca.location, …), except
those that this package sets. In addition, `replication.factor` applies to topics that are created
(default: the cluster's). Properties that should not be in a URL, such as passwords, may be in the
environment variable STRANDLINE_KAFKA, in the same syntax. Properties of the URL take precedence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.hosts import parse_host_port
from strandline.changelog.location import KAFKA, KAFKA_VARIABLE, options_of
from strandline.changelog.secret import Secret, is_secret

SCHEME = f"{KAFKA}://"
DEFAULT_PORT = 9092
REPLICATION_FACTOR = "replication.factor"

_PROMISES = "order, atomicity and isolation stand on it, so it is not to be chosen"
_LIMITS = "how much is sent and fetched at once is seen to already"
_MEMBER = "log.consumer(group=…, {}=…), and App(…) likewise"
_SESSION = _MEMBER.format("session_timeout_ms")

OURS = {
    "acks": _PROMISES,
    "auto.offset.reset": "log.consumer(auto_offset_reset=…)",
    "batch.num.messages": _LIMITS,
    "batch.size": _LIMITS,
    "bootstrap.servers": "the hosts in the URL",
    "enable.auto.commit": _PROMISES,
    "enable.auto.offset.store": _PROMISES,
    "enable.idempotence": _PROMISES,
    "enable.partition.eof": _PROMISES,
    "fetch.message.max.bytes": _LIMITS,
    "fetch.wait.max.ms": _LIMITS,
    "group.id": "the name of the app is its group, or log.consumer(group=…)",
    "group.instance.id": "STRANDLINE_INSTANCE, or log.consumer(group=…, instance=…)",
    "heartbeat.interval.ms": _SESSION,
    "isolation.level": "log.consumer(isolation=…)",
    "linger.ms": "log.producer(linger_ms=…)",
    "max.partition.fetch.bytes": _LIMITS,
    "max.poll.interval.ms": _MEMBER.format("max_poll_interval_ms"),
    "message.max.bytes": "max.message.bytes of the topic",
    "metadata.broker.list": "the hosts in the URL",
    "partition.assignment.strategy": "log.consumer(group=…, assignor=…)",
    "queue.buffering.max.kbytes": _LIMITS,
    "queue.buffering.max.messages": _LIMITS,
    "queue.buffering.max.ms": "log.producer(linger_ms=…)",
    "queued.max.messages.kbytes": _LIMITS,
    "queued.min.messages": _LIMITS,
    "request.required.acks": _PROMISES,
    "session.timeout.ms": _SESSION,
    "topic.metadata.refresh.interval.ms": _LIMITS,
    "transaction.timeout.ms": "App(transaction_timeout_ms=…), or log.producer(…) likewise",
    "transactional.id": "log.producer(transactional_id=…)",
}
"""Properties that this package sets and that a URL must not, with the reason or the alternative."""


@dataclass(frozen=True)
class Cluster:
    """A parsed URL of a cluster."""

    name: str
    """URL without its properties, some of which are secret; for messages."""
    properties: Mapping[str, str] = field(repr=False)
    """Properties for librdkafka, including the servers, without secret ones."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Secret properties for librdkafka."""
    replication_factor: int = -1
    """Replication factor of new topics; -1: the cluster's default."""


def parse_url(url: str, environment: Mapping[str, str] = os.environ) -> Cluster:
    """Parse the URL of a cluster. Raises InvalidConfig.

    >>> parse_url("kafka://a,b:9?client.id=me").properties
    {'client.id': 'me', 'bootstrap.servers': 'a:9092,b:9'}
    """
    servers, _, query = url.removeprefix(SCHEME).partition("?")
    servers = servers.rstrip("/")
    name = f"{SCHEME}{servers}"
    # Parsed by hand, because urlsplit does not support several hosts in one URL.
    properties = options_of(environment.get(KAFKA_VARIABLE, "")) | options_of(query)
    for taken, instead in OURS.items():
        if taken in properties:
            raise InvalidConfig(
                f"{name}: the property {taken} is set by this package; leave it out of the URL "
                f"({instead})"
            )
    factor = _replication_factor(properties.pop(REPLICATION_FACTOR, "-1"), name)
    properties["bootstrap.servers"] = ",".join(_server(one) for one in servers.split(","))
    secrets = {name: Secret(properties.pop(name)) for name in [*properties] if is_secret(name)}
    return Cluster(name, properties, secrets, factor)


def check_files(cluster: Cluster) -> None:
    """Raise InvalidConfig for a missing certificate or key, which librdkafka would not name."""
    for name, path in cluster.properties.items():
        is_path = name.startswith(("ssl.", "https.")) and name.endswith(".location")
        if is_path and path != "probe" and not os.access(path, os.R_OK):
            what = "cannot be read" if os.path.exists(path) else "is not there"
            raise InvalidConfig(
                f"{cluster.name}: {name} names {path}, which {what} (in {os.getcwd()})"
            )


def _replication_factor(text: str, name: str) -> int:
    if text != "-1" and not (text.isdecimal() and int(text) > 0):
        raise InvalidConfig(f"{name}: {REPLICATION_FACTOR} is a number from 1 on, got {text!r}")
    return int(text)


def _server(text: str) -> str:
    try:
        return str(parse_host_port(text, port=DEFAULT_PORT))
    except InvalidConfig:
        # The message omits the text, which may be `user:password@host`.
        raise InvalidConfig(
            "expected kafka://host:port[,host:port…][?property=value&…]; one of the servers is no "
            "host:port (user and password are the properties sasl.username and sasl.password)"
        ) from None
