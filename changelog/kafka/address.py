"""The URLs of Kafka clusters, `kafka://host:port[,host:port…][?property=value&…]`.

A property is any of librdkafka's (security.protocol, sasl.username, ssl.ca.location, …), except
those by which this package keeps its promises. Besides there is `replication.factor`, of topics
that are created (default: the cluster's).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from changelog.errors import InvalidConfig
from changelog.hosts import bracketed

SCHEME = "kafka://"
DEFAULT_PORT = 9092
REPLICATION_FACTOR = "replication.factor"

OURS = (
    "acks",
    "auto.offset.reset",
    "batch.num.messages",
    "batch.size",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.idempotence",
    "enable.partition.eof",
    "isolation.level",
    "linger.ms",
    "transaction.timeout.ms",
    "transactional.id",
)
"""Properties that are not the user's to choose: order, atomicity and isolation stand on them."""


@dataclass(frozen=True)
class Cluster:
    """What a URL says."""

    name: str
    """The URL without its properties, some of which are secret: for messages."""
    properties: Mapping[str, str] = field(repr=False)
    """For librdkafka, the servers included."""
    replication_factor: int = -1
    """Of new topics; -1: the cluster's default."""


def is_kafka(url: str) -> bool:
    """Whether `url` names a Kafka cluster.

    >>> is_kafka("kafka://db:9092"), is_kafka("strandline://db"), is_kafka("./data")
    (True, False, False)
    """
    return url.startswith(SCHEME)


def parse_url(url: str) -> Cluster:
    """What to connect to. Raises InvalidConfig.

    >>> parse_url("kafka://a,b:9?client.id=me").properties
    {'client.id': 'me', 'bootstrap.servers': 'a:9092,b:9'}
    """
    servers, _, query = url.removeprefix(SCHEME).partition("?")
    servers = servers.rstrip("/")
    name = f"{SCHEME}{servers}"
    # Not by urlsplit: it does not know several hosts in one URL.
    properties = dict(parse_qsl(query, keep_blank_values=True))
    for taken in OURS:
        if taken in properties:
            raise InvalidConfig(
                f"{name}: the property {taken} is set by this package, since its promises depend on "
                f"it; leave it out of the URL"
            )
    factor = _replication_factor(properties.pop(REPLICATION_FACTOR, "-1"), name)
    properties["bootstrap.servers"] = ",".join(_server(one) for one in servers.split(","))
    return Cluster(name, properties, factor)


def _replication_factor(text: str, name: str) -> int:
    if text != "-1" and not (text.isdecimal() and int(text) > 0):
        raise InvalidConfig(f"{name}: {REPLICATION_FACTOR} is a number from 1 on, got {text!r}")
    return int(text)


def _server(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or "@" in host or not port.isdecimal():
        # The text may be `user:password@host`, so it is not repeated.
        raise InvalidConfig(
            "expected kafka://host:port[,host:port…][?property=value&…]; one of the servers is no "
            "host:port (user and password are the properties sasl.username and sasl.password)"
        )
    return f"{bracketed(host.strip('[]'))}:{port}"
